import type { IncomingMessage } from 'node:http'
import { Agent, createServer, type RequestOptions, request, type Server } from 'node:https'
import type { AddressInfo, Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import type { TLSSocket } from 'node:tls'
import type { NodeCertificate } from '../../cluster/identity.ts'
import { nodeHost } from '../../cluster/identity.ts'
import type { NodeRow } from '../../cluster/node.ts'
import { Admission } from '../../model/admission.ts'
import { SandboxError } from '../../model/errors.ts'

/**
 * Connections between nodes: TLS 1.3, both ends with a certificate of the cluster's authority.
 * SECURITY: a certificate alone is not enough. It must be the one that the node's row names, and each run of a node has a new
 * one, so that a node of an older epoch, or one that was removed, is refused at both ends.
 */

const IDLE_MS = 30_000
const CONNECT_MS = 2000
/** SECURITY: who has not shown a certificate yet holds a connection not longer than this, and not more of them. */
const HANDSHAKE_MS = 5000
const HANDSHAKES = 256
/** Connections that this node opens to another one at the same time; with more, a burst of requests would exceed what that one allows. */
const HANDSHAKES_TO_ONE = 16

const HEADER_BYTES = 32 * 1024

/** The node that a forwarded request came from; requests of clients have none. */
const peerOf = new WeakMap<object, { readonly id: string; readonly fingerprint: string }>()

/** Says which client a forwarded request is of; only another node may send it. */
export const CLIENT_ADDRESS = 'ringfence-client-address'
/** Says which node forwarded a request. */
export const FORWARDED_BY = 'ringfence-forwarded-by'

/** The address of the client, also behind another node. */
export function clientAddress(request: Pick<IncomingMessage, 'socket' | 'headers'> | undefined): string {
  if (!request) return ''
  const told = peerOf.has(request.socket) ? request.headers[CLIENT_ADDRESS] : undefined
  return (Array.isArray(told) ? told[0] : told) ?? request.socket?.remoteAddress ?? ''
}

/** How often a node that is being waited for is asked whether it is there, and how often it may fail to answer. */
const PING_MS = 5000
const MISSED_PINGS = 3

/** Something that waits for a node, or is connected to it. */
type Waiting = { once(event: 'close', listener: () => void): unknown; destroy(): unknown }

/** What is open to one run of a node. */
type OpenToNode = { readonly waiting: Set<Waiting>; timer: NodeJS.Timeout; missed: number; isAsked: boolean }

type Connect = (options: RequestOptions) => TLSSocket
/** PLATFORM: Node documents it, and its types leave it out. */
const { createConnection: connect } = Agent.prototype as unknown as { readonly createConnection: Connect }

/** Connections to one node. A new one waits until few others are between their beginning and the end of their handshake. */
class PeerAgent extends Agent {
  readonly #handshakes = new Admission('connections to a node', {
    running: HANDSHAKES_TO_ONE,
    waiting: Number.POSITIVE_INFINITY,
  })

  createConnection(options: RequestOptions, created: (error: unknown, socket?: Duplex) => void): void {
    const begin = async (): Promise<TLSSocket> => {
      const leave = await this.#handshakes.enter()
      try {
        const socket = connect.call(this, options)
        socket.once('secureConnect', leave)
        return socket.once('close', leave)
      } catch (error) {
        leave()
        throw error
      }
    }
    begin().then((socket) => created(null, socket), created)
  }
}

/** Opens connections to other nodes, and keeps them for the next request. */
export class PeerConnections {
  readonly #own: NodeCertificate
  readonly #pingMs: number
  readonly #agents = new Map<string, Agent>()
  readonly #open = new Map<string, OpenToNode>()
  /** When a connection to a run of a node was last completed. */
  readonly #connected = new Map<string, number>()

  constructor(own: NodeCertificate, pingMs = PING_MS) {
    this.#own = own
    this.#pingMs = pingMs
  }

  /**
   * Ends a request or a connection when the node is gone, or can no longer be reached: a connection over which nothing arrives any more
   * reports an error only after many minutes.
   */
  follow(node: NodeRow, one: Waiting): void {
    const { fingerprint } = node
    const known = this.#open.get(fingerprint)
    const open = known ?? {
      waiting: new Set(),
      timer: setInterval(() => this.#check(node), this.#pingMs).unref(),
      missed: 0,
      isAsked: false,
    }
    this.#open.set(fingerprint, open)
    open.waiting.add(one)
    one.once('close', () => {
      open.waiting.delete(one)
      if (open.waiting.size > 0 || this.#open.get(fingerprint) !== open) return
      clearInterval(open.timer)
      this.#open.delete(fingerprint)
    })
  }

  /** Notes that a connection to a node was completed. */
  connected({ fingerprint }: NodeRow): void {
    this.#connected.set(fingerprint, performance.now())
  }

  /** Whether a node completed no connection in this time. One that did is busy with many at once, and not gone. */
  isSilent({ fingerprint }: NodeRow, ms: number): boolean {
    const last = this.#connected.get(fingerprint)
    return last === undefined || performance.now() - last > ms
  }

  /** By a connection of its own. Any answer will do: a node that is busy is not gone. */
  #check(node: NodeRow): void {
    const open = this.#open.get(node.fingerprint)
    if (!open || open.isAsked) return
    open.isAsked = true
    const answered = (isThere: boolean): void => {
      open.isAsked = false
      open.missed = isThere ? 0 : open.missed + 1
      if (open.missed >= MISSED_PINGS) this.#drop(node.fingerprint)
    }
    const { agent: _, ...options } = this.optionsTo(node, '/healthz')
    const asked = request({ ...options, ...this.#tls(node), agent: false, timeout: this.#pingMs })
    asked.once('response', (answer) => {
      answer.resume()
      answered(true)
    })
    asked.once('timeout', () => asked.destroy(new Error('no answer')))
    asked.once('error', () => answered(false))
    asked.end()
  }

  #drop(fingerprint: string): void {
    this.#agents.get(fingerprint)?.destroy()
    this.#agents.delete(fingerprint)
    const open = this.#open.get(fingerprint)
    clearInterval(open?.timer)
    this.#open.delete(fingerprint)
    this.#connected.delete(fingerprint)
    for (const one of open?.waiting ?? []) one.destroy()
  }

  /** The options of a request to a node. */
  optionsTo(node: NodeRow, path: string | undefined): RequestOptions {
    const { hostname, port } = new URL(node.url)
    return { agent: this.to(node), host: hostname.replace(/^\[|\]$/g, ''), port, path }
  }

  #tls({ id, fingerprint }: NodeRow) {
    return {
      cert: this.#own.certificate,
      key: this.#own.privateKey,
      ca: this.#own.authority,
      minVersion: 'TLSv1.3' as const,
      servername: nodeHost(id),
      checkServerIdentity: (_host: string, seen: { readonly fingerprint256: string }) =>
        seen.fingerprint256 === fingerprint ? undefined : new Error('this is another run of the node'),
    }
  }

  /** The agent for one run of a node. */
  to(node: NodeRow): Agent {
    const known = this.#agents.get(node.fingerprint)
    if (known) return known
    const agent = new PeerAgent({
      keepAlive: true,
      timeout: IDLE_MS,
      // SECURITY: clients' connections to this node bound them; with a bound here the streams of one tenant would block all others.
      maxSockets: Number.POSITIVE_INFINITY,
      scheduling: 'lifo',
      ...this.#tls(node),
    })
    this.#agents.set(node.fingerprint, agent)
    return agent
  }

  /** Closes the connections to nodes that are not among these any more. */
  keepOnly(nodes: readonly NodeRow[]): void {
    const alive = fingerprintsOf(nodes)
    for (const fingerprint of [...this.#agents.keys(), ...this.#open.keys()])
      if (!alive.has(fingerprint)) this.#drop(fingerprint)
  }

  close(): void {
    for (const fingerprint of [...this.#agents.keys(), ...this.#open.keys()]) this.#drop(fingerprint)
  }
}

/** How long a node may take to complete the next connection. */
export const PEER_CONNECT_MS = CONNECT_MS

/** Where other nodes reach this one. */
export type PeerListener = {
  readonly url: string
  /** Answers requests from now on. */
  readonly serve: (handlers: PeerHandlers) => void
  /** Closes the connections of nodes that are not among these any more. */
  readonly keepOnly: (nodes: readonly NodeRow[]) => void
  readonly close: () => Promise<void>
}

const fingerprintsOf = (nodes: readonly NodeRow[]): ReadonlySet<string> =>
  new Set(nodes.filter(({ state }) => state === 'up').map(({ fingerprint }) => fingerprint))

type PeerHandlers = {
  readonly request: Server['listeners'] extends never ? never : Parameters<typeof createServer>[1]
  readonly upgrade: (request: IncomingMessage, socket: import('node:stream').Duplex, head: Buffer) => void
  /** Whether a certificate is that of a node that runs now. */
  readonly admits: (id: string, fingerprint: string) => Promise<boolean>
}

/** Listens for other nodes; until `serve` nobody is admitted. */
export async function listenForPeers(
  own: NodeCertificate,
  { host, port, url }: { readonly host: string; readonly port: number; readonly url?: string | undefined },
): Promise<PeerListener> {
  let handlers: PeerHandlers | undefined
  const sockets = new Set<Socket>()
  const encrypted = new Set<TLSSocket>()
  const server = createServer({
    cert: own.certificate,
    key: own.privateKey,
    ca: own.authority,
    requestCert: true,
    rejectUnauthorized: true,
    minVersion: 'TLSv1.3',
    keepAliveTimeout: 2 * IDLE_MS,
    requestTimeout: 0,
    noDelay: true,
    handshakeTimeout: HANDSHAKE_MS,
    // A client's headers and ours.
    maxHeaderSize: HEADER_BYTES,
  })
  followConnections(server, sockets)
  const admitted = async (request: IncomingMessage): Promise<boolean> => {
    const socket = request.socket as TLSSocket
    const known = peerOf.get(socket)
    // Each request is checked: the node may have been fenced since the connection was made.
    if (known) return (await handlers?.admits(known.id, known.fingerprint)) ?? false
    const seen = socket.getPeerCertificate()
    const id = /^([0-9a-f]{16})\.node\.ringfence$/.exec(String(seen.subject?.CN ?? ''))?.[1]
    if (!handlers || !socket.authorized || id === undefined) return false
    if (!(await handlers.admits(id, seen.fingerprint256))) return false
    peerOf.set(socket, { id, fingerprint: seen.fingerprint256 })
    encrypted.add(socket)
    socket.once('close', () => encrypted.delete(socket))
    return true
  }
  server.on('request', (request, response) => {
    void admitted(request).then(
      (isIn) => (isIn ? handlers?.request?.(request, response) : response.writeHead(403).end()),
      () => response.writeHead(503).end(),
    )
  })
  server.on('upgrade', (request, socket, head) => {
    socket.on('error', () => socket.destroy())
    void admitted(request).then(
      (isIn) => (isIn ? handlers?.upgrade(request, socket, head) : socket.destroy()),
      () => socket.destroy(),
    )
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause: NodeJS.ErrnoException) => reject(cannotListen(host, port, cause)))
    server.listen(port, host, resolve)
  })
  server.on('error', () => {})
  server.on('tlsClientError', () => {})
  const bound = (server.address() as AddressInfo).port
  return {
    url: url ?? `https://${host.includes(':') ? `[${host}]` : host}:${bound}`,
    serve: (given) => {
      handlers = given
    },
    keepOnly: (nodes) => {
      const alive = fingerprintsOf(nodes)
      for (const socket of encrypted) if (!alive.has(peerOf.get(socket)?.fingerprint ?? '')) socket.destroy()
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        for (const socket of sockets) socket.destroy()
      }),
  }
}

/** Keeps the open connections, and closes the oldest ones without a certificate when there are too many. */
function followConnections(server: Server, sockets: Set<Socket>): void {
  const strangers = new Map<string, Socket>()
  server.on('connection', (socket: Socket) => {
    const name = endOf(socket)
    sockets.add(socket)
    strangers.set(name, socket)
    if (strangers.size > HANDSHAKES) strangers.values().next().value?.destroy()
    socket.once('close', () => {
      sockets.delete(socket)
      if (strangers.get(name) === socket) strangers.delete(name)
    })
  })
  server.on('secureConnection', (socket) => strangers.delete(endOf(socket)))
}

/** The other end of a connection; the same before and after the handshake. */
const endOf = ({ remoteAddress, remotePort }: Socket): string => `${remoteAddress} ${remotePort}`

const cannotListen = (host: string, port: number, cause: NodeJS.ErrnoException): SandboxError =>
  new SandboxError('invalid-config', `cannot listen for other nodes on ${host}:${port}: ${cause.code}`, {
    hint: 'choose another `listen` in [cluster]',
    cause,
  })
