import { SandboxError } from '../../model/errors.ts'
import { ByteReader } from './bytes.ts'
import { type ConstantsOf, elementObjects, globalObjects, skipConstantExpression } from './constants.ts'
import { unsupportedFeature } from './opcodes.ts'
import {
  type FunctionType,
  functionTypeAt,
  isReference,
  isTyped,
  readTypes,
  type TypeShape,
  valueType,
} from './types.ts'

/** The outline of a module: everything that the rewriter and the caller need besides the code. */

/** Section ids of the binary format. */
export const SECTION = {
  custom: 0,
  type: 1,
  import: 2,
  function: 3,
  table: 4,
  memory: 5,
  global: 6,
  export: 7,
  start: 8,
  element: 9,
  code: 10,
  data: 11,
  dataCount: 12,
  tag: 13,
} as const

/** One section: `header` is the offset of its id, `start` to `end` its content. */
export type Section = {
  readonly id: number
  readonly header: number
  readonly start: number
  readonly end: number
}

/** Limits of a memory (pages) or a table (elements), as declared. */
export type SizeLimits = {
  readonly min: number
  readonly max: number | undefined
  /** Whether addresses and sizes are 64-bit numbers. */
  readonly wide: boolean
}

/** A byte range of the module. */
type ByteRange = { readonly start: number; readonly end: number }

/** A table's declaration: the element type, and the initial value if it declares one. */
type TableShape = SizeLimits & {
  readonly type: ByteRange
  readonly initial: ByteRange | undefined
  /** Bytes of the objects that the initial value creates. */
  readonly objects: number
}

/** The kinds of imports and exports. */
export type ExternKind = 'function' | 'table' | 'memory' | 'global' | 'tag'
const KINDS: readonly ExternKind[] = ['function', 'table', 'memory', 'global', 'tag']

/** One import. */
export type ImportShape = {
  readonly module: string
  readonly name: string
  readonly kind: ExternKind
  /** For a function: the index of its type. */
  readonly type: number
  /** For a memory or a table: whether its addresses are 64-bit numbers. */
  readonly wide: boolean
}
/** One export; `index` counts the imports of the same kind first. */
type ExportShape = { readonly name: string; readonly kind: ExternKind; readonly index: number }

/** A module without its code. */
export type ModuleShape = {
  readonly sections: readonly Section[]
  readonly types: readonly TypeShape[]
  readonly imports: readonly ImportShape[]
  readonly exports: readonly ExportShape[]
  /** The type of each function that the module defines. */
  readonly functions: readonly number[]
  readonly globals: number
  readonly memories: readonly SizeLimits[]
  readonly tables: readonly TableShape[]
  /** Bytes of the garbage-collected objects that initial values create; `undefined` if the module has no such types. */
  readonly initialObjects: number | undefined
  readonly start: number | undefined
  /** The functions that globals, tables and element segments refer to. */
  readonly references: ReadonlySet<number>
  /** Whether a global, imported or not, holds a reference. */
  readonly referenceGlobals: boolean
  /** Whether the elements of a table or segment have one type of function. */
  readonly typedTables: boolean
}

/** The number of imports of a kind. */
export const importedCount = ({ imports }: ModuleShape, kind: ExternKind): number => countOf(imports, kind)

const countOf = (imports: readonly ImportShape[], kind: ExternKind): number =>
  imports.reduce((count, entry) => count + (entry.kind === kind ? 1 : 0), 0)

/** Reads the outline of a module that the engine has validated. */
export function decodeModule(bytes: Uint8Array): ModuleShape {
  const sections = sectionsOf(bytes)
  const within = <T>(id: number, read: (reader: ByteReader, section: Section) => T): T | undefined => {
    const section = sections.find((candidate) => candidate.id === id)
    return section && read(new ByteReader(bytes, section.start), section)
  }
  const vector = <T>(id: number, item: (reader: ByteReader) => T): readonly T[] =>
    within(id, (reader) => listOf(reader, item)) ?? []
  const types = within(SECTION.type, readTypes) ?? []
  const references = new Set<number>()
  let referenceGlobals = false
  let typedSegments = false
  const constants: ConstantsOf = {
    types,
    onFunction: (index) => references.add(index),
    onReferenceGlobal: () => {
      referenceGlobals = true
    },
    onTypedSegment: () => {
      typedSegments = true
    },
  }
  const imports = vector(SECTION.import, (reader) => importOf(reader, constants))
  const tables = vector(SECTION.table, (reader) => tableOf(reader, constants))
  const objects =
    tables.reduce((sum, { objects }) => sum + objects, 0) +
    (within(SECTION.global, (reader) => globalObjects(reader, constants)) ?? 0) +
    (within(SECTION.element, (reader) => elementObjects(reader, constants)) ?? 0)
  return {
    sections,
    types,
    imports,
    functions: vector(SECTION.function, (reader) => reader.u32()),
    tables,
    memories: vector(SECTION.memory, limitsOf),
    globals: within(SECTION.global, (reader) => reader.u32()) ?? 0,
    exports: vector(SECTION.export, exportOf),
    start: within(SECTION.start, (reader) => reader.u32()),
    initialObjects: types.every((type) => 'params' in type) ? undefined : objects,
    references,
    referenceGlobals,
    typedTables: typedSegments || tables.some(({ type }) => isTyped(bytes[type.start] as number)),
  }
}

function listOf<T>(reader: ByteReader, item: (reader: ByteReader) => T): readonly T[] {
  const count = reader.count()
  const items: T[] = []
  for (let index = 0; index < count; index++) items.push(item(reader))
  return items
}

function sectionsOf(bytes: Uint8Array): readonly Section[] {
  const reader = new ByteReader(bytes, 8)
  const sections: Section[] = []
  while (reader.at < bytes.length) {
    const header = reader.at
    const id = reader.u8()
    const size = reader.u32()
    if (id > SECTION.tag) throw unsupportedFeature(`the unknown section ${id}`)
    sections.push({ id, header, start: reader.at, end: reader.at + size })
    reader.at += size
  }
  if (reader.at !== bytes.length) throw new SandboxError('invalid-input', 'the module is cut off')
  return sections
}

function importOf(reader: ByteReader, constants: ConstantsOf): ImportShape {
  const module = reader.text()
  const name = reader.text()
  const kind = KINDS[reader.u8()]
  switch (kind) {
    case 'function':
      return { module, name, kind, type: reader.u32(), wide: false }
    case 'table':
      return { module, name, kind, type: 0, wide: tableOf(reader, constants).wide }
    case 'memory':
      return { module, name, kind, type: 0, wide: limitsOf(reader).wide }
    case 'global':
      if (isReference(valueType(reader))) constants.onReferenceGlobal()
      reader.u8()
      return { module, name, kind, type: 0, wide: false }
    case 'tag':
      reader.u8()
      return { module, name, kind, type: reader.u32(), wide: false }
    case undefined:
      throw unsupportedFeature('an unknown kind of import')
    default:
      return kind satisfies never
  }
}

function exportOf(reader: ByteReader): ExportShape {
  const name = reader.text()
  const kind = KINDS[reader.u8()]
  if (kind === undefined) throw unsupportedFeature('an unknown kind of export')
  return { name, kind, index: reader.u32() }
}

function tableOf(reader: ByteReader, constants: ConstantsOf): TableShape {
  const hasInitial = reader.bytes[reader.at] === 0x40
  if (hasInitial) reader.at += 2
  const start = reader.at
  valueType(reader)
  const type = { start, end: reader.at }
  const limits = limitsOf(reader)
  if (!hasInitial) return { type, ...limits, initial: undefined, objects: 0 }
  const from = reader.at
  const objects = skipConstantExpression(reader, constants)
  return { type, ...limits, initial: { start: from, end: reader.at }, objects }
}

function limitsOf(reader: ByteReader): SizeLimits {
  const flags = reader.u8()
  if ((flags & 0x02) !== 0) throw unsupportedFeature('threads (shared memory)')
  if (flags > 7) throw unsupportedFeature('custom page sizes')
  const min = reader.u64()
  return { min, max: (flags & 1) !== 0 ? reader.u64() : undefined, wide: (flags & 0x04) !== 0 }
}

/** The type of an exported function, or `undefined` if there is no such export. */
export function exportedFunction(shape: ModuleShape, wanted: string): FunctionType | undefined {
  const found = shape.exports.find(({ name, kind }) => name === wanted && kind === 'function')
  if (!found) return undefined
  const imported = shape.imports.filter(({ kind }) => kind === 'function')
  const type = imported[found.index]?.type ?? shape.functions[found.index - imported.length]
  return type === undefined ? undefined : functionTypeAt(shape.types, type)
}
