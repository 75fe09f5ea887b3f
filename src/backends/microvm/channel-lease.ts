import { Duplex } from 'node:stream'

/** A borrowed channel: when the borrower ends it, the channel itself stays open. */
export class ChannelLease extends Duplex {
  readonly #channel: Duplex
  readonly #hear = (chunk: Uint8Array): void => void this.push(chunk)
  readonly #ended = (): void => void this.destroy()

  constructor(channel: Duplex) {
    super()
    this.#channel = channel
    channel.on('data', this.#hear).on('close', this.#ended)
    channel.resume()
  }

  override _read(): void {}

  override _write(chunk: Uint8Array, _encoding: string, done: (error?: Error | null) => void): void {
    this.#channel.write(chunk, done)
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    this.#channel.off('data', this.#hear).off('close', this.#ended)
    this.#channel.pause()
    done(error)
  }
}
