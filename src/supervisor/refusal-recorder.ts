import type { Pace } from '../model/event.ts'

/** A refused connection as its record describes it. Two refusals with the same text are of one kind. */
export type Refusal = { readonly host?: string; readonly port?: number; readonly details: string }

/** Limits per sandbox and interval: different refusals, and records of one kind that are written one by one. */
const MAX_KINDS = 256
const ONE_BY_ONE = 8
const INTERVAL_MS = 60_000

const FURTHER: Refusal = {
  details: `connect to further places: more than ${MAX_KINDS} different refusals within ${INTERVAL_MS / 1000} s are only counted`,
}

/** Refusals of one kind: how many were recorded one by one in this interval, and how many no record contains yet. */
type Series = { readonly refusal: Refusal; single: number; count: number; written: Promise<void> }

/** Writes one record that stands for `count` refusals. */
type Write = (refusal: Refusal, count: number, pace: Pace) => Promise<void>

/**
 * Records the refused connections of one sandbox. The first ones of a kind are recorded one by one; further ones are
 * counted and become one record at the end of the interval. SECURITY: refusals cost a sandbox nothing, and all sandboxes
 * share one queue to the audit log, so the number of records per interval is limited whatever a sandbox asks for.
 */
export class RefusalRecorder {
  readonly #write: Write
  readonly #kinds = new Map<string, Series>()
  #timer: NodeJS.Timeout | undefined

  constructor(write: Write) {
    this.#write = write
  }

  /** Resolves when refusals of this kind are in the audit log. Never rejects, because the connection is refused anyway. */
  note(refusal: Refusal): Promise<void> {
    const series = this.#seriesOf(refusal)
    series.count++
    if (series.single++ < ONE_BY_ONE) series.written = this.#record(series, 'now')
    return series.written
  }

  /** Records what was only counted. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    await Promise.all([...this.#kinds].map(([kind, series]) => this.#sum(kind, series)))
    if (this.#kinds.size > 0) this.#flushLater()
  }

  #seriesOf(refusal: Refusal): Series {
    const known = this.#kinds.get(refusal.details)
    if (known) return known
    if (this.#kinds.size >= MAX_KINDS && refusal !== FURTHER) return this.#seriesOf(FURTHER)
    const series: Series = { refusal, single: 0, count: 0, written: Promise.resolve() }
    this.#kinds.set(refusal.details, series)
    this.#flushLater()
    return series
  }

  #flushLater(): void {
    this.#timer ??= setTimeout(() => void this.flush(), INTERVAL_MS).unref()
  }

  async #sum(kind: string, series: Series): Promise<void> {
    await series.written
    if (series.count > 0) await this.#record(series, 'soon')
    series.single = 0
    if (series.count === 0) this.#kinds.delete(kind)
  }

  /** What cannot be recorded now is contained in the next record. */
  async #record(series: Series, pace: Pace): Promise<void> {
    const count = series.count
    series.count = 0
    try {
      await this.#write(series.refusal, count, pace)
    } catch {
      series.count += count
    }
  }
}
