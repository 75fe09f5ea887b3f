import { type OnReadOpts, Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { TLSSocket } from 'node:tls'
import { GuestStream } from '../host/guest/stream.ts'

/** Takes a chunk. `release` is present if the memory of the bytes is reused after it is called. */
export type Sink = (chunk: Buffer, release: (() => void) | undefined) => void

/** Buffered bytes in a stream before its source is paused. */
const WAITING_BYTES = 256 * 1024
const READ_BYTES = 256 * 1024
const SPARE_BUFFERS = 64

/** Pool of read buffers; larger than Node's own, so that bulk transfers need fewer event loop turns. */
const spare: Buffer[] = []
const takeBuffer = (): Buffer => spare.pop() ?? Buffer.allocUnsafeSlow(READ_BYTES)
const giveBuffer = (buffer: Buffer): void => {
  if (spare.length < SPARE_BUFFERS) spare.push(buffer)
}

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

/** Reads a plain socket into reused large buffers; `source` is set once the socket exists. */
export function bulkReading(): { readonly onread: OnReadOpts; attach(socket: Socket): Source } {
  let source: Source | undefined
  let next: Buffer | undefined
  const early: Buffer[] = []
  const generate = (): Buffer => {
    next = takeBuffer()
    return next
  }
  const onread: OnReadOpts = {
    // A function, because a buffer is in use until what was read into it has been written.
    buffer: generate as unknown as Buffer,
    callback: (size, memory) => {
      const buffer = memory as Buffer
      const chunk = buffer.subarray(0, size)
      if (source === undefined) early.push(Buffer.from(chunk))
      else source.deliver(chunk, () => giveBuffer(buffer))
      return true
    },
  }
  return {
    onread,
    attach: (socket) => {
      source = new Source(socket)
      // The last buffer is never read into; without this each connection would cost a fresh one.
      socket.once('close', () => {
        if (next !== undefined) giveBuffer(next)
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

/** Writes the chunk and pauses its source while too much is buffered. */
export function write(from: Source, to: Duplex, chunk: Buffer, release: (() => void) | undefined): void {
  if (release === undefined) to.write(chunk)
  else if (givesBack(to)) to.write(chunk, release)
  else {
    to.write(Buffer.from(chunk))
    release()
  }
  if (to.writableLength < WAITING_BYTES || from.stream.isPaused()) return
  from.stream.pause()
  to.once('drain', () => from.stream.resume())
}
