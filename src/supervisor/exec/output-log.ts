import type { OutputStream } from '../../backends/backend.ts'
import { type KeptOutput, OutputBudget } from './output-budget.ts'

/** One chunk of output; ids start at 1 without gaps. */
export type OutputChunk = { readonly id: number; readonly stream: OutputStream; readonly data: Uint8Array }

/** Chunks up to `id` have been dropped: the reader was too late. */
export type OutputGap = { readonly gap: true; readonly id: number }

type Reader = { next: number }

/** The overhead of a chunk in addition to its bytes; a program may print single bytes. */
const PIECE_COST = 256

const weightOf = ({ data }: OutputChunk): number => data.length + PIECE_COST

/**
 * What a command printed, up to a size limit. Readers can attach, detach and come back. While an attached reader lags
 * behind, the command is blocked, so that no output is lost to that reader.
 */
export class OutputLog implements KeptOutput {
  readonly #room: number
  readonly #budget: OutputBudget
  readonly #tenant: string
  /** Chunks before `#first` are dropped; the array is compacted now and then, because compaction costs its whole length. */
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

  /** Whether output has been dropped. */
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

  /** The id of the last chunk. */
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

  /** All output of one stream that is still kept. */
  text(stream: OutputStream): string {
    return Buffer.concat(
      this.#chunks.flatMap((chunk) => (chunk?.stream === stream ? [chunk.data] : [])),
    ).toString('utf8')
  }

  /** Keeps the log for a reader that is about to attach, even after `forget`; call the result to release it. */
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

  /** Marks the log as unreachable for new readers; it is freed as soon as the last reader detaches. */
  forget(): void {
    this.#isForgotten = true
    this.#letGo()
  }

  /** Yields all chunks after an id, then new ones, until the end or until the signal aborts. */
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

  /** The first chunk that an attached reader still needs. */
  get #needed(): number {
    let needed = Number.POSITIVE_INFINITY
    for (const reader of this.#readers) needed = Math.min(needed, reader.next)
    return needed
  }

  /** Drops the oldest chunks that no attached reader needs. */
  #trim(): void {
    const needed = this.#needed
    while (this.#bytes > this.#room && this.#dropped < this.lastId - 1 && this.#dropped + 1 < needed)
      this.dropOldest()
    if (!this.#mustWait) this.#release()
  }

  /** Whether the command is blocked: a reader lags behind and the limit is reached. */
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
