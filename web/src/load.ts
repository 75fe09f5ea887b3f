import { useEffect, useRef, useState, useSyncExternalStore } from 'react'
import { said } from './session.ts'

/** The time, so that ages grow. */
const ticks = new Set<() => void>()
let now = Date.now()
setInterval(() => {
  now = Date.now()
  for (const tick of ticks) tick()
}, 1000)
export function useNow(): number {
  return useSyncExternalStore(
    (tick) => {
      ticks.add(tick)
      return () => ticks.delete(tick)
    },
    () => now,
  )
}

/** Loads something when its name changes, or anew with `again`; what is shown stays until the answer is there. */
export function useLoad<T>(
  name: string,
  load: () => Promise<T>,
): { readonly value?: T; readonly error?: string; readonly again: () => void } {
  const [state, setState] = useState<{ readonly value?: T; readonly error?: string }>({})
  const [turn, setTurn] = useState(0)
  const work = useRef(load)
  work.current = load
  // biome-ignore lint/correctness/useExhaustiveDependencies: `turn` asks for it anew
  useEffect(() => {
    let over = false
    work.current().then(
      (value) => !over && setState({ value }),
      (error: unknown) => !over && setState((before) => ({ ...before, error: said(error) })),
    )
    return () => {
      over = true
    }
  }, [name, turn])
  return { ...state, again: () => setTurn((before) => before + 1) }
}
