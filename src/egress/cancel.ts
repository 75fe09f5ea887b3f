/** What may end work from outside: whoever works asks it or listens to it. */
export interface CancelSignal {
  /** Why it is over; `undefined` while it is not. */
  readonly reason: unknown
  /** Calls back once, at once when it is over already. The answer stops that. */
  listen(listener: () => void): () => void
}

/** Ends once, with a reason. An AbortController does the same for ten times the price, and each connection has two. */
export class Cancellation implements CancelSignal {
  readonly #listeners = new Set<() => void>()
  #reason: unknown

  get reason(): unknown {
    return this.#reason
  }

  listen(listener: () => void): () => void {
    if (this.#reason !== undefined) listener()
    else this.#listeners.add(listener)
    return () => void this.#listeners.delete(listener)
  }

  cancel(reason: Error): void {
    if (this.#reason !== undefined) return
    this.#reason = reason
    const listeners = [...this.#listeners]
    this.#listeners.clear()
    for (const listener of listeners) listener()
  }
}

/** A caller's signal, for work that goes on until then. */
export const cancelSignalOf = (signal: AbortSignal): CancelSignal => ({
  get reason() {
    return signal.aborted ? signal.reason : undefined
  },
  listen: (listener) => {
    if (signal.aborted) listener()
    else signal.addEventListener('abort', listener, { once: true })
    return () => signal.removeEventListener('abort', listener)
  },
})
