import { positionOf, type TrailRecord } from '../../audit/chain.ts'
import type { StoreTrailReader } from '../../audit/store-read.ts'
import type { StoreTrail } from '../../audit/store-trail.ts'
import { isOperator, type Principal } from '../access/keys.ts'

const PAGE = 256

/** Which records a reader wants. */
export type FeedQuery = {
  readonly after?: number | undefined
  readonly sandboxId?: string | undefined
  readonly events?: readonly string[] | undefined
  readonly signal: AbortSignal
  /** Aborts when no more records will follow: the existing ones are read to the end. */
  readonly over?: AbortSignal | undefined
}

/** How often records of other servers are looked for. */
const LOOK_MS = 300
/** How long new records of this server wait for others. */
const SOON_MS = 20

/** Follows the audit log: each reader gets every record once, in order, from its position. */
export class Feed {
  readonly #reader: StoreTrailReader
  readonly #wake = new Set<() => void>()
  readonly #listeners = new Set<() => void>()
  #followers = 0
  #soon: NodeJS.Timeout | undefined
  #last = -1
  #timer: NodeJS.Timeout | undefined
  #looking: Promise<void> | undefined
  #again = false

  constructor(trail: Pick<StoreTrail, 'onCommitted'>, reader: StoreTrailReader) {
    this.#reader = reader
    trail.onCommitted((rows) => {
      // Of several chains only the reader knows the position.
      if (reader.isShared) return this.#lookSoon()
      this.#last = Math.max(this.#last, rows.at(-1)?.seq ?? -1)
      this.#wakeAll()
    })
    if (reader.isShared) this.#timer = setInterval(() => this.#tick(), LOOK_MS).unref()
  }

  close(): void {
    clearInterval(this.#timer)
    clearTimeout(this.#soon)
  }

  /** Putting records in order costs a write: it is done only while somebody reads them. */
  #tick(): void {
    if (this.#followers > 0) void this.#look()
    for (const listener of this.#listeners) listener()
  }

  #lookSoon(): void {
    if (this.#followers === 0) return
    this.#soon ??= setTimeout(() => {
      this.#soon = undefined
      void this.#look()
    }, SOON_MS).unref()
  }

  /** Looks for new records of any server, once at a time. */
  #look(): Promise<void> {
    if (this.#looking) this.#again = true
    this.#looking ??= this.#reader
      .position()
      .then((last) => {
        const hasGrown = last > this.#last
        this.#last = Math.max(this.#last, last)
        if (hasGrown) this.#wakeAll()
      })
      .catch(() => {})
      .finally(() => {
        this.#looking = undefined
        if (!this.#again) return
        this.#again = false
        void this.#look()
      })
    return this.#looking
  }

  #wakeAll(): void {
    for (const wake of [...this.#wake]) wake()
    if (!this.#reader.isShared) for (const listener of this.#listeners) listener()
  }

  /** Calls the listener after each commit, or now and then where other servers commit too. */
  onGrowth(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  async *follow(principal: Principal, query: FeedQuery): AsyncGenerator<TrailRecord, void> {
    this.#followers++
    try {
      yield* this.#follow(principal, query)
    } finally {
      this.#followers--
    }
  }

  async *#follow(principal: Principal, query: FeedQuery): AsyncGenerator<TrailRecord, void> {
    let after = query.after ?? (await this.#reader.position())
    const tenant = isOperator(principal) ? undefined : principal.tenant
    while (!query.signal.aborted) {
      const seen = this.#last
      const { sandboxId, events, over } = query
      const isLast = over?.aborted
      const records = await this.#reader.query({ after, tenant, sandboxId, events, limit: PAGE })
      for (const record of records) {
        after = positionOf(record)
        yield record
      }
      if (isLast && records.length < PAGE) return
      // All existing records were searched: the next search starts after them, not after the last match.
      if (records.length < PAGE) after = Math.max(after, seen)
      if (records.length < PAGE && this.#last <= seen)
        await this.#growth([query.signal, ...(over ? [over] : [])])
    }
  }

  #growth(signals: readonly AbortSignal[]): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        this.#wake.delete(done)
        for (const signal of signals) signal.removeEventListener('abort', done)
        resolve()
      }
      this.#wake.add(done)
      for (const signal of signals) signal.addEventListener('abort', done, { once: true })
      if (signals.some(({ aborted }) => aborted)) done()
    })
  }
}
