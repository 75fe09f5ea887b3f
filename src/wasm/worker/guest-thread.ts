import type { WasmEngine, WasmFunction, WasmGlobal, WasmInstance, WasmMemory, WasmModule } from '../engine.ts'
import type { ComponentParts, GuestHost, SystemInterface, ThreadParts } from './guest-host.ts'
import type { ComponentEntry, GuestEnd, GuestJob, LogLine } from './guest-protocol.ts'

/**
 * The guest's side of a run. The class text becomes the worker's source (worker-source.ts), so it may use only its
 * arguments and JavaScript globals.
 *
 * SECURITY: a run is ended by a trap raised inside WebAssembly, never by a JavaScript exception: the guest's exception
 * handlers would catch that.
 */
export class GuestThread {
  readonly #parts: ThreadParts
  readonly #engine: WasmEngine
  readonly #trap: WasmFunction
  #job!: GuestJob
  #instance: WasmInstance | undefined
  #meter: WasmGlobal | undefined
  #system: Pick<SystemInterface, 'stdout' | 'failure'> | undefined
  /** Why a host function ended the run, and the fuel used up to that point. */
  #ended: { readonly end: GuestEnd; readonly fuel: number } | undefined
  #log: LogLine[] = []
  #logBytes = 0
  #logDropped = 0
  #deadline = 0

  constructor(parts: ThreadParts) {
    this.#parts = parts
    this.#engine = (globalThis as unknown as { WebAssembly: WasmEngine }).WebAssembly
    // (module (func (export "t") unreachable))
    const bytes = [
      0, 97, 115, 109, 1, 0, 0, 0, 1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 7, 5, 1, 1, 116, 0, 0, 10, 5, 1, 3, 0, 0,
      11,
    ]
    const module = new this.#engine.Module(new Uint8Array(bytes))
    this.#trap = new this.#engine.Instance(module, {}).exports.t as WasmFunction
  }

  /** Runs one job and reports the result. */
  run(job: GuestJob): void {
    this.#job = job
    this.#instance = this.#meter = this.#ended = undefined
    this.#log = []
    this.#logBytes = this.#logDropped = 0
    this.#deadline = performance.now() + job.wallMs
    let end: GuestEnd
    try {
      end = this.#enter()
    } catch (error) {
      end = this.#endOf(error)
    }
    // A short function may exceed the budget before any check runs, so the meter is checked again here.
    const what = this.#exhausted()
    const result = this.#ended ?? {
      end: what === undefined ? end : { kind: 'exhausted' as const, what },
      fuel: what === 'fuel' ? job.fuel : this.#fuelUsed(),
    }
    this.#instance = this.#meter = this.#system = undefined
    this.#parts.post({ kind: 'report', report: { ...result, log: this.#log, logDropped: this.#logDropped } })
  }

  #enter(): GuestEnd {
    const { module, exports, fuel, frames, initialize, entry } = this.#job
    if (entry.kind === 'component') return this.#enterComponent(entry)
    this.#instance = new this.#engine.Instance(module as WasmModule, this.#imports())
    this.#meter = this.#instance.exports[exports.meter] as WasmGlobal
    this.#meter.value = (BigInt(fuel) << 16n) | BigInt(frames)
    ;(this.#instance.exports[exports.work] as WasmGlobal).value = BigInt(fuel)
    ;(this.#instance.exports[exports.start] as WasmFunction | undefined)?.()
    if (initialize) this.#call('_initialize')
    if (entry.kind === 'execute') return this.#execute()
    if (entry.kind === 'command') {
      this.#call('_start')
      return { kind: 'exit', code: 0, text: this.#system?.stdout ?? '' }
    }
    if (entry.kind === 'plugin') {
      const code = (this.#call(entry.name) as number) | 0
      const said = this.#system?.failure ?? ''
      return { kind: 'exit', code, text: this.#system?.stdout ?? '', said }
    }
    const result = this.#call('run', ...entry.args)
    const values = result === undefined ? [] : Array.isArray(result) ? result : [result]
    return { kind: 'values', values: values as (number | bigint)[] }
  }

  #enterComponent(entry: ComponentEntry): GuestEnd {
    const { exports, fuel, frames } = this.#job
    // While no core module runs, the fuel is in an instance that has nothing else.
    const meter = { value: (BigInt(fuel) << 16n) | BigInt(frames) }
    this.#instance = { exports: { [exports.meter]: meter, [exports.work]: { value: BigInt(fuel) } } }
    this.#meter = meter
    const component = this.#parts.component(this.#componentParts(), entry)
    this.#system = component.interfaces
    return this.#guard(() => component.run())
  }

  #componentParts(): ComponentParts {
    return {
      host: this.#guestHost(),
      engine: this.#engine,
      within: (instance, action) => this.#within(instance, action),
      startName: this.#job.exports.start,
      exhausted: (what) => this.#stop({ kind: 'exhausted', what }),
      guard: (action) => this.#guard(action),
    }
  }

  /** Runs an action with the fuel in another instance, and takes back what is left of it. */
  #within<T>(instance: WasmInstance, action: () => T): T {
    const from = this.#instance as WasmInstance
    this.#moveMeter(from, instance)
    try {
      return action()
    } finally {
      if (this.#left('objects') < 0n)
        this.#ended ??= { end: { kind: 'exhausted', what: 'memory' }, fuel: this.#job.fuel }
      this.#moveMeter(instance, from)
    }
  }

  #moveMeter(from: WasmInstance, to: WasmInstance): void {
    if (from === to) return
    for (const name of [this.#job.exports.meter, this.#job.exports.work]) {
      const [old, next] = [from.exports[name] as WasmGlobal, to.exports[name] as WasmGlobal]
      const { value } = old
      // SECURITY: in this order, so that a stack overflow in between loses the fuel instead of doubling it.
      old.value = 0n
      next.value = value
    }
    this.#instance = to
    this.#meter = to.exports[this.#job.exports.meter] as WasmGlobal
  }

  /** SECURITY: what a component does wrong ends the run with a trap, which the component cannot catch. */
  #guard<T>(action: () => T): T {
    try {
      return action()
    } catch (error) {
      if (error instanceof this.#engine.RuntimeError || !(error instanceof Error)) throw error
      const wrong: GuestEnd = { kind: 'abi', message: error.message.slice(0, 200) }
      return this.#stop(this.#ended?.end ?? (error instanceof TypeError ? wrong : this.#endOf(error)))
    }
  }

  #call(name: string, ...args: readonly (number | bigint)[]): unknown {
    const { exports } = this.#instance as WasmInstance
    return (exports[name] as WasmFunction)(...args)
  }

  #execute(): GuestEnd {
    const { at, length } = this.#copyIn(new TextEncoder().encode(this.#job.input))
    const packed = BigInt.asUintN(64, this.#call('execute', at, length) as bigint)
    const text = this.#text(Number(packed >> 32n), Number(packed & 0xffff_ffffn), 'the result')
    return { kind: 'text', text }
  }

  /** Copies bytes into memory that the guest's own allocator returns. */
  #copyIn(bytes: Uint8Array): { at: number; length: number } {
    if (typeof this.#instance?.exports.alloc !== 'function') {
      return this.#stop({ kind: 'abi', message: 'the module exports no `alloc`' })
    }
    const at = (this.#call('alloc', bytes.length) as number) >>> 0
    this.#view(at, bytes.length, 'the answer of `alloc`').set(bytes)
    return { at, length: bytes.length }
  }

  /**
   * A view of the guest's memory.
   * SECURITY: pointers are unsigned; the sum of two 32-bit numbers is exact in a double, so it cannot overflow.
   */
  #view(at: number, length: number, what: string): Uint8Array {
    const memory = this.#instance?.exports.memory as WasmMemory | undefined
    if (memory === undefined) return this.#stop({ kind: 'abi', message: 'the module exports no memory' })
    const [start, size] = [at >>> 0, length >>> 0]
    if (start + size > memory.buffer.byteLength) {
      return this.#stop({ kind: 'abi', message: `${what} lies outside the memory` })
    }
    return new Uint8Array(memory.buffer, start, size)
  }

  #text(at: number, length: number, what: string): string {
    if (length >>> 0 > this.#job.limits.messageBytes) {
      return this.#stop({
        kind: 'abi',
        message: `${what} is longer than ${this.#job.limits.messageBytes} bytes`,
      })
    }
    const bytes = this.#view(at, length, what)
    try {
      return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
    } catch {
      return this.#stop({ kind: 'abi', message: `${what} is not UTF-8` })
    }
  }

  /** Ends the run from inside a host function. */
  #stop(end: GuestEnd): never {
    this.#ended = { end, fuel: end.kind === 'exhausted' ? this.#job.fuel : this.#fuelUsed() }
    if (this.#meter) this.#meter.value = -1n << 16n
    this.#trap()
    throw new Error('unreachable')
  }

  #exhausted(): 'fuel' | 'stack' | 'memory' | undefined {
    const word = this.#meter?.value ?? 0n
    if ((word & 0x8000n) !== 0n) return 'stack'
    if (word < 0n || this.#left('work') < 0n) return 'fuel'
    return this.#left('objects') < 0n ? 'memory' : undefined
  }

  #left(what: 'work' | 'objects'): bigint {
    return (this.#instance?.exports[this.#job.exports[what]] as WasmGlobal | undefined)?.value ?? 0n
  }

  #fuelUsed(): number {
    return this.#meter ? this.#job.fuel - Number(this.#meter.value >> 16n) : 0
  }

  /** Charges fuel for host work; ends the run if the fuel is used up. */
  #charge(amount: number): void {
    // SECURITY: a negative amount would give fuel back.
    if (!(amount >= 0)) this.#stop({ kind: 'abi', message: 'a length is not valid' })
    // SECURITY: bounded, because the meter has 64 bits: an amount that overflows it would cost nothing.
    if (this.#meter) this.#meter.value -= BigInt(Math.ceil(Math.min(amount, 2 ** 40))) << 16n
    const what = this.#exhausted()
    if (what !== undefined) this.#stop({ kind: 'exhausted', what })
  }

  #endOf(error: unknown): GuestEnd {
    if (error instanceof RangeError) {
      return { kind: 'exhausted', what: /memory|alloc/i.test(error.message) ? 'memory' : 'stack' }
    }
    if (error instanceof this.#engine.LinkError) return { kind: 'abi', message: 'the imports do not fit' }
    if (error instanceof this.#engine.RuntimeError) return { kind: 'trap', message: error.message }
    return { kind: 'trap', message: 'uncaught exception' }
  }

  #imports(): Record<string, Record<string, unknown>> {
    const needed = this.#job.imports
    const rooms = this.#systems(new Set(needed.map(({ module }) => module)))
    const imports: Record<string, Record<string, unknown>> = Object.create(null)
    for (const { module, name } of needed) {
      const room = imports[module] ?? (Object.create(null) as Record<string, unknown>)
      imports[module] = room
      const system = rooms[module]
      if (system === undefined) room[name] = this.#hostFunction(name)
      // ENOSYS (52): the program decides how to handle a missing function.
      else room[name] = Object.hasOwn(system, name) ? system[name] : () => 52
    }
    return imports
  }

  /** The system interfaces that a module imports; if it imports both, the result comes from the Extism interface. */
  #systems(modules: ReadonlySet<string>): Readonly<Record<string, Readonly<Record<string, unknown>>>> {
    const { wasi, files, paths, streams, extism, assemblyscript } = this.#parts
    const rooms: Record<string, Readonly<Record<string, unknown>>> = Object.create(null)
    const host = this.#guestHost()
    this.#system = undefined
    if (modules.has('wasi_snapshot_preview1')) {
      const table = new files(host)
      const system = new wasi(host, table, new paths(host, table), new streams(host))
      this.#system = system
      rooms.wasi_snapshot_preview1 = system.functions
    }
    if (modules.has('extism:host/env')) {
      const system = new extism(host)
      this.#system = system
      rooms['extism:host/env'] = system.functions
    }
    if (modules.has('env')) rooms.env = new assemblyscript(host).functions
    return rooms
  }

  #hostFunction(name: string): WasmFunction {
    if (name === 'host_log') {
      return (level, at, length) => {
        this.#charge(100 + ((length as number) >>> 0))
        this.#addLog(level as number, this.#text(at as number, length as number, 'a log line'))
      }
    }
    // `host_call` takes the method from its request; the other functions take it from their import name.
    const method = name === 'host_call' ? undefined : name.slice('host_'.length)
    return (at, length) => {
      const text = this.#text(at as number, length as number, 'the request')
      this.#charge(1000 + ((length as number) >>> 0))
      const reply = new TextEncoder().encode(this.#ask(method, text))
      this.#charge(reply.length)
      const placed = this.#copyIn(reply)
      return BigInt.asIntN(64, (BigInt(placed.at) << 32n) | BigInt(placed.length))
    }
  }

  /** Sends a request to the host and waits for the reply, until the deadline at most, even if the host never answers. */
  #ask(method: string | undefined, text: string): string {
    const { signal, post, receive } = this.#parts
    Atomics.store(signal, 0, 0)
    post({ kind: 'ask', method, text })
    Atomics.wait(signal, 0, 0, Math.max(1, this.#deadline - performance.now()))
    const reply = receive()
    return reply === undefined ? this.#stop({ kind: 'timeout' }) : reply.message
  }

  /** SECURITY: replaces control characters with spaces, so that a guest cannot forge log lines. */
  #addLog(level: number, text: string): void {
    const { logLines, logBytes } = this.#job.limits
    const line = text
      .slice(0, 4096)
      .replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, ' ')
    if (this.#log.length >= logLines || this.#logBytes + line.length > logBytes) {
      this.#logDropped++
      return
    }
    this.#logBytes += line.length
    this.#log.push({ level: ['trace', 'debug', 'info', 'warn', 'error'][level] ?? 'info', text: line })
  }

  /** Sleeps without using CPU time, until the deadline at most. */
  #sleep(ms: number): void {
    const remaining = this.#deadline - performance.now()
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, Math.max(0, Math.min(ms, remaining)))
    if (ms >= remaining) this.#stop({ kind: 'timeout' })
  }

  #askJson(method: string, params: Readonly<Record<string, unknown>>): unknown {
    const text = JSON.stringify(params)
    // SECURITY: the host parses requests in its own thread.
    if (text.length > this.#job.limits.messageBytes)
      this.#stop({ kind: 'abi', message: `a request is longer than ${this.#job.limits.messageBytes} bytes` })
    this.#charge(1000 + text.length)
    const reply = this.#ask(method, text)
    this.#charge(reply.length)
    return JSON.parse(reply)
  }

  #guestHost(): GuestHost {
    const { input, limits, args, env, preopens, real } = this.#job
    const { fromBase64, toBase64, random } = this.#parts
    return {
      memory: (at, length) => this.#view(at, length, 'an argument'),
      charge: (amount) => this.#charge(amount),
      log: (level, text) => this.#addLog(level, text),
      exit: (code) => this.#stop({ kind: 'exit', code, text: this.#system?.stdout ?? '' }),
      abort: (message) => this.#stop({ kind: 'abi', message }),
      trap: (message) => this.#stop({ kind: 'trap', message }),
      refuse: (code, message) => this.#stop({ kind: 'refused', code, message }),
      fuelUsed: () => this.#fuelUsed(),
      sleep: (ms) => this.#sleep(ms),
      ask: (method, params) => this.#askJson(method, params),
      fromBase64,
      toBase64,
      input,
      messageBytes: limits.messageBytes,
      args,
      env,
      preopens,
      started: real.clock ? Date.now() : undefined,
      random: real.random ? random : undefined,
    }
  }
}
