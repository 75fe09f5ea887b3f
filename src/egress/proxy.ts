import { createServer, type Server, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { TLSSocket } from 'node:tls'
import type { AdmissionOwner } from '../model/admission.ts'
import { SandboxError } from '../model/errors.ts'
import { parseTarget } from '../policy/network/network.ts'
import { dialJudged, type EgressConnection, type Protocol } from './connection.ts'
import { Core, type Hooks, LIMITS, type Limits, timersOf } from './core.ts'
import type { Credentials } from './credentials.ts'
import { type Descriptors, ownDescriptors, PER_CONNECTION } from './descriptors.ts'
import { serveHttp } from './http/http.ts'
import { type RequestHead, requestFraming, valuesOf } from './http/message.ts'
import { refusal, sendAndClose } from './http/refusal.ts'
import { knowSocketOptions } from './known-options.ts'
import { Authority } from './secrets/authority.ts'
import { Broker, type BrokeredSecret } from './secrets/broker.ts'
import { type HeaderTransform, Transforms } from './secrets/transforms.ts'
import { readSocks, SOCKS_REPLY, socksReply, socksReplyOf } from './socks.ts'
import { Source } from './source.ts'
import { judgeFirstFlight, tunnel } from './tunnel.ts'
import { type Resolve, resolveFor } from './upstream/names.ts'
import { rememberAnswers } from './upstream/resolve.ts'
import type { SocksUpstream } from './upstream/socks-upstream.ts'

/** The settings of one sandbox's proxy. */
export type EgressProxyOptions = Hooks & {
  /** Allowed hosts (`example.com`, `*.example.com`, `host:port`, `@registries`); empty: none. */
  readonly allowHosts: readonly string[]
  /** Private addresses, ranges or names that are allowed. Metadata services never are. */
  readonly allowPrivate?: readonly string[]
  readonly resolve?: Resolve
  /** For whom it connects: owners share the lookups and descriptors of the process. Absent: for the process itself. */
  readonly owner?: AdmissionOwner | undefined
  /** What its connections count for; absent: the descriptors of this process. */
  readonly descriptors?: Descriptors | undefined
  /** All secrets of the sandbox: responses of their hosts are searched for each of them. */
  readonly secrets?: readonly BrokeredSecret[]
  /** Those of `secrets` that these clients may use; absent: all. */
  readonly usable?: readonly BrokeredSecret[]
  /** Headers to set in requests to a host. Their TLS ends in the proxy. */
  readonly transforms?: readonly HeaderTransform[]
  /** Credentials that every client must send; needed if other programs can reach the proxy. */
  readonly credentials?: Credentials
  readonly limits?: Partial<Limits>
  /** The authority of another proxy whose certificate the clients trust already. */
  readonly authority?: Authority | undefined
  /** Certificates to trust upstream instead of the system's, for terminated TLS. PEM. */
  readonly upstreamCa?: string
  /** The operator's proxy through which every connection goes. */
  readonly via?: SocksUpstream | undefined
}

const ANSWER_MS = 2000
const MOST_TURNED_AWAY = 64
/** Clients of all proxies that are being turned away. */
let turnedAway = 0
const CONNECTED = Buffer.from('HTTP/1.1 200 Connection established\r\n\r\n')
/** The first byte of every TLS connection. */
const TLS_HANDSHAKE = 0x16
const LOOPBACK = ['127.0.0.1', '::1']

/**
 * The only way out of a sandbox: HTTP CONNECT, absolute-form HTTP and SOCKS5 on any byte stream. Every connection is
 * resolved once, checked, admitted by its owner, and made to exactly the checked address.
 */
export class EgressProxy {
  readonly #core: Core
  readonly #authority: Authority | undefined
  readonly #credentials: Credentials | undefined
  readonly #enter: (descriptors: number) => (() => void) | undefined
  readonly #clients = new Set<Duplex>()
  readonly #servers = new Set<Server>()
  #served = 0
  #closed = false

  constructor(options: EgressProxyOptions) {
    const secrets = options.secrets ?? []
    const transforms = new Transforms(options.transforms ?? [])
    this.#authority =
      options.authority ?? (secrets.length + transforms.size > 0 ? new Authority() : undefined)
    this.#credentials = options.credentials
    const { owner, descriptors = ownDescriptors() } = options
    this.#enter = (count) => descriptors.take(owner, count)
    this.#core = new Core({
      allowHosts: options.allowHosts,
      allowPrivate: options.allowPrivate ?? [],
      resolve: rememberAnswers(options.resolve ?? resolveFor(options.owner), ANSWER_MS),
      limits: timersOf({ ...LIMITS, ...options.limits }),
      hooks: {
        policy: options.policy,
        unlisted: options.unlisted,
        admit: options.admit,
        onConnection: options.onConnection,
        mayPass: options.mayPass,
      },
      broker: secrets.length > 0 ? new Broker(secrets, options.usable) : undefined,
      transforms,
      upstreamCa: options.upstreamCa,
      via: options.via,
      enterPool: () => this.#enter(1),
    })
  }

  /** What signs the certificates that clients see; absent if no TLS is terminated. */
  get authority(): Authority | undefined {
    return this.#authority
  }

  /** The CA certificate that the sandbox must trust, PEM; absent if no TLS is terminated. */
  get caCertificate(): string | undefined {
    return this.#authority?.certificate
  }

  /** How many clients are connected. */
  get size(): number {
    return this.#clients.size
  }

  /** Serves one client until it disconnects. Never rejects. */
  async handle(stream: Duplex): Promise<void> {
    // Readers handle stream errors; without a listener an error would crash the process.
    stream.on('error', () => undefined)
    if (this.#closed || stream.destroyed) return void stream.destroy()
    const client = new Source(stream)
    const leave = this.#clients.size < this.#core.limits.connections ? this.#enter(PER_CONNECTION) : undefined
    if (leave === undefined) return this.#turnAway(client)
    // Not for the first, which may be the only one.
    if (this.#served++ > 0) knowSocketOptions()
    this.#clients.add(stream)
    stream.once('close', () => {
      leave()
      this.#clients.delete(stream)
    })
    try {
      await this.#serve(client)
      if (!stream.writableEnded) stream.end()
      this.#linger(stream)
    } catch {
      stream.destroy()
    }
  }

  /** Listens on loopback, for tests and for clients that have no tunnel. */
  async listen({
    host = '127.0.0.1',
    port = 0,
  } = {}): Promise<{ readonly host: string; readonly port: number }> {
    if (!LOOPBACK.includes(host))
      throw new SandboxError('invalid-input', `the proxy does not listen on \`${host}\``, {
        hint: `use ${LOOPBACK.join(' or ')}`,
      })
    const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => void this.handle(socket))
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen({ host, port, backlog: 4096 }, resolve)
    })
    this.#servers.add(server)
    return { host, port: (server.address() as { port: number }).port }
  }

  /** Replaces the allowed hosts, with immediate effect on open connections. */
  setAllowHosts(allowHosts: readonly string[]): void {
    this.#core.setAllowHosts(allowHosts)
  }

  /** Adds one host to the list; open connections stay. */
  allowAlso(entry: string): void {
    this.#core.allowAlso(entry)
  }

  /** Replaces the headers that are set in requests. */
  setTransforms(list: readonly HeaderTransform[]): void {
    const transforms = new Transforms(list)
    if (transforms.size > 0 && !this.#authority)
      throw new SandboxError('unsupported', 'this sandbox was created without rules for requests', {
        hint: 'the sandbox must trust the certificates of the proxy from its start: create it with `network.rules`',
      })
    this.#core.transforms = transforms
  }

  /** Closes all connections. */
  async close(): Promise<void> {
    this.#closed = true
    this.#core.close()
    for (const client of this.#clients) client.destroy()
    await Promise.all([...this.#servers].map((server) => new Promise((resolve) => server.close(resolve))))
    this.#servers.clear()
  }

  async #serve(client: Source): Promise<void> {
    const first = await this.#inTime(client, client.next())
    if (first === undefined) return
    client.unshift(first)
    if (first[0] === 5) return this.#serveSocks(client)
    const served = await serveHttp(this.#core, client, { kind: 'proxy', credentials: this.#credentials })
    if (served !== undefined) await this.#serveConnect(client, served.connect)
  }

  async #serveConnect(client: Source, head: RequestHead): Promise<void> {
    try {
      assertConnect(head)
    } catch (error) {
      return sendAndClose(client, refusal(error))
    }
    await this.#open(client, { raw: head.target, protocol: 'connect' }, CONNECTED, refusal)
  }

  async #serveSocks(client: Source): Promise<void> {
    try {
      const raw = await this.#inTime(client, readSocks(client, this.#credentials))
      if (raw === undefined) return
      await this.#open(client, { raw, protocol: 'socks5' }, socksReply(SOCKS_REPLY.ok), socksReplyOf)
    } catch (error) {
      sendAndClose(client, socksReplyOf(error))
    }
  }

  /** SECURITY: only so many at a time get an answer, because each has a descriptor until it is sent. */
  #turnAway(client: Source): void {
    if (turnedAway >= MOST_TURNED_AWAY) return void client.stream.destroy()
    turnedAway++
    client.stream.once('close', () => turnedAway--)
    sendAndClose(client, refusal(new SandboxError('resource-exhausted', 'too many connections')))
    this.#linger(client.stream)
  }

  /** Gives the last bytes time to arrive; then destroys a client that has not disconnected. */
  #linger(stream: Duplex): void {
    if (stream.destroyed) return
    stream.resume()
    const timer = setTimeout(() => stream.destroy(), this.#core.limits.lingerMs)
    stream.once('close', () => clearTimeout(timer))
  }

  /** Checks, connects, replies and joins the two sides; or rejects in the client's protocol. */
  async #open(
    client: Source,
    { raw, protocol }: { readonly raw: string; readonly protocol: Protocol },
    connected: Buffer,
    refused: (error: unknown) => Buffer,
  ): Promise<void> {
    let connection: EgressConnection | undefined
    try {
      connection = await this.#core.enter({ raw, kind: 'proxy-target', protocol, client: client.stream })
      const { target } = connection.judged
      if (this.#core.broker?.terminates(target)) return await this.#terminate(client, connection, connected)
      if (connection.secretHosts.length > 0 || this.#core.transforms.applies(target))
        return await this.#intercept(client, connection, connected)
      if (target.port === 80 && !target.literal) return await this.#readAsHttp(client, connection, connected)
      const upstream = await dialJudged(connection, { connectMs: this.#core.limits.connectMs })
      client.stream.write(connected)
      await tunnel(this.#core, client, upstream, connection).catch(() => undefined)
    } catch (error) {
      connection?.close(error)
      await connection?.reported
      if (!client.stream.destroyed) sendAndClose(client, refused(connection?.until.reason ?? error))
    }
  }

  /** SECURITY: a tunnel to port 80 is parsed as HTTP, so that `Host` cannot name another host. */
  async #readAsHttp(client: Source, connection: EgressConnection, connected: Buffer): Promise<void> {
    client.stream.write(connected)
    await this.#asOrigin(client, connection, 'http')
  }

  /**
   * SECURITY: another port or another name of a host with a secret, or a host whose requests are changed. All traffic is
   * parsed as HTTP, with or without TLS, so that the value is not returned there; other protocols are rejected.
   */
  async #intercept(client: Source, connection: EgressConnection, connected: Buffer): Promise<void> {
    client.stream.write(connected)
    const first = await this.#inTime(client, client.next())
    if (first === undefined) return connection.close()
    client.unshift(first)
    if (first[0] === TLS_HANDSHAKE) return this.#endTls(client, connection)
    await this.#asOrigin(client, connection, 'http')
  }

  /** Terminates TLS to insert a secret. */
  async #terminate(client: Source, connection: EgressConnection, connected: Buffer): Promise<void> {
    client.stream.write(connected)
    await this.#endTls(client, connection)
  }

  async #endTls(client: Source, connection: EgressConnection): Promise<void> {
    const { host } = connection.judged.target
    try {
      await judgeFirstFlight(this.#core, client, connection)
    } catch (error) {
      connection.close(error)
      client.stream.destroy()
      return
    }
    const secureContext = (this.#authority as Authority).contextFor(host)
    const plain = new TLSSocket(client.detach() as Socket, {
      isServer: true,
      secureContext,
      ALPNProtocols: ['http/1.1'],
    })
    plain.on('error', () => client.stream.destroy())
    client.stream.once('close', () => plain.destroy())
    await this.#asOrigin(new Source(plain), connection, 'https')
    // The stream below must not end before the last of the TLS above it is written.
    if (!plain.destroyed)
      await new Promise<void>((resolve) => {
        plain.once('close', resolve)
        plain.end(() => resolve())
      })
  }

  async #asOrigin(client: Source, connection: EgressConnection, scheme: 'http' | 'https'): Promise<void> {
    const stop = (): void => void client.stream.destroy()
    connection.until.listen(stop)
    const { target } = connection.judged
    await serveHttp(this.#core, client, { kind: 'origin', scheme, target, connection })
    connection.close()
  }

  /** SECURITY: slow single bytes do not extend the timeout. */
  async #inTime<T>(client: Source, work: Promise<T>): Promise<T> {
    const timer = setTimeout(() => client.stream.destroy(), this.#core.limits.headerMs)
    try {
      return await work
    } finally {
      clearTimeout(timer)
    }
  }
}

/** A CONNECT request has no body, and its `Host`, if any, names the same host. */
function assertConnect(head: RequestHead): void {
  if (requestFraming(head).kind !== 'none') throw new SandboxError('invalid-input', 'CONNECT has no body')
  const [host, ...more] = valuesOf(head.headers, 'host')
  if (host === undefined) return
  const wanted = parseTarget(head.target, 'proxy-target')
  const plain = /:\d+$/.test(host) ? host : `${host}:${/:(\d+)$/.exec(head.target)?.[1]}`
  const named = parseTarget(plain, 'proxy-target')
  if (wanted.kind === 'blocked') return // The judgement says why.
  // Node's own client names the proxy there. The header is not passed on, so it leads nowhere.
  if (more.length === 0 && /^(127\.0\.0\.1|localhost|\[::1\])(:\d+)?$/i.test(host)) return
  const same =
    named.kind === 'ok' && named.value.host === wanted.value.host && named.value.port === wanted.value.port
  if (more.length > 0 || !same)
    throw new SandboxError('ssrf-blocked', 'the Host header names another host than the request')
}
