import { bytesOf } from './constants.ts'
import type { FuelEmitter } from './fuel-emitter.ts'
import type { CodeContext } from './function-frame.ts'
import { BULK, GC } from './opcodes.ts'
import { OBJECT_BYTES } from './types.ts'

/** What bulk instructions and instructions on garbage-collected objects cost beyond one unit. */

/** Whether the length of a bulk instruction is a 64-bit number; a copy's is if both sides have 64-bit addresses. */
export function isWideLength(
  context: CodeContext,
  op: number,
  operand: (position: number) => number,
): boolean {
  const wide = op >= BULK.tableInit ? context.wideTables : context.wideMemories
  if (op === BULK.memoryInit || op === BULK.tableInit) return false
  const isCopy = op === BULK.memoryCopy || op === BULK.tableCopy
  return wide[operand(1)] === true && (!isCopy || wide[operand(2)] === true)
}

/** An exception in V8's heap, with its stack trace. A module with `try_table` can keep any number of them. */
export const EXCEPTION_BYTES = 1024

const CREATES: ReadonlySet<number> = new Set([
  GC.structNew,
  GC.structNewDefault,
  GC.arrayNew,
  GC.arrayNewDefault,
  GC.arrayNewFixed,
  GC.arrayNewData,
  GC.arrayNewElem,
])

/** Instructions on arrays that take time with the length on top of the stack. */
const LENGTHS: ReadonlySet<number> = new Set([
  GC.arrayNew,
  GC.arrayNewDefault,
  GC.arrayNewData,
  GC.arrayNewElem,
  GC.arrayFill,
  GC.arrayCopy,
  GC.arrayInitData,
  GC.arrayInitElem,
])

/** Whether an instruction with prefix 0xfb has charges of its own. */
export const hasOwnCharge = (op: number): boolean => CREATES.has(op) || LENGTHS.has(op)

/** An instruction with its place: what `operand` reads, and how many blocks are around it. */
type Placed = { readonly operand: (position: number) => number; readonly depth: number }

/** Charges an instruction on objects. Objects are outside of the memories, so the bytes of every new one count, garbage too. */
export function chargeObjects(fuel: FuelEmitter, { types }: CodeContext, op: number, placed: Placed): void {
  const { operand, depth } = placed
  if (LENGTHS.has(op)) fuel.chargeLength(depth)
  if (!CREATES.has(op)) return
  const each = bytesOf(types, operand(1))
  const isStruct = op === GC.structNew || op === GC.structNewDefault
  const fixed = op === GC.arrayNewFixed ? operand(2) * each : 0
  fuel.chargeObject(isStruct ? each : OBJECT_BYTES + fixed, depth)
  if (LENGTHS.has(op)) fuel.chargeObjectForLength(each, depth)
}
