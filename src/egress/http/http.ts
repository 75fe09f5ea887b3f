import { SandboxError } from '../../model/errors.ts'
import { parseTarget, type Target } from '../../policy/network/network.ts'
import type { EgressConnection } from '../connection.ts'
import type { Core, Wanted } from '../core.ts'
import { type Credentials, hasCredentials } from '../credentials.ts'
import type { Source } from '../source.ts'
import { exchange, type Progress } from './exchange.ts'
import {
  endToEnd,
  headBytes,
  keepsAlive,
  parseRequest,
  type RequestHead,
  readHead,
  requestFraming,
  valuesOf,
} from './message.ts'
import { refusal, sendAndClose } from './refusal.ts'

/** Destination of a connection's requests: named by each request, or fixed inside a tunnel. */
export type RequestTarget =
  | { readonly kind: 'proxy'; readonly credentials?: Credentials | undefined }
  | {
      readonly kind: 'origin'
      readonly scheme: 'http' | 'https'
      readonly target: Target
      readonly connection: EgressConnection
    }

/** A CONNECT request that the caller takes over, or the end of the connection. */
export type Served = { readonly connect: RequestHead } | undefined

/** Serves requests until the connection ends or becomes a tunnel. Each request is checked. */
export async function serveHttp(core: Core, client: Source, front: RequestTarget): Promise<Served> {
  for (let first = true; ; first = false) {
    if (client.stream.writableNeedDrain) await untilTaken(client, core.limits.idleMs)
    const head = await nextRequest(core, client, first)
    if (head === undefined) return undefined
    if (front.kind === 'proxy' && !hasCredentials(head.headers, front.credentials)) {
      sendAndClose(client, refusal(new SandboxError('invalid-input', 'the proxy wants credentials'), 407))
      return undefined
    }
    if (head.method === 'CONNECT' && front.kind === 'proxy') return { connect: head }
    if (!(await serveOne(core, client, front, head))) return undefined
  }
}

/**
 * Waits until the client has taken everything that was written to it. SECURITY: without this, the answers to a client
 * that sends requests and does not read would be kept without limit.
 */
async function untilTaken({ stream }: Source, ms: number): Promise<void> {
  const timer = setTimeout(() => stream.destroy(), ms)
  await new Promise<void>((resolve) => {
    const done = (): void => {
      stream.off('drain', done).off('close', done)
      resolve()
    }
    stream.on('drain', done).on('close', done)
  })
  clearTimeout(timer)
}

async function nextRequest(core: Core, client: Source, first: boolean): Promise<RequestHead | undefined> {
  const { headerMs, keepAliveMs, headerBytes } = core.limits
  // SECURITY: one timeout for the whole head, which slow single bytes do not reset.
  const timer = setTimeout(() => client.stream.destroy(), first ? headerMs : keepAliveMs)
  try {
    const text = await readHead(client, headerBytes)
    return text === undefined ? undefined : parseRequest(text)
  } catch (error) {
    if (!client.failed) sendAndClose(client, refusal(error))
    return undefined
  } finally {
    clearTimeout(timer)
  }
}

/** True if the connection can serve another request. */
async function serveOne(
  core: Core,
  client: Source,
  front: RequestTarget,
  head: RequestHead,
): Promise<boolean> {
  const progress: Progress = { begun: false }
  try {
    return await judgeAndSend(core, client, front, head, progress)
  } catch (error) {
    if (progress.begun || client.stream.destroyed) {
      client.stream.destroy()
      return false
    }
    const keep = keepsAlive(head) && isRefusal(error) && requestFramingOf(head) === 'none'
    if (!keep) {
      sendAndClose(client, refusal(error))
      return false
    }
    client.stream.write(refusal(error, undefined, true))
    // A refusal may wait for nothing, so that one client with many requests would keep the event loop from all others.
    await new Promise<void>((resolve) => setImmediate(resolve))
    return true
  }
}

const isRefusal = (error: unknown): boolean => error instanceof SandboxError && error.family !== 'invalid'

function requestFramingOf(head: RequestHead): string {
  try {
    return requestFraming(head).kind
  } catch {
    return 'unknown'
  }
}

async function judgeAndSend(
  core: Core,
  client: Source,
  front: RequestTarget,
  head: RequestHead,
  progress: Progress,
): Promise<boolean> {
  const framing = requestFraming(head)
  const { wanted, path, target, scheme } = await addressOf(core, front, head)
  // SECURITY: before ours are added, because the client's `Connection` must not remove those.
  const headers = core.transforms.apply(target, endToEnd(head.headers, /^(host|content-length)$/i))
  const refused = core.broker?.refusal(target, scheme, { path, headers })
  if (refused !== undefined) return core.refuse(wanted, refused)
  const connection = await core.enter(
    { ...wanted, client: client.stream },
    front.kind === 'origin' ? front.connection : undefined,
  )
  try {
    const sent = core.broker?.prepare({ path, headers }, connection.secretHosts)
    const fields = [['host', authorityOf(target, scheme)] as const, ...(sent?.headers ?? headers)]
    if (framing.kind === 'length') fields.push(['content-length', String(framing.bytes)])
    if (framing.kind === 'chunked') fields.push(['transfer-encoding', 'chunked'])
    fields.push(['connection', 'keep-alive'])
    const plain = headBytes(`${head.method} ${path} HTTP/1.1`, fields)
    const fill = sent?.fill
    const bytes = (): Buffer => (fill === undefined ? plain : fill(plain))
    const outgoing = { head, framing, scheme, bytes, secret: fill !== undefined, scrub: sent?.scrub }
    const keep = await exchange(core, client, connection, outgoing, progress)
    connection.close()
    return keep
  } catch (error) {
    connection.close(error)
    await connection.reported
    throw error
  }
}

type Addressed = {
  readonly wanted: Wanted
  readonly target: Target
  readonly scheme: 'http' | 'https'
  /** Path and query exactly as the client wrote them. */
  readonly path: string
}

const invalid = (why: string): SandboxError => new SandboxError('invalid-input', why)

/** The destination of a request. SECURITY: target, `Host` and tunnel must agree. */
async function addressOf(core: Core, front: RequestTarget, head: RequestHead): Promise<Addressed> {
  if (head.method === 'CONNECT' || head.method === 'TRACE')
    throw new SandboxError('unsupported', `${head.method} is not passed on`)
  if (valuesOf(head.headers, 'upgrade').length > 0)
    throw new SandboxError('unsupported', 'a change of protocol is not passed on', {
      hint: 'use CONNECT',
    })
  if (head.target.includes('#')) throw invalid('the target holds a fragment')
  const { raw, path } = front.kind === 'proxy' ? absoluteForm(head.target) : originForm(front, head.target)
  const scheme = front.kind === 'proxy' ? 'http' : front.scheme
  const wanted: Wanted = {
    raw,
    kind: 'url',
    protocol: front.kind === 'proxy' ? 'http' : front.connection.protocol,
  }
  const parsed = parseTarget(raw, 'url')
  if (parsed.kind === 'blocked') return core.refuse(wanted, new SandboxError('ssrf-blocked', parsed.reason))
  const hosts = valuesOf(head.headers, 'host')
  const named = hosts.length === 1 ? parseTarget(`${scheme}://${hosts[0]}/`, 'url') : undefined
  const agrees =
    named?.kind === 'ok' && named.value.host === parsed.value.host && named.value.port === parsed.value.port
  if (!agrees && !(hosts.length === 0 && head.version === '1.0'))
    return core.refuse(
      wanted,
      new SandboxError('ssrf-blocked', 'the Host header names another host than the request'),
    )
  return { wanted, target: parsed.value, scheme, path }
}

function absoluteForm(target: string): { readonly raw: string; readonly path: string } {
  const [, scheme, rest] = /^(https?):\/\/[^/?]*(.*)$/i.exec(target) ?? []
  if (scheme === undefined || rest === undefined)
    throw invalid('a proxy wants `http://` addresses, `CONNECT host:port`, or SOCKS5')
  if (scheme.toLowerCase() === 'https') throw new SandboxError('unsupported', 'https goes through CONNECT')
  return { raw: target, path: rest.startsWith('/') ? rest : `/${rest}` }
}

function originForm(
  { scheme, target }: RequestTarget & { kind: 'origin' },
  path: string,
): { readonly raw: string; readonly path: string } {
  if (!path.startsWith('/')) throw invalid('inside a tunnel a target begins with `/`')
  return { raw: `${scheme}://${authorityOf(target, scheme)}${path}`, path }
}

const authorityOf = ({ host, port }: Target, scheme: 'http' | 'https'): string => {
  const name = host.includes(':') ? `[${host}]` : host
  return port === (scheme === 'https' ? 443 : 80) ? name : `${name}:${port}`
}
