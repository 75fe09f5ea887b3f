import { useEffect, useRef, useState } from 'react'
import { errorText } from './error-text.ts'

export type Loaded<T> = { readonly value?: T; readonly error?: string; readonly reload: () => void }

/** Loads a value when `key` changes or `reload` is called; the previous value stays until the new one arrives. */
export function useLoad<T>(key: string, load: () => Promise<T>): Loaded<T> {
  const [state, setState] = useState<{ readonly value?: T; readonly error?: string }>({})
  const [attempt, setAttempt] = useState(0)
  const latest = useRef(load)
  latest.current = load
  // biome-ignore lint/correctness/useExhaustiveDependencies: `attempt` triggers a reload
  useEffect(() => {
    let cancelled = false
    latest.current().then(
      (value) => !cancelled && setState({ value }),
      (error: unknown) => !cancelled && setState((before) => ({ ...before, error: errorText(error) })),
    )
    return () => {
      cancelled = true
    }
  }, [key, attempt])
  return { ...state, reload: () => setAttempt((before) => before + 1) }
}
