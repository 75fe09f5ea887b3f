import { SandboxError } from '../../model/errors.ts'

/** Requests that are not answered yet, and their size together if one of them is not small. */
const MAX_UNANSWERED = 512
const MAX_UNANSWERED_BYTES = 16 * 1024 * 1024
const SMALL = 16 * 1024

/** Limits what the requests of one session keep in memory until their answers were sent. */
export class RequestLimits {
  #count = 0
  #bytes = 0
  #last: Promise<unknown> = Promise.resolve()

  /** Counts a request until the result is called. */
  admit(size: number): () => void {
    const isTooLarge = size > SMALL && this.#bytes > 0 && this.#bytes + size > MAX_UNANSWERED_BYTES
    if (this.#count >= MAX_UNANSWERED || isTooLarge)
      throw new SandboxError(
        'resource-limit-exceeded',
        'too many requests of this session are not answered yet',
        { hint: 'wait for the answers before sending more' },
      )
    this.#count++
    this.#bytes += size
    return () => {
      this.#count--
      this.#bytes -= size
    }
  }

  /** One large answer at a time: the next one is made when this one was sent. */
  inTurn(work: () => Promise<void>): Promise<void> {
    const done = this.#last.then(work, work)
    this.#last = done.catch(() => {})
    return done
  }
}
