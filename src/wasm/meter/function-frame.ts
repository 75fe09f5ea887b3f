import { ByteReader, ByteWriter } from './bytes.ts'
import type { FuelEmitter } from './fuel-emitter.ts'
import { OP } from './opcodes.ts'
import type { FunctionType, TypeShape } from './types.ts'

/** State shared by all functions of a module. */
export type CodeContext = {
  readonly bytes: Uint8Array
  readonly meterGlobal: number
  readonly types: readonly TypeShape[]
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
  /** Whether any branch targets the end of the function. */
  readonly wrapped: boolean
  readonly loops: number
  /** Whether an exception may arrive at the end of the function, so that the fuel is taken from the global there. */
  readonly caught: boolean
  readonly start: number
  readonly bodyAt: number
  readonly end: number
}

/** Short functions without loops and calls are charged once; they can exceed the budget by at most this amount. */
const LEAF_BYTES = 512

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
    !fuel.needsFrame && fuel.calls === 0 && body.loops === 0 && body.end - body.bodyAt <= LEAF_BYTES
  const head = leaf ? frameLeaf(context, fuel, body) : frameFull(context, fuel, body)
  fuel.code.u8(OP.end)
  out.u32(head.length + fuel.code.length)
  out.append(head)
  out.append(fuel.code)
}

/** The original locals followed by the meter's, so that no index changes. */
function localsOf({ bytes }: CodeContext, { start, bodyAt }: BodyShape, ours: readonly number[]): ByteWriter {
  const head = new ByteWriter(256)
  const reader = new ByteReader(bytes, start)
  head.u32(reader.u32() + ours.length)
  head.span(bytes, reader.at, bodyAt)
  for (const type of ours) head.all([1, type])
  return head
}

function openBlock({ bytes, resultsOnly }: CodeContext, type: FunctionType, head: ByteWriter): void {
  head.u8(OP.block)
  if (type.results.length === 0) head.u8(0x40)
  else if (type.results.length === 1) head.span(bytes, type.resultsStart, type.resultsEnd)
  else head.signed(resultsOnly(type))
}

/** No check and no frame: one charge before the body, or after it when its paths differ in cost. */
function frameLeaf(context: CodeContext, fuel: FuelEmitter, body: BodyShape): ByteWriter {
  const head = localsOf(context, body, fuel.charges > 0 ? [I64] : [])
  if (!body.wrapped && fuel.charges === 0) {
    fuel.chargeUpFront(head)
    return head
  }
  if (body.wrapped) {
    openBlock(context, body.type, head)
    fuel.code.u8(OP.end)
  }
  fuel.chargeGathered()
  return head
}

function ownLocals({ needsScratch, needsWideScratch }: FuelEmitter): readonly number[] {
  if (needsWideScratch) return [I64, I32, I32, I64, I64]
  return needsScratch ? [I64, I32, I32] : [I64]
}

/**
 * Two blocks around the body: a branch out of the inner block returns, a branch out of the outer block ends the run.
 *
 *     block  enter  block (results)  body  end  leave  return  end  trap
 */
function frameFull(context: CodeContext, fuel: FuelEmitter, body: BodyShape): ByteWriter {
  const head = localsOf(context, body, ownLocals(fuel))
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
