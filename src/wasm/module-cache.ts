import { createHash } from 'node:crypto'
import { SandboxError } from '../model/errors.ts'
import { abiOf, type GuestAbi } from './abi.ts'
import { isComponent } from './component/decode.ts'
import { type LoadedComponent, loadComponent } from './component/load.ts'
import { type WasmModule, wasmEngine } from './engine.ts'
import { decodeModule, type ModuleShape } from './meter/decode.ts'
import { loadMetered, MAX_MODULE_BYTES, METER_VERSION, type MeterOptions } from './meter/meter.ts'
import { ModuleFiles } from './module-files.ts'

/** A core module or a component that has been validated, metered and compiled. */
export type LoadedModule = { readonly hash: string } & LoadedCode
type LoadedCode =
  | { readonly module: WasmModule; readonly abi: GuestAbi }
  | { readonly component: LoadedComponent }

type Compiled = { readonly module: WasmModule; readonly shape: ModuleShape }

/** Smaller metered modules take less time than a file. */
const WORTH_KEEPING = 64 * 1024
const MAX_ENTRIES = 128
/** V8 makes up to 25 bytes of machine code for each byte, which live as long as the module (decision 0124). */
const MAX_BYTES = 64 * 1024 * 1024

type Entry = { readonly loaded: Promise<LoadedModule>; readonly bytes: number }

/** LRU cache of loaded modules, keyed by the hash of their content. */
export class ModuleCache {
  readonly #memoryMb: number
  readonly #files: ModuleFiles | undefined
  readonly #entries = new Map<string, Entry>()
  readonly #made = new WeakSet<LoadedModule>()
  #bytes = 0

  /** With a directory, metered modules are also kept there for the next process. */
  constructor(memoryMb: number, directory?: string) {
    this.#memoryMb = memoryMb
    this.#files = directory === undefined ? undefined : new ModuleFiles(directory)
  }

  /** SECURITY: rejects forged objects, and modules compiled with another sandbox's limits. */
  isOwn(module: LoadedModule): boolean {
    return this.#made.has(module)
  }

  load(given: Uint8Array): Promise<LoadedModule> {
    // SECURITY: shared memory can change between the hash and the rewrite.
    const bytes = given.buffer instanceof SharedArrayBuffer ? Uint8Array.from(given) : given
    if (bytes.length > MAX_MODULE_BYTES) {
      const message = `the module is larger than ${MAX_MODULE_BYTES} bytes`
      return Promise.reject(new SandboxError('resource-limit-exceeded', message))
    }
    const hash = createHash('sha256')
      .update(`${METER_VERSION}:${this.#memoryMb}:`)
      .update(bytes)
      .digest('hex')
    const known = this.#entries.get(hash)
    if (known) {
      this.#entries.delete(hash)
      this.#entries.set(hash, known)
      return known.loaded
    }
    const loaded = this.#make(hash, bytes)
    this.#entries.set(hash, { loaded, bytes: bytes.length })
    this.#bytes += bytes.length
    this.#evict()
    // Failed loads are not cached.
    loaded.catch(() => this.#drop(hash))
    return loaded
  }

  async #make(hash: string, bytes: Uint8Array): Promise<LoadedModule> {
    const loaded: LoadedModule = Object.freeze({ hash, ...(await this.#code(hash, bytes)) })
    this.#made.add(loaded)
    return loaded
  }

  async #code(hash: string, bytes: Uint8Array): Promise<LoadedCode> {
    if (isComponent(bytes)) return { component: await this.#component(bytes) }
    const { shape, module } = await this.#core(hash, bytes, { memoryMb: this.#memoryMb })
    return { module, abi: abiOf(shape) }
  }

  #component(bytes: Uint8Array): Promise<LoadedComponent> {
    return loadComponent(bytes, this.#memoryMb, (module, limits) => {
      // Starts in another way than the hash of a module, whose bytes could otherwise continue the text.
      const text = `component:${METER_VERSION}:${limits.memoryMb}:${limits.tableElements}:`
      return this.#core(createHash('sha256').update(text).update(module).digest('hex'), module, {
        ...limits,
        isLinked: true,
      })
    })
  }

  async #core(hash: string, bytes: Uint8Array, limits: MeterOptions): Promise<Compiled> {
    return (await this.#stored(hash, bytes)) ?? (await this.#metered(hash, bytes, limits))
  }

  async #metered(hash: string, original: Uint8Array, limits: MeterOptions): Promise<Compiled> {
    const { bytes, shape, module } = await loadMetered(original, limits)
    if (bytes.length >= WORTH_KEEPING) this.#files?.write(hash, bytes)
    return { shape, module }
  }

  /** A module that an earlier process metered. One that this engine does not compile is metered again, which says why. */
  async #stored(hash: string, original: Uint8Array): Promise<Compiled | undefined> {
    if (original.length < WORTH_KEEPING / 4) return undefined
    const bytes = this.#files?.read(hash)
    if (bytes === undefined) return undefined
    try {
      return { module: await wasmEngine().compile(bytes), shape: decodeModule(original) }
    } catch {
      return undefined
    }
  }

  #drop(hash: string): void {
    this.#bytes -= this.#entries.get(hash)?.bytes ?? 0
    this.#entries.delete(hash)
  }

  #evict(): void {
    for (const hash of this.#entries.keys()) {
      if (this.#entries.size <= MAX_ENTRIES && this.#bytes <= MAX_BYTES) return
      this.#drop(hash)
    }
  }
}
