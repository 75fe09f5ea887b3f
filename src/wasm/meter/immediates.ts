import { SandboxError } from '../../model/errors.ts'
import type { ByteReader } from './bytes.ts'
import { BULK, GC, IMM, IMMEDIATES, OP, refusedOpcode, unsupportedFeature } from './opcodes.ts'
import { skipBlockType, skipHeapType, valueType } from './types.ts'

/** Skips the immediates after an opcode's first byte; the caller handles branch tables and prefixed opcodes. */
export function skipImmediates(reader: ByteReader, op: number): void {
  switch (IMMEDIATES[op]) {
    case IMM.none:
    case IMM.prefix:
    case IMM.branchTable:
    case IMM.handlers:
      break
    case IMM.twoNumbers:
      reader.skipNumber()
      reader.skipNumber()
      break
    case IMM.number:
      reader.skipNumber()
      break
    case IMM.blockType:
      skipBlockType(reader)
      break
    case IMM.memory:
      skipMemoryArgument(reader)
      break
    case IMM.heapType:
      skipHeapType(reader)
      break
    case IMM.four:
      reader.at += 4
      break
    case IMM.eight:
      reader.at += 8
      break
    case IMM.types:
      for (let count = reader.count(); count > 0; count--) valueType(reader)
      break
    default:
      throw refusedOpcode(op)
  }
}

/** Alignment, the index of the memory if bit 6 says that there is one, and the offset. */
function skipMemoryArgument(reader: ByteReader): void {
  if ((reader.u32() & 0x40) !== 0) reader.skipNumber()
  reader.skipNumber()
}

/** A cast with a branch: flags, label, and the two heap types. */
function skipCastBranch(reader: ByteReader): void {
  reader.at += 1
  reader.skipNumber()
  skipHeapType(reader)
  skipHeapType(reader)
}

const TWO_INDICES: ReadonlySet<number> = new Set([
  GC.structGet,
  GC.structGet + 1,
  GC.structGet + 2,
  GC.structSet,
  GC.arrayNewFixed,
  GC.arrayNewData,
  GC.arrayNewElem,
  GC.arrayCopy,
  GC.arrayInitData,
  GC.arrayInitElem,
])

/** Skips the rest of an instruction with prefix 0xfb and returns its number. */
export function skipGcImmediates(reader: ByteReader): number {
  const op = reader.u32()
  if (op > GC.i31GetU) throw unsupportedFeature(`the unknown instruction 0xfb ${op}`)
  if (op === GC.brOnCast || op === GC.brOnCastFail) skipCastBranch(reader)
  else if (op >= GC.refTest && op <= GC.refCastNull) skipHeapType(reader)
  else if (op < GC.refTest && op !== GC.arrayLen) reader.skipNumber()
  if (TWO_INDICES.has(op)) reader.skipNumber()
  return op
}

/** Skips the rest of a SIMD instruction, starting at its opcode number. */
export function skipSimdImmediates(reader: ByteReader): void {
  const op = reader.u32()
  if (op > 0xff) throw unsupportedFeature('relaxed SIMD')
  if (op <= 11 || op === 92 || op === 93) skipMemoryArgument(reader)
  else if (op === 12 || op === 13) reader.at += 16
  else if (op >= 21 && op <= 34) reader.at += 1
  else if (op >= 84 && op <= 91) {
    skipMemoryArgument(reader)
    reader.at += 1
  }
}

/** Skips the rest of an instruction with prefix 0xfc and returns its number. */
export function skipBulkImmediates(reader: ByteReader): number {
  const op = reader.u32()
  if (op > BULK.tableFill) throw unsupportedFeature(`the unknown instruction 0xfc ${op}`)
  if (op >= BULK.memoryInit) reader.skipNumber()
  if (op === BULK.memoryInit || op === BULK.memoryCopy || op === BULK.tableInit || op === BULK.tableCopy) {
    reader.skipNumber()
  }
  return op
}

// PLATFORM: the limit of the engines.
const MAX_LOCALS = 50_000

/** Skips the local declarations of a function and counts the locals. */
export function skipLocals(reader: ByteReader): number {
  let count = 0
  for (let groups = reader.count(); groups > 0; groups--) {
    count += reader.u32()
    if (count > MAX_LOCALS) throw new SandboxError('invalid-input', 'a function has too many locals')
    valueType(reader)
  }
  return count
}

/** Skips a whole instruction and returns its first byte. */
export function skipInstruction(reader: ByteReader): number {
  const op = reader.u8()
  skipImmediates(reader, op)
  if (op === OP.prefixGc) skipGcImmediates(reader)
  else if (op === OP.prefixSimd) skipSimdImmediates(reader)
  else if (op === OP.prefixBulk) skipBulkImmediates(reader)
  else if (op === OP.brTable) for (let left = reader.count() + 1; left > 0; left--) reader.skipNumber()
  else if (op === OP.tryTable) skipHandlers(reader)
  return op
}

function skipHandlers(reader: ByteReader): void {
  skipBlockType(reader)
  for (let left = reader.count(); left > 0; left--) {
    if (reader.u8() < 2) reader.skipNumber()
    reader.skipNumber()
  }
}
