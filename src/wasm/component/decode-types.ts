import type { Definition, Description, Label, Sort, TypeCode, ValueRef } from './definitions.ts'
import { type ComponentReader, invalidComponent, unsupportedPart } from './reader.ts'

/** The type section of a component, and the types of its imports and exports. */

const PRIMITIVES: Readonly<Record<number, string>> = {
  127: 'bool',
  126: 's8',
  125: 'u8',
  124: 's16',
  123: 'u16',
  122: 's32',
  121: 'u32',
  120: 's64',
  119: 'u64',
  118: 'f32',
  117: 'f64',
  116: 'char',
  115: 'string',
}

const ASYNC = 'the asynchronous part of the component model'

/** A value type: one byte for a primitive one, otherwise the index of a type. */
function valueRef(reader: ComponentReader): ValueRef {
  const first = reader.bytes[reader.at] as number
  // In this signed number, bytes from 0x40 to 0x7f are negative: the primitive types.
  if (first < 0x40 || first >= 0x80) return reader.u32()
  reader.u8()
  const primitive = PRIMITIVES[first]
  if (primitive === undefined) throw first === 0x64 ? unsupportedPart(ASYNC) : invalidComponent('a type')
  return primitive
}

/** SECURITY: no type is empty, so every value in memory has a size, and the memory bounds the number of values. */
function filled<T>(list: readonly T[]): readonly T[] {
  if (list.length === 0) throw invalidComponent('a type is empty')
  return list
}

const labels = (reader: ComponentReader): readonly Label[] =>
  filled(reader.list(() => ({ name: reader.text(), type: valueRef(reader) })))

function cases(reader: ComponentReader): readonly Label[] {
  return filled(
    reader.list(() => {
      const name = reader.text()
      const type = reader.option(() => valueRef(reader))
      if (reader.u8() !== 0) throw invalidComponent('a case refines another one')
      return { name, type }
    }),
  )
}

const names = (reader: ComponentReader): readonly string[] => filled(reader.list(() => reader.text()))

const variant = (...list: readonly (readonly [string, ValueRef | undefined])[]): TypeCode => ({
  is: 'variant',
  labels: list.map(([name, type]) => ({ name, type })),
})

/** Types that are defined in terms of records and variants are decoded to those. */
const VALUE_TYPES: Readonly<Record<number, (reader: ComponentReader) => TypeCode>> = {
  114: (reader) => ({ is: 'record', labels: labels(reader) }),
  113: (reader) => ({ is: 'variant', labels: cases(reader) }),
  112: (reader) => ({ is: 'list', of: valueRef(reader) }),
  111: (reader) => ({
    is: 'record',
    labels: filled(reader.list(() => valueRef(reader))).map((type, index) => ({ name: String(index), type })),
  }),
  110: (reader) => ({ is: 'flags', names: names(reader) }),
  109: (reader) => variant(...names(reader).map((name) => [name, undefined] as const)),
  107: (reader) => variant(['none', undefined], ['some', valueRef(reader)]),
  106: (reader) => {
    const ok = reader.option(() => valueRef(reader))
    return variant(['ok', ok], ['error', reader.option(() => valueRef(reader))])
  },
  105: (reader) => ({ is: 'own', of: reader.u32() }),
  104: (reader) => ({ is: 'borrow', of: reader.u32() }),
}

/** One entry of the type section. */
export function typeCode(reader: ComponentReader): TypeCode {
  const kind = reader.bytes[reader.at] as number
  if (PRIMITIVES[kind] !== undefined) return { is: 'value', type: valueRef(reader) }
  reader.u8()
  switch (kind) {
    case 0x40:
      return functionType(reader)
    case 0x41:
      return { is: 'component', declarations: declarations(reader) }
    case 0x42:
      return { is: 'instance', declarations: declarations(reader) }
    case 0x3f:
      if (reader.u8() !== 0x7f) throw invalidComponent('a resource is not represented by i32')
      return { is: 'resource', destructor: reader.option(() => reader.u32()) }
    default: {
      const read = VALUE_TYPES[kind]
      if (read) return read(reader)
      if (kind === 0x67) throw unsupportedPart('lists of a fixed length')
      throw [0x43, 0x3e, 0x66, 0x65].includes(kind) ? unsupportedPart(ASYNC) : invalidComponent('a type')
    }
  }
}

function functionType(reader: ComponentReader): TypeCode {
  const params = reader.list(() => {
    reader.text()
    return valueRef(reader)
  })
  const kind = reader.u8()
  if (kind === 0) return { is: 'func', params, result: valueRef(reader) }
  if (kind !== 1 || reader.u8() !== 0) throw invalidComponent('a function has named results')
  return { is: 'func', params, result: undefined }
}

function declarations(reader: ComponentReader): readonly Definition[] {
  const deeper = reader.inner(reader.end - reader.at)
  const list = deeper.list(() => declaration(deeper))
  reader.at = deeper.at
  return list
}

function declaration(reader: ComponentReader): Definition {
  switch (reader.u8()) {
    case 0:
      throw unsupportedPart('types of core modules')
    case 1:
      return { is: 'type', type: typeCode(reader) }
    case 2:
      return alias(reader)
    case 3:
      return { is: 'import', name: externName(reader), description: description(reader) }
    case 4:
      return { is: 'declare', name: externName(reader), description: description(reader) }
    default:
      throw invalidComponent('a declaration')
  }
}

const SORTS: Readonly<Record<number, Sort>> = { 1: 'func', 3: 'type', 4: 'component', 5: 'instance' }
const CORE_SORTS: Readonly<Record<number, Sort>> = {
  0: 'core func',
  1: 'core table',
  2: 'core memory',
  3: 'core global',
  4: 'core tag',
  16: 'core type',
  17: 'core module',
  18: 'core instance',
}

/** The sort of a core definition. */
export function coreSort(reader: ComponentReader): Sort {
  const sort = CORE_SORTS[reader.u8()]
  if (sort === undefined) throw invalidComponent('a core sort')
  return sort
}

/** The sort of a definition. */
export function anySort(reader: ComponentReader): Sort {
  const kind = reader.u8()
  if (kind === 0) return coreSort(reader)
  if (kind === 2) throw unsupportedPart('values')
  const sort = SORTS[kind]
  if (sort === undefined) throw invalidComponent('a sort')
  return sort
}

/** The name of an import or export. */
export function externName(reader: ComponentReader): string {
  const kind = reader.u8()
  const name = reader.text()
  if (kind === 2) reader.text()
  else if (kind > 2) throw invalidComponent('a name')
  return name
}

/** What an import or export is. */
export function description(reader: ComponentReader): Description {
  const kind = reader.u8()
  switch (kind) {
    case 0:
      if (reader.u8() !== 0x11) throw invalidComponent('a description')
      return { sort: 'core module', type: reader.u32() }
    case 1:
      return { sort: 'func', type: reader.u32() }
    case 3:
      return { sort: 'type', equals: reader.u8() === 0 ? reader.u32() : undefined }
    case 4:
      return { sort: 'component', type: reader.u32() }
    case 5:
      return { sort: 'instance', type: reader.u32() }
    default:
      throw kind === 2 ? unsupportedPart('values') : invalidComponent('a description')
  }
}

/** One entry of the alias section. */
export function alias(reader: ComponentReader): Definition {
  const sort = anySort(reader)
  const target = reader.u8()
  if (target === 2) return { is: 'outer', sort, depth: reader.u32(), index: reader.u32() }
  if (target > 2) throw invalidComponent('an alias')
  const from = target === 0 ? 'instance' : 'core instance'
  return { is: 'alias', from, sort, instance: reader.u32(), name: reader.text() }
}
