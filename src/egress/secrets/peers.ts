import { SandboxError } from '../../model/errors.ts'
import { peerOf } from '../../policy/network/network.ts'
import type { Resolve } from '../upstream/names.ts'
import { type Judged, lookUp } from '../upstream/resolve.ts'

const REFRESH_MS = 5000
const MAX_PEERS = 1024

/**
 * The addresses where the host of a secret was found while the sandbox ran. What decides is where a connection leads, not
 * how it is written: a server returns what it has under another of its names, too.
 */
export class Peers {
  readonly #host: string
  /** The latest is last. */
  readonly #found = new Set<string>()
  #first: Promise<void> | undefined
  #due = 0

  constructor(host: string) {
    this.#host = host
  }

  /**
   * Whether this connection leads to the host. SECURITY: rejects an address literal that does or may lead there: nobody can tell
   * for which of its names a client speaks to an address.
   */
  async include({ target, addresses }: Judged, resolve: Resolve): Promise<boolean> {
    if (target.host === this.#host) {
      this.#add(addresses)
      return true
    }
    await this.#lookUpFirst(resolve)
    const met = addresses.some((address) => this.#found.has(peerOf(address)))
    if (target.literal === undefined) return met
    const reached = 'which has a secret and is reached by its name alone'
    if (met)
      throw new SandboxError('ssrf-blocked', `\`${target.host}\` leads to \`${this.#host}\`, ${reached}`)
    if (this.#found.size === 0)
      throw new SandboxError('ssrf-blocked', `\`${target.host}\` may lead to \`${this.#host}\`, ${reached}`)
    return false
  }

  /** Only the first lookup is waited for: the host's names server must not slow down connections to other hosts. */
  async #lookUpFirst(resolve: Resolve): Promise<void> {
    if (performance.now() >= this.#due) {
      this.#due = performance.now() + REFRESH_MS
      const lookup = lookUp(this.#host, { resolve }).then(
        (addresses) => this.#add(addresses),
        () => undefined,
      )
      this.#first ??= lookup
    }
    await this.#first
  }

  #add(addresses: readonly string[]): void {
    for (const peer of addresses.map(peerOf)) {
      this.#found.delete(peer)
      this.#found.add(peer)
    }
    for (const oldest of this.#found) {
      if (this.#found.size <= MAX_PEERS) break
      this.#found.delete(oldest)
    }
  }
}
