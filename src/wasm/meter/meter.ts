import { SandboxError } from '../../model/errors.ts'
import { type WasmModule, wasmEngine } from '../engine.ts'
import { decodeModule, type ModuleShape } from './decode.ts'
import { invalidModule } from './features.ts'
import { MAX_FRAMES } from './fuel-emitter.ts'
import { type InitialMeter, type ModuleLimits, rewriteModule } from './rewrite.ts'

export { METER_EXPORTS } from './rewrite.ts'
export { MAX_FRAMES }

/** Part of every cache key, so that modules rewritten by an older version are not reused. */
export const METER_VERSION = 7

/** Larger modules are refused: compiling them would be a denial of service. */
export const MAX_MODULE_BYTES = 16 * 1024 * 1024
const PAGE_BYTES = 65_536
/**
 * SECURITY: V8 checks its own heap limit too rarely in a loop: without this limit, the process could end. It is below the
 * heap of the worker thread (worker/guest-worker.ts).
 */
const MAX_OBJECT_MB = 64

/** Limits that are written into the module, and the time that preparing it may take. */
export type MeterOptions = {
  readonly memoryMb?: number
  readonly tableElements?: number
  readonly initial?: InitialMeter
  /** Whether it is linked to other modules, which may catch the exceptions that leave it. */
  readonly isLinked?: boolean
  readonly loadMs?: number
}

/** A metered module and the outline of the original module. */
export type MeteredModule = { readonly bytes: Uint8Array; readonly shape: ModuleShape }

/** Rewrites a module so that it counts fuel and frames and traps when either is used up. */
export function meterModule(original: Uint8Array, options: MeterOptions = {}): MeteredModule {
  const bytes = ownCopy(original)
  // SECURITY: validate before rewriting. The appended entries would make some invalid modules valid and give them access
  // to the meter's globals and locals.
  if (!wasmEngine().validate(bytes)) throw invalidModule(bytes)
  const steps = rewriteSteps(bytes, options)
  for (;;) {
    const step = steps.next()
    if (!step.done) continue
    if (!wasmEngine().validate(step.value.bytes)) throw noRoom()
    return step.value
  }
}

const SLICE_MS = 5
/** The largest module that is accepted takes less than a second to prepare. */
const LOAD_MS = 10_000
/** For smaller modules, synchronous validation is faster than compiling in the background. */
const SMALL_BYTES = 256 * 1024

/**
 * Validates, meters and compiles a module without blocking the caller's event loop on a large one. SECURITY: it ends after `loadMs`.
 * V8 compiles each function when it is called first, so that time counts towards the deadline of the run (decision 0124).
 */
export async function loadMetered(
  original: Uint8Array,
  options: MeterOptions = {},
): Promise<MeteredModule & { readonly module: WasmModule }> {
  const { loadMs = LOAD_MS } = options
  const deadline = performance.now() + loadMs
  const bytes = ownCopy(original)
  if (!(await isValid(bytes))) throw invalidModule(bytes)
  const metered = await inSlices(rewriteSteps(bytes, options), () => {
    if (performance.now() > deadline) throw tooSlow(loadMs)
  })
  try {
    return { ...metered, module: await wasmEngine().compile(metered.bytes) }
  } catch {
    throw noRoom()
  }
}

async function isValid(bytes: Uint8Array): Promise<boolean> {
  if (bytes.length <= SMALL_BYTES) return wasmEngine().validate(bytes)
  return wasmEngine()
    .compile(bytes)
    .then(
      () => true,
      () => false,
    )
}

async function inSlices<T>(steps: Generator<void, T, void>, checkTime: () => void): Promise<T> {
  let sliceEnd = performance.now() + SLICE_MS
  for (;;) {
    const step = steps.next()
    if (step.done) return step.value
    if (performance.now() < sliceEnd) continue
    checkTime()
    await new Promise((resolve) => setImmediate(resolve))
    sliceEnd = performance.now() + SLICE_MS
  }
}

/** SECURITY: copies the bytes, so that they cannot change between validation and use. */
function ownCopy(original: Uint8Array): Uint8Array {
  if (original.length > MAX_MODULE_BYTES) {
    throw new SandboxError('resource-limit-exceeded', `the module is larger than ${MAX_MODULE_BYTES} bytes`)
  }
  return Uint8Array.from(original)
}

const tooSlow = (ms: number): SandboxError =>
  new SandboxError('resource-limit-exceeded', `the module was not ready to run after ${ms} ms`, {
    hint: 'make it smaller, or try again when the machine is less busy',
  })

const noRoom = (): SandboxError =>
  new SandboxError('unsupported', 'the module leaves no room for the meter', {
    hint: 'a number of functions, types or locals is at the engine’s own limit',
  })

function* rewriteSteps(bytes: Uint8Array, options: MeterOptions): Generator<void, MeteredModule, void> {
  const shape = decodeModule(bytes)
  const { initial = 'host', isLinked = false } = options
  const limits = limitsOf(options)
  return { bytes: yield* rewriteModule({ bytes, shape, limits, initial, isLinked }), shape }
}

const limitsOf = ({ memoryMb = 64, tableElements = 1 << 20 }: MeterOptions): ModuleLimits => ({
  memoryPages: Math.floor((memoryMb * 1024 * 1024) / PAGE_BYTES),
  objectBytes: Math.min(memoryMb, MAX_OBJECT_MB) * 1024 * 1024,
  tableElements,
  functions: 100_000,
  functionBytes: 1024 * 1024,
})

/** The state of the meter as the host reads it. */
export type MeterReading = { readonly fuel: number; readonly spent: 'fuel' | 'stack' | undefined }

/** The meter value for a budget. */
export const meterWord = (fuel: number, frames: number): bigint => (BigInt(fuel) << 16n) | BigInt(frames)

/** Decodes the meter's value: the remaining fuel, and which of the two budgets ended the run. */
export function readMeter(word: bigint): MeterReading {
  const fuel = Number(word >> 16n)
  if ((word & 0x8000n) !== 0n) return { fuel, spent: 'stack' }
  return { fuel, spent: word < 0n ? 'fuel' : undefined }
}
