import type { OutputStream } from '../../backends/backend.ts'
import { type KeptOutput, OutputBudget } from './output-budget.ts'

/** One piece of output; numbers start at 1 and have no holes. */
export type OutputChunk = { readonly id: number; readonly stream: OutputStream; readonly data: Uint8Array }

/** Pieces up to `id` are gone: the reader came too late. */
export type OutputGap = { readonly gap: true; readonly id: number }

type Reader = { next: number }

/** What one piece costs beside its bytes; a program may print them one by one. */
const PIECE_COST = 256

const weightOf = ({ data }: OutputChunk): number => data.length + PIECE_COST

/**
 * What a command printed, as far back as there is room. Readers come, go and come back; while one that is attached lags
 * behind, the command is held instead of its output being lost to that reader.
 */
export class OutputLog implements KeptOutput {
  readonly #room: number
  readonly #budget: OutputBudget
  readonly #tenant: string
  /** Pieces before `#first` are gone; the list is shortened now and then, because to do so costs its whole length. */
  #chunks: (OutputChunk | undefined)[] = []
  #first = 0
  readonly #readers = new Set<Reader>()
  #weight = 0
  #bytes = 0
  #dropped = 0
  #next = 1
  #ended = false
  #holds = 0
  #isForgotten = false
  #wakeReaders: (() => void)[] = []
  #wakeWriter: (() => void)[] = []

  constructor(room: number, budget = new OutputBudget(Number.POSITIVE_INFINITY), tenant = '') {
    this.#room = room
    this.#budget = budget
    this.#tenant = tenant
  }

  /** Whether some of it is no longer here. */
  get isCut(): boolean {
    return this.#dropped > 0
  }

  get isEnded(): boolean {
    return this.#ended
  }

  get isRead(): boolean {
    return this.#readers.size > 0
  }

  get weight(): number {
    return this.#weight
  }

  get hasSpare(): boolean {
    const oldest = this.#oldest
    return oldest !== undefined && oldest.id < this.#needed
  }

  /** The number of the last piece. */
  get lastId(): number {
    return this.#next - 1
  }

  push(stream: OutputStream, data: Uint8Array): void | Promise<void> {
    if (this.#isForgotten && this.#readers.size === 0) return undefined
    const chunk = { id: this.#next++, stream, data: Buffer.from(data) }
    if (!this.#oldest) this.#budget.add(this.#tenant, this)
    this.#chunks.push(chunk)
    this.#bytes += data.length
    this.#count(weightOf(chunk))
    this.#wake()
    this.#trim()
    this.#budget.reclaim(this.#tenant)
    return this.#mustWait ? new Promise((resolve) => this.#wakeWriter.push(resolve)) : undefined
  }

  end(): void {
    if (this.#ended) return
    this.#ended = true
    if (this.#oldest) this.#budget.add(this.#tenant, this)
    this.#wake()
    this.#release()
  }

  /** Everything still here of one stream. */
  text(stream: OutputStream): string {
    return Buffer.concat(
      this.#chunks.flatMap((chunk) => (chunk?.stream === stream ? [chunk.data] : [])),
    ).toString('utf8')
  }

  /** Keeps it, also when it is forgotten, for somebody who is about to read it; until what it returns is called. */
  hold(): () => void {
    this.#holds++
    let released = false
    return () => {
      if (released) return
      released = true
      this.#holds--
      this.#letGo()
    }
  }

  /** Nobody can ask for it any more: it goes as soon as nobody reads it. */
  forget(): void {
    this.#isForgotten = true
    this.#letGo()
  }

  /** All pieces after a number, then the ones to come, until the end or until the signal. */
  async *follow(after: number, signal?: AbortSignal): AsyncGenerator<OutputChunk | OutputGap, void> {
    const reader: Reader = { next: Math.max(1, after + 1) }
    this.#readers.add(reader)
    const wake = (): void => this.#wake()
    signal?.addEventListener('abort', wake, { once: true })
    try {
      while (!signal?.aborted) {
        if (reader.next <= this.#dropped) {
          const id = this.#dropped
          reader.next = id + 1
          yield { gap: true, id }
          continue
        }
        const chunk = this.#chunks[this.#first + reader.next - this.#dropped - 1]
        if (chunk) {
          yield chunk
          reader.next = Math.max(reader.next, chunk.id + 1)
          this.#trim()
        } else if (this.#ended) return
        else await new Promise<void>((resolve) => this.#wakeReaders.push(resolve))
      }
    } finally {
      this.#readers.delete(reader)
      signal?.removeEventListener('abort', wake)
      this.#trim()
      this.#letGo()
    }
  }

  dropOldest(): void {
    const oldest = this.#oldest
    if (!oldest) return
    this.#chunks[this.#first++] = undefined
    if (this.#first * 2 > this.#chunks.length) {
      this.#chunks = this.#chunks.slice(this.#first)
      this.#first = 0
    }
    this.#bytes -= oldest.data.length
    this.#dropped = oldest.id
    this.#count(-weightOf(oldest))
    if (!this.#oldest) this.#budget.remove(this.#tenant, this)
  }

  get #oldest(): OutputChunk | undefined {
    return this.#chunks[this.#first]
  }

  /** The first piece that an attached reader still waits for. */
  get #needed(): number {
    let needed = Number.POSITIVE_INFINITY
    for (const reader of this.#readers) needed = Math.min(needed, reader.next)
    return needed
  }

  /** Drops the oldest pieces that no attached reader still needs. */
  #trim(): void {
    const needed = this.#needed
    while (this.#bytes > this.#room && this.#dropped < this.lastId - 1 && this.#dropped + 1 < needed)
      this.dropOldest()
    if (!this.#mustWait) this.#release()
  }

  /** Whether the command is held: a reader lags behind, and there is no room for more until it has caught up. */
  get #mustWait(): boolean {
    if (this.#readers.size === 0 || this.#ended) return false
    return this.#bytes > this.#room || (this.#budget.isOver && this.#needed <= this.lastId)
  }

  #letGo(): void {
    if (!this.#isForgotten || this.#readers.size > 0 || this.#holds > 0) return
    while (this.#oldest) this.dropOldest()
  }

  #count(bytes: number): void {
    this.#weight += bytes
    this.#budget.count(this.#tenant, bytes)
  }

  #wake(): void {
    for (const wake of this.#wakeReaders.splice(0)) wake()
  }

  #release(): void {
    for (const wake of this.#wakeWriter.splice(0)) wake()
  }
}
