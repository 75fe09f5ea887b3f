import { SandboxError } from '../../model/errors.ts'
import type { Event } from '../../model/event.ts'
import { mayOutlive, type Spec } from '../../model/spec.ts'
import { changeSandbox, type SandboxChange, type SandboxRow } from '../../store/sandboxes.ts'
import { type Principal, requesterOf } from '../access/keys.ts'
import type { OpenSandbox } from '../open-sandbox.ts'
import type { SandboxQuotas } from '../quotas.ts'
import type { SupervisorParts } from '../supervisor-parts.ts'
import type { EndReason } from './lifecycle.ts'
import { LiveSandbox } from './live-sandbox.ts'

/** What a takeover needs of the supervisor. */
type TakeoverParts = {
  readonly parts: SupervisorParts
  readonly entries: Map<string, LiveSandbox>
  readonly quotas: SandboxQuotas
  readonly assertOpen: () => void
  /** Runs a start when it is its turn. */
  readonly inTurn: <T>(work: () => Promise<T>, principal: Principal) => Promise<T>
  readonly save: (entry: LiveSandbox, change: SandboxChange) => Promise<void>
  readonly watch: (entry: LiveSandbox) => void
  readonly onDeadline: (entry: LiveSandbox, reason: EndReason) => void
  /** Ends a sandbox that could not be started. */
  readonly fail: (entry: LiveSandbox, why: string) => Promise<void>
}

/** What a sandbox is taken over with. */
export type TakeoverOptions = {
  /** The key that created it. */
  readonly principal: Principal
  /** The snapshot to start from; absent: it starts as it was created. */
  readonly snapshot?: string | undefined
  readonly reason: string
}

/**
 * Takes sandboxes over from other servers: the record changes its owner in one write, and then the sandbox starts here from a
 * snapshot. Processes are not taken over.
 */
export class Takeover {
  readonly #own: TakeoverParts

  constructor(own: TakeoverParts) {
    this.#own = own
  }

  /**
   * Returns whether the sandbox belongs to this server now; if not, it was not the given owner's any more. It starts afterwards,
   * and a start that fails is recorded like any other end.
   */
  async take(row: SandboxRow, options: TakeoverOptions): Promise<boolean> {
    const { parts, assertOpen, entries } = this.#own
    assertOpen()
    if (entries.has(row.id)) return false
    const spec = JSON.parse(row.spec) as Spec
    const leave = parts.fleet?.reserve(withoutNode(spec))
    const entry = this.#entryOf(row, options)
    const isOurs = await this.#claim(entry, row, options).catch((error: unknown) => {
      leave?.()
      throw error
    })
    if (!isOurs) {
      leave?.()
      return false
    }
    this.#own.quotas.add(options.principal)
    entries.set(entry.id, entry)
    parts.onLive?.(entry)
    if (leave) void entry.gone.then(leave)
    if (row.state === 'paused') this.#rest(entry)
    else void this.#start(entry, options).catch((error: Error) => this.#own.fail(entry, error.message))
    return true
  }

  #entryOf(row: SandboxRow, { snapshot, reason }: TakeoverOptions): LiveSandbox {
    const { instance } = this.#own.parts
    const isPaused = row.state === 'paused'
    const taken: SandboxRow = {
      ...row,
      state: isPaused ? 'paused' : 'provisioning',
      reason,
      instance: instance.id,
      epoch: instance.epoch,
      generation: row.generation + 1,
      restore: isPaused ? (snapshot ?? row.restore) : null,
    }
    const entry = new LiveSandbox(taken, (why) => this.#own.onDeadline(entry, why))
    entry.idleMs = row.idleMs ?? undefined
    entry.timeoutMs = row.ttlMs ?? undefined
    return entry
  }

  /** INVARIANT: the record changes only if it is still the former owner's, so that of several servers one gets it. */
  async #claim(
    { row: taken }: LiveSandbox,
    former: SandboxRow,
    { reason }: TakeoverOptions,
  ): Promise<boolean> {
    const { store, trail, metrics } = this.#own.parts
    const { state, instance, epoch, generation, restore } = taken
    const change = { state, reason, instance, epoch, generation, restore }
    const isOurs = await store.write((tx) => changeSandbox(tx, taken.id, change, former))
    if (isOurs) {
      const labels = { reason: reason.split(':')[0] ?? '' }
      metrics.count('ringfence_takeovers_total', 'Sandboxes taken over from other nodes.', labels)
      await trail.append(takenEvent(taken))
    }
    return isOurs
  }

  /** A paused sandbox stays paused; its files come when it wakes. */
  #rest(entry: LiveSandbox): void {
    for (const state of ['provisioning', 'ready', 'paused'] as const) entry.move(state)
    entry.ttl.set(entry.timeoutMs)
    entry.hold()
  }

  async #start(entry: LiveSandbox, options: TakeoverOptions): Promise<void> {
    const { inTurn, save, watch } = this.#own
    const { principal } = options
    entry.move('provisioning')
    const spec = JSON.parse(entry.row.spec) as Spec
    const sandbox = await inTurn(() => this.#open(entry, spec, options), principal)
    entry.sandbox = sandbox
    await keepClosed(spec, sandbox)
    const { backend, level } = sandbox
    const layers = JSON.stringify(await sandbox.layers())
    await sandbox.recorded()
    if (entry.abort.signal.aborted) throw new SandboxError('wrong-state', 'stopped while it was starting')
    await save(entry, { state: 'ready', backend, level, layers })
    entry.move('ready')
    // A time that is over ends the sandbox at once.
    const { expiresAt } = entry.row
    entry.ttl.set(expiresAt === null ? undefined : Math.max(1, expiresAt - Date.now()))
    entry.touch()
    watch(entry)
  }

  /** What outlived its server goes on with its files; everything else starts again, from its snapshot. */
  async #open(
    entry: LiveSandbox,
    spec: Spec,
    { principal, snapshot }: TakeoverOptions,
  ): Promise<OpenSandbox> {
    const { open } = this.#own.parts
    const { backend, tenant: owner, generation } = entry.row
    const { id, abort } = entry
    const options = { id, signal: abort.signal, owner, requester: requesterOf(principal), generation }
    if (backend !== null && mayOutlive(backend)) {
      try {
        return await open({ ...spec, backend }, { ...options, takesOver: true })
      } catch (error) {
        const isGone = error instanceof SandboxError && error.code === 'not-found'
        if (!isGone || !spec.restart) throw error
      }
    }
    return open(fromSnapshot(spec, snapshot), options)
  }
}

/** The spec with the snapshot's files instead of those of its template. */
export const fromSnapshot = (spec: Spec, snapshot: string | null | undefined): Spec =>
  snapshot === undefined || snapshot === null ? spec : { ...spec, template: snapshot }

/** SECURITY: in a spec an empty list means the operator's; of a sandbox that ran it may mean that all hosts were removed. */
export async function keepClosed({ network }: Spec, sandbox: OpenSandbox): Promise<void> {
  const isClosed = network?.allowHosts?.length === 0
  if (isClosed && sandbox.plan.network.mode === 'fetch') await sandbox.setAllowHosts([])
}

/** The node that a sandbox was created for is the one that it leaves. */
const withoutNode = (spec: Spec): Spec =>
  spec.placement?.node === undefined
    ? spec
    : { ...spec, placement: spec.placement.labels ? { labels: spec.placement.labels } : {} }

const takenEvent = ({ id, agentId, tenant, state, reason, generation }: SandboxRow): Event => ({
  event: 'SandboxState',
  sandbox_id: id,
  ...(agentId === null ? {} : { agent_id: agentId }),
  tenant,
  state,
  generation,
  ...(reason === null ? {} : { reason }),
})

/** Whether a record of a server that is gone is a sandbox to go on with. A create that nobody was told of is not. */
export function isRestartable({ spec: text, state, generation, backend }: SandboxRow): boolean {
  const spec = JSON.parse(text) as Spec
  const isRunning = state === 'ready' || (state === 'provisioning' && generation > 1)
  if (spec.restart === true) return isRunning || state === 'paused'
  return isRunning && mayOutlive(backend) && localPart(spec) === undefined
}

/** Parts of a spec that are only on one machine; a sandbox with any of them cannot start on another one. */
const LOCAL = ['workspace', 'read', 'write', 'mounts', 'volumes', 'review', 'unixSockets'] as const

const localPart = (spec: Spec): (typeof LOCAL)[number] | undefined =>
  LOCAL.find((name) => {
    const value = spec[name]
    return Array.isArray(value) ? value.length > 0 : Boolean(value)
  })

/** Throws unless another server could start a sandbox of this spec. */
export function assertRestartable(spec: Spec, hasFleet: boolean): void {
  if (!spec.restart) return
  if (!hasFleet)
    throw new SandboxError('unsupported', '`restart` needs a cluster, and this server is alone', {
      hint: 'leave it out, or see docs/cluster.md',
    })
  const local = localPart(spec)
  if (local)
    throw new SandboxError('invalid-input', `\`restart\` and \`${local}\` exclude each other`, {
      hint: 'what is on one machine does not move: keep the files in the sandbox and take snapshots',
    })
}
