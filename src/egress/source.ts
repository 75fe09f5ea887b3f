import { type OnReadOpts, Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { TLSSocket } from 'node:tls'
import { GuestStream } from '../host/guest/stream.ts'

/** Takes a chunk. `release` is present if the memory of the bytes is reused after it is called. */
export type Sink = (chunk: Buffer, release: (() => void) | undefined) => void

const IDLE_BYTES = 8 * 1024
const BUSY_BYTES = 64 * 1024
/** Larger than Node's own, so that bulk transfers need fewer event loop turns. */
const BULK_BYTES = 256 * 1024
const BULK_BUFFERS = 8
/** Bytes that may wait in a stream before its source is paused: always, and while few chunks wait in all streams. */
const WAITING = 16 * 1024
const MOST_WAITING = 256 * 1024
const MOST_QUEUED = 64

/** Buffers of all sandboxes that are used again, by their size. */
const spare = new Map<number, Buffer[]>([IDLE_BYTES, BUSY_BYTES, BULK_BYTES].map((bytes) => [bytes, []]))
const SPARE_BYTES = 2 * 1024 * 1024

/**
 * What the connections of one sandbox are read into. SECURITY: it may open thousands whose other side takes nothing. So only a
 * few bulk buffers are in use at once, and a connection on which nothing moves waits with a small one.
 */
export class ReadBuffers {
  #bulk = 0
  /** A buffer that was dropped with a broken connection counts until it is collected. */
  readonly #dropped = new FinalizationRegistry(() => {
    this.#bulk--
  })

  /** The next buffer of a connection on which so much arrived at once. */
  take(arrived: number, isStalled: boolean): Buffer {
    if (arrived < BUSY_BYTES || this.#bulk >= BULK_BUFFERS)
      return takeSpare(arrived < IDLE_BYTES || isStalled ? IDLE_BYTES : BUSY_BYTES)
    const buffer = takeSpare(BULK_BYTES)
    this.#bulk++
    this.#dropped.register(buffer, undefined, buffer)
    return buffer
  }

  give(buffer: Buffer): void {
    if (this.#dropped.unregister(buffer)) this.#bulk--
    const same = spare.get(buffer.length)
    if (same && same.length * buffer.length < SPARE_BYTES) same.push(buffer)
  }
}

const takeSpare = (bytes: number): Buffer => spare.get(bytes)?.pop() ?? Buffer.allocUnsafeSlow(bytes)

/**
 * The reading side of a stream: chunk by chunk while parsing, then directly into a sink. It is paused whenever there is
 * no reader, so that nothing accumulates.
 */
export class Source {
  readonly stream: Duplex
  #held: Buffer[] = []
  #ended = false
  #failed = false
  #sink: Sink | undefined
  #atEnd: (() => void) | undefined
  #wake: (() => void) | undefined
  readonly #events: readonly (readonly [string, (...args: never[]) => void])[]

  constructor(stream: Duplex) {
    this.stream = stream
    this.#events = [
      ['data', (chunk: Buffer) => this.deliver(chunk, undefined)],
      ['end', () => this.#end(false)],
      ['error', () => this.#end(true)],
      ['close', () => this.#end(!this.#ended)],
    ]
    stream.pause()
    for (const [event, listener] of this.#events) stream.on(event, listener as () => void)
  }

  /** True after the end or a failure. */
  get over(): boolean {
    return this.#ended && this.#held.length === 0
  }

  /** True if the stream ended by an error or was closed without an end. */
  get failed(): boolean {
    return this.#failed
  }

  deliver(chunk: Buffer, release: (() => void) | undefined): void {
    if (this.#sink !== undefined) {
      this.#sink(chunk, release)
      return
    }
    // Parsers keep chunks, so reused memory is copied.
    this.#held.push(release === undefined ? chunk : Buffer.from(chunk))
    release?.()
    this.stream.pause()
    this.#wakeUp()
  }

  /** The next bytes, or `undefined` at the end. */
  async next(): Promise<Buffer | undefined> {
    while (this.#held.length === 0) {
      if (this.#ended) return undefined
      await new Promise<void>((resolve) => {
        this.#wake = resolve
        this.stream.resume()
      })
    }
    return this.#held.shift()
  }

  /** Returns unread bytes to the source. */
  unshift(chunk: Buffer): void {
    if (chunk.length > 0) this.#held.unshift(chunk)
  }

  /** Sends everything from here on into the sink, until `stop`. */
  flow(sink: Sink, atEnd: () => void): void {
    this.#sink = sink
    this.#atEnd = atEnd
    // First, so that a full sink can pause the source again.
    this.stream.resume()
    while (this.#sink === sink && this.#held.length > 0) sink(this.#held.shift() as Buffer, undefined)
    if (this.#sink === sink && this.#ended) atEnd()
  }

  /** Reads on after a pause, unless nobody takes the bytes any more. */
  resume(): void {
    if (this.#sink !== undefined) this.stream.resume()
  }

  /** Returns to parsing; `rest` is what the sink did not take. */
  stop(rest?: Buffer): void {
    this.#sink = undefined
    this.#atEnd = undefined
    this.stream.pause()
    if (rest !== undefined) this.unshift(Buffer.from(rest))
  }

  /** Detaches from the stream and returns all unread bytes to it. */
  detach(): Duplex {
    for (const [event, listener] of this.#events) this.stream.off(event, listener as () => void)
    for (const chunk of this.#held.splice(0).reverse()) this.stream.unshift(chunk)
    return this.stream
  }

  #end(failed: boolean): void {
    if (this.#ended) return
    this.#ended = true
    this.#failed = failed
    this.#wakeUp()
    this.#atEnd?.()
  }

  #wakeUp(): void {
    const wake = this.#wake
    this.#wake = undefined
    wake?.()
  }
}

/** Reads a plain socket into reused buffers, large ones while much arrives; `source` is set once the socket exists. */
export function bulkReading(buffers: ReadBuffers): {
  readonly onread: OnReadOpts
  attach(socket: Socket): Source
} {
  let source: Source | undefined
  let next: Buffer | undefined
  const early: Buffer[] = []
  let arrived = 0
  const generate = (): Buffer => {
    next = buffers.take(arrived, source?.stream.isPaused() ?? true)
    return next
  }
  const onread: OnReadOpts = {
    // A function, because a buffer is in use until what was read into it has been written.
    buffer: generate as unknown as Buffer,
    callback: (size, memory) => {
      const buffer = memory as Buffer
      const chunk = buffer.subarray(0, size)
      arrived = size
      if (source) source.deliver(chunk, () => buffers.give(buffer))
      else {
        early.push(Buffer.from(chunk))
        buffers.give(buffer)
      }
      return true
    },
  }
  return {
    onread,
    attach: (socket) => {
      source = new Source(socket)
      // The last buffer is never read into; without this each connection would cost a fresh one.
      socket.once('close', () => {
        if (next !== undefined) buffers.give(next)
        next = undefined
      })
      for (const chunk of early) source.deliver(chunk, undefined)
      return source
    },
  }
}

/** Joins chunks. Grows by doubling, so that one-byte chunks do not cost quadratic time. */
export class GrowingBuffer {
  #memory: Buffer = Buffer.alloc(0)
  #size = 0

  /** Everything so far, with this piece. */
  add(piece: Buffer): Buffer {
    const size = this.#size + piece.length
    if (this.#size === 0) this.#memory = piece
    else if (size > this.#memory.length) {
      const larger = Buffer.allocUnsafe(Math.max(size, this.#memory.length * 2))
      larger.set(this.#memory.subarray(0, this.#size))
      larger.set(piece, this.#size)
      this.#memory = larger
    } else this.#memory.set(piece, this.#size)
    this.#size = size
    return this.#memory.subarray(0, size)
  }

  get length(): number {
    return this.#size
  }

  /** Everything so far. */
  all(): Buffer {
    return this.#memory.subarray(0, this.#size)
  }
}

/** Whether a finished write means that the kernel has copied the bytes, so that their memory may be reused. */
const givesBack = (stream: Duplex): boolean =>
  (stream instanceof Socket && !(stream instanceof TLSSocket)) || stream instanceof GuestStream

/** A few bytes would keep the whole read buffer until what was written before them is gone. */
const isWorthKeeping = (chunk: Buffer, to: Duplex): boolean =>
  to.writableLength === 0 || chunk.length * 2 >= chunk.buffer.byteLength

/** Chunks of all sandboxes that wait behind another one of their connection. */
let queued = 0

/** Writes the chunk, and pauses its source until it is taken if too much waits there. */
export function write(from: Source, to: Duplex, chunk: Buffer, release: (() => void) | undefined): void {
  const isLent = release !== undefined && givesBack(to) && isWorthKeeping(chunk, to)
  let isQueued = false
  let isHeld = false
  to.write(isLent || !release ? chunk : Buffer.from(chunk), () => {
    if (isLent) release()
    if (isQueued) queued--
    if (isHeld) from.resume()
  })
  if (!isLent) release?.()
  if (to.writableLength < WAITING || from.stream.isPaused()) return
  isQueued = to.writableLength < MOST_WAITING && queued < MOST_QUEUED
  isHeld = !isQueued
  if (isQueued) queued++
  else from.stream.pause()
}
