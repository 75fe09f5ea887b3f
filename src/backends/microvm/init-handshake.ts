import type { Duplex } from 'node:stream'
import { type Frame, FrameReader, frame, type HostFrame } from '../../host/guest/frames.ts'
import { SandboxError } from '../../model/errors.ts'

/** Small enough for the agent's buffers, large enough to be fast. */
const PIECE = 32 * 1024

/**
 * The protocol with a machine's `/init` before there is a container in it: one request, one response.
 * SECURITY: no guest code has run yet; still, any unexpected response ends the machine.
 */
export class InitHandshake {
  readonly #channel: Duplex

  constructor(channel: Duplex) {
    this.#channel = channel
  }

  /** Waits for one frame of this kind. Releases the channel when it resolves. */
  expect(kind: Frame['kind'], withinMs: number): Promise<void> {
    const reader = new FrameReader()
    return new Promise((resolve, reject) => {
      const done = (error?: SandboxError): void => {
        clearTimeout(timer)
        this.#channel.pause()
        this.#channel.off('data', hear).off('close', ended).off('end', ended)
        if (error) reject(error)
        else resolve()
      }
      const hear = (chunk: Uint8Array): void => {
        const [one] = reader.push(chunk)
        if (!one) return
        if (one.kind === kind) done()
        else done(refused(one.kind === 'error' ? one.text : `unexpected frame ${one.kind}`))
      }
      const ended = (): void => done(refused('the machine ended'))
      const timer = setTimeout(() => done(refused('the machine did not answer in time')), withinMs)
      if (this.#channel.destroyed) return ended()
      this.#channel.on('data', hear).on('close', ended).on('end', ended)
      this.#channel.resume()
    })
  }

  send(type: HostFrame, payload?: Uint8Array): void {
    this.#channel.write(frame(type, 0, payload))
  }

  /** Sends the files of one of the announced mounts, as a tar stream. */
  async fill(mount: number, tar: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<void> {
    for await (const chunk of tar)
      for (let at = 0; at < chunk.length; at += PIECE)
        await this.#write(frame('data', mount, chunk.subarray(at, at + PIECE)))
    await this.#write(frame('end', mount))
  }

  #write(bytes: Uint8Array): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#channel.destroyed) return reject(refused('the machine ended'))
      if (this.#channel.write(bytes)) return resolve()
      const done = (error?: SandboxError): void => {
        this.#channel.off('drain', drained).off('close', ended)
        if (error) reject(error)
        else resolve()
      }
      const drained = (): void => done()
      const ended = (): void => done(refused('the machine ended'))
      this.#channel.on('drain', drained).on('close', ended)
    })
  }
}

const refused = (why: string): SandboxError =>
  new SandboxError('launch-failed', `the machine could not be set up: ${why}`)
