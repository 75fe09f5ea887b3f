import type { ConsoleClient } from '../../../src/client/console.ts'
import type { ConsoleEvent, ConsoleSandbox, Sample, Who } from '../../../src/client/console-types.ts'
import type { Approval, TrailRecord, WaitingReview } from '../../../src/client/types.ts'
import { isAuthenticationLost, type StreamEnd } from '../../../src/model/stream-end.ts'
import { isUnauthenticated } from './session.ts'

/** All live data of the console, fed by one event stream. While the stream reconnects, everything shown stays. */

const MAX_RECORDS = 5000
const MAX_SAMPLES = 60
const MAX_ENDED = 200
const HOUR_MS = 3_600_000
const MIN_BACKOFF_MS = 250
const MAX_BACKOFF_MS = 5000
/** Events that arrive within this time cause one render. */
const BATCH_MS = 50
const NO_SAMPLES: readonly Sample[] = []

type Connection = 'connecting' | 'live' | 'broken'

export type LiveData = {
  readonly connection: Connection
  /** Why the stream ended; empty while it is connected. */
  readonly disconnectReason: string
  /** Sandboxes that have not ended, newest first. */
  readonly sandboxes: readonly ConsoleSandbox[]
  /** Sandboxes that ended while the page was open, newest first. */
  readonly ended: readonly ConsoleSandbox[]
  readonly approvals: readonly Approval[]
  /** Ended sandboxes with changes to review, latest first. */
  readonly reviews: readonly WaitingReview[]
  /** Audit records, newest last. */
  readonly records: readonly TrailRecord[]
  readonly seq: number
  readonly policy: string
}

const EMPTY: LiveData = {
  connection: 'connecting',
  disconnectReason: '',
  sandboxes: [],
  ended: [],
  approvals: [],
  reviews: [],
  records: [],
  seq: -1,
  policy: '',
}

export class LiveStore {
  readonly client: ConsoleClient
  readonly identity: Who
  readonly #listeners = new Set<() => void>()
  readonly #samples = new Map<string, readonly Sample[]>()
  readonly #stop = new AbortController()
  readonly #onSignedOut: (reason: string) => void
  #running = new Map<string, ConsoleSandbox>()
  #ended = new Map<string, ConsoleSandbox>()
  #records: TrailRecord[] = []
  #lastSeq: number | undefined
  #data: LiveData = EMPTY
  #pending: { -readonly [K in keyof LiveData]?: LiveData[K] } = {}
  #isScheduled = false

  constructor(client: ConsoleClient, identity: Who, onSignedOut: (reason: string) => void) {
    this.client = client
    this.identity = identity
    this.#onSignedOut = onSignedOut
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }
  readonly snapshot = (): LiveData => this.#data
  readonly samplesOf = (id: string): readonly Sample[] => this.#samples.get(id) ?? NO_SAMPLES

  /** Loads the last hour of records, then follows the event stream, reconnecting until `stop` or sign-out. */
  async run(): Promise<void> {
    const since = new Date(Date.now() - HOUR_MS).toISOString()
    const recent = await this.client.trail({ order: 'desc', since, limit: 1000 }).catch(() => undefined)
    if (recent) {
      this.#records = [...recent.items].reverse()
      this.#lastSeq = this.#records.at(-1)?.seq
      this.#set({ records: this.#records })
    }
    for (let backoff = MIN_BACKOFF_MS; !this.#stop.signal.aborted; ) {
      let cut: StreamEnd | undefined
      try {
        for await (const event of this.client.stream(this.#lastSeq, this.#stop.signal)) {
          backoff = MIN_BACKOFF_MS
          if (event.type === 'cut') cut = event.data
          else this.#apply(event)
        }
      } catch (error) {
        if (isUnauthenticated(error) && !cut) return this.#onSignedOut('your session has ended')
      }
      // The key or the session is no longer valid: reconnecting would be refused.
      if (cut && isAuthenticationLost(cut)) return this.#onSignedOut(cut.message)
      this.#set({ connection: 'broken', ...(cut && { disconnectReason: cut.message }) })
      await new Promise((resolve) => setTimeout(resolve, backoff))
      backoff = Math.min(backoff * 2, MAX_BACKOFF_MS)
    }
  }

  stop(): void {
    this.#stop.abort()
  }

  #apply(event: ConsoleEvent): void {
    if (event.type === 'hello') this.#reset(event.data)
    else if (event.type === 'approvals') this.#set({ approvals: event.data })
    else if (event.type === 'reviews') this.#set({ reviews: event.data })
    else if (event.type === 'gone') this.#moveToEnded(event.data)
    else if (event.type === 'record') this.#addRecord(event.data)
    else if (event.type === 'samples') this.#addSamples(event.data)
    else if (event.type === 'sandbox') {
      this.#running.set(event.data.id, event.data)
      this.#publishSandboxes()
    }
  }

  #addSamples(samples: Readonly<Record<string, Sample>>): void {
    for (const [id, sample] of Object.entries(samples))
      this.#samples.set(id, [...(this.#samples.get(id) ?? []), sample].slice(-MAX_SAMPLES))
    this.#publishSandboxes()
  }

  #reset(data: Extract<ConsoleEvent, { type: 'hello' }>['data']): void {
    const before = this.#running
    this.#running = new Map(data.sandboxes.map((sandbox) => [sandbox.id, sandbox]))
    for (const { id, samples = [] } of data.sandboxes) if (samples.length > 0) this.#samples.set(id, samples)
    // Sandboxes that ended while the stream was down: fetch how they ended, so that no row just disappears.
    for (const sandbox of before.values()) if (!this.#running.has(sandbox.id)) void this.#fetchEnded(sandbox)
    this.#set({
      connection: 'live',
      disconnectReason: '',
      seq: Math.max(this.#data.seq, data.seq),
      policy: data.policy,
    })
    this.#publishSandboxes()
  }

  async #fetchEnded(sandbox: ConsoleSandbox): Promise<void> {
    const found = await this.client.get(sandbox.id).catch(() => undefined)
    const end = found ? found.info : { state: 'failed' as const, reason: 'no longer known to the server' }
    this.#moveToEnded({ ...sandbox, ...end })
  }

  #moveToEnded(sandbox: ConsoleSandbox): void {
    const last = this.#running.get(sandbox.id) ?? this.#ended.get(sandbox.id)
    this.#running.delete(sandbox.id)
    this.#ended.delete(sandbox.id)
    this.#ended.set(sandbox.id, { ...last, ...sandbox })
    if (this.#ended.size > MAX_ENDED) this.#ended.delete(this.#ended.keys().next().value as string)
    this.#publishSandboxes()
  }

  #addRecord(record: TrailRecord): void {
    if (this.#lastSeq !== undefined && record.seq <= this.#lastSeq) return
    this.#lastSeq = record.seq
    this.#records = [...this.#records.slice(-MAX_RECORDS), record]
    this.#set({ records: this.#records, seq: record.seq })
  }

  #publishSandboxes(): void {
    const byAge = (a: ConsoleSandbox, b: ConsoleSandbox): number => (a.created_at < b.created_at ? 1 : -1)
    this.#set({
      sandboxes: [...this.#running.values()].sort(byAge),
      ended: [...this.#ended.values()].reverse(),
    })
  }

  /** Batches events, so that many of them cause one render. */
  #set(change: Partial<LiveData>): void {
    Object.assign(this.#pending, change)
    if (this.#isScheduled) return
    this.#isScheduled = true
    setTimeout(() => {
      this.#isScheduled = false
      this.#data = { ...this.#data, ...this.#pending }
      this.#pending = {}
      for (const listener of this.#listeners) listener()
    }, BATCH_MS)
  }
}
