import type { Duplex } from 'node:stream'
import { LONGEST_TIMER_MS } from '../host/clock.ts'
import type { UrlVerdict } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import {
  isOnlyUnlisted,
  judgeAnswers,
  judgeTarget,
  type NetworkPolicy,
  networkPolicyOf,
  parseTarget,
  type TargetKind,
  withTarget,
} from '../policy/network/network.ts'
import { Cancellation } from './cancel.ts'
import { type Connection, EgressConnection, type Protocol, UpstreamPool } from './connection.ts'
import type { Broker } from './secrets/broker.ts'
import type { Transforms } from './secrets/transforms.ts'
import { ReadBuffers } from './source.ts'
import type { Resolve } from './upstream/names.ts'
import { type Judged, resolveJudged } from './upstream/resolve.ts'
import type { SocksUpstream } from './upstream/socks-upstream.ts'

/** Timeouts and limits. */
export type Limits = {
  /** Time to receive a complete head, handshake or first TLS flight. */
  readonly headerMs: number
  /** Time between two requests of one connection. */
  readonly keepAliveMs: number
  readonly connectMs: number
  /** Time without traffic on a connection. */
  readonly idleMs: number
  /** Time for the second half of a connection after the first has ended. */
  readonly halfOpenMs: number
  /** Time for a rejected client to disconnect. */
  readonly lingerMs: number
  readonly headerBytes: number
  readonly connections: number
}

/** The limits of every proxy unless it gets others. */
export const LIMITS: Limits = {
  headerMs: 10_000,
  keepAliveMs: 60_000,
  connectMs: 10_000,
  idleMs: 300_000,
  halfOpenMs: 60_000,
  lingerMs: 1000,
  headerBytes: 32 * 1024,
  connections: 2048,
}

/** Callbacks of the owner for each connection. */
export type Hooks = {
  /** A second check after ours; it can only reject. */
  readonly policy?: ((connection: Connection) => Promise<UrlVerdict> | UrlVerdict) | undefined
  /** Decides about a host that only the list objects to, while the connection waits; rejects to refuse it. Absent: refused. */
  readonly unlisted?: ((target: UnlistedTarget) => Promise<void>) | undefined
  /** Runs before the connection is made, for example to write a record; if it rejects, no connection is made. */
  readonly admit?: ((connection: Connection) => Promise<void> | void) | undefined
  /**
   * Receives every connection: a rejected one at once, others when they end. The client of a rejected one gets its answer
   * when this resolves; it must not reject.
   */
  readonly onConnection?: ((connection: Connection) => Promise<void> | void) | undefined
  /** Asked before each piece that leaves the sandbox: a no cuts the connection. */
  readonly mayPass?: (() => boolean) | undefined
}

/** A host that is not on the list, and the client that waits for it. */
export type UnlistedTarget = {
  readonly host: string
  readonly port: number
  readonly protocol: Protocol
  /** The client that waits; absent inside a connection that waited already. */
  readonly client?: Duplex | undefined
}

/** The target that a client asked for, as it wrote it. */
export type Wanted = {
  readonly raw: string
  readonly kind: TargetKind
  readonly protocol: Protocol
  readonly client?: Duplex | undefined
}

/** PLATFORM: a Node timer with a delay above 31 bits fires at once. */
export const timersOf = (limits: Limits): Limits =>
  Object.fromEntries(
    Object.entries(limits).map(([name, value]) => [name, Math.min(value, LONGEST_TIMER_MS)]),
  ) as Limits

/** What the core of a proxy is made of. */
export type CoreParts = {
  readonly allowHosts: readonly string[]
  readonly allowPrivate: readonly string[]
  readonly resolve: Resolve
  readonly limits: Limits
  readonly hooks: Hooks
  readonly broker: Broker | undefined
  /** Headers that are set in requests. */
  readonly transforms: Transforms
  /** Certificates to trust upstream instead of the system's. */
  readonly upstreamCa: string | undefined
  /** The operator's proxy through which every connection goes. */
  readonly via: SocksUpstream | undefined
  /** Counts an idle connection to a server, unless there are too many; absent: there never are. */
  readonly enterPool?: () => (() => void) | undefined
}

/** Shared by all three protocols: the policy check, the open connections and the idle connections. */
export class Core {
  readonly limits: Limits
  readonly broker: Broker | undefined
  readonly upstreamCa: string | undefined
  readonly pool: UpstreamPool
  transforms: Transforms
  readonly #parts: CoreParts
  readonly #open = new Set<EgressConnection>()
  readonly #buffers = new ReadBuffers()
  #policy: NetworkPolicy
  /** Counts replaced lists; a host that is added to a list leaves open connections as they are. */
  #replaced = 0
  #closed = false

  constructor(parts: CoreParts) {
    this.#parts = parts
    this.pool = new UpstreamPool(parts.enterPool ?? (() => () => undefined))
    this.limits = parts.limits
    this.broker = parts.broker
    this.transforms = parts.transforms
    this.upstreamCa = parts.upstreamCa
    this.#policy = networkPolicyOf(parts)
  }

  /** Checks the policy, then asks the owner. Every rejection is reported before it is thrown. */
  async enter(wanted: Wanted, around?: EgressConnection): Promise<EgressConnection> {
    const { protocol } = wanted
    let connection: EgressConnection | undefined
    try {
      const policy = await this.#policyFor(wanted, around)
      const replaced = this.#replaced
      const judged = await this.#resolve(policy, wanted)
      connection = new EgressConnection(
        judged,
        protocol,
        this.limits.idleMs,
        this.#report,
        around,
        this.#parts.via,
      )
      if (this.broker) connection.secretHosts = await this.broker.hostsAt(judged, this.#parts.resolve)
      connection.mayPass = this.#parts.hooks.mayPass
      connection.buffers = this.#buffers
      this.#open.add(connection)
      await this.#askOwner(connection)
      if (replaced !== this.#replaced || this.#closed) this.#rejudge(connection)
      if (connection.until.reason !== undefined) throw connection.until.reason
      return connection
    } catch (error) {
      const refused =
        error instanceof SandboxError
          ? error
          : new SandboxError('ssrf-blocked', 'the connection was not admitted')
      if (connection === undefined) return await this.refuse(wanted, refused)
      connection.cut(refused)
      await connection.reported
      throw refused
    }
  }

  /** The list for one connection. INVARIANT: nothing is looked up before a host that is not on the list was approved. */
  async #policyFor(
    { raw, kind, protocol, client }: Wanted,
    around: EgressConnection | undefined,
  ): Promise<NetworkPolicy> {
    const { unlisted } = this.#parts.hooks
    const parsed = parseTarget(raw, kind)
    if (!unlisted || parsed.kind === 'blocked' || !isOnlyUnlisted(this.#policy, parsed.value))
      return this.#policy
    const { host, port } = parsed.value
    // A request inside a tunnel to this host was approved with the tunnel, as long as that is open.
    if (around?.until.reason !== undefined) throw around.until.reason
    const tunnel = around?.judged.target
    if (tunnel?.host !== host || tunnel.port !== port) await unlisted({ host, port, protocol, client })
    return withTarget(this.#policy, parsed.value)
  }

  /** A name is looked up no longer than its client waits. */
  async #resolve(policy: NetworkPolicy, { raw, kind, client }: Wanted): Promise<Judged> {
    const until = new Cancellation()
    const onClose = (): void => until.cancel(new SandboxError('fetch-failed', 'the client has disconnected'))
    if (client?.destroyed) onClose()
    client?.once('close', onClose)
    try {
      const timeoutMs = this.limits.connectMs
      return await resolveJudged(policy, raw, kind, { resolve: this.#parts.resolve, until, timeoutMs })
    } finally {
      client?.off('close', onClose)
    }
  }

  /** Reports a connection that is not made, then throws the reason. */
  async refuse({ raw, kind, protocol }: Wanted, refused: SandboxError): Promise<never> {
    const parsed = parseTarget(raw, kind)
    const { host, port } = parsed.kind === 'ok' ? parsed.value : { host: printable(raw), port: 0 }
    const nothing = { bytesIn: 0, bytesOut: 0, durationMs: 0 }
    const verdict = { verdict: 'deny', reason: refused.message } as const
    await this.#parts.hooks.onConnection?.({ host, port, protocol, ...verdict, ...nothing })
    throw refused
  }

  /** Whether a TLS client may name this server, for connections to bare addresses. */
  allowsName(name: string, port: number): boolean {
    const parsed = parseTarget(`${name}:${port}`, 'proxy-target')
    return parsed.kind === 'ok' && judgeTarget(this.#policy, parsed.value).verdict === 'allow'
  }

  /** Takes effect at once: open connections that are no longer allowed are cut. */
  setAllowHosts(allowHosts: readonly string[]): void {
    this.#policy = networkPolicyOf({ allowHosts, allowPrivate: this.#parts.allowPrivate })
    this.#replaced++
    this.pool.clear()
    for (const connection of [...this.#open]) this.#rejudge(connection)
  }

  /** Adds one host to the list. */
  allowAlso(entry: string): void {
    const { hosts = [] } = networkPolicyOf({ allowHosts: [entry] })
    this.#policy = { ...this.#policy, hosts: [...(this.#policy.hosts ?? []), ...hosts] }
  }

  close(): void {
    this.#closed = true
    this.pool.clear()
    for (const connection of [...this.#open])
      connection.cut(new SandboxError('wrong-state', 'the proxy is closed'))
  }

  readonly #report = (view: Connection, connection: EgressConnection): Promise<void> | void => {
    this.#open.delete(connection)
    return this.#parts.hooks.onConnection?.(view)
  }

  async #askOwner(connection: EgressConnection): Promise<void> {
    const { policy, admit } = this.#parts.hooks
    // In one order: a resolver that rotates its answers names the same destination each time.
    const address = [...connection.candidates].sort().join(', ')
    const view = { ...connection.view('allow', connection.judged.reason), address }
    const verdict = await policy?.(view)
    if (verdict?.verdict === 'block') throw new SandboxError('ssrf-blocked', verdict.reason)
    await admit?.(view)
  }

  /** SECURITY: the list may have changed while the owner was asked, so it is checked again. */
  #rejudge(connection: EgressConnection): void {
    const { target, addresses } = connection.judged
    const named = judgeTarget(this.#policy, target)
    const verdict =
      named.verdict === 'block' || target.literal ? named : judgeAnswers(this.#policy, target, addresses)
    if (this.#closed) connection.cut(new SandboxError('wrong-state', 'the proxy is closed'))
    else if (verdict.verdict === 'block') connection.cut(new SandboxError('ssrf-blocked', verdict.reason))
  }
}

/** PLATFORM: a part of a string keeps the whole string in memory, here the head of a request; so the part is copied. */
const printable = (raw: string): string =>
  Buffer.from(raw.slice(0, 256), 'latin1')
    .toString('latin1')
    .replace(/[^\x21-\x7e]/g, '?')
