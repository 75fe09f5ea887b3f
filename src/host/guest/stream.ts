import { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import { type Frame, STREAM_WINDOW, WINDOW } from './frames.ts'
import type { FrameListener, FrameSender } from './session.ts'

/** The window is extended in steps of this size, not for every few bytes. */
const STEP = WINDOW / 4
const MAX_CHUNK = 64 * 1024

/** One TCP stream through the agent: to a port of the sandbox, or from the sandbox to its proxy. */
export class GuestStream extends Duplex implements FrameListener {
  /** Resolves when the other side has accepted the connection. */
  readonly connected: Promise<void>
  readonly #sender: FrameSender
  readonly #id: number
  #credit = STREAM_WINDOW
  #consumed = 0
  /** SECURITY: how much the agent may still send. */
  #received = WINDOW
  /** Bytes that wait for the reader, as far as they are counted. */
  #unread = 0
  #over = false
  #heardEnd = false
  #waiting: (() => void) | undefined
  #isConnected: () => void = () => {}
  #isRefused: (error: Error) => void = () => {}

  constructor(sender: FrameSender, id: number) {
    super({ allowHalfOpen: true, highWaterMark: WINDOW })
    this.#sender = sender
    this.#id = id
    this.connected = new Promise((resolve, reject) => {
      this.#isConnected = resolve
      this.#isRefused = reject
    })
    this.connected.catch(() => {})
  }

  hear(frame: Frame): void {
    if (frame.kind === 'started') this.#isConnected()
    else if (frame.kind === 'data') this.#arrive(frame.bytes)
    else if (frame.kind === 'window') this.#widen(frame.bytes)
    else if (frame.kind === 'end') this.#hearEnd()
    else if (frame.kind === 'drop') this.#drop()
    else if (frame.kind === 'refused') this.#end(new SandboxError('wrong-state', frame.text))
  }

  lose(reason: string): void {
    this.#end(new SandboxError('wrong-state', `the sandbox is gone: ${reason}`))
  }

  #end(error: Error | undefined): void {
    if (!this.#over) this.#sender.forget(this.#id)
    this.#over = true
    this.#isRefused(error ?? new SandboxError('wrong-state', 'the stream was closed'))
    // For a consumer that only reads, a reset is an end like any other.
    if (error && this.listenerCount('error') > 0) this.destroy(error)
    else this.destroy()
  }

  /** If the peer sent its end before it dropped the stream, received data stays readable. */
  #drop(): void {
    if (!this.#heardEnd) {
      this.#end(undefined)
      return
    }
    this.#over = true
    this.#sender.forget(this.#id)
    this.#wake()
    // When everything is read there is no peer to write to either; writers see the close.
    if (this.readableEnded) this.destroy()
    else this.once('end', () => this.destroy())
  }

  #wake(): void {
    const waiting = this.#waiting
    this.#waiting = undefined
    waiting?.()
  }

  #hearEnd(): void {
    this.#heardEnd = true
    this.push(null)
  }

  #arrive(bytes: Uint8Array): void {
    if (this.#heardEnd) {
      this.#end(new SandboxError('wrong-state', 'the agent sent data after the end'))
      return
    }
    this.#received -= bytes.length
    this.#consumed += bytes.length
    if (this.#received < 0)
      this.#end(new SandboxError('wrong-state', 'the agent sent more data than the window allows'))
    else {
      const hasRoom = this.push(bytes)
      // The agent has done nothing wrong, so it is told.
      if (!this.countUnread()) this.destroy()
      else if (hasRoom) this.#giveRoom()
    }
  }

  /** Counts what waits for the reader now; false if too much waits in all streams. */
  countUnread(now = this.destroyed ? 0 : this.readableLength): boolean {
    const more = now - this.#unread
    this.#unread = now
    return this.#sender.countUnread(more)
  }

  override _read(): void {
    this.#giveRoom()
  }

  #giveRoom(): void {
    if (this.#consumed < STEP || this.#over) return
    this.#received += this.#consumed
    this.#sender.sendNumber('window', this.#id, this.#consumed)
    this.#consumed = 0
  }

  #widen(bytes: number): void {
    this.#credit = Math.min(this.#credit + bytes, STREAM_WINDOW)
    this.#wake()
  }

  override _write(chunk: Uint8Array, _encoding: BufferEncoding, done: (error?: Error | null) => void): void {
    let rest = chunk
    while (rest.length > 0 && this.#credit > 0 && !this.#over) {
      const part = rest.subarray(0, Math.min(rest.length, this.#credit, MAX_CHUNK))
      this.#credit -= part.length
      rest = rest.subarray(part.length)
      // INVARIANT: a chunk is done when the kernel has all of it, so that the writer may reuse its memory.
      if (rest.length === 0) {
        this.#sender.lend('data', this.#id, part, done)
        return
      }
      this.#sender.lend('data', this.#id, part, () => {})
    }
    // As with any connection: data written to a peer that has gone is discarded.
    if (rest.length === 0 || (this.#over && this.#heardEnd && !this.destroyed)) done()
    else if (this.#over) done(new SandboxError('wrong-state', 'the stream was closed'))
    else this.#waiting = () => this._write(rest, _encoding, done)
  }

  override _final(done: (error?: Error | null) => void): void {
    if (!this.#over) this.#sender.send('end', this.#id)
    done()
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    if (!this.#over) {
      this.#sender.send('drop', this.#id)
      this.#sender.forget(this.#id)
    }
    this.#over = true
    this.countUnread(0)
    this.#wake()
    done(error)
  }

  /** Callers of sockets expect this method; frames are sent without delay anyway. */
  setNoDelay(): this {
    return this
  }
}
