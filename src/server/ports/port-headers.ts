import type { IncomingHttpHeaders, IncomingMessage, OutgoingHttpHeaders } from 'node:http'
import { isPortHost } from '../e2b/ids.ts'

/** Headers in which the server looks for a credential. */
const CREDENTIALS: ReadonlySet<string> = new Set([
  'authorization',
  'x-api-key',
  'x-access-token',
  'e2b-traffic-access-token',
  'cookie',
  'cookie2',
  'x-ringfence-console',
  'sec-websocket-protocol',
])

/** Headers of ours: they name a sandbox, a node or a client. */
const OURS = /^(x-)?(ringfence|e2b)-/

/** In these a proxy in front of the server says who was logged in, often with a token that opens other services too. */
const IDENTITY =
  /^(cf-access-|x-goog-iap-|x-goog-authenticated-|x-amzn-oidc-|x-ms-(token|client-principal)|x-auth-request-|x-forwarded-(access-token|id-token|user|email|groups|preferred-username)|x-(pomerium|authentik|vouch|remote|webauth)-|remote-|tailscale-|ssl-client-|x-ssl-client-|x-client-cert)/

/** The forms of our keys and tokens. */
const SECRET = /(?:^|[^A-Za-z0-9])(?:rf|rfs|rfj|e2b)_[0-9a-f]{20,}/

/**
 * The headers of a request that a program in a sandbox receives. SECURITY: programs may have headers of their own, so the list
 * is not closed; instead a credential is recognised by its header, by its form, and wherever else the client repeats it.
 */
export function innerRequestHeaders(headers: IncomingHttpHeaders): OutgoingHttpHeaders {
  const isOurs = (name: string): boolean => CREDENTIALS.has(name) || OURS.test(name) || IDENTITY.test(name)
  const secrets = Object.entries(headers).flatMap(([name, value]) =>
    CREDENTIALS.has(name) ? wordsOf(value) : [],
  )
  const isSecret = (text: string): boolean =>
    SECRET.test(text) || secrets.some((secret) => text.includes(secret))
  return Object.fromEntries(
    Object.entries(headers).filter(
      ([name, value]) => !isOurs(name) && !HOP_BY_HOP.includes(name) && !isSecret(String(value)),
    ),
  )
}

/** What could be a secret in the value of a header: long words, without the names of schemes, cookies and protocols. */
const wordsOf = (value: string | string[] | undefined): readonly string[] =>
  String(value ?? '')
    .split(/[\s;,=.]+/)
    .filter((word) => word.length >= MIN_SECRET)
const MIN_SECRET = 16

/**
 * Which headers of a program inside reach the browser. SECURITY: a browser applies many of them to the whole origin or host that
 * answered, not to the one page, and remembers them. On `…/ports/{port}/` that origin is the server's own; on a port's own name
 * (`<port>-<id>.<domain>`) it is the program's.
 */

/** Headers that belong to one connection and are never passed on, in either direction. */
const HOP_BY_HOP: readonly string[] = [
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

/** Never passed on: instructions to a proxy in front of the server, which would send its own files or other pages instead. */
const TO_PROXIES = /^(x-accel-|x-sendfile|x-send-file|x-lighttpd-|x-litespeed-|x-reproxy-|surrogate-|cdn-)/

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

/** Never passed on: another node would take them for words of this one. */
const BETWEEN_NODES = /^ringfence-/

const isKeptInAnswer = (name: string): boolean =>
  !NEVER.has(name) && !TO_PROXIES.test(name) && !BETWEEN_NODES.test(name)

/** What may be passed on, as pairs, in the program's order. */
export function passedHeaders(
  { rawHeaders }: Pick<IncomingMessage, 'rawHeaders'>,
  host: string | undefined,
  isKept: (name: string) => boolean = isKeptInAnswer,
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
export const isKeptWhenSwitching = (name: string): boolean => AGREEING.includes(name) || isKeptInAnswer(name)
