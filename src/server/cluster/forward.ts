import type { ClientRequest, IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { request as httpsRequest, type RequestOptions } from 'node:https'
import type { Duplex } from 'node:stream'
import type { NodeRow } from '../../cluster/node.ts'
import { SandboxError } from '../../model/errors.ts'
import { framing } from '../ports/ports.ts'
import { CLIENT_ADDRESS, FORWARDED_BY, PEER_CONNECT_MS, type PeerConnections } from './peers.ts'

/**
 * Passes requests on to another node, as they are. SECURITY: with them goes the caller's own credential and nothing else that
 * says who is asking: the node that answers authenticates the caller itself.
 */

/** Headers of one connection, which are not passed on. */
const HOP = new Set(['connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding'])
/** SECURITY: words between nodes; from a client they count for nothing. */
const OURS = /^ringfence-/

function passedHeaders(request: IncomingMessage, self: string): OutgoingHttpHeaders {
  const headers: OutgoingHttpHeaders = {}
  for (const [name, value] of Object.entries(request.headers))
    if (!HOP.has(name) && !OURS.test(name) && name !== 'upgrade') headers[name] = value
  headers[CLIENT_ADDRESS] = request.socket.remoteAddress ?? ''
  headers[FORWARDED_BY] = self
  return headers
}

/**
 * Whether a node passed this request on for a client. SECURITY: the client chose its path, so it is never an order of the node
 * itself. Every request that is passed on has the header, and no client can leave it out.
 */
export const isForwarded = ({ headers }: Pick<IncomingMessage, 'headers'>): boolean =>
  headers[FORWARDED_BY] !== undefined

/**
 * The header of a node's own answer that it does not own what it was asked about. The status alone, 421, may be a program's on a
 * port; SECURITY: headers with this prefix are removed from what programs answer.
 */
export const MISDIRECTED = 'ringfence-misdirected'
/** Whether a node answered that it does not own what it was asked about. */
export const isMisdirected = ({ headers }: Pick<IncomingMessage, 'headers'>): boolean =>
  headers[MISDIRECTED] !== undefined

const LINGER_MS = 500

/** What a request is passed on with. */
export type ForwardOptions = {
  readonly self: string
  readonly peers: PeerConnections
  readonly node: NodeRow
  /** The body, where it was read already. */
  readonly body?: Buffer | undefined
  /** The answer to the client; when it is closed, nobody waits any more. */
  readonly response?: ServerResponse | undefined
  readonly extra?: OutgoingHttpHeaders
}

function optionsOf(request: IncomingMessage, { self, peers, node, extra }: ForwardOptions): RequestOptions {
  return {
    ...peers.optionsTo(node, request.url),
    method: request.method,
    headers: { ...passedHeaders(request, self), ...extra },
    setHost: false,
  }
}

/** The other node's answer, before anything of it was passed on; throws if the node cannot be reached. */
export function askPeer(request: IncomingMessage, options: ForwardOptions): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const base = optionsOf(request, options)
    const headers = { ...(base.headers as OutgoingHttpHeaders), ...(options.body ? {} : framing(request)) }
    const outgoing = httpsRequest({ ...base, headers })
    const fail = (cause: unknown): void => reject(unreachable(options.node, cause))
    boundConnect(outgoing, options, fail)
    options.peers.follow(options.node, outgoing)
    // A client that goes away takes its command or its question with it, as if it had asked the owner itself.
    const giveUp = (): void => void outgoing.destroy()
    options.response?.once('close', giveUp)
    outgoing.once('response', (answer) => {
      options.response?.off('close', giveUp)
      resolve(answer)
    })
    outgoing.once('error', fail)
    request.once('close', () => request.complete || outgoing.destroy())
    if (options.body !== undefined) outgoing.end(options.body)
    else request.pipe(outgoing)
  })
}

/** PLATFORM: a request that waits for a socket reports nothing when it is destroyed, so the failure is reported here. */
function boundConnect(
  outgoing: ClientRequest,
  { peers, node }: Pick<ForwardOptions, 'peers' | 'node'>,
  fail: (cause: Error) => void,
): void {
  const slow = setInterval(() => {
    // In a burst of connections the last one waits for the handshakes of all others.
    if (!peers.isSilent(node, PEER_CONNECT_MS)) return
    fail(new Error(`no connection within ${PEER_CONNECT_MS} ms`))
    outgoing.destroy()
  }, PEER_CONNECT_MS)
  const stop = (): void => clearInterval(slow)
  outgoing.once('socket', (socket) => {
    if (!socket.connecting) return stop()
    socket.once('secureConnect', () => {
      stop()
      peers.connected(node)
    })
  })
  outgoing.once('close', stop)
}

/** Passes an answer on; a stream that breaks there breaks here too, so that the client sees it and reattaches. */
export function passAnswer(answer: IncomingMessage, response: ServerResponse): void {
  const headers: OutgoingHttpHeaders = {}
  for (const [name, value] of Object.entries(answer.headers))
    if (!HOP.has(name) && !OURS.test(name)) headers[name] = value
  response.writeHead(answer.statusCode ?? 502, headers)
  // Streams are read as they come: the head must not wait for the first byte of the body.
  response.flushHeaders()
  answer.on('error', () => response.destroy())
  answer.on('aborted', () => response.destroy())
  response.on('close', () => response.writableFinished || answer.destroy())
  answer.pipe(response)
}

/**
 * Passes a request for another protocol on, and then the bytes both ways; `misdirected`: the node does not own what it was asked
 * about, and the client has no answer yet.
 */
export function forwardUpgrade(
  request: IncomingMessage,
  socket: Duplex,
  head: Buffer,
  options: ForwardOptions,
): Promise<'answered' | 'misdirected'> {
  const base = optionsOf(request, options)
  // Nothing of a body is passed on, so none is announced.
  const { 'content-length': _, ...passed } = base.headers as OutgoingHttpHeaders
  const headers = { ...passed, connection: 'Upgrade', upgrade: request.headers.upgrade ?? '' }
  return new Promise((resolve, reject) => {
    const outgoing = httpsRequest({ ...base, headers })
    const fail = (cause: unknown): void => reject(unreachable(options.node, cause))
    boundConnect(outgoing, options, fail)
    options.peers.follow(options.node, outgoing)
    outgoing.once('error', fail)
    outgoing.once('response', (answer) => {
      if (isMisdirected(answer)) {
        answer.resume()
        return resolve('misdirected')
      }
      writeHead(socket, answer, 'close')
      answer.pipe(socket)
      resolve('answered')
    })
    outgoing.once('upgrade', (answer, other, first) => {
      options.peers.follow(options.node, other)
      writeHead(socket, answer)
      join(socket, other, { first, head })
      resolve('answered')
    })
    socket.once('close', () => outgoing.destroy())
    outgoing.end()
  })
}

function writeHead(socket: Duplex, answer: IncomingMessage, connection?: string): void {
  const lines = [`HTTP/1.1 ${answer.statusCode} ${answer.statusMessage ?? ''}`]
  for (let at = 0; at < answer.rawHeaders.length; at += 2) {
    const [name, value] = [answer.rawHeaders[at] as string, answer.rawHeaders[at + 1] as string]
    const isOwn = OURS.test(name.toLowerCase()) || (connection !== undefined && HOP.has(name.toLowerCase()))
    if (!isOwn) lines.push(`${name}: ${value}`)
  }
  if (connection !== undefined) lines.push(`connection: ${connection}`)
  socket.write(`${lines.join('\r\n')}\r\n\r\n`)
}

function join(
  client: Duplex,
  node: Duplex,
  { first, head }: { readonly first: Buffer; readonly head: Buffer },
): void {
  for (const [one, other] of [
    [client, node],
    [node, client],
  ] as const) {
    one.on('error', () => other.destroy())
    // What one said last is still to be read by the other.
    one.on('close', () => void setTimeout(() => other.destroy(), LINGER_MS).unref())
  }
  if (first.length > 0) client.write(first)
  if (head.length > 0) node.write(head)
  node.pipe(client)
  client.pipe(node)
}

/** The node that owns a sandbox does not answer; it is back soon, or its lease ends soon. */
export const unreachable = ({ name, leaseMs }: NodeRow, cause?: unknown): SandboxError =>
  new SandboxError('unreachable', `node ${name} does not answer`, {
    hint: 'repeat the request; if the node is lost, its sandboxes are reported as failed when its lease ends',
    retryAfterSecs: Math.max(1, Math.ceil(leaseMs / 1000)),
    cause,
  })
