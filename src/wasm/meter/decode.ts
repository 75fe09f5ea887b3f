import { SandboxError } from '../../model/errors.ts'
import { ByteReader } from './bytes.ts'
import { unsupportedFeature } from './opcodes.ts'

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

/** A function type: its value types, and the byte range of its results. */
export type FunctionType = {
  readonly params: readonly number[]
  readonly results: readonly number[]
  readonly resultsStart: number
  readonly resultsEnd: number
}

/** Limits of a memory (pages) or a table (elements), as declared. */
export type SizeLimits = { readonly min: number; readonly max: number | undefined }

/** A table's declaration; `type` is its element type. */
type TableShape = SizeLimits & { readonly type: number }

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
}
/** One export; `index` counts the imports of the same kind first. */
type ExportShape = { readonly name: string; readonly kind: ExternKind; readonly index: number }

/** A module without its code. */
export type ModuleShape = {
  readonly sections: readonly Section[]
  readonly types: readonly FunctionType[]
  readonly typeEntries: number
  readonly imports: readonly ImportShape[]
  readonly exports: readonly ExportShape[]
  /** The type of each function that the module defines. */
  readonly functions: readonly number[]
  readonly globals: number
  readonly memories: readonly SizeLimits[]
  readonly tables: readonly TableShape[]
  readonly start: number | undefined
}

/** Value types that a metered module may use. All others belong to features that are refused. */
const VALUE_TYPES: ReadonlySet<number> = new Set([0x7f, 0x7e, 0x7d, 0x7c, 0x7b, 0x70, 0x6f])

/** Reads one value type. */
export function valueType(reader: ByteReader): number {
  const code = reader.u8()
  if (VALUE_TYPES.has(code)) return code
  if (code === 0x63 || code === 0x64) throw unsupportedFeature('typed references')
  throw unsupportedFeature(
    code === 0x69 || code === 0x68 ? 'exceptions with references' : 'garbage collection',
  )
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
  const types = vector(SECTION.type, functionType)
  const imports = vector(SECTION.import, importOf)
  const memories = vector(SECTION.memory, memoryOf)
  if (memories.length + countOf(imports, 'memory') > 1) throw unsupportedFeature('multiple memories')
  return {
    sections,
    types,
    typeEntries: types.length,
    imports,
    functions: vector(SECTION.function, (reader) => reader.u32()),
    tables: vector(SECTION.table, tableOf),
    memories,
    globals: within(SECTION.global, (reader) => reader.u32()) ?? 0,
    exports: vector(SECTION.export, exportOf),
    start: within(SECTION.start, (reader) => reader.u32()),
  }
}

function listOf<T>(reader: ByteReader, item: (reader: ByteReader) => T): readonly T[] {
  const count = reader.u32()
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

function functionType(reader: ByteReader): FunctionType {
  if (reader.u8() !== 0x60) throw unsupportedFeature('garbage collection')
  const params = listOf(reader, valueType)
  const count = reader.u32()
  const resultsStart = reader.at
  const results: number[] = []
  for (let index = 0; index < count; index++) results.push(valueType(reader))
  return { params, results, resultsStart, resultsEnd: reader.at }
}

function importOf(reader: ByteReader): ImportShape {
  const module = reader.text()
  const name = reader.text()
  const kind = KINDS[reader.u8()]
  switch (kind) {
    case 'function':
      return { module, name, kind, type: reader.u32() }
    case 'table':
      tableOf(reader)
      return { module, name, kind, type: 0 }
    case 'memory':
      memoryOf(reader)
      return { module, name, kind, type: 0 }
    case 'global':
      valueType(reader)
      reader.u8()
      return { module, name, kind, type: 0 }
    case 'tag':
      reader.u8()
      return { module, name, kind, type: reader.u32() }
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

function tableOf(reader: ByteReader): TableShape {
  if (reader.bytes[reader.at] === 0x40) throw unsupportedFeature('tables with initial values')
  const type = valueType(reader)
  return { type, ...limitsOf(reader) }
}

const memoryOf = (reader: ByteReader): SizeLimits => limitsOf(reader)

function limitsOf(reader: ByteReader): SizeLimits {
  const flags = reader.u8()
  if ((flags & 0x02) !== 0) throw unsupportedFeature('threads (shared memory)')
  if ((flags & 0x04) !== 0) throw unsupportedFeature('64-bit memory')
  if (flags > 1) throw unsupportedFeature('custom page sizes')
  return { min: reader.u64(), max: (flags & 1) !== 0 ? reader.u64() : undefined }
}

/** The type of an exported function, or `undefined` if there is no such export. */
export function exportedFunction(shape: ModuleShape, wanted: string): FunctionType | undefined {
  const found = shape.exports.find(({ name, kind }) => name === wanted && kind === 'function')
  if (!found) return undefined
  const imported = shape.imports.filter(({ kind }) => kind === 'function')
  const type = imported[found.index]?.type ?? shape.functions[found.index - imported.length]
  return type === undefined ? undefined : shape.types[type]
}
