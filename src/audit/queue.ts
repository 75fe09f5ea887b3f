import { SandboxError } from '../model/errors.ts'
import type { Event, EventSink, Pace } from '../model/event.ts'
import type { Entry } from './batch.ts'
import { membersOf } from './chain.ts'

const RECORD_BYTES = 1024 * 1024
const BATCH_BYTES = 4 * 1024 * 1024
const BATCH = 1024
/** How long, and for how many others, a record without a waiting caller is delayed to share a commit. */
const LINGER_MS = 20
const LINGERING = 32

type Failure = { readonly error: unknown }
type Waiting = {
  readonly entry: Entry
  readonly bytes: number
  readonly pace: Pace
  readonly settle: (failure: Failure | undefined) => void
}

/**
 * Writes one batch and resolves once it is on disk. It calls `take` when it can write at once, so that entries that arrived
 * meanwhile are included; taking again returns the same batch. `isAwaited` says whether a caller waits for one of its entries.
 */
export type Commit = (take: () => readonly Entry[], isAwaited: () => boolean) => Promise<void>

/** Entries that wait for a commit. One commit at a time; entries that arrive during it share the next one and its sync. */
export class EntryQueue implements EventSink {
  readonly #commit: Commit
  readonly #now: () => Date
  readonly #waiting: Waiting[] = []
  #lingering: NodeJS.Timeout | undefined
  /** Whether an entry waits that must not be delayed. */
  #due = false
  #draining: Promise<void> | undefined
  #state: 'open' | 'closed' = 'open'
  /** Whether records were appended that no checkpoint of ours covers. */
  #unsealed = false

  constructor(commit: Commit, now: () => Date) {
    this.#commit = commit
    this.#now = now
  }

  async append(event: Event, pace: Pace = 'now'): Promise<void> {
    this.#assertOpen()
    if (event.event === 'Checkpoint')
      throw new SandboxError('invalid-input', 'checkpoints are created by the audit log itself')
    const members = membersOf(event)
    let bytes = 0
    for (const member of members.values()) bytes += Buffer.byteLength(member)
    if (bytes > RECORD_BYTES)
      throw new SandboxError('invalid-input', `the event is larger than ${RECORD_BYTES} bytes`)
    this.#unsealed = true
    await this.#enqueue({ kind: 'event', time: this.#now().toISOString(), members }, bytes, pace)
  }

  async checkpoint(): Promise<void> {
    this.#assertOpen()
    await this.#seal()
  }

  /** Appends a final checkpoint. Calling it again has no effect. */
  async close(): Promise<void> {
    if (this.#state === 'closed') return
    this.#state = 'closed'
    if (this.#unsealed) await this.#seal()
    await this.#draining
  }

  #assertOpen(): void {
    if (this.#state !== 'open') throw new SandboxError('wrong-state', 'the audit log is closed')
  }

  async #seal(): Promise<void> {
    this.#unsealed = false
    await this.#enqueue({ kind: 'checkpoint', time: this.#now().toISOString() }, 0, 'now')
  }

  async #enqueue(entry: Entry, bytes: number, pace: Pace): Promise<void> {
    const settled = new Promise<void>((resolve, reject) => {
      const settle: Waiting['settle'] = (failure) => (failure ? reject(failure.error) : resolve())
      this.#waiting.push({ entry, bytes, pace, settle })
    })
    if (pace === 'now' || this.#waiting.length >= LINGERING) this.#begin()
    else this.#lingering ??= setTimeout(() => this.#begin(), LINGER_MS)
    await settled
  }

  #begin(): void {
    clearTimeout(this.#lingering)
    this.#lingering = undefined
    // A commit in progress may have taken the delayed entries.
    if (this.#waiting.length === 0) return
    this.#due = true
    this.#draining ??= this.#drain()
  }

  async #drain(): Promise<void> {
    while (this.#due) {
      await new Promise<void>((resolve) => setImmediate(resolve))
      let batch: readonly Waiting[] = []
      const take = (): readonly Entry[] => {
        if (batch.length === 0) batch = this.#takeBatch()
        return batch.map(({ entry }) => entry)
      }
      const isAwaited = (): boolean => batch.some(({ pace }) => pace === 'now')
      const failure = await this.#commit(take, isAwaited).then(
        () => (batch.length > 0 ? undefined : { error: new SandboxError('internal', 'nothing was written') }),
        (error: unknown) => ({ error }),
      )
      // A commit that failed before it took a batch failed for the entries that it would have taken.
      if (batch.length === 0) batch = this.#takeBatch()
      for (const { settle } of batch) settle(failure)
    }
    this.#draining = undefined
  }

  #takeBatch(): readonly Waiting[] {
    const batch = this.#waiting.splice(0, this.#batchSize())
    this.#due = this.#waiting.length > 0
    return batch
  }

  #batchSize(): number {
    let bytes = 0
    const end = this.#waiting.findIndex((waiting, index) => {
      bytes += waiting.bytes
      return bytes > BATCH_BYTES || index === BATCH
    })
    return end < 0 ? this.#waiting.length : Math.max(end, 1)
  }
}
