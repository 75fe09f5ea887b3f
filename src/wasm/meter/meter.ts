import { SandboxError } from '../../model/errors.ts'
import { type WasmModule, wasmEngine } from '../engine.ts'
import { decodeModule, type ModuleShape } from './decode.ts'
import { MAX_FRAMES } from './fuel-emitter.ts'
import { type InitialMeter, type ModuleLimits, rewriteModule } from './rewrite.ts'

export { METER_EXPORTS } from './rewrite.ts'
export { MAX_FRAMES }

/** Part of the key of every cache: a module rewritten by an older version is not one of ours. */
export const METER_VERSION = 1

/** Larger modules are refused: their compilation alone would be an attack. */
export const MAX_MODULE_BYTES = 16 * 1024 * 1024
const PAGE_BYTES = 65_536

/** Ceilings that are written into the module. */
export type MeterOptions = {
  readonly memoryMb?: number
  readonly tableElements?: number
  readonly initial?: InitialMeter
}

/** A metered module and the outline of the original. */
export type MeteredModule = { readonly bytes: Uint8Array; readonly shape: ModuleShape }

/** Rewrites a module so that it counts fuel and frames and stops by itself. */
export function meterModule(original: Uint8Array, options: MeterOptions = {}): MeteredModule {
  const bytes = ownCopy(original)
  if (!wasmEngine().validate(bytes)) throw notValid()
  const steps = rewriteSteps(bytes, options)
  for (;;) {
    const step = steps.next()
    if (!step.done) continue
    if (!wasmEngine().validate(step.value.bytes)) throw noRoom()
    return step.value
  }
}

const SLICE_MS = 5
/** Below this, validation at once is quicker than a compilation in the background. */
const SMALL_BYTES = 256 * 1024

/** The same, and compiled, without holding up the caller's event loop for a large module. */
export async function loadMetered(
  original: Uint8Array,
  options: MeterOptions = {},
): Promise<MeteredModule & { readonly module: WasmModule }> {
  const bytes = ownCopy(original)
  if (!(await isValid(bytes))) throw notValid()
  const metered = await inSlices(rewriteSteps(bytes, options))
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

async function inSlices<T>(steps: Generator<void, T, void>): Promise<T> {
  let sliceEnd = performance.now() + SLICE_MS
  for (;;) {
    const step = steps.next()
    if (step.done) return step.value
    if (performance.now() < sliceEnd) continue
    await new Promise((resolve) => setImmediate(resolve))
    sliceEnd = performance.now() + SLICE_MS
  }
}

/** SECURITY: nobody changes the bytes between validation and use. */
function ownCopy(original: Uint8Array): Uint8Array {
  if (original.length > MAX_MODULE_BYTES) {
    throw new SandboxError('resource-limit-exceeded', `the module is larger than ${MAX_MODULE_BYTES} bytes`)
  }
  return Uint8Array.from(original)
}

/**
 * SECURITY: validation comes before the rewrite. What is appended would make some invalid modules valid, with
 * our globals and locals in their hands.
 */
const notValid = (): SandboxError => new SandboxError('invalid-input', 'not a valid WebAssembly module')

const noRoom = (): SandboxError =>
  new SandboxError('unsupported', 'the module leaves no room for the meter', {
    hint: 'a number of functions, types or locals is at the engine’s own limit',
  })

function* rewriteSteps(bytes: Uint8Array, options: MeterOptions): Generator<void, MeteredModule, void> {
  const shape = decodeModule(bytes)
  const limits = limitsOf(options)
  return { bytes: yield* rewriteModule({ bytes, shape, limits, initial: options.initial ?? 'host' }), shape }
}

const limitsOf = ({ memoryMb = 64, tableElements = 1 << 20 }: MeterOptions): ModuleLimits => ({
  memoryPages: Math.floor((memoryMb * 1024 * 1024) / PAGE_BYTES),
  tableElements,
  functions: 100_000,
  functionBytes: 1024 * 1024,
})

/** What the host sees in the meter. */
export type MeterReading = { readonly fuel: number; readonly spent: 'fuel' | 'stack' | undefined }

/** The word that grants a budget. */
export const meterWord = (fuel: number, frames: number): bigint => (BigInt(fuel) << 16n) | BigInt(frames)

/** Reads the meter's word: what is left, and which of the two ended the run. */
export function readMeter(word: bigint): MeterReading {
  const fuel = Number(word >> 16n)
  if ((word & 0x8000n) !== 0n) return { fuel, spent: 'stack' }
  return { fuel, spent: word < 0n ? 'fuel' : undefined }
}
