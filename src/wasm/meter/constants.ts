import { SandboxError } from '../../model/errors.ts'
import { ByteReader } from './bytes.ts'
import { skipBulkImmediates, skipGcImmediates, skipImmediates, skipSimdImmediates } from './immediates.ts'
import { GC, OP } from './opcodes.ts'
import { isReference, isTyped, OBJECT_BYTES, type TypeShape, valueType } from './types.ts'

/** Constant expressions: the initial values of globals, tables and element segments, which run before the meter is set. */

/**
 * The types of the module, and what to do with each function that a constant refers to, each global with a reference, and each
 * segment whose elements have one type of function.
 */
export type ConstantsOf = {
  readonly types: readonly TypeShape[]
  readonly onFunction: (index: number) => void
  readonly onReferenceGlobal: () => void
  readonly onTypedSegment: () => void
}

/**
 * Skips an expression up to and including its `end`, and returns the bytes of the objects that it creates.
 * SECURITY: an array whose length is not a plain constant is refused: nothing would bound it.
 */
export function skipConstantExpression(reader: ByteReader, { types, onFunction }: ConstantsOf): number {
  let bytes = 0
  let last: number | undefined
  for (let op = reader.u8(); op !== OP.end; op = reader.u8()) {
    const at = reader.at
    skipImmediates(reader, op)
    if (op === OP.refFunc) onFunction(new ByteReader(reader.bytes, at).u32())
    if (op === OP.prefixGc) {
      const kind = skipGcImmediates(reader)
      bytes += allocatedBy(reader, { at, kind, length: last, types })
    } else if (op === OP.prefixSimd) skipSimdImmediates(reader)
    else if (op === OP.prefixBulk) skipBulkImmediates(reader)
    last = op === OP.i32Const ? constantAt(reader, at) : undefined
  }
  return bytes
}

/** An i32 as the unsigned number that an array's length is. */
function constantAt(reader: ByteReader, at: number): number {
  const after = reader.at
  let value = 0
  let shift = 0
  reader.at = at
  for (;;) {
    const byte = reader.u8()
    value |= (byte & 0x7f) << shift
    shift += 7
    if ((byte & 0x80) !== 0) continue
    if ((byte & 0x40) !== 0 && shift < 32) value |= -1 << shift
    break
  }
  reader.at = after
  return value >>> 0
}

type Allocation = {
  readonly at: number
  readonly kind: number
  readonly length: number | undefined
  readonly types: readonly TypeShape[]
}

function allocatedBy(reader: ByteReader, { at, kind, length, types }: Allocation): number {
  const after = reader.at
  reader.at = at
  reader.u32()
  const each = bytesOf(types, kind <= GC.arrayNewFixed ? reader.u32() : 0)
  const fixed = kind === GC.arrayNewFixed ? reader.u32() : 0
  reader.at = after
  if (kind === GC.structNew || kind === GC.structNewDefault) return each
  if (kind === GC.arrayNewFixed) return OBJECT_BYTES + fixed * each
  if (kind !== GC.arrayNew && kind !== GC.arrayNewDefault) return 0
  if (length === undefined)
    throw new SandboxError(
      'unsupported',
      'the module creates an array of unknown length as an initial value',
      {
        hint: 'write its length as a constant, or create the array in a function',
      },
    )
  return OBJECT_BYTES + length * each
}

/** The bytes of one struct, or of one element of an array. */
export function bytesOf(types: readonly TypeShape[], index: number): number {
  const type = types[index]
  return type && 'bytes' in type ? type.bytes : 0
}

/** The bytes of the objects that the globals create. */
export function globalObjects(reader: ByteReader, of: ConstantsOf): number {
  let bytes = 0
  for (let left = reader.count(); left > 0; left--) {
    if (isReference(valueType(reader))) of.onReferenceGlobal()
    reader.at++
    bytes += skipConstantExpression(reader, of)
  }
  return bytes
}

/** The bytes of the objects that the element segments create. */
export function elementObjects(reader: ByteReader, of: ConstantsOf): number {
  let bytes = 0
  for (let left = reader.count(); left > 0; left--) bytes += elementSegment(reader, of)
  return bytes
}

/** Bits of a segment's flags: not active, with a table index (or declarative), with expressions. */
const FLAG = { passive: 1, explicit: 2, expressions: 4 } as const

function elementSegment(reader: ByteReader, of: ConstantsOf): number {
  const flags = reader.u32()
  const isActive = (flags & FLAG.passive) === 0
  let bytes = 0
  if (isActive && (flags & FLAG.explicit) !== 0) reader.skipNumber()
  if (isActive) bytes += skipConstantExpression(reader, of)
  const expressions = (flags & FLAG.expressions) !== 0
  if ((flags & (FLAG.passive | FLAG.explicit)) !== 0) {
    if (!expressions) reader.at++
    else if (isTyped(valueType(reader))) of.onTypedSegment()
  }
  for (let left = reader.count(); left > 0; left--) {
    if (expressions) bytes += skipConstantExpression(reader, of)
    else of.onFunction(reader.u32())
  }
  return bytes
}
