import { reviewId } from '../../host/review/review.ts'
import type { EventSink } from '../../model/event.ts'
import type { Spec } from '../../model/spec.ts'
import { countApprovals, type EndedRow, endedBefore, forgetSandboxes } from '../../store/retention.ts'
import type { Store } from '../../store/sql.ts'
import type { Instance } from '../instance.ts'
import { ENDED } from '../lifecycle.ts'
import type { Templates } from '../snapshots/templates.ts'

export type RetentionParts = {
  readonly store: Store
  readonly trail: EventSink
  readonly instance: Pick<Instance, 'id'>
  readonly templates: Pick<Templates, 'staleFiles' | 'removeFile'>
  /** Read anew for each pass. */
  readonly keepDays: () => number
  /** The reviews of this host that still wait for a person. */
  readonly reviews: () => readonly string[]
  readonly log: (line: string) => void
  readonly now?: () => number
}

/** What one pass removed. */
export type Pruned = {
  readonly sandboxes: number
  readonly approvals: number
  readonly files: number
  /** Whether there may be more. */
  readonly more: boolean
}

const DAY_MS = 24 * 3_600_000
const EVERY_MS = 3_600_000
/** While a pass ends at its bound. */
const SOON_MS = 5_000
/** Another server removes its own; this much later it is taken for gone. */
const OTHERS_MS = DAY_MS
/** In one transaction, and in one page. */
const BATCH = 100
/** Pages in one pass. */
const PAGES = 10

/**
 * Removes what ended long ago: sandboxes with their names and questions, and files that builds brought along.
 * INVARIANT: the trail is never touched, and what goes is written there first; without that record nothing goes.
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

  /** A pass now and one every hour, all in the background. */
  start(): void {
    void this.pass()
      .catch((error: Error) => this.#parts.log(`old records were not removed: ${error.message}`))
      .then((pruned) => {
        if (this.#closed) return
        this.#timer = setTimeout(() => this.start(), pruned?.more ? SOON_MS : EVERY_MS)
        this.#timer.unref()
      })
  }

  /** One pass; whoever asks while one runs gets that one. */
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

  /** One transaction a batch, so that whoever else writes never waits for more than one. */
  async #remove(batches: readonly (readonly string[])[]): Promise<void> {
    const { store } = this.#parts
    for (const ids of batches) {
      // What is left stays for the next life, which writes it down again.
      if (this.#closed) return
      await store.write((tx) => forgetSandboxes(tx, store.kind, { ids, states: ENDED }))
    }
  }

  /** The next of those that may go. The place is kept, so that many that must stay never hide the ones behind them. */
  async #ended(before: number): Promise<{ readonly batches: string[][]; readonly more: boolean }> {
    const { store, instance } = this.#parts
    const reviews = new Set(this.#parts.reviews())
    const query = { states: ENDED, instance: instance.id, before, othersBefore: before - OTHERS_MS }
    const batches: string[][] = []
    for (let page = 0; page < PAGES; page++) {
      const rows = await endedBefore(store, { ...query, after: this.#after, limit: BATCH })
      const ids = rows.filter((row) => !this.#waits(row, reviews)).map(({ id }) => id)
      if (ids.length > 0) batches.push(ids)
      this.#after = rows.length < BATCH ? undefined : rows.at(-1)
      if (!this.#after) return { batches, more: false }
    }
    return { batches, more: true }
  }

  /** Whether changes may still wait for a person. Where another host keeps them only that host knows. */
  #waits({ id, instance, spec }: EndedRow, reviews: ReadonlySet<string>): boolean {
    if (!(JSON.parse(spec) as Spec).review) return false
    return instance !== this.#parts.instance.id || reviews.has(reviewId(id))
  }
}
