import type { GuestHost } from './guest-host.ts'

/**
 * The standard streams, the clock and the random numbers of a program, for both versions of WASI. Clock and random numbers are
 * the same in every run, so that a run can be repeated, unless the caller grants real ones.
 *
 * The class text is part of the worker's source, so it may use only its argument and JavaScript globals.
 */
export class ProgramStreams {
  readonly #host: GuestHost
  readonly #input: Uint8Array
  #read = 0
  readonly #output: Uint8Array[] = []
  #outputBytes = 0
  readonly #decoder = new TextDecoder()
  #line = ''
  #seed = 0x9e37_79b9
  /** Total time the guest has slept, in nanoseconds. */
  #slept = 0n

  constructor(host: GuestHost) {
    this.#host = host
    this.#input = new TextEncoder().encode(host.input)
  }

  get stdout(): string {
    if (this.#line !== '') this.#host.log(3, this.#line)
    this.#line = ''
    const whole = new Uint8Array(this.#outputBytes)
    let at = 0
    for (const part of this.#output) {
      whole.set(part, at)
      at += part.length
    }
    return new TextDecoder().decode(whole)
  }

  /** The next bytes of the input; none at its end. */
  read(length: number): Uint8Array {
    const part = this.#input.slice(this.#read, this.#read + length)
    this.#read += part.length
    return part
  }

  /** Adds to the output, up to its limit; returns how many bytes were taken. */
  write(bytes: Uint8Array): number {
    const part = bytes.slice(0, this.#host.messageBytes - this.#outputBytes)
    if (part.length > 0) this.#output.push(part)
    this.#outputBytes += part.length
    return part.length
  }

  /** Whether the output limit is reached. */
  get full(): boolean {
    return this.#outputBytes >= this.#host.messageBytes
  }

  /** Adds to the log, line by line. */
  log(bytes: Uint8Array): void {
    const text = this.#decoder.decode(bytes.slice(0, 65_536), { stream: true })
    const lines = (this.#line + text).split('\n')
    this.#line = (lines.pop() ?? '').slice(0, 4096)
    for (const line of lines) this.#host.log(3, line)
  }

  /** Nanoseconds: one unit of fuel counts as one, unless the real clock is granted. */
  now(wall: boolean): bigint {
    const { started, fuelUsed } = this.#host
    if (started === undefined) return BigInt(fuelUsed()) + this.#slept
    const monotonic = performance.timeOrigin + started + performance.now()
    return BigInt(Math.round((wall ? Date.now() : monotonic) * 1e6))
  }

  sleep(ns: number): void {
    if (ns > 0) this.#host.sleep(ns / 1e6)
    this.#slept += BigInt(Math.round(ns))
  }

  /** Fills bytes with random numbers. */
  random(bytes: Uint8Array): void {
    this.#host.charge(100 + bytes.length)
    if (this.#host.random !== undefined) {
      this.#host.random(bytes)
      return
    }
    for (let index = 0; index < bytes.length; index++) {
      this.#seed ^= this.#seed << 13
      this.#seed ^= this.#seed >>> 17
      this.#seed ^= this.#seed << 5
      bytes[index] = this.#seed & 0xff
    }
  }
}
