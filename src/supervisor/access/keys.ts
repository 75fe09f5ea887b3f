import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import { SandboxError } from '../../model/errors.ts'
import type { Requester } from '../../model/requester.ts'
import { findKey, findKeyByHash, insertKey, type KeyRow, listKeys, revokeKey } from '../../store/keys.ts'
import type { Store } from '../../store/sql.ts'

/** What a key may do. `admin` is the operator: it sees every tenant and answers approvals. */
export const SCOPES = ['create', 'exec', 'read', 'admin', 'metrics'] as const
/** What a key may do. */
export type Scope = (typeof SCOPES)[number]

/** The tenant of keys created without one. */
const DEFAULT_TENANT = 'default'

/** The authenticated caller of a request. */
export type Principal = {
  readonly keyId: string
  readonly tenant: string
  readonly scopes: readonly Scope[]
  /** Set for a sandbox's own token, which gives access to that sandbox only. */
  readonly sandboxId?: string
  /** Set for a sandbox's own token: an operator's key created the sandbox, so it may have everything the policy permits. */
  readonly madeByOperator?: boolean
}

/** Whether a key has the scope `admin`. */
export const isOperator = (principal: Principal): boolean => principal.scopes.includes('admin')

/** The caller as the policy sees it. */
export const requesterOf = (principal: Principal): Requester => ({
  tenant: principal.tenant,
  operator: isOperator(principal) || principal.madeByOperator === true,
})

/** SECURITY: secrets are long and random, so a single SHA-256 round is enough; they cannot be guessed. */
export const hashSecret = (secret: string): string => createHash('sha256').update(secret).digest('hex')

/** A new random token of a sandbox. */
export const newSandboxToken = (): string => `rfs_${randomBytes(24).toString('hex')}`

/** Compares a secret with a hash in constant time. */
export const matchesHash = (secret: string, hash: string): boolean => {
  const own = Buffer.from(hashSecret(secret), 'hex')
  const other = Buffer.from(hash, 'hex')
  return own.length === other.length && timingSafeEqual(own, other)
}

/** What a new key should be. */
export type NewKey = {
  readonly name?: string | undefined
  readonly scopes?: readonly Scope[] | undefined
  readonly tenant?: string | undefined
  /** Use the format that E2B's clients require. */
  readonly e2b?: boolean | undefined
}

/** A key without its secret. */
export type KeyInfo = Omit<KeyRow, 'hash'>

/** The API keys: the secret is shown once, only its hash is stored. */
export class Keys {
  readonly #store: Store
  readonly #newId: (prefix: string) => string
  readonly #listeners = new Set<() => void>()

  constructor(store: Store, newId: (prefix: string) => string) {
    this.#store = store
    this.#newId = newId
  }

  /** Returns the secret, which is never shown again. */
  async create({
    name,
    scopes,
    tenant,
    e2b,
  }: NewKey): Promise<{ readonly secret: string; readonly key: KeyInfo }> {
    const secret = `${e2b ? 'e2b' : 'rf'}_${randomBytes(20).toString('hex')}`
    const key: KeyRow = {
      id: this.#newId('key'),
      hash: hashSecret(secret),
      name: name ?? '',
      start: secret.slice(0, 8),
      scopes: scopes && scopes.length > 0 ? scopes : ['create', 'exec', 'read'],
      tenant: tenant ?? DEFAULT_TENANT,
      createdAt: Date.now(),
      revokedAt: null,
    }
    await this.#store.write((tx) => insertKey(tx, key))
    return { secret, key: withoutHash(key) }
  }

  async list(): Promise<readonly KeyInfo[]> {
    return (await listKeys(this.#store)).map(withoutHash)
  }

  async revoke(id: string): Promise<void> {
    if (!(await this.#store.write((tx) => revokeKey(tx, id, Date.now()))))
      throw new SandboxError('not-found', `no such key \`${id}\``)
    for (const listener of this.#listeners) listener()
  }

  /** Calls the listener when this server revokes a key. */
  onRevoked(listener: () => void): void {
    this.#listeners.add(listener)
  }

  /** The principal of a secret. Not cached, so that a revoked key is rejected at once. */
  async principalOf(secret: string): Promise<Principal | undefined> {
    if (!/^(rf|e2b)_[0-9a-f]{40}$/.test(secret)) return undefined
    const hash = hashSecret(secret)
    const key = await findKeyByHash(this.#store, hash)
    if (!key || key.revokedAt !== null || !matchesHash(secret, key.hash)) return undefined
    return principalOf(key)
  }

  /** The principal of a key that is not revoked. */
  async principalById(id: string): Promise<Principal | undefined> {
    const key = await findKey(this.#store, id)
    return key && key.revokedAt === null ? principalOf(key) : undefined
  }

  /** The operator key behind this server's sign-in links; its secret is never shown. */
  async consoleKey(): Promise<string> {
    const known = (await this.list()).find(
      ({ name, revokedAt }) => name === CONSOLE_KEY && revokedAt === null,
    )
    return known?.id ?? (await this.create({ name: CONSOLE_KEY, scopes: SCOPES })).key.id
  }
}

const CONSOLE_KEY = 'console sign-in links'

const principalOf = (key: KeyRow): Principal => ({
  keyId: key.id,
  tenant: key.tenant,
  scopes: key.scopes as readonly Scope[],
})

const withoutHash = ({ hash: _hash, ...rest }: KeyRow): KeyInfo => rest
