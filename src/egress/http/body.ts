import type { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import { GrowingBuffer, type Source, write } from '../source.ts'
import type { Framing } from './message.ts'

/** How many bytes of a chunk belong to the body. */
type Scan = { readonly taken: number; readonly done: boolean }
/** Receives the bytes of a chunk that are content rather than framing. */
type OnContent = (bytes: Buffer) => void

interface Scanner {
  scan(chunk: Buffer, onContent?: OnContent): Scan
}

const LINE_BYTES = 4096
const broken = (what: string): SandboxError => new SandboxError('invalid-input', `the body ${what}`)

class LengthScanner implements Scanner {
  #left: number
  constructor(bytes: number) {
    this.#left = bytes
  }
  scan(chunk: Buffer, onContent?: OnContent): Scan {
    const taken = Math.min(chunk.length, this.#left)
    this.#left -= taken
    onContent?.(chunk.subarray(0, taken))
    return { taken, done: this.#left === 0 }
  }
}

const toTheEnd: Scanner = {
  scan: (chunk, onContent) => {
    onContent?.(chunk)
    return { taken: chunk.length, done: false }
  },
}

/**
 * Follows a chunked body byte by byte. SECURITY: sizes are plain hexadecimal, lines end in CRLF, and there are neither
 * extensions nor trailers: each of them has been used for request smuggling.
 */
class ChunkedScanner implements Scanner {
  #state: 'size' | 'data' | 'data-end' | 'last' = 'size'
  #line = ''
  #left = 0

  scan(chunk: Buffer, onContent?: OnContent): Scan {
    let at = 0
    while (at < chunk.length) {
      if (this.#state === 'data') {
        const end = Math.min(chunk.length, at + this.#left)
        onContent?.(chunk.subarray(at, end))
        this.#left -= end - at
        at = end
        if (this.#left === 0) this.#state = 'data-end'
      } else {
        const line = this.#takeByte(chunk[at++] as number)
        if (line !== undefined && this.#endLine(line)) return { taken: at, done: true }
      }
    }
    return { taken: at, done: false }
  }

  #takeByte(byte: number): string | undefined {
    this.#line += String.fromCharCode(byte)
    if (this.#line.length > LINE_BYTES) throw broken('holds a line that is too long')
    if (byte !== 10) return undefined
    const line = this.#line
    this.#line = ''
    if (!line.endsWith('\r\n')) throw broken('holds a line that ends in a bare LF')
    return line.slice(0, -2)
  }

  /** True at the end of the body. */
  #endLine(line: string): boolean {
    if (this.#state === 'size') {
      if (!/^[0-9a-f]{1,8}$/i.test(line)) throw broken('holds a chunk size that is not plain')
      this.#left = Number.parseInt(line, 16)
      this.#state = this.#left === 0 ? 'last' : 'data'
      return false
    }
    if (line !== '')
      throw broken(this.#state === 'last' ? 'has trailers' : 'holds a chunk longer than its size')
    const done = this.#state === 'last'
    this.#state = 'size'
    return done
  }
}

function scannerOf(framing: Framing): Scanner | undefined {
  if (framing.kind === 'none' || (framing.kind === 'length' && framing.bytes === 0)) return undefined
  if (framing.kind === 'length') return new LengthScanner(framing.bytes)
  return framing.kind === 'chunked' ? new ChunkedScanner() : toTheEnd
}

/** Rewrites content in transit; the result is sent as chunks. */
export type Rewrite = { push(bytes: Buffer): Buffer; end(): Buffer }

/** How a body is passed on. */
export type Forward = {
  readonly framing: Framing
  readonly onBytes: (count: number) => void
  readonly rewrite?: Rewrite | undefined
  /** Write rewritten content as chunks; otherwise it ends with the connection. */
  readonly chunks?: boolean
}

/** Forwards one body exactly to its end and leaves later bytes in the source. Rejects if the body is truncated. */
export function forwardBody(from: Source, to: Duplex, forward: Forward): Promise<void> {
  const scanner = scannerOf(forward.framing)
  const { rewrite, onBytes } = forward
  if (scanner === undefined) return Promise.resolve()
  return new Promise((resolve, reject) => {
    const fail = (error: unknown): void => {
      from.stop()
      to.off('close', onClose)
      reject(error)
    }
    const onClose = (): void => fail(new SandboxError('fetch-failed', 'the connection was closed'))
    const done = (rest?: Buffer): void => {
      from.stop(rest)
      to.off('close', onClose)
      if (rewrite !== undefined) sendRewritten(to, rewrite.end(), forward, true)
      resolve()
    }
    to.once('close', onClose)
    from.flow(
      (chunk, release) => {
        try {
          // Joined: a body of single-byte chunks would be searched and sent byte by byte.
          const content = rewrite && new GrowingBuffer()
          const { taken, done: finished } = scanner.scan(
            chunk,
            content && ((bytes) => void content.add(bytes)),
          )
          if (rewrite && content?.length) sendRewritten(to, rewrite.push(content.all()), forward, false)
          onBytes(taken)
          const rest = taken < chunk.length ? Buffer.from(chunk.subarray(taken)) : undefined
          if (rewrite === undefined) write(from, to, chunk.subarray(0, taken), release)
          else {
            release?.()
            holdWhileFull(from, to)
          }
          if (finished) done(rest)
        } catch (error) {
          fail(error)
        }
      },
      () =>
        forward.framing.kind === 'close' && !from.failed
          ? done()
          : fail(new SandboxError('fetch-failed', 'the connection ended inside a body')),
    )
  })
}

function sendRewritten(to: Duplex, bytes: Buffer, { chunks }: Forward, last: boolean): void {
  if (bytes.length > 0) {
    if (chunks) to.write(`${bytes.length.toString(16)}\r\n`)
    to.write(bytes)
    if (chunks) to.write('\r\n')
  }
  if (last && chunks) to.write('0\r\n\r\n')
}

function holdWhileFull(from: Source, to: Duplex): void {
  if (!to.writableNeedDrain || from.stream.isPaused()) return
  from.stream.pause()
  to.once('drain', () => from.stream.resume())
}
