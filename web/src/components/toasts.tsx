import { useSyncExternalStore } from 'react'
import { errorText } from '../data/error-text.ts'

/** Short messages about the outcome of an action. */

type Toast = { readonly id: number; readonly text: string; readonly isError: boolean }
let toasts: readonly Toast[] = []
let nextId = 1
const listeners = new Set<() => void>()
const setToasts = (next: readonly Toast[]): void => {
  toasts = next
  for (const listener of listeners) listener()
}
const TOAST_MS = 6000

export function showToast(text: string, isError = false): void {
  const id = nextId++
  setToasts([...toasts.slice(-3), { id, text, isError }])
  setTimeout(() => setToasts(toasts.filter((toast) => toast.id !== id)), TOAST_MS)
}

/** Runs an action and shows its outcome; resolves to whether it succeeded. */
export async function attempt(action: () => Promise<unknown>, successText?: string): Promise<boolean> {
  try {
    await action()
    if (successText) showToast(successText)
    return true
  } catch (error) {
    showToast(errorText(error), true)
    return false
  }
}

export function Toasts() {
  const shown = useSyncExternalStore(
    (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    () => toasts,
  )
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map(({ id, text, isError }) => (
        <div key={id} className={isError ? 'toast error' : 'toast'}>
          <span aria-hidden="true">{isError ? '✕ ' : '✓ '}</span>
          {text}
        </div>
      ))}
    </div>
  )
}
