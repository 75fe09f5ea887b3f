import type { Socket } from 'node:net'
import { Duplex } from 'node:stream'

type Done = (error?: Error | null) => void

/** A stream of a process that is being started elsewhere: it exists at once, its connection arrives later. */
export class LateStream extends Duplex {
  #socket: Socket | undefined
  #waiting: (() => void) | undefined
  #isOver = false

  /** Connects the stream; `first` are bytes that arrived before. */
  attach(socket: Socket, first: Uint8Array): void {
    if (this.destroyed) return void socket.destroy()
    this.#socket = socket
    if (first.length > 0) this.push(first)
    socket.on('data', (chunk: Uint8Array) => {
      if (!this.push(chunk)) socket.pause()
    })
    socket.on('end', () => this.#pushEnd())
    socket.on('close', () => this.conclude())
    this.#waiting?.()
    socket.resume()
  }

  /** Ends a stream that will never be connected; one that is connected ends with its connection. */
  abandon(): void {
    if (!this.#socket) this.destroy()
  }

  /** Ends the stream after what has arrived is read: a connection that was reset closes without its end. */
  conclude(): void {
    this.#pushEnd()
    if (this.readableEnded) return void this.destroy()
    this.once('end', () => this.destroy())
    if (!this.readableFlowing) this.resume()
  }

  #pushEnd(): void {
    if (!this.#isOver) this.push(null)
    this.#isOver = true
  }

  override _read(): void {
    this.#socket?.resume()
  }

  override _write(chunk: Uint8Array, _encoding: string, done: Done): void {
    this.#later(() => this.#socket?.write(chunk, (error) => done(error)))
  }

  /** Chunks that were written together are sent together. */
  override _writev(chunks: readonly { readonly chunk: Uint8Array }[], done: Done): void {
    this.#later(() => {
      this.#socket?.cork()
      for (const [index, { chunk }] of chunks.entries())
        this.#socket?.write(chunk, index === chunks.length - 1 ? (error) => done(error) : undefined)
      this.#socket?.uncork()
    })
  }

  override _final(done: Done): void {
    this.#later(() => this.#socket?.end(() => done()))
  }

  override _destroy(error: Error | null, done: Done): void {
    this.#socket?.destroy()
    done(error)
  }

  #later(action: () => void): void {
    if (this.#socket) action()
    else this.#waiting = action
  }
}
