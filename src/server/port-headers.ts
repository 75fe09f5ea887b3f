import type { IncomingMessage } from 'node:http'
import { isPortHost } from './e2b/ids.ts'

/**
 * Which headers of a program inside reach the browser. SECURITY: a browser applies many of them to the whole origin or host that
 * answered, not to the one page, and remembers them. On `…/ports/{port}/` that origin is the server's own; on a port's own name
 * (`<port>-<id>.<domain>`) it is the program's.
 */

/** Headers that belong to one connection and are never passed on, in either direction. */
export const HOP_BY_HOP: readonly string[] = [
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
]

/** Never passed on: they act beyond the host that sends them, or on the connection. */
const NEVER: ReadonlySet<string> = new Set([
  ...HOP_BY_HOP,
  'content-length',
  // A cookie can be set for the parent domain, which is the server's.
  'set-cookie',
  'set-cookie2',
  // Clears the cookies of the whole registrable domain, the console's among them.
  'clear-site-data',
])

/** Not passed on from an address of the server itself; each is remembered for its origin or host. */
const NOT_FROM_OUR_ORIGIN: ReadonlySet<string> = new Set([
  // The browser would refuse plain HTTP, or other certificates, for this host and all below it.
  'strict-transport-security',
  'public-key-pins',
  'public-key-pins-report-only',
  'expect-ct',
  // Later requests to the server would go to another port or host.
  'alt-svc',
  // Reports about the server's own pages would go to an address that the program names.
  'report-to',
  'reporting-endpoints',
  'nel',
  'secure-session-registration',
  'sec-session-registration',
  'shared-storage-write',
  'attribution-reporting-register-source',
  'attribution-reporting-register-trigger',
  'speculation-rules',
  // A service worker would stand before every page of the server.
  'service-worker-allowed',
  // Settings of the origin: client hints, agent clusters, dictionaries, the state of a login, stored permissions.
  'accept-ch',
  'critical-ch',
  'origin-agent-cluster',
  'use-as-dictionary',
  'set-login',
  'origin-trial',
  'activate-storage-access',
  // A password prompt in the server's name; what is typed never reaches the program anyway.
  'www-authenticate',
  'authentication-info',
])

/** What may be passed on, as pairs, in the program's order. */
export function passedHeaders(
  { rawHeaders }: Pick<IncomingMessage, 'rawHeaders'>,
  host: string | undefined,
  isKept: (name: string) => boolean = (name) => !NEVER.has(name),
): readonly (readonly [string, string])[] {
  const isOurOrigin = !isPortHost(host ?? '')
  const pairs: [string, string][] = []
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const [name, value] = [rawHeaders[at] as string, rawHeaders[at + 1] as string]
    const lower = name.toLowerCase()
    if (isKept(lower) && !(isOurOrigin && NOT_FROM_OUR_ORIGIN.has(lower))) pairs.push([name, value])
  }
  return pairs
}

/** A 101 keeps what agrees on the new protocol. */
const AGREEING = ['connection', 'upgrade']
/** Whether a header of a 101 answer is passed on. */
export const isKeptWhenSwitching = (name: string): boolean => AGREEING.includes(name) || !NEVER.has(name)
