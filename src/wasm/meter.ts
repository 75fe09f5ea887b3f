import { SandboxError } from '../model/errors.ts'
import { decodeModule, type ModuleShape } from './decode.ts'
import { wasmEngine } from './engine.ts'
import { MAX_FRAMES, MAX_FUEL } from './fuel-emitter.ts'
import { type InitialMeter, type ModuleLimits, rewriteModule } from './rewrite.ts'

export { METER_EXPORTS } from './rewrite.ts'
export { MAX_FRAMES, MAX_FUEL }

/** Part of the key of every cache: a module rewritten by an older version is not one of ours. */
export const METER_VERSION = 1

export const MAX_MODULE_BYTES = 16 * 1024 * 1024
const PAGE_BYTES = 65_536

export type MeterOptions = {
  readonly memoryMb?: number
  readonly tableElements?: number
  readonly initial?: InitialMeter
}

/** A metered module and the outline of the original. */
export type MeteredModule = { readonly bytes: Uint8Array; readonly shape: ModuleShape }

/** Rewrites a module so that it counts fuel and frames and stops by itself. */
export function meterModule(original: Uint8Array, options: MeterOptions = {}): MeteredModule {
  const steps = meterSteps(original, options)
  for (;;) {
    const step = steps.next()
    if (step.done) return step.value
  }
}

const SLICE_MS = 5

/** The same in slices, so that a large module does not hold up the caller's event loop. */
export async function meterModuleInSlices(
  original: Uint8Array,
  options: MeterOptions = {},
): Promise<MeteredModule> {
  const steps = meterSteps(original, options)
  let sliceEnd = performance.now() + SLICE_MS
  for (;;) {
    const step = steps.next()
    if (step.done) return step.value
    if (performance.now() < sliceEnd) continue
    await new Promise((resolve) => setImmediate(resolve))
    sliceEnd = performance.now() + SLICE_MS
  }
}

function* meterSteps(original: Uint8Array, options: MeterOptions): Generator<void, MeteredModule, void> {
  if (original.length > MAX_MODULE_BYTES) {
    throw new SandboxError('resource-limit-exceeded', `the module is larger than ${MAX_MODULE_BYTES} bytes`)
  }
  // SECURITY: our own copy, so that nobody changes the bytes between validation and use.
  const bytes = Uint8Array.from(original)
  // SECURITY: validation comes first. What is appended would make some invalid modules valid, with our
  // globals and locals in their hands.
  if (!wasmEngine().validate(bytes)) {
    throw new SandboxError('invalid-input', 'not a valid WebAssembly module')
  }
  yield
  const shape = decodeModule(bytes)
  const rewritten = yield* rewriteModule({
    bytes,
    shape,
    limits: limitsOf(options),
    initial: options.initial ?? 'host',
  })
  yield
  if (!wasmEngine().validate(rewritten)) {
    throw new SandboxError('unsupported', 'the module leaves no room for the meter', {
      hint: 'a function, type or export count is at the engine’s own limit',
    })
  }
  return { bytes: rewritten, shape }
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
