import { useSyncExternalStore } from 'react'

/** The current time, updated once a second for every component that shows an age. */
const listeners = new Set<() => void>()
let now = Date.now()
setInterval(() => {
  now = Date.now()
  for (const listener of listeners) listener()
}, 1000)

export function useNow(): number {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    () => now,
  )
}
