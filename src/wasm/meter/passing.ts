import { ByteWriter } from './bytes.ts'
import { importedCount, type ModuleShape } from './decode.ts'
import { OP } from './opcodes.ts'
import { type FunctionType, functionTypeAt } from './types.ts'

/** Functions that take the meter's value as a parameter and return it as a result, so that it stays in a register. */

/** PLATFORM: the engines' limit for the parameters and for the results of a function. */
const MAX_VALUES = 1000

/**
 * Which functions pass the meter. `direct`: those that nothing but direct calls can reach. `all`: also exported ones, which
 * the host calls through another function, and those in tables that only the module itself can use. This requires
 * that the code creates and moves no references.
 */
export type PassingRule = 'none' | 'direct' | 'all'

/** The functions of a module that take and return the meter's value. */
export type Passing = {
  /** For each function that the module defines: 1 if it does. */
  readonly passes: Uint8Array
  /** Whether calls through tables pass the meter; then all functions in tables do. */
  readonly tables: boolean
  /** Passing functions that are exported: the host needs functions of the original types. */
  readonly exported: readonly number[]
}

/** Which functions pass the meter under a rule. */
export function passingOf(shape: ModuleShape, rule: PassingRule): Passing {
  if (rule === 'none') return { passes: new Uint8Array(), tables: false, exported: [] }
  const imported = importedCount(shape, 'function')
  const passes = Uint8Array.from(shape.functions, (type) => (canPass(shape, type) ? 1 : 0))
  if (shape.start !== undefined) passes[shape.start - imported] = 0
  const tables = rule === 'all' && hasOwnTables(shape, (index) => passes[index - imported] === 1)
  if (!tables) for (const index of shape.references) passes[index - imported] = 0
  const exported = new Set<number>()
  for (const { kind, index } of shape.exports) {
    if (kind !== 'function' || passes[index - imported] !== 1) continue
    if (rule === 'all') exported.add(index)
    else passes[index - imported] = 0
  }
  return { passes, tables, exported: [...exported] }
}

function canPass({ types }: ModuleShape, type: number): boolean {
  const { params, results } = functionTypeAt(types, type) as FunctionType
  return Math.max(params.length, results.length) < MAX_VALUES
}

/** Whether only calls of the module itself can reach what is in its tables. */
function hasOwnTables(shape: ModuleShape, passes: (index: number) => boolean): boolean {
  const { imports, exports, tables, types, references, referenceGlobals, typedTables } = shape
  return (
    !referenceGlobals &&
    !typedTables &&
    !imports.some(({ kind }) => kind === 'table') &&
    !exports.some(({ kind }) => kind === 'table') &&
    tables.every(({ wide }) => !wide) &&
    types.every((type, index) => 'params' in type && type.plain && canPass(shape, index)) &&
    [...references].every(passes)
  )
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

/** The body of a function that the host calls instead of a passing function: takes a frame, passes the meter, and stores it. */
export function relayBody({ params }: FunctionType, index: number, meterGlobal: number): ByteWriter {
  const out = new ByteWriter(64)
  out.u8(0)
  for (const param of params.keys()) {
    out.u8(OP.localGet)
    out.u32(param)
  }
  out.u8(OP.globalGet)
  out.u32(meterGlobal)
  out.all([OP.i64Const, 1, OP.i64Sub, OP.call])
  out.u32(index)
  out.u8(OP.globalSet)
  out.u32(meterGlobal)
  out.u8(OP.end)
  return out
}
