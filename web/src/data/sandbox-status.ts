import { useMemo } from 'react'
import type { ConsoleSandbox } from '../../../src/client/console-types.ts'
import type { Approval } from '../../../src/client/types.ts'
import { safeLine, shortId } from '../format.ts'
import { useIdentity, useLiveData } from './live-context.ts'

/** The oldest pending approval of each sandbox that has one. */
export function usePendingApprovals(): ReadonlyMap<string, Approval> {
  const { approvals } = useLiveData()
  return useMemo(
    () =>
      new Map(
        approvals
          .toReversed()
          .flatMap((approval) => (approval.sandbox_id ? [[approval.sandbox_id, approval]] : [])),
      ),
    [approvals],
  )
}

/** The status shown for a sandbox: its state, or that a command in it waits for an approval. */
export function useSandboxStatus(): (sandbox: ConsoleSandbox) => string {
  const pending = usePendingApprovals()
  const { operator } = useIdentity()
  const waiting = operator ? 'needs approval' : 'awaiting approval'
  // The stream may report the approval before the sandbox's new state.
  return ({ id, state }) => (['ready', 'executing'].includes(state) && pending.has(id) ? waiting : state)
}

/** The name of a sandbox that the page knows, else the start of its id. */
export function useSandboxName(): (id: string) => string {
  const { sandboxes, ended } = useLiveData()
  const names = useMemo(
    () => new Map([...sandboxes, ...ended].map(({ id, metadata }) => [id, metadata.name])),
    [sandboxes, ended],
  )
  return (id) => safeLine(names.get(id) || shortId(id))
}

export const hasEnded = ({ state }: ConsoleSandbox): boolean => state === 'destroyed' || state === 'failed'

/** How long a sandbox has existed, or did. */
export const ageOf = ({ created_at, ended_at }: ConsoleSandbox, now: number): number =>
  Math.max(0, (ended_at ? Date.parse(ended_at) : now) - Date.parse(created_at))
