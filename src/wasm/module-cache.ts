import { createHash } from 'node:crypto'
import { SandboxError } from '../model/errors.ts'
import { abiOf, type GuestAbi } from './abi.ts'
import type { WasmModule } from './engine.ts'
import { loadMetered, MAX_MODULE_BYTES, METER_VERSION } from './meter/meter.ts'

/** A module that has been validated, metered and compiled. */
export type LoadedModule = { readonly hash: string; readonly module: WasmModule; readonly abi: GuestAbi }

const MAX_ENTRIES = 128
const MAX_BYTES = 128 * 1024 * 1024

type Entry = { readonly loaded: Promise<LoadedModule>; readonly bytes: number }

/** LRU cache of loaded modules, keyed by the hash of their content. */
export class ModuleCache {
  readonly #memoryMb: number
  readonly #entries = new Map<string, Entry>()
  readonly #made = new WeakSet<LoadedModule>()
  #bytes = 0

  constructor(memoryMb: number) {
    this.#memoryMb = memoryMb
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
    const { shape, module } = await loadMetered(bytes, { memoryMb: this.#memoryMb })
    const loaded: LoadedModule = Object.freeze({ hash, abi: abiOf(shape), module })
    this.#made.add(loaded)
    return loaded
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
