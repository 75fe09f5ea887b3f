import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type WasmFunction, type WasmGlobal, type WasmInstance, wasmEngine } from '../engine.ts'
import { decodeModule, exportedFunction, type ModuleShape } from '../meter/decode.ts'
import { METER_EXPORTS, meterModule, meterWord, readMeter } from '../meter/meter.ts'
import { argumentOf, type SpecArgument, showValue } from './spec-values.ts'
import { hasVectors, vectorCall } from './spec-vectors.ts'

/** Runs the public spec tests, plain or metered, and reports the outcome of every command. */

/** A call, or a read of a global. */
export type SpecAction = {
  readonly t: 'invoke' | 'get'
  readonly mod: string | null
  readonly field: string
  readonly args?: readonly SpecArgument[]
}
/** One command of a script. */
export type SpecCommand = {
  readonly c: string
  readonly name?: string | null
  readonly as?: string
  readonly mod?: string | null
  readonly b?: string | null
  readonly a?: SpecAction
}

/** The directory of the spec tests, beside the repository; they are read there and never copied. */
export const SPEC_DIR: string = fileURLToPath(new URL('../../../../shared/wasm-spec', import.meta.url))
/** Whether the spec tests are present. */
export const hasSpecTests = (): boolean => existsSync(join(SPEC_DIR, 'tests'))

/** The names of all scripts. */
export const specNames = (): readonly string[] => readdirSync(join(SPEC_DIR, 'tests')).sort()

/** The commands of a script. */
export const specScript = (name: string): readonly SpecCommand[] =>
  JSON.parse(readFileSync(join(SPEC_DIR, 'tests', name), 'utf8')) as readonly SpecCommand[]

/** The outcome of one command: its results or its trap, and the fuel used when metered. */
export type SpecStep = { readonly did: string; readonly fuel?: number }

const BUDGET = 2 ** 45
const FRAMES = 1024
/** The outcome of a step whose module the meter refused. */
export const REFUSED = 'refused'

/** A set of instances that may import each other. */
export class SpecWorld {
  readonly #metered: boolean
  readonly #named = new Map<string, WasmInstance>()
  readonly #registered: Record<string, Readonly<Record<string, unknown>>>
  readonly #shapes = new Map<WasmInstance, ModuleShape>()
  #meters: WasmGlobal[] = []
  #current: WasmInstance | undefined
  /** The module was refused; later commands on it are not compared. */
  #refused = false

  constructor(metered: boolean) {
    this.#metered = metered
    this.#registered = { spectest: spectest() }
  }

  run(command: SpecCommand): SpecStep | undefined {
    switch (command.c) {
      case 'module':
      case 'assert_trap_module':
      case 'assert_unlinkable':
        return command.b ? this.#instantiate(Buffer.from(command.b, 'base64'), command) : this.#lose(command)
      case 'register':
        return this.#register(command)
      case 'assert_return':
      case 'assert_trap':
      case 'assert_exhaustion':
      case 'assert_exception':
      case 'action':
        return command.a && this.#act(command.a)
      default:
        return undefined
    }
  }

  #lose({ c }: SpecCommand): undefined {
    if (c !== 'module') return
    this.#current = undefined
    this.#refused = true
  }

  #register({ as, mod }: SpecCommand): undefined {
    const instance = mod ? this.#named.get(mod) : this.#current
    if (instance && as) this.#registered[as] = instance.exports
  }

  #instantiate(bytes: Uint8Array, { c, name }: SpecCommand): SpecStep {
    if (c === 'module') this.#current = undefined
    if (c === 'module') this.#refused = false
    try {
      const module = new (wasmEngine().Module)(this.#metered ? meterForSpec(bytes) : bytes)
      const instance = new (wasmEngine().Instance)(module, this.#registered)
      this.#shapes.set(instance, shapeOf(bytes))
      this.#adopt(instance)
      if (c === 'module') this.#current = instance
      if (c === 'module' && name) this.#named.set(name, instance)
      return { did: 'instance' }
    } catch (error) {
      const did = failureOf(error, undefined)
      if (c === 'module') this.#refused = did.startsWith('CompileError') || did.startsWith(REFUSED)
      return { did }
    }
  }

  #adopt(instance: WasmInstance): void {
    const meter = instance.exports[METER_EXPORTS.meter] as WasmGlobal | undefined
    if (meter === undefined) return
    this.#meters.push(meter)
    const objects = instance.exports[METER_EXPORTS.objects] as WasmGlobal | undefined
    if (objects) objects.value = 2n ** 62n
    this.#refill(instance.exports[METER_EXPORTS.work] as WasmGlobal)
    ;(instance.exports[METER_EXPORTS.start] as WasmFunction | undefined)?.()
  }

  #refill(work?: WasmGlobal): void {
    if (work) work.value = 2n ** 62n
    for (const meter of this.#meters) meter.value = meterWord(BUDGET, FRAMES)
  }

  #spent(): number {
    return this.#meters.reduce((sum, meter) => sum + BUDGET - readMeter(meter.value).fuel, 0)
  }

  #callOf(instance: WasmInstance, field: string, args: readonly SpecArgument[]): WasmFunction | undefined {
    const target = instance.exports[field] as WasmFunction
    const type = exportedFunction(this.#shapes.get(instance) ?? NO_SHAPE, field)
    if (type && hasVectors(type)) return vectorCall(target, type, args)
    const values = args.map(argumentOf)
    return values.some((value) => value === undefined)
      ? undefined
      : () => target(...values.map((value) => value?.value))
  }

  #act({ t, mod, field, args = [] }: SpecAction): SpecStep | undefined {
    const instance = mod ? this.#named.get(mod) : this.#current
    if (instance === undefined && this.#refused) return undefined
    const target = instance?.exports[field]
    if (target === undefined) return { did: 'no such export' }
    if (t === 'get') return { did: showGlobal(target as WasmGlobal) }
    const call = this.#callOf(instance as WasmInstance, field, args)
    if (call === undefined) return undefined
    this.#refill()
    try {
      return { did: showValue(call()), fuel: this.#spent() }
    } catch (error) {
      return { did: failureOf(error, this.#meters) }
    }
  }
}

const NO_SHAPE = decodeModule(Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0))

function shapeOf(bytes: Uint8Array): ModuleShape {
  try {
    return decodeModule(bytes)
  } catch {
    return NO_SHAPE
  }
}

function showGlobal(target: WasmGlobal): string {
  try {
    return showValue(target.value)
  } catch (error) {
    return failureOf(error, undefined)
  }
}

const MEMORY_MB = 4096
const TABLE_ELEMENTS = 10_000_000

function meterForSpec(bytes: Uint8Array): Uint8Array {
  try {
    return meterModule(bytes, { memoryMb: MEMORY_MB, tableElements: TABLE_ELEMENTS }).bytes
  } catch (cause) {
    throw Object.assign(new Error((cause as Error).message), { name: REFUSED })
  }
}

function failureOf(error: unknown, meters: readonly WasmGlobal[] | undefined): string {
  const { name, message } = error as Error
  const spent = meters?.map((meter) => readMeter(meter.value).spent).find((what) => what !== undefined)
  if (spent === 'stack' || name === 'RangeError') return 'stack used up'
  if (spent === 'fuel') return 'fuel used up'
  // A memory without a maximum has one after the rewrite, so the error texts differ.
  if (name === 'LinkError') return name
  return `${name}: ${message}`
}

function spectest(): Record<string, unknown> {
  const { Global, Memory, Table } = wasmEngine()
  const none = (): void => {}
  const global = (value: string, initial: unknown): unknown => new Global({ value, mutable: false }, initial)
  return {
    print: none,
    print_i32: none,
    print_i64: none,
    print_f32: none,
    print_f64: none,
    print_i32_f32: none,
    print_f64_f64: none,
    global_i32: global('i32', 666),
    global_i64: global('i64', 666n),
    global_f32: global('f32', 666.6),
    global_f64: global('f64', 666.6),
    table: new Table({ element: 'anyfunc', initial: 10, maximum: 20 }),
    memory: new Memory({ initial: 1, maximum: 2 }),
  }
}
