import { SandboxError } from '../../model/errors.ts'
import type { StreamEndReason } from '../../model/stream-end.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { Sessions } from '../../supervisor/access/sessions.ts'

/**
 * How the console's page says who it is: an HttpOnly cookie, and the other half of the session in a header.
 *
 * SECURITY: cookies know no ports, so whatever else is served on this address gets the cookie too, and `SameSite` lets it
 * through. The other half lies in storage that belongs to our origin alone and travels in a header that no form, image or
 * link can send; without both nothing is opened. Scripts cannot read the first half, so neither can be carried off whole.
 */
const PAGE_HEADER = 'x-ringfence-console'

const NAMES = ['__Host-ringfence', 'ringfence_session'] as const
const SAFE = ['GET', 'HEAD']

/** The value to set. An empty one takes it away. */
export function sessionCookie(value: string, secure: boolean): string {
  const name = secure ? NAMES[0] : NAMES[1]
  const end = value === '' ? '; Max-Age=0' : ''
  return `${name}=${value}; Path=/; HttpOnly; SameSite=Strict${secure ? '; Secure' : ''}${end}`
}

/** The session cookie of a request. SECURITY: the first name comes first, because a page of a port can set the second for a parent domain. */
export function cookieIn(headers: Headers): string | undefined {
  const pairs = (headers.get('cookie') ?? '').split(/;\s*/).map((pair) => pair.split('=', 2))
  return NAMES.map((known) => pairs.find(([name, value]) => name === known && value)?.[1]).find(Boolean)
}

/** Web pages cannot send headers with a socket; there the other half is a subprotocol. */
const pageIn = (headers: Headers): string | undefined =>
  headers.get(PAGE_HEADER) ??
  /(?:^|,\s*)console\.([\w-]{1,64})/.exec(headers.get('sec-websocket-protocol') ?? '')?.[1]

/** Throws unless the browser says that our own page is asking. */
export function assertOwnPage(headers: Headers, method: string): void {
  const site = headers.get('sec-fetch-site')
  const origin = headers.get('origin')
  const own = origin !== null && origin.replace(/^https?:\/\//, '') === headers.get('host')
  if (SAFE.includes(method) && origin === null && (site === null || site === 'same-origin')) return
  if (own && (site === null || site === 'same-origin')) return
  throw new SandboxError('forbidden', 'this does not come from the console', {
    hint: 'programs use an API key: `Authorization: Bearer rf_…`',
  })
}

/** Who a request with a cookie comes from; nothing when it has none. */
export async function consolePrincipal(
  sessions: Sessions,
  headers: Headers,
  method: string,
): Promise<Principal | undefined> {
  const cookie = cookieIn(headers)
  const page = pageIn(headers)
  if (cookie === undefined || page === undefined) return undefined
  assertOwnPage(headers, method)
  return sessions.principalOf(cookie, page)
}

/** Why the credentials in these headers are no longer valid. */
export async function whyOut(sessions: Sessions, headers: Headers): Promise<StreamEndReason> {
  const cookie = pageIn(headers) === undefined ? undefined : cookieIn(headers)
  return cookie === undefined ? 'revoked' : sessions.whyOut(cookie)
}
