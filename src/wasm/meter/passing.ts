import { ByteWriter } from './bytes.ts'
import { importedCount, type ModuleShape } from './decode.ts'
import { type FunctionType, functionTypeAt } from './types.ts'

/** Functions that take the meter's value as a parameter and return it as a result, so that it stays in a register. */

/** PLATFORM: the engines' limit for the parameters and for the results of a function. */
const MAX_VALUES = 1000

/**
 * The functions that can take and return the meter's value: nothing but direct calls can reach them, so nothing else
 * depends on their types.
 */
export function passingFunctions(shape: ModuleShape): Uint8Array {
  const imported = importedCount(shape, 'function')
  const passes = new Uint8Array(shape.functions.length).fill(1)
  for (const index of shape.references) passes[index - imported] = 0
  for (const { kind, index } of shape.exports) if (kind === 'function') passes[index - imported] = 0
  if (shape.start !== undefined) passes[shape.start - imported] = 0
  for (const [index, type] of shape.functions.entries()) {
    const { params, results } = functionTypeAt(shape.types, type) as FunctionType
    if (Math.max(params.length, results.length) >= MAX_VALUES) passes[index] = 0
  }
  return passes
}

/** Types that the rewritten functions need, appended to the module's own. */
export class AddedTypes {
  readonly out = new ByteWriter()
  count = 0
  readonly #bytes: Uint8Array
  readonly #first: number
  readonly #known = new Map<FunctionType, { block?: number; passing?: number }>()

  constructor(bytes: Uint8Array, first: number) {
    this.#bytes = bytes
    this.#first = first
  }

  /** The index of `() -> results of that type`. */
  resultsOnly(type: FunctionType): number {
    const known = this.#of(type)
    known.block ??= this.#add(type, false)
    return known.block
  }

  /** The index of the type with the meter's value as its last parameter and result. */
  passing(type: FunctionType): number {
    const known = this.#of(type)
    known.passing ??= this.#add(type, true)
    return known.passing
  }

  #of(type: FunctionType): { block?: number; passing?: number } {
    const known = this.#known.get(type) ?? {}
    this.#known.set(type, known)
    return known
  }

  #add(type: FunctionType, passing: boolean): number {
    const { out } = this
    out.u8(0x60)
    out.u32(passing ? type.params.length + 1 : 0)
    if (passing) out.span(this.#bytes, type.paramsStart, type.paramsEnd)
    if (passing) out.u8(0x7e)
    out.u32(type.results.length + Number(passing))
    out.span(this.#bytes, type.resultsStart, type.resultsEnd)
    if (passing) out.u8(0x7e)
    return this.#first + this.count++
  }
}
