import type { EvalEnd, EvalJob, EvalReport } from './protocol.ts'

/** PLATFORM: TypeScript's library for Node has no WebAssembly types; these are the parts in use. */
export type WasmModule = object
type Engine = {
  readonly Instance: new (module: WasmModule, imports: object) => { readonly exports: unknown }
}

/** The exports of `quickjs.wasm` in use. A value is a box on the engine's heap, referred to by its address. */
type Exports = {
  readonly memory: { readonly buffer: ArrayBuffer }
  readonly __stack_pointer: { value: number }
  _initialize(): void
  qjs_init(): number
  qjs_set_memory_limit(bytes: number): void
  qjs_set_max_stack_size(bytes: number): void
  qjs_set_interrupt_handler(on: number): void
  qjs_eval(code: number, length: number, file: number, flags: number): number
  qjs_call(callee: number, self: number, count: number, list: number): number
  qjs_new_string(text: number, length: number): number
  qjs_get_prop_uint32(list: number, index: number): number
  qjs_get_string_len(value: number, length: number): number
  qjs_get_undefined(): number
  qjs_get_exception(): number
  qjs_is_exception(value: number): number
  qjs_is_undefined(value: number): number
  qjs_is_job_pending(): number
  qjs_execute_pending_job(): number
  qjs_promise_state(promise: number): number
  qjs_promise_result(promise: number): number
  qjs_free_value(value: number): void
  wasm_malloc(bytes: number): number
}

type Vm = {
  readonly js: Exports
  /** The whole memory before any guest ran. */
  readonly image: Uint8Array
  /** Functions of the prelude inside the VM. */
  readonly setup: number
  readonly unbox: number
  readonly forms: Readonly<Record<EvalJob['as'], number>>
}

/**
 * The worker thread's side of an evaluation. The class text becomes the worker's source (worker.ts), so it may use
 * only its arguments and JavaScript globals.
 *
 * INVARIANT: no guest sees another guest's state. An instance can change only its memory and one stack pointer;
 * both are reset after each run, which takes 0.04 ms (a new instance takes 0.6 ms).
 */
export class EvalThread {
  readonly #module: WasmModule
  readonly #prelude: string
  #vm: Vm | undefined
  #stackTop = 0
  #deadline = 0
  #late = false

  constructor(module: WasmModule, prelude: string) {
    this.#module = module
    this.#prelude = prelude
  }

  /** Resets the VM after the reply and before the next job: no caller waits for it, and no guest data remains. */
  prepare(): void {
    this.#vm ??= this.#open()
    const { js, image } = this.#vm
    const memory = new Uint8Array(js.memory.buffer)
    memory.set(image)
    memory.fill(0, image.length)
    js.__stack_pointer.value = this.#stackTop
  }

  /** Runs one job in the VM that `prepare` reset. */
  run(job: EvalJob): EvalReport {
    const KEEP_BYTES = 4 * 2 ** 20
    const RETIRE_BYTES = 16 * 2 ** 20
    let size = 0
    let end: EvalEnd
    try {
      this.#vm ??= this.#open()
      const vm = this.#vm
      this.#late = false
      this.#deadline = performance.now() + job.timeoutMs
      try {
        end = this.#evaluate(vm, job)
      } finally {
        size = vm.js.memory.buffer.byteLength
      }
    } catch (error) {
      end = this.#trapped(error)
      size = Math.max(size, KEEP_BYTES + 1)
    }
    // Grown memory stays with the instance, and after the reset the allocator would never use it again.
    if (size > KEEP_BYTES) this.#vm = undefined
    return { end: this.#late ? { kind: 'timeout' } : end, retire: size > RETIRE_BYTES }
  }

  #trapped(error: unknown): EvalEnd {
    if (error instanceof RangeError && /call stack/.test(error.message))
      return { kind: 'exhausted', what: 'stack' }
    return { kind: 'broken', reason: error instanceof Error ? error.message : 'unknown' }
  }

  #open(): Vm {
    const js = this.#instance()
    js._initialize()
    if (js.qjs_init() !== 0) throw new Error('the engine does not start')
    // The largest value that fits the engine's own 1 MB stack. The native stack is far larger, so this check fires first.
    js.qjs_set_max_stack_size(512 * 1024)
    js.qjs_set_interrupt_handler(1)
    this.#late = false
    this.#deadline = Number.POSITIVE_INFINITY
    const parts = this.#script(js, this.#prelude, 0)
    if (js.qjs_is_exception(parts) !== 0) throw new Error('the prelude does not run')
    const part = (index: number): number => js.qjs_get_prop_uint32(parts, index)
    const forms = { json: part(2), truth: part(3), text: part(4) }
    const vm = { js, setup: part(0), unbox: part(1), forms }
    this.#stackTop = js.__stack_pointer.value
    return { ...vm, image: new Uint8Array(js.memory.buffer).slice() }
  }

  /** SECURITY: all imports of the engine. Only the clock returns data. */
  #instance(): Exports {
    const { Instance } = (globalThis as unknown as { WebAssembly: Engine }).WebAssembly
    const none = (): number => 0
    const refused = (): number => 8
    let js: Exports | undefined
    const free = (...values: number[]): void => {
      for (const value of values.slice(0, 2)) js?.qjs_free_value(value)
    }
    const clock = (_id: number, _precision: bigint, at: number): number => {
      if (js) new DataView(js.memory.buffer).setBigUint64(at, BigInt(Date.now()) * 1_000_000n, true)
      return 0
    }
    const env = {
      host_interrupt: () => this.#interrupts(),
      host_promise_rejection: free,
      // Guests always run in UTC: the host's time zone is not disclosed.
      host_get_timezone_offset: none,
      host_module_normalize: none,
      host_module_load: none,
      host_call: none,
    }
    const wasi = { fd_close: refused, fd_fdstat_get: refused, fd_seek: refused, fd_write: refused }
    js = new Instance(this.#module, {
      env,
      wasi_snapshot_preview1: { ...wasi, random_get: none, clock_time_get: clock },
    }).exports as Exports
    return js
  }

  /** Once the deadline has passed it stays passed: no `finally` block and no pending job runs any more. */
  #interrupts(): number {
    this.#late ||= performance.now() >= this.#deadline
    return this.#late ? 1 : 0
  }

  #evaluate(vm: Vm, job: EvalJob): EvalEnd {
    const { js } = vm
    js.qjs_set_memory_limit(job.memoryBytes)
    if (job.code.length + job.given.length > job.memoryBytes) return { kind: 'exhausted', what: 'memory' }
    const given = this.#call(js, vm.setup, this.#string(js, job.given))
    if (js.qjs_is_exception(given) !== 0) return this.#threw(js, job)
    const value = job.awaits ? this.#settle(vm, job.code) : this.#script(js, job.code, 0)
    if (typeof value === 'object') return value
    if (js.qjs_is_exception(value) !== 0) return this.#threw(js, job)
    const text = this.#call(js, vm.forms[job.as], value)
    if (js.qjs_is_exception(text) !== 0) return this.#threw(js, job)
    if (js.qjs_is_undefined(text) !== 0) return { kind: 'value', text: undefined }
    return this.#text(js, text, job.outputBytes)
  }

  /** Runs code with top-level `await`, or as the body of an async function if it uses `return`, until no job is pending. */
  #settle(vm: Vm, code: string): number | EvalEnd {
    const { js } = vm
    const ASYNC = 128
    const AS_BODY = 'SyntaxError: return not in a function'
    const promise = this.#script(js, code, ASYNC)
    if (js.qjs_is_exception(promise) === 0) {
      const boxed = this.#drain(js, promise)
      return typeof boxed === 'object' ? boxed : this.#drain(js, this.#call(js, vm.unbox, boxed))
    }
    const message = this.#line(js, js.qjs_get_exception())
    if (message !== AS_BODY) return this.#named(message)
    const body = this.#script(js, `(async () => {\n${code}\n})()`, 0)
    return js.qjs_is_exception(body) !== 0 ? body : this.#drain(js, body)
  }

  /** Runs pending jobs until none is left or the deadline has passed, then reads the promise. */
  #drain(js: Exports, promise: number): number | EvalEnd {
    while (this.#interrupts() === 0 && js.qjs_is_job_pending() !== 0) js.qjs_execute_pending_job()
    const state = js.qjs_promise_state(promise)
    if (state === 0) return { kind: 'threw', message: 'the code waits for something that never comes' }
    const result = js.qjs_promise_result(promise)
    return state === 2 ? this.#named(this.#line(js, result)) : result
  }

  #threw(js: Exports, job: EvalJob): EvalEnd {
    // Extra memory, so that the error can be read after an out-of-memory.
    js.qjs_set_memory_limit(job.memoryBytes + 2 ** 20)
    return this.#named(this.#line(js, js.qjs_get_exception()))
  }

  #named(message: string): EvalEnd {
    if (/^InternalError: (out of memory|string too long)/.test(message))
      return { kind: 'exhausted', what: 'memory' }
    if (/^\w+: (Maximum call stack size exceeded|stack overflow)/.test(message))
      return { kind: 'exhausted', what: 'stack' }
    return { kind: 'threw', message }
  }

  #line(js: Exports, value: number): string {
    const end = this.#text(js, value, 65_536)
    return end.kind === 'value' ? (end.text ?? '') : 'an error without a text'
  }

  #script(js: Exports, code: string, flags: number): number {
    const [at, length] = this.#bytes(js, code)
    return js.qjs_eval(at, length, this.#bytes(js, 'code')[0], flags)
  }

  #call(js: Exports, callee: number, argument: number): number {
    const list = this.#room(js, 4)
    new DataView(js.memory.buffer).setUint32(list, argument, true)
    return js.qjs_call(callee, js.qjs_get_undefined(), 1, list)
  }

  #string(js: Exports, text: string): number {
    const [at, length] = this.#bytes(js, text)
    return js.qjs_new_string(at, length)
  }

  #text(js: Exports, value: number, most: number): EvalEnd {
    const lengthAt = this.#room(js, 4)
    const at = js.qjs_get_string_len(value, lengthAt)
    if (at === 0) return { kind: 'exhausted', what: 'memory' }
    const length = new DataView(js.memory.buffer).getUint32(lengthAt, true)
    if (length > most) return { kind: 'exhausted', what: 'output' }
    return { kind: 'value', text: new TextDecoder().decode(new Uint8Array(js.memory.buffer, at, length)) }
  }

  /** Never freed: the whole memory is reset after the run. */
  #bytes(js: Exports, text: string): readonly [at: number, length: number] {
    const bytes = new TextEncoder().encode(text)
    const at = this.#room(js, bytes.length + 1)
    const memory = new Uint8Array(js.memory.buffer)
    memory.set(bytes, at)
    memory[at + bytes.length] = 0
    return [at, bytes.length]
  }

  #room(js: Exports, bytes: number): number {
    const at = js.wasm_malloc(bytes)
    if (at === 0) throw new Error('no room in the engine')
    return at
  }
}
