import { randomBytes } from 'node:crypto'
import { SandboxError } from '../../model/errors.ts'
import {
  extendSession,
  findSession,
  insertLink,
  insertSession,
  removeSession,
  takeLink,
} from '../../store/sessions.ts'
import type { Store } from '../../store/sql.ts'
import { hashSecret, type Keys, matchesHash, type Principal } from './keys.ts'

const LINK_MS = 10 * 60_000
/** A session expires after this long without a request. */
const IDLE_MS = 12 * 3_600_000
/** The longest lifetime of a session. */
const LONGEST_MS = 7 * 24 * 3_600_000
const EXTEND_AFTER_MS = 10 * 60_000

/** The two secrets of a session: one for the cookie, one for the page. Both are required. */
export type NewSession = { readonly cookie: string; readonly page: string; readonly principal: Principal }

const SECRET = /^[\w-]{43}$/
const newSecret = (): string => randomBytes(32).toString('base64url')

const stale = (): SandboxError =>
  new SandboxError('unauthenticated', 'this sign-in link has been used or has expired', {
    hint: 'start `ringfence serve` again for a new one, or sign in with an API key',
  })

/** Console sessions. Only hashes are stored; a session belongs to an API key and ends when the key is revoked. */
export class Sessions {
  readonly #store: Store
  readonly #keys: Keys
  readonly #listeners = new Set<() => void>()

  constructor(store: Store, keys: Keys) {
    this.#store = store
    this.#keys = keys
  }

  /** Creates the secret of a single-use sign-in link that expires soon. */
  async newLink(keyId: string): Promise<string> {
    if (!(await this.#keys.principalById(keyId)))
      throw new SandboxError('not-found', `no active key \`${keyId.slice(0, 64)}\``)
    const secret = newSecret()
    const expiresAt = Date.now() + LINK_MS
    await this.#store.write((tx) => insertLink(tx, { hash: hashSecret(secret), keyId, expiresAt }))
    return secret
  }

  /** SECURITY: the first attempt consumes the link, even if the link has expired. */
  async byLink(secret: string): Promise<NewSession> {
    if (!SECRET.test(secret)) throw stale()
    const link = await this.#store.write((tx) => takeLink(tx, hashSecret(secret)))
    if (!link || !matchesHash(secret, link.hash) || link.expiresAt <= Date.now()) throw stale()
    const principal = await this.#keys.principalById(link.keyId)
    if (!principal) throw stale()
    return this.#begin(principal)
  }

  async byKey(secret: string): Promise<NewSession> {
    const principal = await this.#keys.principalOf(secret)
    if (!principal)
      throw new SandboxError('unauthenticated', 'a valid API key is needed', {
        hint: 'create one with `ringfence key create --scope create,exec,read,admin`',
      })
    return this.#begin(principal)
  }

  async #begin(principal: Principal): Promise<NewSession> {
    const [cookie, page] = [newSecret(), newSecret()]
    const now = Date.now()
    await this.#store.write((tx) =>
      insertSession(tx, {
        hash: hashSecret(cookie),
        pageHash: hashSecret(page),
        keyId: principal.keyId,
        createdAt: now,
        expiresAt: now + IDLE_MS,
      }),
    )
    return { cookie, page, principal }
  }

  /** The principal of a session. Not cached, so that a revoked key is rejected at once. */
  async principalOf(cookie: string, page: string): Promise<Principal | undefined> {
    if (!SECRET.test(cookie) || !SECRET.test(page)) return undefined
    const row = await findSession(this.#store, hashSecret(cookie))
    if (!row || !matchesHash(cookie, row.hash) || !matchesHash(page, row.pageHash)) return undefined
    const now = Date.now()
    if (row.expiresAt <= now) return undefined
    const until = Math.min(now + IDLE_MS, row.createdAt + LONGEST_MS)
    if (until - row.expiresAt > EXTEND_AFTER_MS)
      await this.#store.write((tx) => extendSession(tx, row.hash, until))
    return this.#keys.principalById(row.keyId)
  }

  /** Why a session that used to be valid is not any more. */
  async whyOut(cookie: string): Promise<'signed-out' | 'expired' | 'revoked'> {
    const row = await findSession(this.#store, hashSecret(cookie))
    if (!row) return 'signed-out'
    return row.expiresAt <= Date.now() ? 'expired' : 'revoked'
  }

  async end(cookie: string): Promise<void> {
    await this.#store.write((tx) => removeSession(tx, hashSecret(cookie)))
    for (const listener of this.#listeners) listener()
  }

  /** Calls the listener when a user signs out on this server. */
  onEnded(listener: () => void): void {
    this.#listeners.add(listener)
  }
}
