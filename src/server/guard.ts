import { isIP } from 'node:net'
import { SandboxError } from '../model/errors.ts'

/** Checks that come before anything else: who is called, from which page, how often. */

const hostNameOf = (host: string): string | undefined =>
  /^(\[[0-9a-f:.]+\]|[^:[\]\s/@]+)(?::\d{1,5})?$/i.exec(host)?.[1]?.toLowerCase().replace(/\.$/, '')

/**
 * SECURITY: a web page can make a browser call us by a name that it points at our address (DNS rebinding); an address
 * itself, `localhost` and the operator's names cannot be such a name.
 */
export function checkHost(host: string | null | undefined, names: readonly string[]): void {
  const name = host ? hostNameOf(host) : undefined
  const bare = name?.replace(/^\[|\]$/g, '')
  const known =
    bare !== undefined &&
    (isIP(bare) !== 0 ||
      bare === 'localhost' ||
      bare.endsWith('.localhost') ||
      names.some((one) => fits(bare, one)))
  if (!known)
    throw new SandboxError('wrong-host', 'this server is not called by that name', {
      hint: 'add the name to `[server] hosts`',
    })
}

const fits = (name: string, known: string): boolean =>
  known.startsWith('*.') ? name.endsWith(known.slice(1).toLowerCase()) : name === known.toLowerCase()

/** A browser says which page is calling: our own, or one that the operator named. */
export function checkOrigin(
  origin: string | null | undefined,
  host: string,
  origins: readonly string[],
): void {
  if (origin === null || origin === undefined || origins.includes(origin)) return
  if (/^https?:\/\//.test(origin) && origin.replace(/^https?:\/\//, '') === host) return
  throw new SandboxError('forbidden', 'this web page may not call the server', {
    hint: 'add its origin to `[server] origins`',
  })
}

/** Terminals are for people; an operator decides whether a server gives any. */
export function assertInteractive({ allowInteractive }: { readonly allowInteractive: () => boolean }): void {
  if (allowInteractive()) return
  throw new SandboxError('interactive-disabled', 'interactive sessions are switched off', {
    hint: 'an operator can set `[policy] allow_interactive = true`',
  })
}

const MOST_NAMES = 10_000

/** A bucket that fills by the second, for each name. */
export class RateLimit {
  readonly #perSecond: number
  readonly #burst: number
  readonly #buckets = new Map<string, { left: number; at: number }>()

  constructor(perSecond: number, burst = perSecond * 2) {
    this.#perSecond = perSecond
    this.#burst = burst
  }

  /** Whether this one is still allowed. */
  take(name: string): boolean {
    const now = performance.now()
    const bucket = this.#buckets.get(name) ?? { left: this.#burst, at: now }
    bucket.left = Math.min(this.#burst, bucket.left + ((now - bucket.at) / 1000) * this.#perSecond)
    bucket.at = now
    // Re-inserted, so that the first in the map is the one longest unused.
    this.#buckets.delete(name)
    this.#buckets.set(name, bucket)
    if (this.#buckets.size > MOST_NAMES) this.#buckets.delete(this.#buckets.keys().next().value as string)
    if (bucket.left < 1) return false
    bucket.left--
    return true
  }

  assert(name: string): void {
    if (!this.take(name))
      throw new SandboxError('too-many-requests', 'too many requests', {
        hint: 'slow down',
        retryAfterSecs: 1,
      })
  }
}

/** Counts a failed authentication; throws the refusal of an address that has tried too many keys. */
export function limitWrongKeys(
  error: unknown,
  { wrongKeys }: { readonly wrongKeys: Pick<RateLimit, 'assert'> },
  address: string,
): void {
  if (error instanceof SandboxError && error.code === 'unauthenticated') wrongKeys.assert(address)
}
