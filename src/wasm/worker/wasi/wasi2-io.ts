import type { TaggedValue } from '../component/types.ts'
import type { GuestHost, ProgramIo } from '../guest-host.ts'
import type {
  Functions,
  InputStream,
  OutputStream,
  Pollable,
  ResourceToken,
  StreamFailure,
} from './wasi2-types.ts'

type Held = { readonly kind: string; readonly state: object; bytes: number }

/**
 * `wasi:io`, `wasi:cli`, `wasi:clocks` and `wasi:random` for components. Clocks and random numbers are the same in every run, so that
 * a run can be repeated, unless the caller grants real ones.
 *
 * The class text is part of the worker's source, so it may use only its arguments and JavaScript globals.
 */
export class Wasi2Io {
  readonly #host: GuestHost
  readonly #streams: ProgramIo
  readonly #held = new WeakMap<ResourceToken, Held>()
  #bytes = 0
  readonly ready: ResourceToken

  constructor(host: GuestHost, streams: ProgramIo) {
    this.#host = host
    this.#streams = streams
    this.ready = this.make('pollable', { until: undefined })
  }

  make(kind: string, state: object): ResourceToken {
    const token: ResourceToken = Object.freeze(Object.create(null))
    this.#held.set(token, { kind, state, bytes: 0 })
    return token
  }

  get<T extends object>(kind: string, value: unknown): T {
    const held = this.#find(value)
    if (held?.kind !== kind) throw new TypeError(`a resource is not of the type ${kind}`)
    return held.state as T
  }

  is(kind: string, value: unknown): boolean {
    return this.#find(value)?.kind === kind
  }

  #find(value: unknown): Held | undefined {
    return typeof value === 'object' && value !== null ? this.#held.get(value) : undefined
  }

  /** SECURITY: such bytes count neither as the component's memory nor as heap of the thread. */
  keep(value: ResourceToken, bytes: number): void {
    const held = this.#find(value)
    if (held === undefined) return
    this.#bytes += bytes - held.bytes
    held.bytes = bytes
    if (this.#bytes > 16 * this.#host.messageBytes)
      this.#host.trap('the resources of the component are too large')
  }

  /** A resource that the component drops keeps nothing. */
  drop(value: unknown): void {
    if (this.#find(value) !== undefined) this.keep(value as ResourceToken, 0)
  }

  get functions(): Functions {
    return { ...this.#ioCalls(), ...this.#cli(), ...this.#clocks(), ...this.#randomness() }
  }

  // wasi:io

  #ioCalls(): Functions {
    const poll = (list: readonly unknown[]): number[] =>
      this.#poll(list.map((one) => this.get('pollable', one)))
    return {
      'wasi:io/error': {
        '[method]error.to-debug-string': (self: unknown) => this.get<StreamFailure>('error', self).failed,
      },
      'wasi:io/poll': {
        '[method]pollable.ready': (self: unknown) => this.#isReady(this.get('pollable', self)),
        '[method]pollable.block': (self: unknown) => void poll([self]),
        poll,
      },
      'wasi:io/streams': { ...this.#inputCalls(), ...this.#outputCalls() },
    }
  }

  #inputCalls(): Functions[string] {
    const read = (self: unknown, length: bigint) => this.#read(self, length)
    const skip = (self: unknown, length: bigint): TaggedValue => {
      const { tag, value } = this.#read(self, length)
      return tag === 'ok' ? { tag, value: BigInt((value as Uint8Array).length) } : { tag, value }
    }
    return {
      '[method]input-stream.read': read,
      '[method]input-stream.blocking-read': read,
      '[method]input-stream.skip': skip,
      '[method]input-stream.blocking-skip': skip,
      '[method]input-stream.subscribe': () => this.ready,
    }
  }

  #outputCalls(): Functions[string] {
    const write = (self: unknown, bytes: Uint8Array) => this.#write(self, bytes)
    const zeroes = (self: unknown, length: bigint) => this.#write(self, new Uint8Array(this.#size(length)))
    const flush = (self: unknown): TaggedValue => {
      this.get('output-stream', self)
      return { tag: 'ok' }
    }
    const splice = (self: unknown, from: unknown, length: bigint): TaggedValue => {
      const { tag, value } = this.#read(from, length)
      if (tag !== 'ok') return { tag, value }
      const written = this.#write(self, value as Uint8Array)
      return written.tag === 'ok' ? { tag: 'ok', value: BigInt((value as Uint8Array).length) } : written
    }
    return {
      '[method]output-stream.check-write': () => ({ tag: 'ok', value: 65_536n }),
      '[method]output-stream.write': write,
      '[method]output-stream.blocking-write-and-flush': write,
      '[method]output-stream.write-zeroes': zeroes,
      '[method]output-stream.blocking-write-zeroes-and-flush': zeroes,
      '[method]output-stream.flush': flush,
      '[method]output-stream.blocking-flush': flush,
      '[method]output-stream.subscribe': () => this.ready,
      '[method]output-stream.splice': splice,
      '[method]output-stream.blocking-splice': splice,
    }
  }

  /** The length of one transfer; a longer one is done in parts. */
  #size(length: bigint): number {
    if (typeof length !== 'bigint' || length < 0n) throw new TypeError('a length is not valid')
    const size = length > 65_536n ? 65_536 : Number(length)
    this.#host.charge(100 + size)
    return size
  }

  #read(self: unknown, length: bigint): TaggedValue {
    const bytes = this.get<InputStream>('input-stream', self).read(this.#size(length))
    if (bytes === undefined) return { tag: 'error', value: { tag: 'closed' } }
    return bytes instanceof Uint8Array ? { tag: 'ok', value: bytes } : this.#failed(bytes)
  }

  #write(self: unknown, bytes: Uint8Array): TaggedValue {
    const stream = this.get<OutputStream>('output-stream', self)
    if (!(bytes instanceof Uint8Array)) throw new TypeError('a stream takes bytes')
    for (let at = 0; at < bytes.length; at += 65_536) {
      const part = bytes.subarray(at, at + 65_536)
      this.#host.charge(100 + part.length)
      const failure = stream.write(part)
      if (failure) return this.#failed(failure)
    }
    return { tag: 'ok' }
  }

  #failed(failure: StreamFailure): TaggedValue {
    const error = this.make('error', { ...failure })
    return { tag: 'error', value: { tag: 'last-operation-failed', value: error } }
  }

  #isReady({ until }: Pollable): boolean {
    return until === undefined || until <= this.#now()
  }

  /** Sleeps until the first one is ready; streams always are. */
  #poll(list: readonly Pollable[]): number[] {
    this.#host.charge(1000 + list.length * 10)
    if (list.length === 0) throw new TypeError('poll needs at least one pollable')
    const ready = (): number[] => list.flatMap((one, index) => (this.#isReady(one) ? [index] : []))
    const now = ready()
    if (now.length > 0) return now
    let first = 2n ** 64n
    for (const { until = 0n } of list) if (until < first) first = until
    this.#streams.sleep(Number(first - this.#now()))
    const after = ready()
    // A real clock may be a moment behind.
    return after.length > 0 ? after : [list.findIndex(({ until }) => until === first)]
  }

  // wasi:cli

  #cli(): Functions {
    const { args, env } = this.#host
    const none = (): TaggedValue => ({ tag: 'none' })
    const variables = env.map((entry) => {
      const at = entry.indexOf('=')
      return [entry.slice(0, at), entry.slice(at + 1)]
    })
    return {
      'wasi:cli/environment': {
        'get-environment': () => variables,
        'get-arguments': () => [...args],
        'initial-cwd': none,
      },
      'wasi:cli/exit': {
        exit: ({ tag }: TaggedValue) => this.#host.exit(tag === 'ok' ? 0 : 1),
        'exit-with-code': (code: number) => this.#host.exit(Number(code) & 0xff),
      },
      'wasi:cli/stdin': {
        'get-stdin': () => this.make('input-stream', { read: (n: number) => this.#stdin(n) }),
      },
      'wasi:cli/stdout': {
        'get-stdout': () => this.make('output-stream', { write: (bytes: Uint8Array) => this.#stdout(bytes) }),
      },
      'wasi:cli/stderr': {
        'get-stderr': () => this.make('output-stream', { write: (bytes: Uint8Array) => this.#stderr(bytes) }),
      },
      'wasi:cli/terminal-input': {},
      'wasi:cli/terminal-output': {},
      'wasi:cli/terminal-stdin': { 'get-terminal-stdin': none },
      'wasi:cli/terminal-stdout': { 'get-terminal-stdout': none },
      'wasi:cli/terminal-stderr': { 'get-terminal-stderr': none },
    }
  }

  #stdin(length: number): Uint8Array | undefined {
    const part = this.#streams.read(length)
    return part.length === 0 && length > 0 ? undefined : part
  }

  #stdout(bytes: Uint8Array): StreamFailure | undefined {
    return this.#streams.write(bytes) < bytes.length ? { failed: 'the output is too long' } : undefined
  }

  #stderr(bytes: Uint8Array): undefined {
    this.#streams.log(bytes)
  }

  // wasi:clocks

  #clocks(): Functions {
    const timer = (until: bigint): ResourceToken => this.make('pollable', { until })
    const moment = (ns: bigint) => ({
      seconds: ns / 1_000_000_000n,
      nanoseconds: Number(ns % 1_000_000_000n),
    })
    return {
      'wasi:clocks/monotonic-clock': {
        now: () => this.#now(),
        resolution: () => 1n,
        'subscribe-instant': timer,
        'subscribe-duration': (ns: bigint) => timer(this.#now() + ns),
      },
      'wasi:clocks/wall-clock': {
        now: () => moment(this.#streams.now(true)),
        resolution: () => moment(1n),
      },
    }
  }

  #now(): bigint {
    return this.#streams.now(false)
  }

  // wasi:random

  #randomness(): Functions {
    const bytes = (length: bigint): Uint8Array => {
      if (length > 1_048_576n) throw new TypeError('too many random bytes at once')
      return this.#random(Number(length))
    }
    const word = (): bigint => new DataView(this.#random(8).buffer).getBigUint64(0, true)
    return {
      'wasi:random/random': { 'get-random-bytes': bytes, 'get-random-u64': word },
      'wasi:random/insecure': { 'get-insecure-random-bytes': bytes, 'get-insecure-random-u64': word },
      'wasi:random/insecure-seed': { 'insecure-seed': () => [word(), word()] },
    }
  }

  #random(length: number): Uint8Array<ArrayBuffer> {
    const bytes = new Uint8Array(length)
    this.#streams.random(bytes)
    return bytes
  }
}
