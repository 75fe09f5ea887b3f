import { Duplex } from 'node:stream'

type Pending = { readonly chunk: Uint8Array; readonly done: (error?: Error | null) => void }

/**
 * The byte stream to the agent of a machine or of a gVisor sandbox. It stays the same when the sandbox is saved and continues in
 * another process: what is written meanwhile waits, and what the guest sent before is delivered.
 */
export class ResumableChannel extends Duplex {
  #inner: Duplex
  /** Bytes on their way to the sandbox. */
  #inFlight = 0
  /** Bytes that may still be sent; undefined: all. */
  #allowed: number | undefined
  #pending: Pending | undefined
  #sleeps = false

  constructor(inner: Duplex) {
    super()
    this.#inner = inner
    this.#listen(inner)
  }

  #listen(inner: Duplex): void {
    inner.on('data', (chunk: Uint8Array) => {
      // While it ends, everything must come out, whether somebody reads it now or not.
      if (!this.push(chunk) && !this.#sleeps) inner.pause()
    })
    inner.on('error', () => {})
    inner.on('close', () => {
      if (this.#sleeps || inner !== this.#inner) return
      if (this.readableLength === 0) this.destroy()
      else this.once('end', () => this.destroy()).push(null)
    })
  }

  override _read(): void {
    this.#inner.resume()
  }

  override _write(chunk: Uint8Array, _encoding: string, done: Pending['done']): void {
    if (this.#allowed !== undefined && chunk.length > this.#allowed) this.#pending = { chunk, done }
    else this.#pass({ chunk, done })
  }

  #pass({ chunk, done }: Pending): void {
    if (this.#allowed !== undefined) this.#allowed -= chunk.length
    this.#inFlight = chunk.length
    this.#inner.write(chunk, (error) => {
      this.#inFlight = 0
      done(error)
    })
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    this.#inner.destroy()
    done(error)
  }

  /** From now on new writes wait. INVARIANT: each write is whole frames, so one may wait while an earlier one is answered. */
  hold(): void {
    this.#allowed = this.writableLength - this.#inFlight
  }

  /** Writes go on. */
  release(): void {
    this.#allowed = undefined
    const waiting = this.#pending
    this.#pending = undefined
    if (waiting) this.#pass(waiting)
  }

  /** Resolves when the sandbox has ended and everything that it sent has arrived. To be called before it ends. */
  drained(): Promise<void> {
    this.#sleeps = true
    this.#inner.resume()
    return new Promise((resolve) => this.#inner.once('close', () => resolve()))
  }

  /** The sandbox was not saved. If it has ended nevertheless, so does this stream. */
  stays(): void {
    this.#sleeps = false
    if (this.#inner.destroyed) this.destroy()
  }

  /** Goes on with the stream of another process. */
  attach(inner: Duplex): void {
    this.#inner = inner
    this.#sleeps = false
    this.#listen(inner)
    if (this.destroyed) inner.destroy()
  }
}
