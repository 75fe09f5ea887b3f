import { monotonicMs } from '../host/clock.ts'
import { SandboxError } from '../model/errors.ts'
import { OPERATOR } from '../model/requester.ts'
import type { Spec } from '../model/spec.ts'
import {
  changeSandbox,
  forgetIdempotency,
  type SandboxChange,
  type SandboxRow,
  unfinishedOf,
} from '../store/sandboxes.ts'
import { type Principal, requesterOf } from './access/keys.ts'
import { type ExecContext, ExecService, type Started } from './exec/exec-service.ts'
import type { ExecRequest } from './exec/exec-session.ts'
import type { OutputBudget } from './exec/output-budget.ts'
import { Handover } from './lifecycle/handover.ts'
import { ENDED, type EndReason } from './lifecycle/lifecycle.ts'
import type { LiveSandbox } from './lifecycle/live-sandbox.ts'
import { SleepService } from './lifecycle/sleep.ts'
import { isRestartable, Takeover, type TakeoverOptions } from './lifecycle/takeover.ts'
import { Teardown } from './lifecycle/teardown.ts'
import { UnrecordedEnds } from './lifecycle/unrecorded-ends.ts'
import { type Created, type CreateRequest, Provisioner, type SandboxView } from './provisioner.ts'
import { SandboxQuotas } from './quotas.ts'
import { SandboxLookup, type SandboxQuery } from './sandbox-lookup.ts'
import { SandboxPool } from './sandbox-pool.ts'
import type { SupervisorParts } from './supervisor-parts.ts'
import { gaugeSandboxes } from './telemetry/sandbox-gauges.ts'

/** What changes with the hosts of a sandbox. */
type NetworkChange = {
  readonly metadata?: Readonly<Record<string, string>>
  /** Replaces all headers that the proxy sets in requests; absent: they stay. */
  readonly headers?: NonNullable<Spec['network']>['headers']
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
  readonly #handover: Handover
  readonly #teardown: Teardown
  readonly #lookup: SandboxLookup
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
    const own = { parts, entries: this.#entries, quotas: this.#quotas }
    const save = (entry: LiveSandbox, change: SandboxChange): Promise<void> => this.#save(entry, change)
    const unrecorded = new UnrecordedEnds(parts.store, parts.trail)
    this.#unrecorded = unrecorded
    this.#lookup = new SandboxLookup({ ...parts, entries: this.#entries, unrecorded })
    this.#handover = new Handover({
      ...own,
      reopen: (principal, entry) => this.#provisioner.reopen(principal, entry),
    })
    this.#teardown = new Teardown({
      ...own,
      unrecorded,
      save,
      release: (entry) => this.#handover.release(entry),
    })
    this.#provisioner = new Provisioner({
      ...own,
      pool: this.#pool,
      assertOpen: () => this.#assertOpen(),
      save,
      unrecorded,
      onDeadline: this.#onDeadline,
      lease: (entry) => this.#lease(entry),
      endedByItself: (entry, why) => this.#teardown.endedByItself(entry, why),
      get: (principal, id) => this.get(principal, id),
    })
    this.#sleep = new SleepService({
      save,
      reopen: (principal, entry) => this.#provisioner.reopen(principal, entry),
      stop: (entry, reason) => this.#teardown.stop(entry, reason),
      files: parts.suspended,
      keepMs: parts.keepPausedMs ?? (() => KEEP_PAUSED_MS),
    })
    this.#takeover = new Takeover({
      ...own,
      assertOpen: () => this.#assertOpen(),
      inTurn: (work, principal) => this.#provisioner.inTurn(work, principal),
      save,
      watch: (entry) => this.#provisioner.watch(entry),
      onDeadline: this.#onDeadline,
      fail: (entry, why) => this.#teardown.failTakeover(entry, why),
    })
    parts.metrics.onRead(() =>
      gaugeSandboxes(parts.metrics, {
        entries: this.#entries.values(),
        waitingCreates: this.#provisioner.waiting,
        waitingExecs: this.#execs.waiting,
        backgroundExecs: this.#execs.runningInBackground,
        keptOutputBytes: this.output.used,
        pooled: this.#pool.ready,
      }),
    )
  }

  readonly #onDeadline = (entry: LiveSandbox, reason: EndReason): void => {
    const work = reason === 'timeout' ? this.#sleep.atTimeout(entry) : this.#teardown.stop(entry, reason)
    void work.catch(() => {})
  }

  /** Creates a sandbox that is ready; a failed create leaves nothing behind. */
  create(principal: Principal, request: CreateRequest): Promise<Created> {
    return this.#provisioner.create(principal, request)
  }

  /** Takes a sandbox over from another server, or from an earlier run of this one. Returns whether it is ours now. */
  async takeOver(row: SandboxRow, options: TakeoverOptions): Promise<boolean> {
    // It may be one that this server released, and its directories must be gone.
    await this.#handover.released()
    return this.#takeover.take(row, options)
  }

  /** SECURITY: a sandbox of another tenant is reported as not found. */
  get(principal: Principal, id: string): Promise<SandboxView> {
    return this.#lookup.get(principal, id)
  }

  /** The live sandbox, if the principal may use it; throws if it has ended. */
  use(principal: Principal, id: string): Promise<LiveSandbox> {
    return this.#lookup.use(principal, id)
  }

  /** The live sandboxes that this principal may see. */
  liveOf(principal: Principal): readonly LiveSandbox[] {
    return this.#lookup.liveOf(principal)
  }

  /** The ended sandboxes among these ids that this principal may see. */
  endedOf(principal: Principal, ids: readonly string[]): Promise<readonly SandboxRow[]> {
    return this.#lookup.endedOf(principal, ids)
  }

  /** The hash to check a sandbox's own token against. */
  tokenHash(id: string): ReturnType<SandboxLookup['tokenHash']> {
    return this.#lookup.tokenHash(id)
  }

  list(principal: Principal, query: SandboxQuery): Promise<readonly SandboxView[]> {
    return this.#lookup.list(principal, query)
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
    for (const entry of old) await this.#teardown.stop(entry, 'timeout')
    return old.length
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
    const { row, live } = await this.#lookup.find(principal, id)
    if (!live) return { row: await this.#teardown.settleLost(row) }
    await this.#teardown.stop(live, reason)
    return { row: live.row }
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

  /** Resumes a sandbox that is paused, or about to be; several calls at once resume it once. Returns whether this one did. */
  async resumeIfPaused(principal: Principal, id: string): Promise<boolean> {
    const entry = await this.use(principal, id)
    return entry.serially(async () => {
      if (entry.state === 'ready') return false
      await this.#sleep.resume(principal, entry)
      return true
    })
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

  /** Freezes everything while this server must not act, and lets it go on. */
  freeze(isOn: boolean): void {
    this.#handover.freeze(isOn)
  }

  /** Gives a sandbox to another server, if it can be given away; returns whether it was. */
  giveAway(...args: Parameters<Handover['giveAway']>): Promise<boolean> {
    return this.#handover.giveAway(...args)
  }

  /** Tells every running sandbox how long it may go on without hearing from this server. */
  renewLeases(): void {
    for (const entry of this.#entries.values()) if (entry.state === 'ready') this.#lease(entry)
  }

  #lease({ sandbox, restarts }: LiveSandbox): void {
    const ms = this.#parts.fleet?.leaseMs({ restart: restarts }) ?? 0
    if (ms > 0) sandbox?.lease(ms)
  }

  /** Another server has taken over: ends everything here without a record, which would be refused. */
  async abandon(): Promise<void> {
    this.#draining = true
    const error = new SandboxError('draining', 'another node has taken over', { retryAfterSecs: 1 })
    this.#provisioner.turnAway(error)
    this.#execs.turnAway(error)
    this.#unrecorded.close()
    this.#handover.freeze(false)
    const entries = [...this.#entries.values()]
    for (const { abort } of entries) abort.abort()
    await Promise.allSettled(entries.map(({ sandbox }) => sandbox?.abandon()))
    await this.#pool.close().catch(() => {})
  }

  /** At a shutdown, a paused sandbox keeps its files where that is possible; every other one ends. */
  async #leave(entry: LiveSandbox): Promise<void> {
    const isKept = await entry.serially(() => this.#sleep.keepOverRestart(entry)).catch(() => false)
    if (!isKept) await this.#teardown.stop(entry, 'drained')
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
}

const KEEP_PAUSED_MS = 30 * 24 * 3_600_000
