import type { Socket } from 'node:net'
import { SandboxError } from '../model/errors.ts'
import { isSamePeer } from '../policy/network/network.ts'
import { Cancellation, type CancelSignal, deadline } from './cancel.ts'
import { bulkReading, ReadBuffers, Source } from './source.ts'
import { dial } from './upstream/dial.ts'
import type { Judged } from './upstream/resolve.ts'
import type { SocksUpstream } from './upstream/socks-upstream.ts'

/** How a client spoke to the proxy. */
export type Protocol = 'connect' | 'http' | 'socks5'

/** A connection as reported to its owner; it never contains a secret. */
export type Connection = {
  readonly host: string
  readonly port: number
  /** The address that it goes to; before it is made, every checked address that it may go to. */
  readonly address?: string
  readonly protocol: Protocol
  readonly verdict: 'allow' | 'deny'
  readonly reason: string
  /** Bytes from outside into the sandbox. */
  readonly bytesIn: number
  readonly bytesOut: number
  readonly durationMs: number
  /** When it ended. */
  readonly at?: number
}

const MAX_TRIES = 4

/** Tells the owner that a connection has ended. */
type Report = (view: Connection, connection: EgressConnection) => Promise<void> | void

/** An admitted outgoing connection: counts bytes, ends when idle, and can be cut at any time. */
export class EgressConnection {
  readonly judged: Judged
  /** The checked addresses that it may go to, in the order in which they are tried. */
  readonly candidates: readonly string[]
  readonly protocol: Protocol
  bytesIn = 0
  bytesOut = 0
  address: string | undefined
  /** The hosts with a secret that it leads to, under whatever name. */
  secretHosts: readonly string[] = []
  /** Whether bytes may leave the sandbox now; absent: always. */
  mayPass: (() => boolean) | undefined
  /** What its upstream is read into. */
  buffers = new ReadBuffers()
  readonly #started = Date.now()
  readonly #idle: NodeJS.Timeout
  readonly #cut = new Cancellation()
  readonly #report: Report
  readonly #around: EgressConnection | undefined
  /** The operator's proxy through which it goes. */
  readonly via: SocksUpstream | undefined
  /** Resolves when the owner knows that the connection has ended; nothing is waited for before. */
  reported: Promise<void> | void = undefined
  #done = false

  /** `around` is the tunnel that contains this connection; traffic here keeps the tunnel open. */
  constructor(
    judged: Judged,
    protocol: Protocol,
    idleMs: number,
    report: Report,
    around?: EgressConnection,
    via?: SocksUpstream,
  ) {
    this.judged = judged
    this.candidates = judged.addresses.slice(0, MAX_TRIES)
    this.via = via
    this.protocol = protocol
    this.#report = report
    this.#around = around
    this.#idle = setTimeout(
      () => this.cut(new SandboxError('timeout', `nothing moved for ${idleMs} ms`)),
      idleMs,
    )
    this.#idle.unref()
  }

  /** Cancelled when the connection is cut; its streams are then destroyed. */
  get until(): CancelSignal {
    return this.#cut
  }

  /** Bytes into the sandbox. */
  readonly countIn = (count: number): void => {
    this.bytesIn += count
    this.touch()
  }

  /** Bytes out of it. */
  readonly countOut = (count: number): void => {
    // Before the bytes are written: cutting the connection closes the socket that they would go to.
    if (this.mayPass?.() === false) this.cut(new SandboxError('wrong-state', 'the sandbox must not act now'))
    this.bytesOut += count
    this.touch()
  }

  /** Resets the idle timer. */
  touch(): void {
    this.#idle.refresh()
    this.#around?.touch()
  }

  /** Closes the connection from our side. */
  cut(why: SandboxError): void {
    if (this.#done) return
    this.#finish('deny', why.message)
    this.#cut.cancel(why)
  }

  /** Ends the connection after its last byte, or after the error that ended it. */
  close(error?: unknown): void {
    if (this.#done) return
    if (error instanceof SandboxError && error.family === 'denied') this.#finish('deny', error.message)
    else this.#finish('allow', error instanceof SandboxError ? error.message : this.judged.reason)
  }

  /** The current state of the connection. */
  view(verdict: 'allow' | 'deny', reason: string): Connection {
    const { host, port } = this.judged.target
    const { bytesIn, bytesOut, protocol, address } = this
    const durationMs = Date.now() - this.#started
    const seen = { host, port, protocol, verdict, reason, bytesIn, bytesOut, durationMs }
    return address === undefined ? seen : { ...seen, address }
  }

  #finish(verdict: 'allow' | 'deny', reason: string): void {
    this.#done = true
    clearTimeout(this.#idle)
    this.reported = this.#report(this.view(verdict, reason), this)
  }
}

/** An open connection to the outside. */
export type Upstream = { readonly socket: Socket; readonly source: Source; readonly address: string }

/** How a connection to a checked target is opened. */
export type DialOptions = {
  readonly connectMs: number
  readonly tls?: { readonly host: string; readonly literal: boolean; readonly ca?: string | undefined }
}

/** Connects to the first checked address that answers. SECURITY: uses only addresses checked for this connection. */
export async function dialJudged(
  connection: EgressConnection,
  { connectMs, tls }: DialOptions,
): Promise<Upstream> {
  const { target } = connection.judged
  let failure: unknown
  for (const address of connection.candidates) {
    const { via } = connection
    const bulk = tls === undefined && via === undefined ? bulkReading(connection.buffers) : undefined
    const clock = deadline(connectMs, 'no connection', connection.until)
    try {
      const socket = await dial({
        address,
        port: target.port,
        tls,
        until: clock.until,
        via,
        onread: bulk?.onread,
      } as Parameters<typeof dial>[0])
      connection.address = address
      return { socket, address, source: bulk ? bulk.attach(socket) : new Source(socket) }
    } catch (error) {
      failure = error
      if (error instanceof SandboxError && error.code !== 'timeout') throw error
    } finally {
      clock.stop()
    }
  }
  throw unreachable(target.host, failure)
}

function unreachable(host: string, cause: unknown): SandboxError {
  if (cause instanceof SandboxError) return cause
  const { code } = (cause ?? {}) as NodeJS.ErrnoException
  if (code === 'ETIMEDOUT') return new SandboxError('timeout', `\`${host}\` does not answer`)
  return new SandboxError('fetch-failed', `cannot reach \`${host}\`${code ? `: ${code}` : ''}`)
}

type IdleUpstream = {
  readonly upstream: Upstream
  readonly timer: NodeJS.Timeout
  readonly leave: () => void
}

const IDLE_PER_PLACE = 32
const IDLE_ALL = 128
const IDLE_MS = 4000

/**
 * Idle keep-alive connections. INVARIANT: a connection is reused only for the same scheme, host, port and an address that
 * was checked again for the new request.
 */
export class UpstreamPool {
  readonly #idle = new Map<string, IdleUpstream[]>()
  readonly #enter: () => (() => void) | undefined
  #count = 0

  /** `enter`: counts a descriptor, unless there are too many; what it returns gives it back. */
  constructor(enter: () => (() => void) | undefined) {
    this.#enter = enter
  }

  /** An idle connection that can be reused, if there is one. */
  take(connection: EgressConnection, scheme: string): Upstream | undefined {
    const waiting = this.#idle.get(keyOf(connection, scheme))
    const found = waiting?.findLastIndex(({ upstream }) =>
      connection.candidates.some((judged) => isSamePeer(judged, upstream.address)),
    )
    if (waiting === undefined || found === undefined || found < 0) return undefined
    const { upstream, timer, leave } = waiting[found] as IdleUpstream
    clearTimeout(timer)
    leave()
    waiting.splice(found, 1)
    this.#count--
    upstream.source.stop()
    connection.address = upstream.address
    return upstream.source.over || upstream.socket.destroyed ? this.take(connection, scheme) : upstream
  }

  /** Keeps a connection whose last response was read completely. */
  give(connection: EgressConnection, scheme: string, upstream: Upstream): void {
    const key = keyOf(connection, scheme)
    const waiting = this.#idle.get(key) ?? []
    const { socket } = upstream
    // SECURITY: to a server that answers without reading, one request after the other would wait in one socket.
    const isUsable = !socket.destroyed && socket.writableLength === 0
    const isFull = waiting.length >= IDLE_PER_PLACE || this.#count >= IDLE_ALL
    const leave = isFull || !isUsable ? undefined : this.#enter()
    if (leave === undefined) {
      socket.destroy()
      return
    }
    this.#idle.set(key, waiting)
    const drop = (): void => {
      const at = waiting.findIndex((one) => one.upstream === upstream)
      if (at < 0) return
      clearTimeout(timer)
      leave()
      waiting.splice(at, 1)
      this.#count--
      if (waiting.length === 0 && this.#idle.get(key) === waiting) this.#idle.delete(key)
      upstream.socket.destroy()
    }
    const timer = setTimeout(drop, IDLE_MS)
    timer.unref()
    waiting.push({ upstream, timer, leave })
    this.#count++
    // SECURITY: unsolicited bytes must not become the response to the next request.
    upstream.source.flow((_, release) => {
      release?.()
      drop()
    }, drop)
  }

  clear(): void {
    for (const waiting of this.#idle.values())
      for (const { upstream, timer, leave } of waiting.splice(0)) {
        clearTimeout(timer)
        leave()
        upstream.socket.destroy()
      }
    this.#idle.clear()
    this.#count = 0
  }
}

const keyOf = ({ judged: { target } }: EgressConnection, scheme: string): string =>
  `${scheme}://${target.host}:${target.port}`
