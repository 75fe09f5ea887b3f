import { monotonicMs } from '../host/clock.ts'
import { Admission } from '../model/admission.ts'
import { SandboxError } from '../model/errors.ts'
import type { Requester } from '../model/requester.ts'
import type { Spec } from '../model/spec.ts'
import { NO_TRACER, traced } from '../model/tracer.ts'
import {
  changeSandbox,
  countLive,
  findIdempotency,
  forgetIdempotency,
  insertSandbox,
  removeSandbox,
  type SandboxChange,
  type SandboxRow,
  sandboxAnswering,
  saveIdempotency,
} from '../store/sandboxes.ts'
import type { Tx } from '../store/sql.ts'
import { hashSecret, isOperator, newSandboxToken, type Principal, requesterOf } from './access/keys.ts'
import type { EndReason } from './lifecycle/lifecycle.ts'
import { LiveSandbox } from './lifecycle/live-sandbox.ts'
import { assertRestartable, fromSnapshot, keepClosed } from './lifecycle/takeover.ts'
import type { UnrecordedEnds } from './lifecycle/unrecorded-ends.ts'
import type { OpenSandbox } from './open-sandbox.ts'
import type { SandboxQuotas } from './quotas.ts'
import type { Preparation, SandboxPool } from './sandbox-pool.ts'
import type { SupervisorParts } from './supervisor-parts.ts'

/** A request to create a sandbox, after parsing. */
export type CreateRequest = {
  readonly spec: Spec
  /** Default: the operator's setting; 0: never. */
  readonly timeoutMs?: number | undefined
  readonly idleMs?: number | undefined
  readonly idempotency?: { readonly name: string; readonly request: string } | undefined
  /** Starts what sandboxes of this kind have before their first use. One more is then kept ready for the next create. */
  readonly prepare?: Preparation | undefined
}

/** A sandbox as callers see it: its record, and the live object while there is one. */
export type SandboxView = { readonly row: SandboxRow; readonly live?: LiveSandbox | undefined }
/** A new sandbox with its token. */
export type Created = SandboxView & { readonly token?: string }

/** What the provisioner needs of the supervisor. */
export type SupervisorCallbacks = {
  readonly parts: SupervisorParts
  readonly entries: Map<string, LiveSandbox>
  readonly quotas: SandboxQuotas
  readonly pool: SandboxPool
  readonly assertOpen: () => void
  readonly save: (entry: LiveSandbox, change: SandboxChange) => Promise<void>
  /** Ends that are still to be recorded. */
  readonly unrecorded: UnrecordedEnds
  readonly onDeadline: (entry: LiveSandbox, reason: EndReason) => void
  /** Gives a sandbox its lease. */
  readonly lease: (entry: LiveSandbox) => void
  readonly endedByItself: (entry: LiveSandbox, why: string) => Promise<void>
  readonly get: (principal: Principal, id: string) => Promise<SandboxView>
}

/** SECURITY: a pooled plan without a limit exceeds any ceiling of a tenant. */
const UNLIMITED = { cpus: Infinity, memoryMb: Infinity, diskMb: Infinity, pids: Infinity }

/** Creates sandboxes: each exactly once, completely, or not at all. */
export class Provisioner {
  readonly #supervisor: SupervisorCallbacks
  readonly #parts: SupervisorParts
  readonly #opening: Admission
  /** Creates with an idempotency key that are in progress: a repeat waits for the first. */
  readonly #named = new Map<string, Promise<Created>>()
  /** Creates that were accepted and are not in `entries` yet. */
  #unregistered = 0

  constructor(supervisor: SupervisorCallbacks) {
    this.#supervisor = supervisor
    this.#parts = supervisor.parts
    const { limits } = supervisor.parts
    this.#opening = new Admission('creates', { running: limits.opening, waiting: limits.waiting })
  }

  get running(): number {
    return this.#opening.running
  }

  get waiting(): number {
    return this.#opening.waiting
  }

  turnAway(error: unknown): void {
    this.#opening.turnAway(error)
  }

  async create(principal: Principal, request: CreateRequest): Promise<Created> {
    this.#supervisor.assertOpen()
    assertSmall(request.spec)
    const { idempotency } = request
    if (!idempotency) return this.#create(principal, request)
    const name = `${principal.tenant}\0${idempotency.name}`
    const before = this.#named.get(name)
    if (before) return this.#repeat(principal, request, (await before).row.id)
    const known = await findIdempotency(this.#parts.store, principal.tenant, idempotency.name)
    if (known) return this.#repeat(principal, request, known.sandboxId)
    // Another request may have started during the lookup.
    const meanwhile = this.#named.get(name)
    if (meanwhile) return this.#repeat(principal, request, (await meanwhile).row.id)
    const made = this.#create(principal, request).catch((error: unknown) => {
      if (!(error instanceof AnsweredElsewhere)) throw error
      return this.#repeat(principal, request, error.sandboxId)
    })
    this.#named.set(name, made)
    try {
      return await made
    } finally {
      this.#named.delete(name)
    }
  }

  /** Repeats a create: returns the same sandbox if the request is the same. */
  async #repeat(principal: Principal, { idempotency }: CreateRequest, id: string): Promise<Created> {
    const known = await findIdempotency(this.#parts.store, principal.tenant, idempotency?.name ?? '')
    if (known && known.request !== idempotency?.request)
      throw new SandboxError('conflict', 'this idempotency key was used for another request', {
        hint: 'use a new key for a new request',
      })
    return this.#standingElsewhere(principal, id)
  }

  /** The sandbox once it has started, which may happen on another server. */
  async #standingElsewhere(principal: Principal, id: string): Promise<Created> {
    const until = monotonicMs() + STARTING_MS
    for (;;) {
      const seen = await this.#supervisor.get(principal, id)
      const isStarting = !seen.live && ['requested', 'provisioning'].includes(seen.row.state)
      if (!isStarting) return seen
      if (monotonicMs() > until)
        throw new SandboxError('timeout', `sandbox ${id} is still starting`, { retryAfterSecs: 5 })
      await new Promise((resolve) => setTimeout(resolve, STARTING_LOOK_MS))
    }
  }

  async #create(principal: Principal, request: CreateRequest): Promise<Created> {
    return traced(this.#parts.tracer ?? NO_TRACER, 'sandbox.create', {}, async (span) => {
      const made = await this.#createCounted(principal, request)
      span.describe({
        'ringfence.sandbox_id': made.row.id,
        'ringfence.backend': made.row.backend ?? undefined,
      })
      return made
    })
  }

  async #createCounted(principal: Principal, request: CreateRequest): Promise<Created> {
    const { limits, metrics } = this.#parts
    if (this.#supervisor.entries.size + this.#unregistered >= limits.sandboxes)
      throw new SandboxError('too-many-requests', `this server already holds ${limits.sandboxes} sandboxes`, {
        hint: 'end some, or try again later',
        retryAfterSecs: 5,
      })
    if (request.spec.placement && !this.#parts.fleet)
      throw new SandboxError('unsupported', '`placement` needs a cluster, and this server is alone', {
        hint: 'leave it out, or see docs/cluster.md',
      })
    assertRestartable(request.spec, this.#parts.fleet !== undefined)
    const leave = this.#parts.fleet?.reserve(request.spec)
    try {
      this.#supervisor.quotas.take(principal)
    } catch (error) {
      leave?.()
      throw error
    }
    const started = monotonicMs()
    const register = this.#reserve()
    try {
      const made = await this.#opening.run(() => this.#provision(principal, request, register), principal)
      metrics.observe(
        'ringfence_create_seconds',
        'Time from request to ready.',
        {},
        (monotonicMs() - started) / 1000,
      )
      this.#parts.fleet?.created()
      if (leave) void made.live?.gone.then(leave)
      return made
    } catch (error) {
      register()
      leave?.()
      this.#parts.fleet?.created(error)
      this.#supervisor.quotas.give(principal.keyId)
      metrics.count('ringfence_creates_failed_total', 'Creates that were rejected or failed.')
      throw error
    }
  }

  /** Counts a create that waits for its turn, so that parallel creates cannot exceed `max_sandboxes`. */
  #reserve(): () => void {
    this.#unregistered++
    let isRegistered = false
    return () => {
      if (!isRegistered) this.#unregistered--
      isRegistered = true
    }
  }

  async #provision(principal: Principal, request: CreateRequest, register: () => void): Promise<Created> {
    this.#supervisor.assertOpen()
    const requester = requesterOf(principal)
    // SECURITY: a pooled sandbox was created in the server's name, so this requester's permission is checked here.
    const { placement: _elsewhere, restart: _again, ...common } = request.spec
    const pooled = await this.#supervisor.pool.take(
      common,
      (live) => this.#isPermitted(requester, request.spec, live),
      request.prepare,
    )
    const id = pooled?.id ?? this.#parts.newId('sb')
    const token = this.#parts.tokenOf?.(id) ?? newSandboxToken()
    const row = this.#newRow(principal, request, { id, token })
    const entry = new LiveSandbox(row, (reason) => this.#supervisor.onDeadline(entry, reason))
    entry.idleMs = request.idleMs
    entry.timeoutMs = this.#ttlOf(request.timeoutMs)
    this.#supervisor.entries.set(entry.id, entry)
    this.#parts.onLive?.(entry)
    register()
    try {
      entry.move('provisioning')
      await (pooled
        ? this.#claim(entry, request, { pooled, principal })
        : this.#raise(entry, request, principal))
      this.#becomeReady(entry, request)
      return { row: entry.row, live: entry, token }
    } catch (error) {
      await this.#undo(entry)
      throw error
    }
  }

  #isPermitted(requester: Requester, spec: Spec, { plan, backend }: OpenSandbox): boolean {
    try {
      const limits = { ...UNLIMITED, ...plan.limits }
      this.#parts.assertPermitted(requester, { ...spec, backend, limits }, { plan })
      return true
    } catch {
      return false
    }
  }

  /** Records a pooled sandbox as ready, in one write. */
  async #claim(
    entry: LiveSandbox,
    request: CreateRequest,
    { pooled, principal }: { readonly pooled: OpenSandbox; readonly principal: Principal },
  ): Promise<void> {
    entry.sandbox = pooled
    const change = await this.#standing(entry, request)
    entry.row = { ...entry.row, ...change }
    await Promise.all([pooled.recorded(), this.#insert(entry, request, principal)])
  }

  /** Starts the sandbox while the record is written to disk; both must succeed. */
  async #raise(entry: LiveSandbox, request: CreateRequest, principal: Principal): Promise<void> {
    const { id, abort, row } = entry
    const requester = requesterOf(principal)
    const inserted = this.#insert(entry, request, principal)
    inserted.catch(() => {})
    // Another server may refuse or have answered it already: then nothing is started in vain.
    if (this.#parts.fleet && (request.idempotency || this.#supervisor.quotas.isTight(principal)))
      await inserted
    const opened = this.#parts
      .open(request.spec, { id, signal: abort.signal, owner: row.tenant, requester })
      .then(async (live) => {
        entry.sandbox = live
        return { live, change: await this.#standing(entry, request) }
      })
    const [written, raised] = await Promise.allSettled([inserted, opened])
    if (written.status === 'rejected') throw written.reason
    if (raised.status === 'rejected') throw raised.reason
    assertWanted(entry)
    const { live, change } = raised.value
    await Promise.all([live.recorded(), this.#supervisor.save(entry, change)])
  }

  /** The record of a sandbox that has started: `ready` always means that it runs. */
  async #standing(entry: LiveSandbox, { timeoutMs }: CreateRequest): Promise<SandboxChange> {
    const { backend, level } = entry.sandbox as OpenSandbox
    const layers = JSON.stringify(await (entry.sandbox as OpenSandbox).layers())
    const ttl = this.#ttlOf(timeoutMs)
    return { state: 'ready', backend, level, layers, expiresAt: ttl === undefined ? null : Date.now() + ttl }
  }

  /** One transaction: the quotas over all servers, the idempotency key, the record. */
  async #insert(entry: LiveSandbox, { idempotency }: CreateRequest, principal: Principal): Promise<void> {
    const { tenant, id, keyId } = entry.row
    const { fleet, store } = this.#parts
    const { quotas } = this.#supervisor
    const locks = fleet
      ? [`tenant ${tenant}`, `key ${keyId}`, ...(idempotency ? [`create ${tenant} ${idempotency.name}`] : [])]
      : []
    // INVARIANT: a refusal is returned, not thrown: other writes share the transaction.
    const refusal = await store.write(async (tx) => {
      if (idempotency) {
        const answer = { request: idempotency.request, sandboxId: id }
        const isFirst = await saveIdempotency(tx, tenant, idempotency.name, answer)
        if (!isFirst) return new AnsweredElsewhere(await sandboxAnswering(tx, tenant, idempotency.name))
      }
      const refused = fleet && quotas.refusal(principal, await countLive(tx, entry.row))
      if (refused && idempotency) await forgetIdempotency(tx, id)
      if (refused) return refused
      await insertSandbox(tx, entry.row)
      return undefined
    }, locks)
    if (refusal) throw refusal
  }

  #ttlOf(timeoutMs: number | undefined): number | undefined {
    return timeoutMs === 0 ? undefined : (timeoutMs ?? this.#parts.limits.defaultTtlMs)
  }

  #becomeReady(entry: LiveSandbox, { timeoutMs }: CreateRequest): void {
    // Stopped during the disk write: `#undo` removes the record.
    assertWanted(entry)
    entry.move('ready')
    entry.ttl.set(this.#ttlOf(timeoutMs))
    entry.touch()
    this.watch(entry)
  }

  /** Runs a start when it is its turn. */
  inTurn<T>(work: () => Promise<T>, principal: Principal): Promise<T> {
    return this.#opening.run(work, principal)
  }

  /** Gives a sandbox its lease, and notices when it ends by itself. */
  watch(entry: LiveSandbox): void {
    const sandbox = entry.sandbox as OpenSandbox
    this.#supervisor.lease(entry)
    void sandbox.ended
      // A suspended sandbox has ended on purpose.
      .then((why) => (entry.sandbox === sandbox ? this.#supervisor.endedByItself(entry, why) : undefined))
      .catch(() => {})
  }

  /** Opens a suspended sandbox again, with its files. SECURITY: its spec is checked again for the key that wakes it. */
  async reopen(principal: Principal, entry: LiveSandbox): Promise<void> {
    this.#supervisor.assertOpen()
    await this.#opening.run(async () => {
      const { id, tenant: owner, restore } = entry.row
      const spec = JSON.parse(entry.row.spec) as Spec
      const requester = requesterOf(principal)
      const sandbox = await this.#parts.open(fromSnapshot(spec, restore), {
        id,
        signal: entry.abort.signal,
        owner,
        requester,
        isSuspended: restore === null,
      })
      try {
        await keepClosed(spec, sandbox)
        await sandbox.recorded()
      } catch (error) {
        await (restore === null ? sandbox.suspend() : sandbox.close())
        throw error
      }
      entry.sandbox = sandbox
      this.watch(entry)
    }, principal)
  }

  /** Removes everything of a failed create, including its idempotency key. */
  async #undo(entry: LiveSandbox): Promise<void> {
    const stopped = entry.abort.signal.aborted
    await entry.sandbox?.close().catch(() => {})
    this.#supervisor.entries.delete(entry.id)
    const end = { state: 'destroyed', reason: 'killed', endedAt: Date.now() }
    const write = async (tx: Tx): Promise<void> => {
      await forgetIdempotency(tx, entry.id)
      if (stopped) await changeSandbox(tx, entry.id, end, entry.row)
      else await removeSandbox(tx, entry.id)
    }
    await this.#parts.store.write(write).catch(() => {
      const row = { ...entry.row, ...end, ...(stopped ? {} : { state: 'failed', reason: 'crashed' }) }
      this.#supervisor.unrecorded.add(entry.id, { row, write })
    })
    if (stopped) entry.row = { ...entry.row, ...end }
    entry.move(stopped ? 'destroying' : 'failed')
    if (stopped) entry.move('destroyed')
  }

  #newRow(
    principal: Principal,
    { spec, idleMs, timeoutMs }: CreateRequest,
    made: { readonly id: string; readonly token: string },
  ): SandboxRow {
    const { instance } = this.#parts
    return {
      id: made.id,
      tenant: principal.tenant,
      keyId: principal.keyId,
      state: 'provisioning',
      reason: null,
      backend: null,
      level: null,
      spec: JSON.stringify(spec),
      agentId: spec.agentId ?? null,
      tokenHash: hashSecret(made.token),
      layers: null,
      instance: instance.id,
      epoch: instance.epoch,
      createdAt: Date.now(),
      expiresAt: null,
      endedAt: null,
      byOperator: isOperator(principal) ? 1 : 0,
      generation: 1,
      idleMs: idleMs ?? null,
      ttlMs: this.#ttlOf(timeoutMs) ?? null,
      restore: null,
    }
  }
}

/** Another server answers the same create. */
class AnsweredElsewhere extends Error {
  readonly sandboxId: string

  constructor(sandboxId: string) {
    super(`sandbox ${sandboxId} is the answer`)
    this.sandboxId = sandboxId
  }
}

/** How long the repeat of a create waits for the first one on another server. */
const STARTING_MS = 60_000
const STARTING_LOOK_MS = 50

/** SECURITY: records outlive their sandbox, and a list reads hundreds at once, for the operator from every tenant. */
const MOST_SPEC_BYTES = 256 * 1024

function assertSmall(spec: Spec): void {
  if (Buffer.byteLength(JSON.stringify(spec)) > MOST_SPEC_BYTES)
    throw new SandboxError('too-large', `the spec is larger than ${MOST_SPEC_BYTES} bytes`, {
      hint: 'shorten its `metadata`, `env` and lists; put data into files',
    })
}

function assertWanted({ id, abort }: LiveSandbox): void {
  if (abort.signal.aborted)
    throw new SandboxError('wrong-state', `sandbox ${id} was stopped while it was starting`)
}
