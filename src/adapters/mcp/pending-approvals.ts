import { createHash, randomBytes } from 'node:crypto'

/** More than these are not waited for; the oldest is asked again. */
const MOST = 64

/**
 * Questions to the person at an MCP client that wait for an answer. SECURITY: an answer counts once, and only for the very
 * call that was asked about: a yes that is sent along with another call is no answer to it.
 */
export class PendingApprovals {
  readonly #waiting = new Map<string, string>()

  /** The name under which the answer has to come back. */
  ask(tool: string, args: unknown): string {
    const name = `approve-${randomBytes(12).toString('hex')}`
    for (const oldest of this.#waiting.keys()) {
      if (this.#waiting.size < MOST) break
      this.#waiting.delete(oldest)
    }
    this.#waiting.set(name, digestOf(tool, args))
    return name
  }

  /** The name among these that answers a question about this call; it is used up by that. */
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
