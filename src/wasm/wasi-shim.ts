import type { WasiHost } from './guest-thread.ts'

/**
 * The part of WASI preview 1 that a program needs to start, read its input, write its output and end. There are
 * no files; clocks and random numbers are the same in every run, so that a run can be repeated.
 *
 * Its text is part of the worker's source: it uses nothing but its argument and the globals of JavaScript.
 */
export class WasiShim {
  readonly #host: WasiHost
  readonly #input: Uint8Array
  #read = 0
  readonly #output: number[] = []
  #line = ''
  #seed = 0x9e37_79b9

  constructor(host: WasiHost) {
    this.#host = host
    this.#input = new TextEncoder().encode(host.input)
  }

  get stdout(): string {
    return new TextDecoder().decode(Uint8Array.from(this.#output))
  }

  get functions(): Readonly<Record<string, unknown>> {
    const [ok, badFile, notSeekable] = [0, 8, 70]
    return {
      args_sizes_get: (count: number, size: number) => this.#words(count, 0, size, 0),
      environ_sizes_get: (count: number, size: number) => this.#words(count, 0, size, 0),
      args_get: () => ok,
      environ_get: () => ok,
      fd_write: (fd: number, vectors: number, count: number, written: number) =>
        fd === 1 || fd === 2 ? this.#write(fd, vectors, count, written) : badFile,
      fd_read: (fd: number, vectors: number, count: number, read: number) =>
        fd === 0 ? this.#fill(vectors, count, read) : badFile,
      fd_close: (fd: number) => (fd >= 0 && fd <= 2 ? ok : badFile),
      fd_seek: (fd: number) => (fd >= 0 && fd <= 2 ? notSeekable : badFile),
      fd_fdstat_get: (fd: number, at: number) => (fd >= 0 && fd <= 2 ? this.#stat(at) : badFile),
      fd_fdstat_set_flags: () => ok,
      fd_prestat_get: () => badFile,
      fd_prestat_dir_name: () => badFile,
      clock_res_get: (_clock: number, at: number) => this.#long(at, 1n),
      clock_time_get: (_clock: number, _precision: bigint, at: number) =>
        this.#long(at, BigInt(this.#host.fuelUsed())),
      random_get: (at: number, length: number) => this.#random(at, length),
      sched_yield: () => ok,
      proc_exit: (code: number) => this.#host.exit(code),
    }
  }

  #data(at: number, length: number): DataView {
    const bytes = this.#host.memory(at, length)
    return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  }

  #words(first: number, firstValue: number, second: number, secondValue: number): number {
    this.#data(first, 4).setUint32(0, firstValue, true)
    this.#data(second, 4).setUint32(0, secondValue, true)
    return 0
  }

  #long(at: number, value: bigint): number {
    this.#data(at, 8).setBigUint64(0, value, true)
    return 0
  }

  #stat(at: number): number {
    const view = this.#data(at, 24)
    // A character device with all rights.
    view.setUint32(0, 2, true)
    view.setUint32(4, 0, true)
    view.setBigUint64(8, -1n & 0xffff_ffff_ffff_ffffn, true)
    view.setBigUint64(16, 0n, true)
    return 0
  }

  /** Gives each of the guest's buffers to `use` until one is not used up. */
  #each(vectors: number, count: number, use: (buffer: Uint8Array) => number): number {
    let total = 0
    // Each buffer costs, so a million empty ones do not come for free.
    this.#host.charge(100 + (count >>> 0))
    for (let index = 0; index < count >>> 0; index++) {
      const view = this.#data((vectors >>> 0) + index * 8, 8)
      const buffer = this.#host.memory(view.getUint32(0, true), view.getUint32(4, true))
      const used = use(buffer)
      this.#host.charge(used)
      total += used
      if (used < buffer.length) break
    }
    return total
  }

  #write(fd: number, vectors: number, count: number, written: number): number {
    const total = this.#each(vectors, count, (buffer) => {
      if (fd === 2) return this.#writeLog(buffer)
      const room = Math.min(buffer.length, this.#host.messageBytes - this.#output.length)
      for (let index = 0; index < room; index++) this.#output.push(buffer[index] as number)
      return room
    })
    this.#data(written, 4).setUint32(0, total, true)
    // No space left on device: what was taken is full.
    return this.#output.length >= this.#host.messageBytes && fd === 1 ? 51 : 0
  }

  #writeLog(buffer: Uint8Array): number {
    const lines = (this.#line + new TextDecoder().decode(buffer.slice(0, 65_536))).split('\n')
    this.#line = (lines.pop() ?? '').slice(0, 4096)
    for (const line of lines) this.#host.log(3, line)
    return buffer.length
  }

  #fill(vectors: number, count: number, read: number): number {
    const total = this.#each(vectors, count, (buffer) => {
      const part = this.#input.subarray(this.#read, this.#read + buffer.length)
      buffer.set(part)
      this.#read += part.length
      return part.length
    })
    this.#data(read, 4).setUint32(0, total, true)
    return 0
  }

  #random(at: number, length: number): number {
    this.#host.charge(length >>> 0)
    const bytes = this.#host.memory(at, length)
    for (let index = 0; index < bytes.length; index++) {
      this.#seed ^= this.#seed << 13
      this.#seed ^= this.#seed >>> 17
      this.#seed ^= this.#seed << 5
      bytes[index] = this.#seed & 0xff
    }
    return 0
  }
}
