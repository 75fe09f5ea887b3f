import { useMemo } from 'react'
import type { ConsoleSandbox } from '../../src/client/console-types.ts'
import type { Approval } from '../../src/client/types.ts'
import { useLive, useSnapshot } from './live.ts'

/** The first open question of each sandbox that has one. */
export function useWaiting(): ReadonlyMap<string, Approval> {
  const { approvals } = useSnapshot()
  return useMemo(
    () => new Map(approvals.toReversed().flatMap((one) => (one.sandbox_id ? [[one.sandbox_id, one]] : []))),
    [approvals],
  )
}

/** A command that waits for a person does nothing: whoever looks should see that it is up to them. */
export function useStateWord(): (one: ConsoleSandbox) => string {
  const waiting = useWaiting()
  const { who } = useLive()
  const word = who.operator ? 'waiting for you' : 'waiting'
  // The state may be told a moment later than the question.
  return (one) => (['ready', 'executing'].includes(one.state) && waiting.has(one.id) ? word : one.state)
}
