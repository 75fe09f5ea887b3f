import type { Context } from 'hono'
import { SandboxError } from '../model/errors.ts'
import { type Keys, matchesHash, type Principal, type Scope } from '../supervisor/access/keys.ts'
import type { Supervisor } from '../supervisor/supervisor.ts'
import type { AppEnv } from './app.ts'
import { clientAddress } from './cluster/peers.ts'
import { limitWrongKeys } from './guard.ts'
import type { ServerParts } from './parts.ts'

/**
 * Who is asking: `Authorization: Bearer`, `X-API-KEY`, a sandbox's own token in either or, as E2B's clients send it, in
 * `X-Access-Token`; for web pages, whose sockets cannot send headers, the WebSocket subprotocol `bearer.<secret>`.
 */
export function secretIn(headers: Headers): string | undefined {
  const bearer = /^Bearer ([\x21-\x7e]{1,256})$/i.exec(headers.get('authorization') ?? '')?.[1]
  if (bearer) return bearer
  const key = headers.get('x-api-key')
  if (key && key.length <= 256) return key
  const access = headers.get('x-access-token')
  if (access && access.length <= 256) return access
  return /(?:^|,\s*)bearer\.([\w-]{1,256})/.exec(headers.get('sec-websocket-protocol') ?? '')?.[1]
}

/** Finds out who sends a request. */
export type Authenticator = {
  readonly principalOf: (headers: Headers, sandboxId: string | undefined) => Promise<Principal>
}

const unauthenticated = (): SandboxError =>
  new SandboxError('unauthenticated', 'a valid API key is needed', {
    hint: 'send `Authorization: Bearer rf_…`; make one with `ringfence key create`',
  })

/** SECURITY: a wrong key, a revoked key and another sandbox's token get the same answer. */
export function authenticator(keys: Keys, supervisor: Pick<Supervisor, 'tokenHash'>): Authenticator {
  return {
    async principalOf(headers, sandboxId) {
      const secret = secretIn(headers)
      if (secret === undefined) throw unauthenticated()
      if (!secret.startsWith('rfs_')) {
        const principal = await keys.principalOf(secret)
        if (principal) return principal
        throw unauthenticated()
      }
      const known = sandboxId === undefined ? undefined : await supervisor.tokenHash(sandboxId)
      if (!known || !matchesHash(secret, known.hash)) throw unauthenticated()
      const maker = await makerInForce(keys, known.keyId)
      return {
        keyId: known.keyId,
        tenant: known.tenant,
        scopes: tokenScopes(maker),
        sandboxId: sandboxId as string,
        madeByOperator: maker.scopes.includes('admin'),
      }
    },
  }
}

/** SECURITY: what a key gave out (tokens, signed addresses) ends with the key. */
export async function makerInForce(keys: Keys, keyId: string): Promise<Principal> {
  const maker = await keys.principalById(keyId)
  if (!maker) throw unauthenticated()
  return maker
}

/**
 * Lets a request in by something that a key gave out and that names the key: a signed address, the token of a volume. `keyIdOf`
 * throws unless it is genuine. SECURITY: like a request with the key itself it counts for the rate of the key, a wrong one counts
 * for the rate of the address, and an answer that is open ends with the key.
 */
export async function enterByMaker(
  parts: Pick<ServerParts, 'keys' | 'requests' | 'streams' | 'wrongKeys'>,
  context: Context<AppEnv>,
  keyIdOf: () => string | Promise<string>,
): Promise<Principal> {
  try {
    const keyId = await keyIdOf()
    const ask = (): Promise<Principal> => makerInForce(parts.keys, keyId)
    const maker = await ask()
    context.set('principal', maker)
    parts.requests.assert(keyId)
    // Stands for the key, and for nothing that opens anything.
    const headers = new Headers({ authorization: `Bearer maker.${keyId}` })
    parts.streams.enter('secret', headers, undefined, ask, context.env?.outgoing)
    return maker
  } catch (error) {
    limitWrongKeys(error, parts, clientAddress(context.env?.incoming))
    throw error
  }
}

const TOKEN_SCOPES: readonly Scope[] = ['exec', 'read']

/** SECURITY: the token of a sandbox does no more than the key that made the sandbox may. */
const tokenScopes = ({ scopes }: Principal): readonly Scope[] =>
  scopes.includes('admin') ? TOKEN_SCOPES : TOKEN_SCOPES.filter((scope) => scopes.includes(scope))

/** Whether a key may see the token of a sandbox: only if it could create the sandbox and do everything that the token permits. */
export const mayHoldToken = ({ scopes, sandboxId }: Principal): boolean =>
  sandboxId === undefined &&
  (scopes.includes('admin') || [...TOKEN_SCOPES, 'create' as const].every((scope) => scopes.includes(scope)))

/** Throws unless the principal may do this. */
export function authorize(principal: Principal, scope: Scope, sandboxToken: boolean): void {
  if (principal.sandboxId !== undefined && !sandboxToken)
    throw new SandboxError('forbidden', 'a sandbox token does not open this')
  if (!principal.scopes.includes('admin') && !principal.scopes.includes(scope))
    throw new SandboxError('forbidden', `this key lacks the scope \`${scope}\``)
}
