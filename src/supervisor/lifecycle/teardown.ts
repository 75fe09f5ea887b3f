import type { Event } from '../../model/event.ts'
import { changeSandbox, type SandboxChange, type SandboxRow } from '../../store/sandboxes.ts'
import type { SandboxQuotas } from '../quotas.ts'
import type { SupervisorParts } from '../supervisor-parts.ts'
import { type EndReason, endReasonOf, isEnded, isFailure, type State } from './lifecycle.ts'
import type { LiveSandbox } from './live-sandbox.ts'
import type { UnrecordedEnds } from './unrecorded-ends.ts'

type TeardownParts = {
  readonly parts: SupervisorParts
  readonly entries: Map<string, LiveSandbox>
  readonly quotas: SandboxQuotas
  readonly unrecorded: UnrecordedEnds
  readonly save: (entry: LiveSandbox, change: SandboxChange) => Promise<void>
  /** Leaves a sandbox to the server that starts it again. */
  readonly release: (entry: LiveSandbox) => void
}

/** In the reason of a sandbox that ended by its own clock. */
const LEASE_ENDED = 'renewed the lease'

/** Ends sandboxes: closes them, records why, frees their quota. An end that cannot be recorded now is recorded later. */
export class Teardown {
  readonly #own: TeardownParts

  constructor(own: TeardownParts) {
    this.#own = own
  }

  /** Ends a sandbox. Calling it again has no effect. */
  async stop(entry: LiveSandbox, reason: EndReason, detail?: string): Promise<void> {
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
      const { suspended } = this.#own.parts
      const closed = entry.sandbox ? entry.sandbox.close() : suspended?.remove(entry.id)
      // The sandbox is closed in any case; a failed record is reported afterwards.
      const [record, close] = await Promise.allSettled([noted, closed])
      const state: State = close.status === 'fulfilled' && !isFailure(reason) ? 'destroyed' : 'failed'
      await this.#ended(entry, state, why)
      if (record.status === 'rejected') throw record.reason
    })
  }

  /** Settles a sandbox that ended without being asked to. */
  endedByItself(entry: LiveSandbox, why: string): Promise<void> {
    if (entry.state === 'destroying' || isEnded(entry.state)) return Promise.resolve()
    // Its own clock was faster than ours: it starts again as soon as this server has its lease, here or elsewhere.
    if (why.includes(LEASE_ENDED) && (entry.restarts || entry.sandbox?.outlives))
      return Promise.resolve(this.#own.release(entry))
    return this.stop(entry, endReasonOf(why), why)
  }

  /** Ends a sandbox that was taken over and could not be started. */
  async failTakeover(entry: LiveSandbox, why: string): Promise<void> {
    const isWanted = !entry.abort.signal.aborted
    await entry.sandbox?.close().catch(() => {})
    const [state, reason]: [State, string] = isWanted
      ? ['failed', `node-lost: it could not be started again: ${why}`]
      : ['destroyed', 'killed']
    await this.#note(entry, state, reason).catch(() => {})
    if (!isWanted) entry.move('destroying')
    await this.#ended(entry, state, reason).catch(() => {})
  }

  /** Records the end of a sandbox of this instance that is stored as alive but does not exist any more. */
  async settleLost(row: SandboxRow): Promise<SandboxRow> {
    const { store, trail, instance } = this.#own.parts
    const isOurs = row.instance === instance.id && row.epoch === instance.epoch
    if (!isOurs || isEnded(row.state as State) || this.#own.unrecorded.has(row.id)) return row
    const end = { state: 'failed', reason: 'crashed: lost', endedAt: Date.now() }
    await trail.append({ event: 'SandboxState', sandbox_id: row.id, state: 'failed', reason: end.reason })
    await store.write((tx) => changeSandbox(tx, row.id, end, row))
    return { ...row, ...end }
  }

  async #ended(entry: LiveSandbox, state: State, reason: string): Promise<void> {
    const { parts, entries, quotas, unrecorded, save } = this.#own
    const end = { state, reason, endedAt: Date.now() }
    try {
      await save(entry, end)
    } catch (error) {
      entry.row = { ...entry.row, ...end }
      unrecorded.add(entry.id, {
        row: entry.row,
        event: stateEvent(entry, state, reason),
        write: (tx) => changeSandbox(tx, entry.id, end, entry.row),
      })
      throw error
    } finally {
      entry.move(state)
      entries.delete(entry.id)
      quotas.give(entry.row.keyId)
      parts.metrics.count('ringfence_sandboxes_ended_total', 'Sandboxes by reason of their end.', {
        reason: reason.split(':')[0] ?? reason,
      })
    }
  }

  #note(entry: LiveSandbox, state: State, reason: string): Promise<void> {
    return this.#own.parts.trail.append(stateEvent(entry, state, reason))
  }
}

const stateEvent = ({ id, row }: LiveSandbox, state: State, reason: string): Event => ({
  event: 'SandboxState',
  sandbox_id: id,
  ...(row.agentId === null ? {} : { agent_id: row.agentId }),
  state,
  reason,
})
