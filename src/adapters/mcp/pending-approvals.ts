import { createHash, randomBytes } from 'node:crypto'

/** Maximum number of pending approvals; the oldest is dropped and must be asked again. */
const MOST = 64

/**
 * Pending approvals of the user at an MCP client. SECURITY: an answer is valid once, and only for exactly the call that was
 * asked about; an approval sent with another call is ignored.
 */
export class PendingApprovals {
  readonly #waiting = new Map<string, string>()

  /** The id that the answer must contain. */
  ask(tool: string, args: unknown): string {
    const name = `approve-${randomBytes(12).toString('hex')}`
    for (const oldest of this.#waiting.keys()) {
      if (this.#waiting.size < MOST) break
      this.#waiting.delete(oldest)
    }
    this.#waiting.set(name, digestOf(tool, args))
    return name
  }

  /** Finds and consumes the id that belongs to this call. */
  take(names: readonly string[], tool: string, args: unknown): string | undefined {
    const digest = digestOf(tool, args)
    const found = names.find((name) => this.#waiting.get(name) === digest)
    if (found !== undefined) this.#waiting.delete(found)
    return found
  }
}

const digestOf = (tool: string, args: unknown): string =>
  createHash('sha256')
    .update(JSON.stringify([tool, args ?? {}]))
    .digest('hex')
