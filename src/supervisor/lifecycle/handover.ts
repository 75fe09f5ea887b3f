import type { Principal } from '../access/keys.ts'
import type { OpenSandbox } from '../open-sandbox.ts'
import type { SandboxQuotas } from '../quotas.ts'
import { Freeze } from './freeze.ts'
import type { LiveSandbox } from './live-sandbox.ts'

type HandoverParts = {
  readonly entries: Map<string, LiveSandbox>
  readonly quotas: SandboxQuotas
  /** Starts a paused sandbox from its files. */
  readonly reopen: (principal: Principal, entry: LiveSandbox) => Promise<void>
}

/** Gives sandboxes to other servers of the cluster, on purpose or because this server lost its lease. */
export class Handover {
  readonly #own: HandoverParts
  readonly #freeze = new Freeze()
  /** Sandboxes that end here and start again elsewhere. */
  readonly #releasing = new Set<Promise<void>>()

  constructor(own: HandoverParts) {
    this.#own = own
  }

  /**
   * Freezes everything while this server must not act, and lets it go on. Sandboxes with `restart` end, because another server may
   * start them again at any time.
   */
  freeze(isOn: boolean): void {
    const { entries } = this.#own
    if (!isOn) {
      this.#freeze.end()
      return
    }
    for (const entry of [...entries.values()])
      if (entry.restarts && entry.state === 'ready') this.release(entry)
    this.#freeze.start(entries.values())
  }

  /** Ends a sandbox here and leaves its record as it is, for the node that starts it again. */
  release(entry: LiveSandbox, why = 'node-lost: the lease of this node has ended'): void {
    entry.ending = why
    this.#own.entries.delete(entry.id)
    this.#own.quotas.give(entry.row.keyId)
    for (const session of entry.execs.values()) session.cancel()
    const closed = Promise.resolve(entry.sandbox?.abandon()).catch(() => {})
    this.#releasing.add(closed)
    void closed.then(() => this.#releasing.delete(closed))
    entry.move('failed')
  }

  /** Resolves when the directories of all released sandboxes are gone. */
  async released(): Promise<void> {
    await Promise.all(this.#releasing)
  }

  /**
   * Gives a sandbox to another server: nothing runs in it while `give` hands its files over. If that fails, it goes on here.
   * Returns whether it was given away; false also for one that cannot be: it is starting or ending, or has frozen processes and did not
   * agree to lose them with `restart: true`.
   */
  giveAway(
    entry: LiveSandbox,
    principal: Principal,
    give: (live: OpenSandbox | undefined) => Promise<boolean>,
  ): Promise<boolean> {
    return entry.serially(async () => {
      const { state, row } = entry
      const moves = entry.restarts || entry.sandbox?.outlives
      const frozen = state === 'paused' ? entry.sandbox : undefined
      if (!(state === 'ready' && moves) && !(state === 'paused' && (!frozen || entry.restarts))) return false
      // Only a sandbox that runs can pack its files.
      if (frozen) await frozen.resume?.()
      else if (state === 'paused' && row.restore === null) await this.#own.reopen(principal, entry)
      const live = entry.sandbox
      // From now on nothing starts in it.
      if (state === 'ready') entry.move('paused')
      const isGiven = await settled(live, give).catch(() => false)
      if (isGiven) this.release(entry, 'moved to another node')
      else if (state === 'ready') entry.move('ready')
      else if (frozen) await frozen.pause?.()
      else if (live) {
        entry.sandbox = undefined
        await live.suspend()
      }
      return isGiven
    })
  }
}

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
