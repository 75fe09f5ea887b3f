import type { Event, EventSink } from '../../model/event.ts'
import type { SandboxRow } from '../../store/sandboxes.ts'
import type { Store, Tx } from '../../store/sql.ts'

/** The end of a sandbox that is not recorded yet. */
export type UnrecordedEnd = {
  /** The record to show; undefined if the sandbox is to have no record at all. */
  readonly row: SandboxRow | undefined
  readonly event?: Event | undefined
  readonly write: (tx: Tx) => Promise<unknown>
}

type Pending = UnrecordedEnd & { isInTrail: boolean }

const FIRST_MS = 250
const LONGEST_MS = 5000

/**
 * Ends that could not be recorded because the store was unavailable. Recording is retried until it succeeds: a sandbox
 * that is gone must never be shown as running.
 */
export class UnrecordedEnds {
  readonly #store: Store
  readonly #trail: EventSink
  readonly #ends = new Map<string, Pending>()
  #timer: NodeJS.Timeout | undefined
  #trying = false
  #pauseMs = FIRST_MS
  #closed = false

  constructor(store: Store, trail: EventSink) {
    this.#store = store
    this.#trail = trail
  }

  get size(): number {
    return this.#ends.size
  }

  has(id: string): boolean {
    return this.#ends.has(id)
  }

  /** The pending record of a sandbox. */
  row(id: string): SandboxRow | undefined {
    return this.#ends.get(id)?.row
  }

  add(id: string, end: UnrecordedEnd): void {
    this.#ends.set(id, { ...end, isInTrail: end.event === undefined })
    this.#again()
  }

  close(): void {
    this.#closed = true
    clearTimeout(this.#timer)
  }

  #again(): void {
    if (this.#closed || this.#trying || this.#timer) return
    this.#timer = setTimeout(() => void this.#try(), this.#pauseMs).unref()
  }

  async #try(): Promise<void> {
    this.#timer = undefined
    this.#trying = true
    for (const [id, end] of [...this.#ends]) {
      const isDone = await this.#record(end)
      if (isDone) this.#ends.delete(id)
      this.#pauseMs = isDone ? FIRST_MS : Math.min(LONGEST_MS, this.#pauseMs * 2)
      // The store is unavailable for the others too.
      if (!isDone) break
    }
    this.#trying = false
    if (this.#ends.size > 0) this.#again()
  }

  async #record(end: Pending): Promise<boolean> {
    try {
      if (!end.isInTrail && end.event) await this.#trail.append(end.event)
      end.isInTrail = true
      await this.#store.write(end.write)
      return true
    } catch {
      return false
    }
  }
}
