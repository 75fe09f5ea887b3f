import { monotonicMs } from '../host/clock.ts'
import { Admission } from '../model/admission.ts'
import { SandboxError } from '../model/errors.ts'
import type { Requester } from '../model/requester.ts'
import type { Spec } from '../model/spec.ts'
import {
  changeSandbox,
  findIdempotency,
  forgetIdempotency,
  insertSandbox,
  removeSandbox,
  type SandboxChange,
  type SandboxRow,
  saveIdempotency,
} from '../store/sandboxes.ts'
import type { Tx } from '../store/sql.ts'
import { hashSecret, newSandboxToken, type Principal, requesterOf } from './access/keys.ts'
import type { EndReason } from './lifecycle.ts'
import { LiveSandbox } from './live-sandbox.ts'
import type { OpenSandbox } from './open-sandbox.ts'
import type { SandboxQuotas } from './quotas.ts'
import type { SandboxPool } from './sandbox-pool.ts'
import type { SupervisorParts } from './supervisor.ts'
import type { UnrecordedEnds } from './unrecorded-ends.ts'

export type CreateRequest = {
  readonly spec: Spec
  /** Absent: the operator's default; 0: never. */
  readonly timeoutMs?: number | undefined
  readonly idleMs?: number | undefined
  readonly idempotency?: { readonly name: string; readonly request: string } | undefined
}

/** A sandbox as callers see it: its record, and its life while it has one. */
export type SandboxView = { readonly row: SandboxRow; readonly live?: LiveSandbox | undefined }
export type Created = SandboxView & { readonly token?: string }

/** What the provisioner needs of the supervisor. */
export type SupervisorCallbacks = {
  readonly parts: SupervisorParts
  readonly entries: Map<string, LiveSandbox>
  readonly quotas: SandboxQuotas
  readonly pool: SandboxPool
  readonly assertOpen: () => void
  readonly save: (entry: LiveSandbox, change: SandboxChange) => Promise<void>
  /** Ends that are recorded as soon as that is possible. */
  readonly unrecorded: UnrecordedEnds
  readonly stop: (entry: LiveSandbox, reason: EndReason) => Promise<void>
  readonly endedByItself: (entry: LiveSandbox, why: string) => Promise<void>
  readonly get: (principal: Principal, id: string) => Promise<SandboxView>
}

/** SECURITY: what the plan of one from the pool does not limit is more than any tenant's ceiling. */
const UNLIMITED = { cpus: Infinity, memoryMb: Infinity, diskMb: Infinity, pids: Infinity }

/** How sandboxes come to be: each once, whole, or not at all. */
export class Provisioner {
  readonly #supervisor: SupervisorCallbacks
  readonly #parts: SupervisorParts
  readonly #opening: Admission
  /** Creates under a name that are on their way: a repeat waits for the first. */
  readonly #named = new Map<string, Promise<Created>>()

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
    // Somebody else may have begun while we looked.
    const meanwhile = this.#named.get(name)
    if (meanwhile) return this.#repeat(principal, request, (await meanwhile).row.id)
    const made = this.#create(principal, request)
    this.#named.set(name, made)
    try {
      return await made
    } finally {
      this.#named.delete(name)
    }
  }

  /** The same name again: the same sandbox, if it is the same request. */
  async #repeat(principal: Principal, { idempotency }: CreateRequest, id: string): Promise<Created> {
    const known = await findIdempotency(this.#parts.store, principal.tenant, idempotency?.name ?? '')
    if (known && known.request !== idempotency?.request)
      throw new SandboxError('conflict', 'this idempotency key was used for another request', {
        hint: 'use a new key for a new request',
      })
    return this.#supervisor.get(principal, id)
  }

  async #create(principal: Principal, request: CreateRequest): Promise<Created> {
    const { limits, metrics } = this.#parts
    if (this.#supervisor.entries.size >= limits.sandboxes)
      throw new SandboxError('too-many-requests', `this server already holds ${limits.sandboxes} sandboxes`, {
        hint: 'end some, or try again later',
        retryAfterSecs: 5,
      })
    this.#supervisor.quotas.take(principal)
    const started = monotonicMs()
    try {
      const made = await this.#opening.run(() => this.#provision(principal, request), principal)
      metrics.observe(
        'ringfence_create_seconds',
        'From request to ready.',
        {},
        (monotonicMs() - started) / 1000,
      )
      return made
    } catch (error) {
      this.#supervisor.quotas.give(principal.keyId)
      metrics.count('ringfence_creates_failed_total', 'Creates that were refused or failed.')
      throw error
    }
  }

  async #provision(principal: Principal, request: CreateRequest): Promise<Created> {
    this.#supervisor.assertOpen()
    const requester = requesterOf(principal)
    // SECURITY: one from the pool was made in the server's own name, so whether this requester may have it is asked here.
    const pooled = await this.#supervisor.pool.take(request.spec, (live) =>
      this.#isPermitted(requester, request.spec, live),
    )
    const id = pooled?.id ?? this.#parts.newId('sb')
    const token = this.#parts.tokenOf?.(id) ?? newSandboxToken()
    const row = this.#newRow(principal, request, { id, token })
    const entry = new LiveSandbox(row, (reason) => void this.#supervisor.stop(entry, reason).catch(() => {}))
    entry.idleMs = request.idleMs
    this.#supervisor.entries.set(entry.id, entry)
    try {
      entry.move('provisioning')
      await (pooled ? this.#claim(entry, request, pooled) : this.#raise(entry, request, requester))
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

  /** One that stands already: it enters the records as ready, in one write. */
  async #claim(entry: LiveSandbox, request: CreateRequest, pooled: OpenSandbox): Promise<void> {
    entry.sandbox = pooled
    const change = await this.#standing(entry, request)
    entry.row = { ...entry.row, ...change }
    await Promise.all([pooled.recorded(), this.#insert(entry, request)])
  }

  /** The wall goes up while the disk is written; neither alone is an answer. */
  async #raise(entry: LiveSandbox, request: CreateRequest, requester: Requester): Promise<void> {
    const { id, abort, row } = entry
    const opened = this.#parts
      .open(request.spec, { id, signal: abort.signal, owner: row.tenant, requester })
      .then(async (live) => {
        entry.sandbox = live
        return { live, change: await this.#standing(entry, request) }
      })
    const [written, raised] = await Promise.allSettled([this.#insert(entry, request), opened])
    if (written.status === 'rejected') throw written.reason
    if (raised.status === 'rejected') throw raised.reason
    assertWanted(entry)
    const { live, change } = raised.value
    await Promise.all([live.recorded(), this.#supervisor.save(entry, change)])
  }

  /** What is to be said of it once the wall stands: ready never means that it could be built. */
  async #standing(entry: LiveSandbox, { timeoutMs }: CreateRequest): Promise<SandboxChange> {
    const { backend, level } = entry.sandbox as OpenSandbox
    const layers = JSON.stringify(await (entry.sandbox as OpenSandbox).layers())
    const ttl = this.#ttlOf(timeoutMs)
    return { state: 'ready', backend, level, layers, expiresAt: ttl === undefined ? null : Date.now() + ttl }
  }

  async #insert(entry: LiveSandbox, { idempotency }: CreateRequest): Promise<void> {
    const { tenant, id } = entry.row
    await this.#parts.store.write(async (tx) => {
      await insertSandbox(tx, entry.row)
      if (idempotency)
        await saveIdempotency(tx, tenant, idempotency.name, { request: idempotency.request, sandboxId: id })
    })
  }

  #ttlOf(timeoutMs: number | undefined): number | undefined {
    return timeoutMs === 0 ? undefined : (timeoutMs ?? this.#parts.limits.defaultTtlMs)
  }

  #becomeReady(entry: LiveSandbox, { timeoutMs }: CreateRequest): void {
    // Stopped while the disk was written: the record is undone by `#undo`.
    assertWanted(entry)
    entry.move('ready')
    entry.ttl.set(this.#ttlOf(timeoutMs))
    entry.touch()
    void (entry.sandbox as OpenSandbox).ended
      .then((why) => this.#supervisor.endedByItself(entry, why))
      .catch(() => {})
  }

  /** A create that failed leaves nothing, not even its name. */
  async #undo(entry: LiveSandbox): Promise<void> {
    const stopped = entry.abort.signal.aborted
    await entry.sandbox?.close().catch(() => {})
    this.#supervisor.entries.delete(entry.id)
    const end = { state: 'destroyed', reason: 'killed', endedAt: Date.now() }
    const write = async (tx: Tx): Promise<void> => {
      await forgetIdempotency(tx, entry.id)
      if (stopped) await changeSandbox(tx, entry.id, end)
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
    { spec }: CreateRequest,
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
    }
  }
}

/** SECURITY: records stay long after their sandbox, and a list reads hundreds at once, also for other tenants' operator. */
const MOST_SPEC_BYTES = 256 * 1024

function assertSmall(spec: Spec): void {
  if (Buffer.byteLength(JSON.stringify(spec)) > MOST_SPEC_BYTES)
    throw new SandboxError('too-large', `the spec is larger than ${MOST_SPEC_BYTES} bytes`, {
      hint: 'shorten its `metadata`, `env` and lists; put data into files',
    })
}

function assertWanted({ id, abort }: LiveSandbox): void {
  if (abort.signal.aborted)
    throw new SandboxError('wrong-state', `sandbox ${id} was stopped while it started`)
}
