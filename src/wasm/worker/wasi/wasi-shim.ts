import type { GuestHost, ProgramIo, SystemFiles, SystemInterface } from '../guest-host.ts'

/**
 * WASI preview 1 for programs: arguments, environment variables, standard streams, clocks, random numbers, polling, and
 * files through the host. Clocks and random numbers are the same in every run, so that a run can be repeated, unless the
 * caller grants real ones.
 *
 * The class text is part of the worker's source, so it may use only its arguments and JavaScript globals.
 */
export class WasiShim {
  readonly #host: GuestHost
  readonly #files: SystemFiles
  readonly #paths: Pick<SystemInterface, 'functions'>
  readonly #streams: ProgramIo

  constructor(
    host: GuestHost,
    files: SystemFiles,
    paths: Pick<SystemInterface, 'functions'>,
    streams: ProgramIo,
  ) {
    this.#host = host
    this.#files = files
    this.#paths = paths
    this.#streams = streams
  }

  get stdout(): string {
    return this.#streams.stdout
  }

  get functions(): Readonly<Record<string, unknown>> {
    const [ok, notSupported] = [0, 58]
    const { args, env } = this.#host
    return {
      ...this.#files.functions,
      ...this.#paths.functions,
      args_sizes_get: (count: number, size: number) => this.#sizes(args, count, size),
      args_get: (list: number, at: number) => this.#strings(args, list, at),
      environ_sizes_get: (count: number, size: number) => this.#sizes(env, count, size),
      environ_get: (list: number, at: number) => this.#strings(env, list, at),
      fd_write: (fd: number, vectors: number, count: number, written: number) => {
        const stream = this.#files.stream(fd)
        if (stream === undefined) return this.#files.write(fd, vectors, count, written)
        if (stream === 0) return 8
        return this.#files.allows(fd, 64n) ? this.#write(stream, vectors, count, written) : 76
      },
      fd_read: (fd: number, vectors: number, count: number, read: number) => {
        const stream = this.#files.stream(fd)
        if (stream === undefined) return this.#files.read(fd, vectors, count, read)
        if (stream !== 0) return 8
        return this.#files.allows(fd, 2n) ? this.#fill(vectors, count, read) : 76
      },
      clock_res_get: (_clock: number, at: number) => this.#long(at, 1n),
      clock_time_get: (clock: number, _precision: bigint, at: number) =>
        this.#long(at, this.#streams.now(clock === 0)),
      random_get: (at: number, length: number) => this.#random(at, length),
      poll_oneoff: (wanted: number, events: number, count: number, found: number) =>
        this.#poll(wanted, events, count, found),
      sched_yield: () => this.#free(ok),
      proc_raise: () => this.#free(notSupported),
      proc_exit: (code: number) => this.#host.exit(code),
    }
  }

  /** A call without effect; it still costs the fuel of a call. */
  #free(answer: number): number {
    this.#host.charge(100)
    return answer
  }

  #data(at: number, length: number): DataView {
    const bytes = this.#host.memory(at, length)
    return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  }

  #long(at: number, value: bigint): number {
    this.#host.charge(100)
    this.#data(at, 8).setBigUint64(0, BigInt.asUintN(64, value), true)
    return 0
  }

  #encoded(list: readonly string[]): Uint8Array[] {
    return list.map((text) => new TextEncoder().encode(`${text}\0`))
  }

  #sizes(list: readonly string[], count: number, size: number): number {
    const bytes = this.#encoded(list).reduce((sum, text) => sum + text.length, 0)
    this.#host.charge(100 + list.length)
    this.#data(count, 4).setUint32(0, list.length, true)
    this.#data(size, 4).setUint32(0, bytes, true)
    return 0
  }

  #strings(list: readonly string[], pointers: number, at: number): number {
    let address = at >>> 0
    for (const [index, text] of this.#encoded(list).entries()) {
      this.#host.charge(100 + text.length)
      this.#data((pointers >>> 0) + index * 4, 4).setUint32(0, address, true)
      this.#host.memory(address, text.length).set(text)
      address += text.length
    }
    return 0
  }

  /** Sleeps until the earliest timeout; streams are always ready. */
  #poll(wanted: number, events: number, count: number, found: number): number {
    this.#host.charge(1000 + (count >>> 0) * 10)
    if (count === 0 || count >>> 0 > 1024) return 28
    const waits: { userdata: bigint; ns: number; type: number }[] = []
    for (let index = 0; index < count; index++) {
      const one = this.#data((wanted >>> 0) + index * 48, 48)
      const type = one.getUint8(8)
      const absolute = (one.getUint16(40, true) & 1) === 1
      const until = one.getBigUint64(24, true)
      const ns = type !== 0 ? 0n : absolute ? until - this.#streams.now(one.getUint32(16, true) === 0) : until
      waits.push({ userdata: one.getBigUint64(0, true), ns: Math.max(0, Number(ns)), type })
    }
    const first = Math.min(...waits.map(({ ns }) => ns))
    this.#streams.sleep(first)
    const ready = waits.filter(({ ns }) => ns <= first)
    for (const [index, { userdata, type }] of ready.entries()) {
      const event = this.#data((events >>> 0) + index * 32, 32)
      for (let at = 0; at < 32; at += 8) event.setBigUint64(at, 0n, true)
      event.setBigUint64(0, userdata, true)
      event.setUint8(10, type)
    }
    this.#data(found, 4).setUint32(0, ready.length, true)
    return 0
  }

  /** Passes each of the guest's buffers to `use` until one is only partly used. */
  #each(vectors: number, count: number, use: (buffer: Uint8Array) => number): number {
    let total = 0
    // Each buffer costs fuel, so that a million empty buffers are not free.
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
      if (fd !== 2) return this.#streams.write(buffer)
      this.#streams.log(buffer)
      return buffer.length
    })
    this.#data(written, 4).setUint32(0, total, true)
    // ENOSPC (51): the output limit is reached.
    return this.#streams.full && fd === 1 ? 51 : 0
  }

  #fill(vectors: number, count: number, read: number): number {
    const total = this.#each(vectors, count, (buffer) => {
      const part = this.#streams.read(buffer.length)
      buffer.set(part)
      return part.length
    })
    this.#data(read, 4).setUint32(0, total, true)
    return 0
  }

  #random(at: number, length: number): number {
    this.#streams.random(this.#host.memory(at, length))
    return 0
  }
}
