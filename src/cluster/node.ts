import { uptime } from 'node:os'
import { monotonicMs } from '../host/clock.ts'
import { SandboxError } from '../model/errors.ts'
import {
  fenceNode,
  leaseQuery,
  leaveCluster,
  listNodes,
  type NewNode,
  type NodeFacts,
  type NodeRow,
  type NodeSchedule,
  registerNode,
  renewLease,
} from '../store/nodes.ts'
import type { Store } from '../store/sql.ts'
import { Lease } from './lease.ts'

export type { NodeRow }

/** What a node is made of. */
export type NodeParts = {
  /** Everything that this server writes; from now on every write of it needs the lease. */
  readonly store: Store
  /** A connection of its own, so that a renewal never waits behind other writes. */
  readonly leases: Store
  readonly self: NewNode
  /** What this node has and uses now. */
  readonly facts: () => NodeFacts
  readonly log: (line: string) => void
}

/** What a server does when its membership changes. */
export type NodeEvents = {
  /** The lease may have ended: nothing may go on until it is renewed. */
  lapse(): void
  /** The same epoch was renewed before anybody else took over. */
  regain(): void
  /** Another node, or a later run of this one, took over: everything here must end. */
  fence(): void
  /** The lease was renewed. */
  renew?(): void
  /** The nodes were read. */
  look?(nodes: readonly NodeRow[]): void
  /** A node was lost, and this one is to settle what it left. Called again until it succeeds. */
  settle(lost: NodeRow): Promise<void>
}

type Phase = 'held' | 'lapsed' | 'fenced' | 'left'

/** A machine that slept longer than this did not see its timers. */
const SLEPT_MS = 1000

/**
 * This server as a member of a cluster: it renews its lease, watches those of the others, and fences nodes that stopped.
 * INVARIANT: while `isHeld` is true, no other node has taken over anything of this one.
 */
export class ClusterNode {
  readonly id: string
  readonly epoch: number
  readonly #parts: NodeParts
  readonly #lease: Lease
  readonly #events: NodeEvents[] = []
  #nodes: readonly NodeRow[] = []
  #schedule: NodeSchedule = 'open'
  #phase: Phase = 'held'
  /** Since when the database has answered without a gap. */
  #reachableSince = monotonicMs()
  #offset = sleepOffset()
  #timer: NodeJS.Timeout | undefined
  #lapseTimer: NodeJS.Timeout | undefined
  #ticking: Promise<void> | undefined
  readonly #settling = new Set<string>()

  private constructor(parts: NodeParts, epoch: number, askedAt: number) {
    this.#parts = parts
    this.id = parts.self.id
    this.epoch = epoch
    this.#lease = new Lease(parts.self.leaseMs)
    this.#lease.renewed(askedAt)
    parts.store.guardWrites({ sql: leaseQuery(this), check: (rows) => this.#assertFound(rows) })
  }

  /** Begins a new epoch of this node. */
  static async register(parts: NodeParts): Promise<ClusterNode> {
    const askedAt = monotonicMs()
    const epoch = await parts.leases.write((tx) => registerNode(tx, parts.self))
    const node = new ClusterNode(parts, epoch, askedAt)
    await node.#look()
    return node
  }

  on(events: NodeEvents): void {
    this.#events.push(events)
    if (this.#phase === 'lapsed') events.lapse()
    if (this.#phase === 'fenced') events.fence()
  }

  /** Starts to renew and to watch. */
  start(): void {
    this.#arm()
    this.#armLapse()
  }

  get isHeld(): boolean {
    return this.#phase === 'held' && this.#lease.isHeld
  }

  get leaseAgeMs(): number {
    return this.#lease.ageMs
  }

  /** How long this node may go on without a renewal; 0 when it may not. */
  get leaseLeftMs(): number {
    return this.#phase === 'held' ? this.#lease.leftMs : 0
  }

  /** Whether another node has taken over. */
  get isFenced(): boolean {
    return this.#phase === 'fenced'
  }

  get leaseMs(): number {
    return this.#lease.leaseMs
  }

  get schedule(): NodeSchedule {
    return this.#schedule
  }

  get role(): NodeRow['role'] {
    return this.#parts.self.role
  }

  /** All nodes as they were a moment ago. */
  get nodes(): readonly NodeRow[] {
    return this.#nodes
  }

  /** Another node that runs, or nothing. */
  peer(id: string): NodeRow | undefined {
    return this.#nodes.find((one) => one.id === id && one.state === 'up')
  }

  /** The same, asking the database if it is not known. */
  async findPeer(id: string): Promise<NodeRow | undefined> {
    const known = this.peer(id)
    if (known) return known
    await this.#look()
    return this.peer(id)
  }

  /** Reads the nodes now. */
  refresh(): Promise<void> {
    return this.#look()
  }

  /** Throws unless this node may act for its sandboxes. */
  assertHeld(): void {
    if (!this.isHeld) throw noLease(this.#phase)
  }

  /** Gives the lease back, so that nobody waits for its end. */
  async leave(): Promise<void> {
    if (this.#phase === 'left') return
    const before = this.#phase
    this.#phase = 'left'
    clearTimeout(this.#timer)
    clearTimeout(this.#lapseTimer)
    await this.#ticking?.catch(() => {})
    if (before === 'held') await this.#parts.leases.write((tx) => leaveCluster(tx, this)).catch(() => {})
  }

  #assertFound(rows: readonly unknown[]): void {
    if (this.#phase === 'fenced') throw noLease('fenced')
    if (rows.length === 0) throw noLease(this.#phase === 'held' ? 'lapsed' : this.#phase)
  }

  #arm(): void {
    if (this.#phase === 'left' || this.#phase === 'fenced') return
    const pauseMs = Math.min(500, this.#lease.leaseMs / 12)
    this.#timer = setTimeout(() => {
      this.#ticking = this.#tick().finally(() => this.#arm())
    }, pauseMs).unref()
  }

  /** INVARIANT: runs at the end of the lease by the monotonic clock, whatever the database does. */
  #armLapse(): void {
    clearTimeout(this.#lapseTimer)
    if (this.#phase !== 'held') return
    this.#lapseTimer = setTimeout(() => {
      if (this.#lease.isHeld) this.#armLapse()
      else this.#lapse('the database did not answer in time')
    }, this.#lease.leftMs + 1).unref()
  }

  async #tick(): Promise<void> {
    if (this.#hasSlept()) this.#lapse('this machine was suspended')
    try {
      if (this.#lease.isDue || this.#phase === 'lapsed') await this.#renew()
      if (this.#phase !== 'held') return
      await this.#look()
      await this.#watch()
    } catch {
      this.#reachableSince = Number.POSITIVE_INFINITY
    }
  }

  async #renew(): Promise<void> {
    const askedAt = monotonicMs()
    const schedule = await this.#parts.leases.write((tx) => renewLease(tx, this, this.#parts.facts()))
    if (this.#phase === 'left') return
    if (schedule === undefined) return this.#fenced()
    this.#schedule = schedule
    this.#lease.renewed(askedAt)
    if (this.#reachableSince === Number.POSITIVE_INFINITY) this.#reachableSince = askedAt
    if (this.#phase === 'lapsed') this.#regain()
    this.#armLapse()
    for (const one of this.#events) one.renew?.()
  }

  async #look(): Promise<void> {
    this.#nodes = await listNodes(this.#parts.leases)
    for (const one of this.#events) one.look?.(this.#nodes)
  }

  /**
   * Fences nodes whose lease has ended. After an outage of the database nobody is fenced for one lease, because every node
   * gets the same chance to renew its own.
   */
  async #watch(): Promise<void> {
    const isSettled = monotonicMs() - this.#reachableSince >= this.#lease.leaseMs
    for (const node of this.#nodes) {
      if (node.id === this.id) continue
      if (node.state === 'up' && node.leftMs <= 0 && isSettled) await this.#fence(node)
      else if (node.state === 'lost' && !node.settled && this.#isToSettle(node)) this.#settle(node)
    }
  }

  async #fence(node: NodeRow): Promise<void> {
    const isOurs = await this.#parts.leases.write((tx) => fenceNode(tx, node, this.id))
    if (!isOurs) return
    this.#parts.log(`node ${node.name} (${node.id}) is lost: its lease has ended`)
    this.#settle({ ...node, state: 'lost', fencedBy: this.id })
  }

  /** The node that fenced it settles it, or another node if that one is gone too. */
  #isToSettle({ fencedBy }: NodeRow): boolean {
    return fencedBy === this.id || fencedBy === null || this.peer(fencedBy) === undefined
  }

  #settle(node: NodeRow): void {
    const name = `${node.id} ${node.epoch}`
    if (this.#settling.has(name)) return
    this.#settling.add(name)
    void Promise.all(this.#events.map((one) => one.settle(node)))
      .catch((error: Error) => this.#parts.log(`node ${node.id} is not settled yet: ${error.message}`))
      .finally(() => this.#settling.delete(name))
  }

  #lapse(why: string): void {
    if (this.#phase !== 'held') return
    this.#phase = 'lapsed'
    this.#lease.drop()
    this.#reachableSince = Number.POSITIVE_INFINITY
    this.#parts.log(`the lease has ended: ${why}; sandboxes are frozen until it is renewed`)
    for (const one of this.#events) one.lapse()
  }

  #regain(): void {
    this.#phase = 'held'
    this.#parts.log('the lease is renewed in the same epoch; sandboxes go on')
    for (const one of this.#events) one.regain()
  }

  #fenced(): void {
    this.#phase = 'fenced'
    this.#lease.drop()
    clearTimeout(this.#timer)
    clearTimeout(this.#lapseTimer)
    this.#parts.log('another node has taken over: this one ends all of its sandboxes and stops')
    for (const one of this.#events) one.fence()
  }

  /** The monotonic clock stands still while a machine is suspended; the time since its boot does not. */
  #hasSlept(): boolean {
    const now = sleepOffset()
    const slept = now - this.#offset
    this.#offset = Math.min(this.#offset, now)
    if (slept < SLEPT_MS) return false
    this.#offset = now
    return true
  }
}

const sleepOffset = (): number => uptime() * 1000 - monotonicMs()

const REASONS: Readonly<Record<Phase, string>> = {
  held: 'the lease of this node has just ended',
  lapsed: 'this node cannot renew its lease in the database',
  fenced: 'another node has taken over from this one',
  left: 'this node has left the cluster',
}

const noLease = (phase: Phase): SandboxError =>
  new SandboxError('store-unwritable', REASONS[phase], {
    hint: 'repeat the request: another node answers it, or this one as soon as it has its lease again',
    retryAfterSecs: 2,
  })
