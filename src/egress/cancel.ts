import { SandboxError } from '../model/errors.ts'

/** A cancellation signal that work can poll or listen to. */
export interface CancelSignal {
  /** The reason for the cancellation; `undefined` before it. */
  readonly reason: unknown
  /** Calls back once, immediately if already cancelled. Returns a function that unsubscribes. */
  listen(listener: () => void): () => void
}

/** Cancels once, with a reason. An AbortController is ten times as expensive, and each connection needs two. */
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

/** Wraps a caller's AbortSignal. */
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

/** Rejects when it is cancelled, also if the work goes on. */
export async function orCancelled<T>(work: Promise<T>, until: CancelSignal): Promise<T> {
  let leave = (): void => undefined
  const cancelled = new Promise<never>((_, reject) => {
    leave = until.listen(() => reject(until.reason))
  })
  try {
    return await Promise.race([work, cancelled])
  } finally {
    leave()
    work.catch(() => undefined)
  }
}

/** Cancelled by the outer signal or by this timeout. */
export function deadline(
  ms: number,
  missing: string,
  outer?: CancelSignal,
): { readonly until: CancelSignal; stop(): void } {
  const inner = new Cancellation()
  const timer = setTimeout(() => inner.cancel(new SandboxError('timeout', `${missing} within ${ms} ms`)), ms)
  const leave = outer?.listen(() => inner.cancel(outer.reason as Error))
  return {
    until: inner,
    stop: () => {
      clearTimeout(timer)
      leave?.()
    },
  }
}
