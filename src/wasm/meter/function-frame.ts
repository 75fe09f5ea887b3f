import { ByteReader, ByteWriter } from './bytes.ts'
import { type FuelEmitter, LEAF_FUEL } from './fuel-emitter.ts'
import { OP } from './opcodes.ts'
import type { Passing } from './passing.ts'
import { type FunctionType, type TypeShape, valueType } from './types.ts'

/** State shared by all functions of a module. */
export type CodeContext = {
  readonly bytes: Uint8Array
  readonly meterGlobal: number
  readonly types: readonly TypeShape[]
  /** The number of imported functions, whose indices come first. */
  readonly importedFunctions: number
  readonly passing: Passing
  /** The index of a function type with the meter added, given the index of the type. */
  readonly passingType: (type: number) => number
  /** Whether exceptions count as objects. */
  readonly keepsExceptions: boolean
  /** Whether the addresses of each memory and table are 64-bit numbers, by index. */
  readonly wideMemories: readonly boolean[]
  readonly wideTables: readonly boolean[]
  /** The index of a type `() -> results of that type`, created on first use. */
  readonly resultsOnly: (type: FunctionType) => number
}

/** A rewritten body without its frame. */
export type BodyShape = {
  readonly type: FunctionType
  /** Whether the meter's value is a parameter and a result. */
  readonly passed: boolean
  /** Whether code outside of the module may call it while its meter is empty. */
  readonly isShared: boolean
  /** Whether any branch targets the end of the function. */
  readonly wrapped: boolean
  readonly loops: number
  /** Whether an exception may arrive at the end of the function, so that the fuel is taken from the global there. */
  readonly caught: boolean
  readonly start: number
  readonly bodyAt: number
  readonly end: number
}

/** Short functions without loops and calls are charged once; each call can exceed the budget by at most this amount. */
const LEAF_BYTES = LEAF_FUEL

const I32 = 0x7f
const I64 = 0x7e

/** Wraps a body in its frame and appends it, with its size, to the code section. */
export function writeFunction(
  context: CodeContext,
  fuel: FuelEmitter,
  body: BodyShape,
  out: ByteWriter,
): void {
  const leaf =
    !fuel.needsFrame &&
    !body.caught &&
    !body.isShared &&
    fuel.calls === 0 &&
    body.loops === 0 &&
    body.end - body.bodyAt <= LEAF_BYTES
  const head = leaf ? frameLeaf(context, fuel, body) : frameFull(context, fuel, body)
  fuel.code.u8(OP.end)
  out.u32(head.length + fuel.code.length)
  out.append(head)
  out.append(fuel.code)
}

/**
 * The original locals followed by the meter's, so that no index changes. A passed meter is the last parameter and takes
 * the index of the first local, which moves to the end.
 */
function localsOf({ bytes }: CodeContext, body: BodyShape, ours: readonly number[]): ByteWriter {
  const head = new ByteWriter(256)
  const reader = new ByteReader(bytes, body.start)
  const groups = reader.u32()
  const first = body.passed ? firstLocal(new ByteReader(bytes, reader.at), groups) : undefined
  head.u32(groups + ours.length + (first ? 1 : 0))
  if (first) {
    head.span(bytes, reader.at, first.at)
    head.u32(first.count - 1)
    head.span(bytes, first.typeAt, body.bodyAt)
    head.u8(1)
    head.span(bytes, first.typeAt, first.typeEnd)
  } else head.span(bytes, reader.at, body.bodyAt)
  for (const type of ours) head.all([1, type])
  return head
}

/** The first group of locals that is not empty. */
function firstLocal(reader: ByteReader, groups: number): LocalGroup | undefined {
  for (let left = groups; left > 0; left--) {
    const at = reader.at
    const count = reader.u32()
    const typeAt = reader.at
    valueType(reader)
    if (count > 0) return { at, count, typeAt, typeEnd: reader.at }
  }
  return undefined
}

type LocalGroup = {
  readonly at: number
  readonly count: number
  readonly typeAt: number
  readonly typeEnd: number
}

function openBlock({ bytes, resultsOnly }: CodeContext, type: FunctionType, head: ByteWriter): void {
  head.u8(OP.block)
  if (type.results.length === 0) head.u8(0x40)
  else if (type.results.length === 1) head.span(bytes, type.resultsStart, type.resultsEnd)
  else head.signed(resultsOnly(type))
}

/** No check and no frame: one charge before the body, or after it when its paths differ in cost. */
function frameLeaf(context: CodeContext, fuel: FuelEmitter, body: BodyShape): ByteWriter {
  const head = localsOf(context, body, fuel.charges > 0 && !body.passed ? [I64] : [])
  if (!body.wrapped && fuel.charges === 0 && !body.passed) {
    fuel.chargeUpFront(head)
    return head
  }
  // The end of a body that passes the meter is no end of the function, not even for branches that are never reached.
  if (body.wrapped || body.passed) {
    openBlock(context, body.type, head)
    fuel.code.u8(OP.end)
  }
  fuel.chargeGathered()
  return head
}

function ownLocals({ needsScratch, needsWideScratch }: FuelEmitter, passed: boolean): readonly number[] {
  const own = passed ? [] : [I64]
  if (needsWideScratch) return [...own, I32, I32, I64, I64]
  return needsScratch ? [...own, I32, I32] : own
}

/**
 * Two blocks around the body: a branch out of the inner block returns, a branch out of the outer block ends the run.
 *
 *     block  enter  block (results)  body  end  leave  return  end  trap
 */
function frameFull(context: CodeContext, fuel: FuelEmitter, body: BodyShape): ByteWriter {
  const head = localsOf(context, body, ownLocals(fuel, body.passed))
  head.all([OP.block, 0x40])
  fuel.enter(head)
  openBlock(context, body.type, head)
  fuel.code.u8(OP.end)
  if (body.caught) fuel.resync()
  fuel.leave()
  fuel.code.all([OP.return, OP.end])
  fuel.trap()
  return head
}
