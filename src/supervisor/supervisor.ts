import { monotonicMs } from '../host/clock.ts'

import { SandboxError } from '../model/errors.ts'
import type { Event, EventSink } from '../model/event.ts'
import { OPERATOR, type Requester } from '../model/requester.ts'
import type { Spec } from '../model/spec.ts'
import type { Tracer } from '../model/tracer.ts'
import {
  changeSandbox,
  findSandbox,
  findSandboxes,
  forgetIdempotency,
  listSandboxes,
  type SandboxChange,
  type SandboxRow,
  unfinishedOf,
} from '../store/sandboxes.ts'
import type { Store } from '../store/sql.ts'
import { isOperator, type Principal, requesterOf } from './access/keys.ts'
import type { Approvals } from './approvals/approvals.ts'
import { type ExecContext, ExecService, type Started } from './exec/exec-service.ts'
import type { ExecRequest } from './exec/exec-session.ts'
import type { OutputBudget } from './exec/output-budget.ts'
import { Freeze } from './freeze.ts'
import type { Made } from './gate.ts'
import type { Instance } from './instance.ts'
import { ENDED, type EndReason, endReasonOf, isEnded, isFailure, type State } from './lifecycle.ts'
import type { LiveSandbox } from './live-sandbox.ts'
import type { OpenSandbox } from './open-sandbox.ts'
import { type Created, type CreateRequest, Provisioner, type SandboxView } from './provisioner.ts'
import { SandboxQuotas } from './quotas.ts'
import { type PoolSize, SandboxPool } from './sandbox-pool.ts'
import { SleepService, type SuspendedFiles } from './sleep.ts'
import { isRestartable, Takeover, type TakeoverOptions } from './takeover.ts'
import type { Metrics } from './telemetry/metrics.ts'
import { UnrecordedEnds } from './unrecorded-ends.ts'

type SupervisorLimits = {
  readonly sandboxes: number
  readonly sandboxesPerKey: number
  /** For all keys of a tenant together; the operator's keys are not limited. */
  readonly sandboxesPerTenant: (tenant: string) => number
  readonly opening: number
  readonly waiting: number
  readonly execs: number
  /** Commands in the background and in terminals. */
  readonly background: number
  /** The memory limit for command output of all sandboxes together. */
  readonly outputBytes: number
  readonly defaultTtlMs: number
}

/** What changes with the hosts of a sandbox. */
type NetworkChange = {
  readonly metadata?: Readonly<Record<string, string>>
  /** Replaces all headers that the proxy sets in requests; absent: they stay. */
  readonly headers?: NonNullable<Spec['network']>['headers']
}

/** What the supervisor is made of. */
export type SupervisorParts = {
  readonly store: Store
  readonly trail: EventSink
  readonly instance: Instance
  readonly newId: (prefix: string) => string
  readonly open: (
    spec: Spec,
    options: {
      readonly id?: string
      readonly signal?: AbortSignal
      readonly owner?: string
      readonly requester: Requester
      /** The sandbox was suspended, so its files exist. */
      readonly isSuspended?: boolean
    },
  ) => Promise<OpenSandbox>
  /** The files of suspended sandboxes; absent: sandboxes are only paused with their memory. */
  readonly suspended?: SuspendedFiles
  /** How long a paused sandbox without memory is kept. */
  readonly keepPausedMs?: () => number
  /** Derives a sandbox's own token from its id. Absent: the token is random and shown once. */
  readonly tokenOf?: (id: string) => string
  /** Throws if there is no disk space for the records of more work. */
  readonly assertFreeSpace: () => void
  /** Throws if the policy rejects a spec. */
  readonly judge: (spec: Spec, requester: Requester) => void
  /** Throws if a spec, or its plan, contains more of the host than the requester may have. */
  readonly assertPermitted: (requester: Requester, spec: Spec, made?: Made) => void
  readonly approvals: Approvals
  readonly metrics: Metrics
  /** Absent: nothing is traced. */
  readonly tracer?: Tracer | undefined
  readonly limits: SupervisorLimits
  readonly pool?: readonly PoolSize[]
  /** How many prepared sandboxes of each kind are kept ready. */
  readonly prepared?: number
  readonly policyHash: () => string
  /** Called with each sandbox when it becomes known: a new one, or one from before a restart. */
  readonly onLive?: (entry: LiveSandbox) => void
  /** Several servers on one database; absent: this one is alone. */
  readonly fleet?: Fleet
}

/** What the supervisor asks of the cluster that it belongs to. */
export type Fleet = {
  /** Throws unless this server holds its lease, so that no other one can have taken over. */
  assertHeld(): void
  /** Reserves room for a sandbox on this server; throws if there is none. Call the result when it is gone. */
  reserve(spec: Spec): () => void
  /** A create has ended; `error` is why it failed. */
  created(error?: unknown): void
  /** How long a sandbox may go on without hearing from this server; 0: no longer, so that it is not told anything. */
  leaseMs(spec: Pick<Spec, 'restart'>): number
}

/** Manages every sandbox of this server. No lock spans sandboxes; the changes of each sandbox are serialized. */
export class Supervisor {
  readonly #parts: SupervisorParts
  readonly #entries = new Map<string, LiveSandbox>()
  readonly #provisioner: Provisioner
  readonly #execs: ExecService
  readonly #quotas: SandboxQuotas
  readonly #pool: SandboxPool
  readonly #unrecorded: UnrecordedEnds
  readonly #sleep: SleepService
  readonly #takeover: Takeover
  readonly #freeze = new Freeze()
  /** Sandboxes that end here and start again elsewhere. */
  readonly #releasing = new Set<Promise<void>>()
  #draining = false

  constructor(parts: SupervisorParts) {
    this.#parts = parts
    const { limits } = parts
    this.#execs = new ExecService(parts)
    this.#quotas = new SandboxQuotas({ perKey: limits.sandboxesPerKey, perTenant: limits.sandboxesPerTenant })
    const { open, policyHash } = parts
    this.#pool = new SandboxPool(
      { open: (spec) => open(spec, { requester: OPERATOR }), policyHash, prepared: parts.prepared ?? 0 },
      parts.pool ?? [],
    )
    this.#unrecorded = new UnrecordedEnds(parts.store, parts.trail)
    this.#provisioner = new Provisioner({
      parts,
      entries: this.#entries,
      quotas: this.#quotas,
      pool: this.#pool,
      assertOpen: () => this.#assertOpen(),
      save: (entry, change) => this.#save(entry, change),
      unrecorded: this.#unrecorded,
      onDeadline: this.#onDeadline,
      lease: (entry) => this.#lease(entry),
      endedByItself: (entry, why) => this.#endedByItself(entry, why),
      get: (principal, id) => this.get(principal, id),
    })
    this.#sleep = new SleepService({
      save: (entry, change) => this.#save(entry, change),
      reopen: (principal, entry) => this.#provisioner.reopen(principal, entry),
      stop: (entry, reason) => this.#stop(entry, reason),
      files: parts.suspended,
      keepMs: parts.keepPausedMs ?? (() => KEEP_PAUSED_MS),
    })
    this.#takeover = new Takeover({
      parts,
      entries: this.#entries,
      quotas: this.#quotas,
      assertOpen: () => this.#assertOpen(),
      inTurn: (work, principal) => this.#provisioner.inTurn(work, principal),
      save: (entry, change) => this.#save(entry, change),
      watch: (entry) => this.#provisioner.watch(entry),
      onDeadline: this.#onDeadline,
      fail: (entry, why) => this.#failed(entry, why),
    })
    this.#describeMetrics()
  }

  readonly #onDeadline = (entry: LiveSandbox, reason: EndReason): void => {
    const work = reason === 'timeout' ? this.#sleep.atTimeout(entry) : this.#stop(entry, reason)
    void work.catch(() => {})
  }

  /** Creates a sandbox that is ready; a failed create leaves nothing behind. */
  create(principal: Principal, request: CreateRequest): Promise<Created> {
    return this.#provisioner.create(principal, request)
  }

  /** Takes a sandbox over from another server, or from an earlier run of this one. Returns whether it is ours now. */
  async takeOver(row: SandboxRow, options: TakeoverOptions): Promise<boolean> {
    // It may be one that this server released, and its directories must be gone.
    await Promise.all(this.#releasing)
    return this.#takeover.take(row, options)
  }

  /** Ends a sandbox that was taken over and could not be started. */
  async #failed(entry: LiveSandbox, why: string): Promise<void> {
    const isWanted = !entry.abort.signal.aborted
    await entry.sandbox?.close().catch(() => {})
    const [state, reason]: [State, string] = isWanted
      ? ['failed', `node-lost: it could not be started again: ${why}`]
      : ['destroyed', 'killed']
    await this.#note(entry, state, reason).catch(() => {})
    if (!isWanted) entry.move('destroying')
    await this.#ended(entry, state, reason).catch(() => {})
  }

  /** The budget for command output. */
  get output(): OutputBudget {
    return this.#execs.output
  }

  get draining(): boolean {
    return this.#draining
  }

  /** The ids of all sandboxes that have not ended. */
  get liveIds(): readonly string[] {
    return [...this.#entries.keys()]
  }

  /** The tenant of a sandbox that has not ended, including one that is being created. */
  tenantOfLive(id: string): string | undefined {
    return this.#entries.get(id)?.row.tenant
  }

  /** Whether this server runs the sandbox. */
  has(id: string): boolean {
    return this.#entries.has(id)
  }

  /** The live sandboxes that this principal may see. */
  liveOf(principal: Principal): readonly LiveSandbox[] {
    return [...this.#entries.values()].filter((entry) => mayUse(principal, entry.row))
  }

  /** All live sandboxes, for metrics. */
  get all(): Iterable<LiveSandbox> {
    return this.#entries.values()
  }

  get live(): number {
    return this.#entries.size
  }

  /**
   * Cleans up after an earlier run of this instance; does not touch sandboxes of other instances. Paused sandboxes whose
   * files are here stay paused. `ownerOf`: the key that created a sandbox, for its quota.
   */
  async recover(ownerOf?: (keyId: string) => Promise<Principal | undefined>): Promise<number> {
    const { store, instance, trail, approvals, fleet } = this.#parts
    const all = await unfinishedOf(store, instance.id, instance.epoch, ENDED)
    // Those that start again wait for that: the cluster finds a node for each.
    const left = all.filter((row) => !this.#sleep.isSuspended(row) && !(fleet && isRestartable(row)))
    for (const row of all) if (this.#sleep.isSuspended(row)) await this.#adopt(row, ownerOf)
    const reason = 'crashed: the server stopped while the sandbox was running'
    for (const { id } of left)
      await trail.append({ event: 'SandboxState', sandbox_id: id, state: 'failed', reason })
    await store.write(async (tx) => {
      for (const row of left) {
        await changeSandbox(tx, row.id, { state: 'failed', reason, endedAt: Date.now() }, row)
        if (row.state === 'requested' || row.state === 'provisioning') await forgetIdempotency(tx, row.id)
      }
    })
    await approvals.forgetOld()
    this.#pool.fill()
    return left.length
  }

  async #adopt(
    row: SandboxRow,
    ownerOf: (keyId: string) => Promise<Principal | undefined> = async () => undefined,
  ): Promise<void> {
    const { keyId, tenant } = row
    this.#quotas.add((await ownerOf(keyId)) ?? { keyId, tenant, scopes: [] })
    const entry = this.#sleep.adopt(row, this.#onDeadline, this.#parts.limits.defaultTtlMs)
    this.#entries.set(row.id, entry)
    this.#parts.onLive?.(entry)
  }

  /** Ends paused sandboxes whose files were kept long enough. Returns how many. */
  async endOldPaused(now = Date.now()): Promise<number> {
    const old = [...this.#entries.values()].filter(
      ({ state, row }) => state === 'paused' && row.expiresAt !== null && row.expiresAt <= now,
    )
    for (const entry of old) await this.#stop(entry, 'timeout')
    return old.length
  }

  /** SECURITY: a sandbox of another tenant is reported as not found. */
  async get(principal: Principal, id: string): Promise<SandboxView> {
    const seen = await this.#find(principal, id)
    this.#assertPermitted(principal, seen)
    return seen
  }

  async #find(principal: Principal, id: string): Promise<SandboxView> {
    const live = this.#entries.get(id)
    const row = live?.row ?? this.#unrecorded.row(id) ?? (await findSandbox(this.#parts.store, id))
    if (!row || !mayUse(principal, row)) throw notFound(id)
    return { row, live }
  }

  /** SECURITY: a key must not get through an operator's sandbox in its tenant what it could not request itself. */
  #assertPermitted(principal: Principal, { row, live }: SandboxView): void {
    const requester = requesterOf(principal)
    // Without a key, a signed URL was enough; it gives access to one port or one file only.
    if (requester.operator || principal.keyId === '') return
    const isOwn = row.keyId === principal.keyId
    const { secrets = [], ...spec } = JSON.parse(row.spec) as Spec
    const opened = {
      ...spec,
      ...(row.backend === null ? {} : { backend: row.backend }),
      // A withdrawn secret is already gone from the sandbox; its creator may continue without it.
      secrets: isOwn ? [] : secrets,
    }
    this.#parts.assertPermitted(requester, opened, { plan: live?.sandbox?.plan, isOwn })
  }

  /** The ended sandboxes among these ids that this principal may see. */
  async endedOf(principal: Principal, ids: readonly string[]): Promise<readonly SandboxRow[]> {
    const rows = await findSandboxes(
      this.#parts.store,
      ids.filter((id) => !this.#entries.has(id)),
    )
    return rows.filter((row) => mayUse(principal, row) && isEnded(row.state))
  }

  /** The hash to check a sandbox's own token against. */
  async tokenHash(
    id: string,
  ): Promise<{ readonly hash: string; readonly tenant: string; readonly keyId: string } | undefined> {
    const row =
      this.#entries.get(id)?.row ?? this.#unrecorded.row(id) ?? (await findSandbox(this.#parts.store, id))
    return row && { hash: row.tokenHash, tenant: row.tenant, keyId: row.keyId }
  }

  async list(
    principal: Principal,
    query: {
      readonly states?: readonly string[] | undefined
      readonly agentId?: string | undefined
      readonly after?: { readonly createdAt: number; readonly id: string } | undefined
      readonly limit: number
    },
  ): Promise<readonly SandboxView[]> {
    const tenant = isOperator(principal) ? undefined : principal.tenant
    const states = query.states?.map((state) => (state === 'executing' ? 'ready' : state))
    const rows = await listSandboxes(this.#parts.store, { ...query, states, tenant })
    return rows.flatMap((row) => {
      const live = this.#entries.get(row.id)
      const unrecorded = this.#unrecorded.row(row.id)
      // The store still has the old state, which does not match the filter any more.
      if (unrecorded && states && !states.includes(unrecorded.state)) return []
      return [{ row: live?.row ?? unrecorded ?? row, live }]
    })
  }

  /** The live sandbox, if the principal may use it; throws if it has ended. */
  async use(principal: Principal, id: string): Promise<LiveSandbox> {
    const { row, live } = await this.get(principal, id)
    if (live) return live
    throw new SandboxError(
      'wrong-state',
      `sandbox ${id} is ${row.state}${row.reason ? ` (${row.reason})` : ''}`,
    )
  }

  /** Starts a command. Resolves once it runs; rejects if it is refused. */
  async exec(
    principal: Principal,
    id: string,
    request: ExecRequest,
    context: ExecContext = {},
  ): Promise<Started> {
    this.#assertOpen()
    return this.#execs.start(await this.use(principal, id), request, context)
  }

  /** Ends a sandbox. Calling it again has no effect. */
  async stop(principal: Principal, id: string, reason: EndReason = 'killed'): Promise<SandboxView> {
    // Without a permission check on its contents: a principal may always end its own sandbox.
    const { row, live } = await this.#find(principal, id)
    if (!live) return { row: await this.#settleLost(row) }
    await this.#stop(live, reason)
    return { row: live.row }
  }

  /** Records the end of a sandbox of this instance that is stored as alive but does not exist any more. */
  async #settleLost(row: SandboxRow): Promise<SandboxRow> {
    const { store, trail, instance } = this.#parts
    const isOurs = row.instance === instance.id && row.epoch === instance.epoch
    if (!isOurs || isEnded(row.state as State) || this.#unrecorded.has(row.id)) return row
    const end = { state: 'failed', reason: 'crashed: lost', endedAt: Date.now() }
    await trail.append({ event: 'SandboxState', sandbox_id: row.id, state: 'failed', reason: end.reason })
    await store.write((tx) => changeSandbox(tx, row.id, end, row))
    return { ...row, ...end }
  }

  async #stop(entry: LiveSandbox, reason: EndReason, detail?: string): Promise<void> {
    if (entry.state === 'requested' || entry.state === 'provisioning') {
      entry.abort.abort()
      return entry.gone
    }
    await entry.serially(async () => {
      if (isEnded(entry.state)) return
      entry.move('destroying')
      entry.abort.abort()
      const why = detail ? `${reason}: ${detail}` : reason
      entry.ending = why
      const noted = this.#note(entry, 'destroying', why)
      for (const session of entry.execs.values()) session.cancel()
      const closed = entry.sandbox ? entry.sandbox.close() : this.#parts.suspended?.remove(entry.id)
      // The sandbox is closed in any case; a failed record is reported afterwards.
      const [record, close] = await Promise.allSettled([noted, closed])
      const state: State = close.status === 'fulfilled' && !isFailure(reason) ? 'destroyed' : 'failed'
      await this.#ended(entry, state, why)
      if (record.status === 'rejected') throw record.reason
    })
  }

  #endedByItself(entry: LiveSandbox, why: string): Promise<void> {
    if (entry.state === 'destroying' || isEnded(entry.state)) return Promise.resolve()
    // Its own clock was faster than ours: it starts again as soon as this server has its lease, here or elsewhere.
    if (why.includes(LEASE_ENDED) && entry.restarts) return Promise.resolve(this.#release(entry))
    return this.#stop(entry, endReasonOf(why), why)
  }

  async #ended(entry: LiveSandbox, state: State, reason: string): Promise<void> {
    const end = { state, reason, endedAt: Date.now() }
    try {
      await this.#save(entry, end)
    } catch (error) {
      entry.row = { ...entry.row, ...end }
      this.#unrecorded.add(entry.id, {
        row: entry.row,
        event: stateEvent(entry, state, reason),
        write: (tx) => changeSandbox(tx, entry.id, end, entry.row),
      })
      throw error
    } finally {
      entry.move(state)
      this.#entries.delete(entry.id)
      this.#quotas.give(entry.row.keyId)
      this.#parts.metrics.count('ringfence_sandboxes_ended_total', 'Sandboxes by reason of their end.', {
        reason: reason.split(':')[0] ?? reason,
      })
    }
  }

  /** Pauses a sandbox and its deadlines; throws `unsupported` if the backend cannot. */
  async pause(principal: Principal, id: string, keepMemory = true): Promise<SandboxView> {
    const entry = await this.use(principal, id)
    await entry.serially(() => this.#sleep.pause(entry, keepMemory))
    return { row: entry.row, live: entry }
  }

  async resume(principal: Principal, id: string): Promise<SandboxView> {
    const entry = await this.use(principal, id)
    await entry.serially(() => this.#sleep.resume(principal, entry))
    return { row: entry.row, live: entry }
  }

  /** Whether the next request may wake this paused sandbox. */
  wakes(entry: LiveSandbox): boolean {
    return this.#sleep.wakes(entry)
  }

  /** Resumes a sandbox that wakes by itself; several requests at once wake it once. */
  async wake(principal: Principal, entry: LiveSandbox): Promise<void> {
    this.#assertOpen()
    await entry.serially(async () => {
      if (this.#sleep.wakes(entry)) await this.#sleep.resume(principal, entry)
    })
  }

  /** Sets the deadline relative to now; 0 removes it. With `onlyLonger` it never becomes earlier. */
  async setTimeout(principal: Principal, id: string, ms: number, onlyLonger = false): Promise<SandboxView> {
    const entry = await this.use(principal, id)
    await entry.serially(async () => {
      if (entry.state !== 'ready' && entry.state !== 'paused') entry.ready()
      // An unchanged deadline keeps its recorded time, which a second computation would move by a millisecond.
      if (onlyLonger && !entry.ttl.extend(ms)) return
      if (!onlyLonger) entry.ttl.set(ms === 0 ? undefined : ms)
      const left = entry.ttl.leftMs
      // A paused sandbox has no end of its own time; what is recorded is how long its files are kept.
      if (entry.state !== 'paused')
        await this.#save(entry, { expiresAt: left === undefined ? null : Math.round(Date.now() + left) })
    })
    return { row: entry.row, live: entry }
  }

  /** Changes the hosts that a running sandbox may reach, the headers of its requests, and the metadata that describes them. */
  async setAllowHosts(
    principal: Principal,
    id: string,
    hosts: readonly string[],
    { metadata = {}, headers }: NetworkChange = {},
  ): Promise<SandboxView> {
    const entry = await this.use(principal, id)
    await entry.serially(async () => {
      const live = entry.ready()
      const spec = JSON.parse(entry.row.spec) as Spec
      const changed = {
        ...spec,
        network: { ...spec.network, allowHosts: hosts, ...(headers ? { headers } : {}) },
        metadata: { ...spec.metadata, ...metadata },
      }
      // SECURITY: a change is checked like a create; otherwise it would bypass the policy.
      this.#parts.judge(changed, requesterOf(principal))
      if (headers) live.setHeaders(changed)
      await live.setAllowHosts(hosts)
      await this.#save(entry, { spec: JSON.stringify(changed) })
    })
    return { row: entry.row, live: entry }
  }

  /** Rejects new work, lets running commands finish until the deadline, then ends everything. */
  async drain(deadlineMs: number): Promise<void> {
    this.#draining = true
    const gone = new SandboxError('draining', 'the server is shutting down', { retryAfterSecs: 10 })
    this.#provisioner.turnAway(gone)
    this.#execs.turnAway(gone)
    const until = monotonicMs() + deadlineMs
    const busy = (): boolean => this.#execs.running > 0 || this.#provisioner.running > 0
    while (busy() && monotonicMs() < until) await new Promise((resolve) => setTimeout(resolve, 20))
    await Promise.allSettled([...this.#entries.values()].map((entry) => this.#leave(entry)))
    await this.#pool.close()
    this.#unrecorded.close()
  }

  /**
   * Freezes everything while this server must not act, and lets it go on. Sandboxes with `restart` end, because another server may
   * start them again at any time.
   */
  freeze(isOn: boolean): void {
    if (!isOn) this.#freeze.end()
    else {
      for (const entry of [...this.#entries.values()])
        if (entry.restarts && entry.state === 'ready') this.#release(entry)
      this.#freeze.start(this.#entries.values())
    }
  }

  /** Tells every running sandbox how long it may go on without hearing from this server. */
  renewLeases(): void {
    for (const entry of this.#entries.values()) if (entry.state === 'ready') this.#lease(entry)
  }

  #lease({ sandbox, restarts }: LiveSandbox): void {
    const ms = this.#parts.fleet?.leaseMs({ restart: restarts }) ?? 0
    if (ms > 0) sandbox?.lease(ms)
  }

  /**
   * Gives a sandbox to another server: nothing runs in it while `give` hands its files over. If that fails, it goes on here.
   * Returns whether it was given away; false also for one that cannot be: it has frozen processes, or is starting or ending.
   */
  async giveAway(
    entry: LiveSandbox,
    principal: Principal,
    give: (live: OpenSandbox | undefined) => Promise<boolean>,
  ): Promise<boolean> {
    return entry.serially(async () => {
      const { state, row } = entry
      if (!(state === 'ready' && entry.restarts) && !(state === 'paused' && !entry.sandbox)) return false
      // Only a sandbox can pack its files.
      if (state === 'paused' && row.restore === null) await this.#provisioner.reopen(principal, entry)
      const live = entry.sandbox
      // From now on nothing starts in it.
      if (state === 'ready') entry.move('paused')
      const isGiven = await settled(live, give).catch(() => false)
      if (isGiven) this.#release(entry, 'moved to another node')
      else if (state === 'ready') entry.move('ready')
      else if (live) {
        entry.sandbox = undefined
        await live.suspend()
      }
      return isGiven
    })
  }

  /** Ends a sandbox here and leaves its record as it is, for the node that starts it again. */
  #release(entry: LiveSandbox, why = 'node-lost: the lease of this node has ended'): void {
    entry.ending = why
    this.#entries.delete(entry.id)
    this.#quotas.give(entry.row.keyId)
    for (const session of entry.execs.values()) session.cancel()
    const closed = Promise.resolve(entry.sandbox?.abandon()).catch(() => {})
    this.#releasing.add(closed)
    void closed.then(() => this.#releasing.delete(closed))
    entry.move('failed')
  }

  /** Another server has taken over: ends everything here without a record, which would be refused. */
  async abandon(): Promise<void> {
    this.#draining = true
    const error = new SandboxError('draining', 'another node has taken over', { retryAfterSecs: 1 })
    this.#provisioner.turnAway(error)
    this.#execs.turnAway(error)
    this.#unrecorded.close()
    this.#freeze.end()
    const entries = [...this.#entries.values()]
    for (const { abort } of entries) abort.abort()
    await Promise.allSettled(entries.map(({ sandbox }) => sandbox?.abandon()))
    await this.#pool.close().catch(() => {})
  }

  /** At a shutdown, a paused sandbox keeps its files where that is possible; every other one ends. */
  async #leave(entry: LiveSandbox): Promise<void> {
    const isKept = await entry.serially(() => this.#sleep.keepOverRestart(entry)).catch(() => false)
    if (!isKept) await this.#stop(entry, 'drained')
  }

  #assertOpen(): void {
    this.#parts.fleet?.assertHeld()
    this.#parts.assertFreeSpace()
    if (this.#draining)
      throw new SandboxError('draining', 'the server is shutting down', { retryAfterSecs: 10 })
  }

  async #save(entry: LiveSandbox, change: SandboxChange): Promise<void> {
    const isOurs = await this.#parts.store.write((tx) => changeSandbox(tx, entry.id, change, entry.row))
    if (!isOurs) throw new SandboxError('wrong-state', `sandbox ${entry.id} is not this server's any more`)
    entry.row = { ...entry.row, ...change }
  }

  #note(entry: LiveSandbox, state: State, reason: string): Promise<void> {
    return this.#parts.trail.append(stateEvent(entry, state, reason))
  }

  #describeMetrics(): void {
    const { metrics } = this.#parts
    metrics.onRead(() => {
      const states = new Map<string, number>()
      for (const { shown } of this.#entries.values()) states.set(shown, (states.get(shown) ?? 0) + 1)
      for (const state of ['provisioning', 'ready', 'executing', 'paused', 'destroying'])
        metrics.gauge('ringfence_sandboxes', 'Sandboxes by state.', { state }, states.get(state) ?? 0)
      metrics.gauge(
        'ringfence_creates_waiting',
        'Creates waiting in the queue.',
        {},
        this.#provisioner.waiting,
      )
      metrics.gauge('ringfence_execs_waiting', 'Commands waiting in the queue.', {}, this.#execs.waiting)
      metrics.gauge(
        'ringfence_background_execs',
        'Commands running in the background or in a terminal.',
        {},
        this.#execs.runningInBackground,
      )
      metrics.gauge('ringfence_kept_output_bytes', 'Command output kept in memory.', {}, this.output.used)
      metrics.gauge('ringfence_pool_ready', 'Pooled sandboxes that are ready.', {}, this.#pool.ready)
    })
  }
}

const stateEvent = ({ id, row }: LiveSandbox, state: State, reason: string): Event => ({
  event: 'SandboxState',
  sandbox_id: id,
  ...(row.agentId === null ? {} : { agent_id: row.agentId }),
  state,
  reason,
})

/** Runs the work while the sandbox stands still and no file operation is under way. */
async function settled<T>(
  live: OpenSandbox | undefined,
  work: (live: OpenSandbox | undefined) => Promise<T>,
): Promise<T> {
  if (!live) return work(undefined)
  await live.files.hold()
  live.files.release()
  return live.still(() => work(live))
}

const mayUse = (principal: Principal, row: SandboxRow): boolean =>
  principal.sandboxId === undefined
    ? isOperator(principal) || row.tenant === principal.tenant
    : principal.sandboxId === row.id

const notFound = (id: string): SandboxError =>
  new SandboxError('sandbox-not-found', `no such sandbox \`${id.slice(0, 64)}\``)

/** In the reason of a sandbox that ended by its own clock. */
const LEASE_ENDED = 'renewed the lease'

const KEEP_PAUSED_MS = 30 * 24 * 3_600_000
