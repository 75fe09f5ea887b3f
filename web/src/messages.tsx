import { useSyncExternalStore } from 'react'
import { said } from './session.ts'

/** What went well or wrong, said for a moment at the edge of the page. */

type Message = { readonly id: number; readonly text: string; readonly bad: boolean }
let messages: readonly Message[] = []
let nextMessage = 1
const hearers = new Set<() => void>()
const setMessages = (next: readonly Message[]): void => {
  messages = next
  for (const hear of hearers) hear()
}
const MESSAGE_MS = 6000

export function tell(text: string, bad = false): void {
  const id = nextMessage++
  setMessages([...messages.slice(-3), { id, text, bad }])
  setTimeout(() => setMessages(messages.filter((one) => one.id !== id)), MESSAGE_MS)
}

/** Does something and says what went wrong; tells whether it went well. */
export async function attempt(work: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await work()
    if (done) tell(done)
    return true
  } catch (error) {
    tell(said(error), true)
    return false
  }
}

export function Messages() {
  const shown = useSyncExternalStore(
    (hear) => {
      hearers.add(hear)
      return () => hearers.delete(hear)
    },
    () => messages,
  )
  return (
    <div className="messages" role="status" aria-live="polite">
      {shown.map(({ id, text, bad }) => (
        <div key={id} className={bad ? 'message bad' : 'message'}>
          <span aria-hidden="true">{bad ? '✕ ' : '✓ '}</span>
          {text}
        </div>
      ))}
    </div>
  )
}
