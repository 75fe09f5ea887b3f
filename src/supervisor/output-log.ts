import type { OutputStream } from '../backends/backend.ts'

/** One piece of output; numbers start at 1 and have no holes. */
export type OutputChunk = { readonly id: number; readonly stream: OutputStream; readonly data: Uint8Array }

/** Pieces up to `id` are gone: the reader came too late. */
export type OutputGap = { readonly gap: true; readonly id: number }

type Reader = { next: number }

/**
 * What a command printed, as far back as there is room. Readers come, go and come back; while one that is attached lags
 * behind, the command is held instead of its output being lost to that reader.
 */
export class OutputLog {
  readonly #room: number
  readonly #chunks: OutputChunk[] = []
  readonly #readers = new Set<Reader>()
  #bytes = 0
  #dropped = 0
  #next = 1
  #ended = false
  #wakeReaders: (() => void)[] = []
  #wakeWriter: (() => void)[] = []

  constructor(room: number) {
    this.#room = room
  }

  /** Whether some of it is no longer here. */
  get isCut(): boolean {
    return this.#dropped > 0
  }

  get isEnded(): boolean {
    return this.#ended
  }

  /** The number of the last piece. */
  get lastId(): number {
    return this.#next - 1
  }

  push(stream: OutputStream, data: Uint8Array): void | Promise<void> {
    this.#chunks.push({ id: this.#next++, stream, data: Buffer.from(data) })
    this.#bytes += data.length
    this.#wake()
    this.#trim()
    if (this.#bytes > this.#room) return this.#untilRead()
    return undefined
  }

  end(): void {
    this.#ended = true
    this.#wake()
    this.#release()
  }

  /** Everything still here of one stream. */
  text(stream: OutputStream): string {
    return Buffer.concat(
      this.#chunks.flatMap((chunk) => (chunk.stream === stream ? [chunk.data] : [])),
    ).toString('utf8')
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
          yield { gap: true, id: this.#dropped }
          reader.next = this.#dropped + 1
        }
        const chunk = this.#chunks[reader.next - this.#dropped - 1]
        if (chunk) {
          yield chunk
          reader.next++
          this.#trim()
        } else if (this.#ended) return
        else await new Promise<void>((resolve) => this.#wakeReaders.push(resolve))
      }
    } finally {
      this.#readers.delete(reader)
      signal?.removeEventListener('abort', wake)
      this.#trim()
    }
  }

  /** Drops the oldest pieces that no attached reader still needs. */
  #trim(): void {
    const needed = Math.min(...[...this.#readers].map((reader) => reader.next), Number.POSITIVE_INFINITY)
    let drop = 0
    while (this.#bytes > this.#room && drop < this.#chunks.length - 1) {
      const oldest = this.#chunks[drop] as OutputChunk
      if (oldest.id >= needed) break
      this.#bytes -= oldest.data.length
      drop++
    }
    if (drop > 0) this.#chunks.splice(0, drop)
    this.#dropped += drop
    if (this.#bytes <= this.#room || this.#readers.size === 0) this.#release()
  }

  #untilRead(): Promise<void> | undefined {
    if (this.#readers.size === 0 || this.#ended) return undefined
    return new Promise((resolve) => this.#wakeWriter.push(resolve))
  }

  #wake(): void {
    for (const wake of this.#wakeReaders.splice(0)) wake()
  }

  #release(): void {
    for (const wake of this.#wakeWriter.splice(0)) wake()
  }
}
