import type { WasmFunction, WasmInstance } from '../../engine.ts'
import type { ComponentParts } from '../guest-host.ts'
import type { ComponentEntry, ComponentModule, GuestEnd } from '../guest-protocol.ts'
import type { ComponentFunc, HostInterfaces, TaggedValue } from './types.ts'

/** The exports of a component, as the linker makes them. */
type Linker = {
  instantiate(definitions: ComponentEntry['definitions']): ReadonlyMap<string, { readonly value: unknown }>
}

type Imports = Readonly<Record<string, Readonly<Record<string, unknown>>>>
type RunnerParts = ComponentParts & { readonly interfaces: HostInterfaces }

/**
 * Runs a component: starts its core modules, each one metered, and calls the entry point.
 *
 * INVARIANT: the fuel is in exactly one instance at a time, the one that runs; in every other one it is zero. So a function that
 * is reached without a call through `#crossing` (through a shared table) traps at once instead of running unmetered.
 *
 * The class text is part of the worker's source, so it may use only its arguments and JavaScript globals.
 */
export class ComponentRunner {
  readonly #parts: RunnerParts
  readonly #entry: ComponentEntry
  #pages = 0
  #elements = 0
  #instances = 0
  #withObjects = 0
  readonly #started = new Set<number>()

  constructor(parts: RunnerParts, entry: ComponentEntry) {
    this.#parts = parts
    this.#entry = entry
  }

  /** Starts one core module and returns its exports, without the meter's own. */
  start(module: number, imports: Imports) {
    const { within, startName } = this.#parts
    const entry = this.#entry.modules[module] as ComponentModule
    this.#count(entry)
    // SECURITY: a start copies the module's data; the first one is part of loading it.
    if (this.#started.has(module)) this.#parts.host.charge(entry.bytes)
    this.#started.add(module)
    const instance = this.#instantiate(entry, imports)
    const start = instance.exports[startName] as WasmFunction | undefined
    if (start) within(instance, () => start())
    const exports: Record<string, unknown> = Object.create(null)
    for (const [name, value] of Object.entries(instance.exports)) {
      // SECURITY: the names of the meter's own exports start with NUL; a guest must not reach them.
      if (name.startsWith('\0')) continue
      exports[name] = typeof value === 'function' ? this.#crossing(instance, value as WasmFunction) : value
    }
    return exports
  }

  #instantiate({ module }: ComponentModule, imports: Imports): WasmInstance {
    try {
      return new this.#parts.engine.Instance(module, imports)
    } catch (error) {
      // The engine's own message repeats names of the component.
      throw error instanceof TypeError ? new TypeError('the imports of a core module do not fit') : error
    }
  }

  #crossing(instance: WasmInstance, target: WasmFunction): WasmFunction {
    return (...args) => this.#parts.within(instance, () => target(...args))
  }

  /** SECURITY: each module has its share of the limits; a module that is started twice needs two shares. */
  #count({ pages, elements, objects }: ComponentModule): void {
    this.#pages += pages
    this.#elements += elements
    this.#withObjects += objects ? 1 : 0
    const { limits } = this.#entry
    if (this.#pages > limits.pages || this.#elements > limits.elements || this.#withObjects > 1)
      this.#parts.exhausted('memory')
    if (++this.#instances > 256) throw new TypeError('the component starts more than 256 core modules')
  }

  run(linker: Linker): GuestEnd {
    const { host, interfaces } = this.#parts
    const { call, definitions } = this.#entry
    const exported = linker.instantiate(definitions).get(call.name)?.value
    if (call.kind === 'execute') return this.#executed((exported as ComponentFunc).call([host.input]))
    const run = (exported as ReadonlyMap<string, { readonly value: unknown }>).get('run')?.value
    const { tag } = (run as ComponentFunc).call([]) as TaggedValue
    return { kind: 'exit', code: tag === 'ok' ? 0 : 1, text: interfaces.stdout }
  }

  #executed(value: unknown): GuestEnd {
    const { tag, value: inner } = typeof value === 'string' ? { tag: 'ok', value } : (value as TaggedValue)
    if (typeof inner !== 'string') throw new TypeError('`execute` returned no text')
    const { messageBytes } = this.#parts.host
    if (inner.length > messageBytes) throw new TypeError(`the result is longer than ${messageBytes} bytes`)
    return tag === 'ok' ? { kind: 'text', text: inner } : { kind: 'exit', code: 1, text: '', said: inner }
  }
}
