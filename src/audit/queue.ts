import { SandboxError } from '../model/errors.ts'
import type { Event, EventSink, Pace } from '../model/event.ts'
import type { Entry } from './batch.ts'
import { membersOf } from './chain.ts'

const RECORD_BYTES = 1024 * 1024
const BATCH_BYTES = 4 * 1024 * 1024
const BATCH = 1024
/** How long a record that nobody waits for stays for others to share its commit with it, and how many do. */
const LINGER_MS = 20
const LINGERING = 32

type Failure = { readonly error: unknown }
type Waiting = {
  readonly entry: Entry
  readonly bytes: number
  readonly settle: (failure: Failure | undefined) => void
}

/**
 * Writes one batch and resolves once it is safe. It takes the batch when it can write at once, so that whoever came
 * meanwhile is in it; taken again, it is the same.
 */
export type Commit = (take: () => readonly Entry[]) => Promise<void>

/** What waits to enter a trail. One commit at a time; whoever comes while it runs shares the next, and its one sync. */
export class EntryQueue implements EventSink {
  readonly #commit: Commit
  readonly #now: () => Date
  readonly #waiting: Waiting[] = []
  #lingering: NodeJS.Timeout | undefined
  /** Whether something waits that does not linger. */
  #due = false
  #draining: Promise<void> | undefined
  #state: 'open' | 'closed' = 'open'
  /** Whether records were appended that no checkpoint of ours speaks for. */
  #unsealed = false

  constructor(commit: Commit, now: () => Date) {
    this.#commit = commit
    this.#now = now
  }

  async append(event: Event, pace: Pace = 'now'): Promise<void> {
    this.#assertOpen()
    if (event.event === 'Checkpoint')
      throw new SandboxError('invalid-input', 'only the trail makes checkpoints')
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

  /** Seals what was appended. Harmless when repeated. */
  async close(): Promise<void> {
    if (this.#state === 'closed') return
    this.#state = 'closed'
    if (this.#unsealed) await this.#seal()
    await this.#draining
  }

  #assertOpen(): void {
    if (this.#state !== 'open') throw new SandboxError('wrong-state', 'the trail is closed')
  }

  async #seal(): Promise<void> {
    this.#unsealed = false
    await this.#enqueue({ kind: 'checkpoint', time: this.#now().toISOString() }, 0, 'now')
  }

  async #enqueue(entry: Entry, bytes: number, pace: Pace): Promise<void> {
    const settled = new Promise<void>((resolve, reject) => {
      const settle: Waiting['settle'] = (failure) => (failure ? reject(failure.error) : resolve())
      this.#waiting.push({ entry, bytes, settle })
    })
    if (pace === 'now' || this.#waiting.length >= LINGERING) this.#begin()
    else this.#lingering ??= setTimeout(() => this.#begin(), LINGER_MS)
    await settled
  }

  #begin(): void {
    clearTimeout(this.#lingering)
    this.#lingering = undefined
    // A commit that was running may have taken what lingered.
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
      const failure = await this.#commit(take).then(
        () => (batch.length > 0 ? undefined : { error: new SandboxError('internal', 'nothing was written') }),
        (error: unknown) => ({ error }),
      )
      // One that failed before it took anything failed for whoever it would have taken.
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
