import { reviewId } from '../../host/review/review.ts'
import type { EventSink } from '../../model/event.ts'
import type { Spec } from '../../model/spec.ts'
import { countApprovals, type EndedRow, endedBefore, forgetSandboxes } from '../../store/retention.ts'
import type { Store } from '../../store/sql.ts'
import type { Instance } from '../instance.ts'
import { ENDED } from '../lifecycle/lifecycle.ts'
import type { Templates } from '../snapshots/templates.ts'

/** What retention works on. */
export type RetentionParts = {
  readonly store: Store
  readonly trail: EventSink
  readonly instance: Pick<Instance, 'id'>
  readonly templates: Pick<Templates, 'staleFiles' | 'removeFile'>
  /** Read again for each pass. */
  readonly keepDays: () => number
  /** Ends paused sandboxes whose files were kept long enough. */
  readonly endOldPaused?: (now: number) => Promise<number>
  /** The pending reviews on this host. */
  readonly reviews: () => readonly string[]
  readonly log: (line: string) => void
  readonly now?: () => number
}

/** What one pass removed. */
export type Pruned = {
  readonly sandboxes: number
  readonly approvals: number
  readonly files: number
  /** Whether more may be left. */
  readonly more: boolean
}

const DAY_MS = 24 * 3_600_000
const EVERY_MS = 3_600_000
/** The delay before the next pass if a pass stopped at its limit. */
const SOON_MS = 5_000
/** Every server removes its own records; after this much longer a server is considered gone. */
const OTHERS_MS = DAY_MS
/** Rows per transaction, and per page. */
const BATCH = 100
/** Pages per pass. */
const PAGES = 10

/**
 * Removes old records: ended sandboxes with their idempotency keys and approvals, and unused build files.
 * INVARIANT: the audit log is never touched. Each removal is recorded there first; without that record nothing is removed.
 */
export class Retention {
  readonly #parts: RetentionParts
  #after: Pick<EndedRow, 'endedAt' | 'id'> | undefined
  #running: Promise<Pruned> | undefined
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(parts: RetentionParts) {
    this.#parts = parts
  }

  /** Starts a pass now and every hour, in the background. */
  start(): void {
    void this.pass()
      .catch((error: Error) => this.#parts.log(`old records were not removed: ${error.message}`))
      .then((pruned) => {
        if (this.#closed) return
        this.#timer = setTimeout(() => this.start(), pruned?.more ? SOON_MS : EVERY_MS)
        this.#timer.unref()
      })
  }

  /** Runs one pass; a call during a pass returns that pass. */
  pass(): Promise<Pruned> {
    this.#running ??= this.#pass().finally(() => {
      this.#running = undefined
    })
    return this.#running
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#timer)
    await this.#running?.catch(() => {})
  }

  async #pass(): Promise<Pruned> {
    const { store, trail, templates, keepDays, now = Date.now } = this.#parts
    await this.#parts.endOldPaused?.(now())
    const before = now() - keepDays() * DAY_MS
    const { batches, more } = await this.#ended(before)
    const files = await templates.staleFiles(before, BATCH * PAGES)
    let approvals = 0
    for (const ids of batches) approvals += await countApprovals(store, ids)
    const gone = { sandboxes: batches.flat().length, approvals, files: files.length }
    if (gone.sandboxes + gone.files > 0) {
      await trail.append({ event: 'Pruning', ended_before: new Date(before).toISOString(), ...gone })
      await this.#remove(batches)
      for (const name of files) await templates.removeFile(name, before)
    }
    return { ...gone, more: more || files.length === BATCH * PAGES }
  }

  /** One transaction per batch, so that other writers never wait for more than one batch. */
  async #remove(batches: readonly (readonly string[])[]): Promise<void> {
    const { store } = this.#parts
    for (const ids of batches) {
      // The next start continues, and records the removal again.
      if (this.#closed) return
      await store.write((tx) => forgetSandboxes(tx, store.kind, { ids, states: ENDED }))
    }
  }

  /** The next removable rows. The position is kept, so that rows that must stay do not hide the ones after them. */
  async #ended(before: number): Promise<{ readonly batches: string[][]; readonly more: boolean }> {
    const { store, instance } = this.#parts
    const reviews = new Set(this.#parts.reviews())
    const query = { states: ENDED, instance: instance.id, before, othersBefore: before - OTHERS_MS }
    const batches: string[][] = []
    for (let page = 0; page < PAGES; page++) {
      const rows = await endedBefore(store, { ...query, after: this.#after, limit: BATCH })
      const ids = rows.filter((row) => !this.#hasPendingReview(row, reviews)).map(({ id }) => id)
      if (ids.length > 0) batches.push(ids)
      this.#after = rows.length < BATCH ? undefined : rows.at(-1)
      if (!this.#after) return { batches, more: false }
    }
    return { batches, more: true }
  }

  /** Whether changes may still be pending. If another host stores them, only that host knows. */
  #hasPendingReview({ id, instance, spec }: EndedRow, reviews: ReadonlySet<string>): boolean {
    if (!(JSON.parse(spec) as Spec).review) return false
    return instance !== this.#parts.instance.id || reviews.has(reviewId(id))
  }
}
