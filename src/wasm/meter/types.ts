import type { ByteReader } from './bytes.ts'
import { unsupportedFeature } from './opcodes.ts'

/** The type section: function types, and the types of objects that the engine's garbage collector manages. */

/** A function type: its value types, and the byte ranges of its parameters and results. */
export type FunctionType = {
  /** Whether it has no supertypes and is in no recursion group, so that only its values make it equal to others. */
  readonly plain: boolean
  readonly params: readonly number[]
  readonly results: readonly number[]
  readonly paramsStart: number
  readonly paramsEnd: number
  readonly resultsStart: number
  readonly resultsEnd: number
}

/** A struct or an array: the bytes of one struct, or of one element. */
type HeapType = { readonly bytes: number }

/** One entry of the type index space. */
export type TypeShape = FunctionType | HeapType

/** The function type at an index; `undefined` for structs and arrays. */
export function functionTypeAt(types: readonly TypeShape[], index: number): FunctionType | undefined {
  const type = types[index]
  return type && 'params' in type ? type : undefined
}

/** Value types of one byte: numbers, vectors, and references to the abstract heap types. */
const SIMPLE_TYPES: ReadonlySet<number> = new Set([
  0x7f, 0x7e, 0x7d, 0x7c, 0x7b, 0x74, 0x73, 0x72, 0x71, 0x70, 0x6f, 0x6e, 0x6d, 0x6c, 0x6b, 0x6a, 0x69,
])
const REF = 0x64
const REF_NULL = 0x63

/** Reads one value type and returns its first byte. */
export function valueType(reader: ByteReader): number {
  const code = reader.u8()
  if (SIMPLE_TYPES.has(code)) return code
  if (code !== REF && code !== REF_NULL) throw unknownType(code)
  skipHeapType(reader)
  return code
}

/** Whether a value type, given by its first byte, is a reference. */
export const isReference = (code: number): boolean => code < 0x7b

/** Whether it, given by its first byte, is a reference to values of one type of the module. */
export const isTyped = (code: number): boolean => code === REF || code === REF_NULL

/** Prefixes of heap types that belong to features that are refused: exact types and shared types. */
const REFUSED_HEAP_TYPES: ReadonlySet<number> = new Set([0x62, 0x65])

/** Skips a heap type: an abstract one or the index of a type. */
export function skipHeapType(reader: ByteReader): void {
  const first = reader.bytes[reader.at] as number
  if (REFUSED_HEAP_TYPES.has(first)) throw unknownType(first)
  reader.skipNumber()
}

/** Skips the type of a block. */
export function skipBlockType(reader: ByteReader): void {
  const first = reader.bytes[reader.at]
  if (first === REF || first === REF_NULL) valueType(reader)
  else reader.skipNumber()
}

const unknownType = (code: number): Error =>
  unsupportedFeature(`the unknown type 0x${code.toString(16).padStart(2, '0')}`)

/** Reads the whole section; the types of a recursion group are separate entries. */
export function readTypes(reader: ByteReader): readonly TypeShape[] {
  const types: TypeShape[] = []
  for (let left = reader.count(); left > 0; left--) {
    if (reader.bytes[reader.at] !== 0x4e) types.push(subType(reader, true))
    else {
      reader.at++
      for (let members = reader.count(); members > 0; members--) types.push(subType(reader, false))
    }
  }
  return types
}

function subType(reader: ByteReader, alone: boolean): TypeShape {
  const first = reader.bytes[reader.at]
  if (first === 0x50 || first === 0x4f) {
    reader.at++
    for (let supertypes = reader.count(); supertypes > 0; supertypes--) reader.skipNumber()
  }
  const kind = reader.u8()
  switch (kind) {
    case 0x60:
      return functionType(reader, alone && first === 0x60)
    case 0x5f:
      return structType(reader)
    case 0x5e:
      return { bytes: fieldType(reader) }
    default:
      throw unknownType(kind)
  }
}

function functionType(reader: ByteReader, plain: boolean): FunctionType {
  const paramCount = reader.count()
  const paramsStart = reader.at
  const params = valueTypes(reader, paramCount)
  const paramsEnd = reader.at
  const resultCount = reader.count()
  const resultsStart = reader.at
  const results = valueTypes(reader, resultCount)
  return { plain, params, results, paramsStart, paramsEnd, resultsStart, resultsEnd: reader.at }
}

function valueTypes(reader: ByteReader, count: number): readonly number[] {
  const types: number[] = []
  for (let index = 0; index < count; index++) types.push(valueType(reader))
  return types
}

/** The header of an object in the engine's heap. */
export const OBJECT_BYTES = 16

function structType(reader: ByteReader): HeapType {
  let bytes = OBJECT_BYTES
  for (let fields = reader.count(); fields > 0; fields--) bytes += fieldType(reader)
  return { bytes }
}

/** The bytes that a field or an element takes; a reference counts as eight. */
const FIELD_BYTES: Readonly<Record<number, number>> = { 120: 1, 119: 2, 127: 4, 125: 4, 123: 16 }

function fieldType(reader: ByteReader): number {
  const first = reader.bytes[reader.at] as number
  if (first === 0x78 || first === 0x77) reader.at++
  else valueType(reader)
  reader.at++
  return FIELD_BYTES[first] ?? 8
}
