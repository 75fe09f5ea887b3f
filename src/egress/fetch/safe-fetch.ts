import type { IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { LONGEST_TIMER_MS } from '../../host/clock.ts'
import { SandboxError } from '../../model/errors.ts'
import { MAX_REDIRECTS, redirectOf } from '../../policy/network/fetch-walk.ts'
import { type NetworkPolicy, networkPolicyOf, type Target } from '../../policy/network/network.ts'
import { cancelSignalOf } from '../cancel.ts'
import { dial } from '../upstream/dial.ts'
import type { Resolve } from '../upstream/names.ts'
import { resolveJudged } from '../upstream/resolve.ts'
import { ask, callerHeaders, flatHeaders, readBody, redirected, type Sent } from './request.ts'

/** Permitted targets, and how names are resolved. */
export type UrlOptions = {
  /** Only these hosts (`*.example.com`, `@registries`); absent: every public one. */
  readonly allowHosts?: readonly string[]
  /** Private addresses or ranges that are allowed. Metadata services never are. */
  readonly allowPrivate?: readonly string[]
  readonly resolve?: Resolve
  readonly signal?: AbortSignal
}

/** The options of a fetch that never reaches a private address. */
export type SafeFetchOptions = UrlOptions & {
  readonly method?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string | Uint8Array
  /** Limit of the response body; default 10 MiB. */
  readonly maxBytes?: number
  /** Timeout of the whole fetch including redirects; default 30 s. */
  readonly timeoutMs?: number
  /** Default and maximum 5; 0 returns the redirect itself. */
  readonly maxRedirects?: number
  /** Certificates to trust instead of the system's, as PEM. */
  readonly ca?: string
}

/** The answer to such a fetch. */
export type SafeResponse = {
  /** The final URL after redirects. */
  readonly url: string
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: Uint8Array
  /** Every address that was connected to, in order. */
  readonly addresses: readonly string[]
}

/** A checked URL with its checked addresses. */
export type PublicUrl = { readonly url: URL; readonly addresses: readonly string[] }

const MAX_BYTES = 10 * 1024 * 1024
const TIMEOUT_MS = 30_000
const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']

const ssrf = (reason: string): SandboxError => new SandboxError('ssrf-blocked', reason)

/**
 * Throws `ssrf-blocked` unless the URL and every address of its name are public. The name is resolved once: connect to
 * one of the returned addresses and never to the name.
 */
export async function assertPublicUrl(url: string | URL, options: UrlOptions = {}): Promise<PublicUrl> {
  const { target, addresses } = await resolveTarget(networkPolicyOf(options), String(url), options)
  return { url: target.url, addresses }
}

type Resolved = { readonly target: Target & { readonly url: URL }; readonly addresses: readonly string[] }

async function resolveTarget(policy: NetworkPolicy, raw: string, options: UrlOptions): Promise<Resolved> {
  const { target, addresses } = await resolveJudged(policy, raw, 'url', {
    resolve: options.resolve,
    until: options.signal && cancelSignalOf(options.signal),
  })
  if (target.url === undefined) throw ssrf('address has no host')
  return { target: { ...target, url: target.url }, addresses }
}

/**
 * Fetches from the public internet only. Each hop is resolved once, every address checked, the connection made to a
 * checked address and its peer verified; a redirect is treated like a new request.
 */
export function safeFetch(url: string | URL, options: SafeFetchOptions = {}): Promise<SafeResponse> {
  return fetchWith(url, options, (at, answer, addresses) => responseOf(at, answer, addresses, options))
}

/** The head of an answer whose body is read as a stream. */
export type SafeHead = Pick<SafeResponse, 'url' | 'status' | 'headers'>

/** The same for a body of any length: `read` takes it as it comes, and the connection is closed when it returns. */
export function safeDownload<T>(
  url: string | URL,
  options: Omit<SafeFetchOptions, 'maxBytes'>,
  read: (head: SafeHead, body: AsyncIterable<Uint8Array>) => Promise<T>,
): Promise<T> {
  return fetchWith(url, options, (at, answer) =>
    read({ url: at.href, status: answer.statusCode ?? 0, headers: flatHeaders(answer.headers) }, answer),
  )
}

/** Reads the final answer. */
type Read<T> = (url: URL, answer: IncomingMessage, addresses: readonly string[]) => Promise<T>

async function fetchWith<T>(url: string | URL, options: SafeFetchOptions, read: Read<T>): Promise<T> {
  const policy = networkPolicyOf(options)
  const timeoutMs = options.timeoutMs ?? TIMEOUT_MS
  const late = AbortSignal.timeout(Math.min(timeoutMs, LONGEST_TIMER_MS))
  const signal = options.signal === undefined ? late : AbortSignal.any([late, options.signal])
  try {
    return await follow(policy, String(url), { ...options, signal }, read)
  } catch (error) {
    if (late.aborted) throw new SandboxError('timeout', `no complete answer within ${timeoutMs} ms`)
    throw error
  }
}

type Bounded = SafeFetchOptions & { readonly signal: AbortSignal }

async function follow<T>(policy: NetworkPolicy, first: string, options: Bounded, read: Read<T>): Promise<T> {
  const limit = Math.min(options.maxRedirects ?? MAX_REDIRECTS, MAX_REDIRECTS)
  const addresses: string[] = []
  let sent = firstRequest(options)
  let resolved = await resolveTarget(policy, first, options)
  for (let hop = 0; ; hop++) {
    const { url } = resolved.target
    const { socket, answer, address } = await exchange(resolved, sent, options)
    try {
      addresses.push(address)
      const status = answer.statusCode ?? 0
      const next = limit === 0 ? undefined : redirectOf(url, { status, location: answer.headers.location })
      if (next === undefined) return await read(url, answer, addresses)
      if (hop >= limit) throw ssrf(`more than ${limit} redirects`)
      resolved = await resolveTarget(policy, next, options)
      sent = redirected(sent, status, url, resolved.target.url)
    } finally {
      socket.destroy()
    }
  }
}

function firstRequest({ method = 'GET', headers = {}, body }: SafeFetchOptions): Sent {
  const verb = method.toUpperCase()
  if (!METHODS.includes(verb))
    throw new SandboxError('invalid-input', `method \`${method}\` is not one of ${METHODS.join(', ')}`)
  if (body !== undefined && (verb === 'GET' || verb === 'HEAD'))
    throw new SandboxError('invalid-input', `a ${verb} request has no body`)
  const bytes = typeof body === 'string' ? Buffer.from(body) : body
  return { method: verb, headers: callerHeaders(headers), body: bytes }
}

type Exchange = { readonly socket: Socket; readonly answer: IncomingMessage; readonly address: string }

/** SECURITY: connects to the checked address, never to the name, because a second lookup may return another address. */
async function exchange(resolved: Resolved, sent: Sent, { ca, signal }: Bounded): Promise<Exchange> {
  const { url, host, port, literal } = resolved.target
  const address = resolved.addresses[0] as string
  const tls = url.protocol === 'https:' ? { tls: { host, literal: literal !== undefined, ca } } : {}
  let socket: Socket | undefined
  try {
    socket = await dial({ address, port, ...tls, until: cancelSignalOf(signal) })
    return { socket, answer: await ask(socket, url, sent, signal), address }
  } catch (cause) {
    socket?.destroy()
    throw unreachable(host, cause)
  }
}

function unreachable(host: string, cause: unknown): unknown {
  if (cause instanceof SandboxError) return cause
  const { code } = cause as NodeJS.ErrnoException
  return new SandboxError('fetch-failed', `cannot fetch from \`${host}\`${code ? `: ${code}` : ''}`, {
    cause,
  })
}

async function responseOf(
  url: URL,
  answer: IncomingMessage,
  addresses: readonly string[],
  { maxBytes = MAX_BYTES }: SafeFetchOptions,
): Promise<SafeResponse> {
  const body = await readBody(answer, maxBytes).catch((cause) => {
    throw unreachable(url.hostname, cause)
  })
  return {
    url: url.href,
    status: answer.statusCode ?? 0,
    headers: flatHeaders(answer.headers),
    body,
    addresses,
  }
}
