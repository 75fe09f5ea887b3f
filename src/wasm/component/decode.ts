import { alias, anySort, coreSort, description, externName, typeCode } from './decode-types.ts'
import type { CanonOptions, DecodedComponent, Definition, Named } from './definitions.ts'
import { ComponentReader, decodeBudget, invalidComponent, unsupportedPart } from './reader.ts'

/** The first bytes of a component: the layer differs from a core module's. */
const PREAMBLE = [0, 0x61, 0x73, 0x6d, 0x0d, 0, 1, 0]
const MAX_MODULES = 64

/** Whether these bytes are a component, not a core module. */
export const isComponent = (bytes: Uint8Array): boolean =>
  PREAMBLE.every((byte, index) => byte === bytes[index])

/** Decodes a component; throws if it is damaged or uses a part that is not supported. */
export function decodeComponent(bytes: Uint8Array): DecodedComponent {
  const modules: Uint8Array[] = []
  const reader = new ComponentReader(bytes, 0, bytes.length, 0, decodeBudget())
  return { definitions: componentBody(reader, modules), modules }
}

function componentBody(reader: ComponentReader, modules: Uint8Array[]): readonly Definition[] {
  for (const byte of PREAMBLE) if (reader.u8() !== byte) throw invalidComponent('the preamble')
  const definitions: Definition[] = []
  while (!reader.done) {
    const id = reader.u8()
    const section = reader.inner(reader.u32())
    for (const definition of sectionOf(id, section, modules)) definitions.push(definition)
  }
  return definitions
}

function sectionOf(id: number, reader: ComponentReader, modules: Uint8Array[]): readonly Definition[] {
  switch (id) {
    // Custom sections, and types of core modules, which only the import of a module would use.
    case 0:
    case 3:
      return []
    case 1:
      if (modules.length >= MAX_MODULES) throw unsupportedPart(`more than ${MAX_MODULES} core modules`)
      modules.push(reader.bytes.subarray(reader.at, reader.end))
      return [{ is: 'module', module: modules.length - 1 }]
    case 4:
      return [{ is: 'component', definitions: componentBody(reader, modules) }]
    default:
      return entriesOf(id, reader)
  }
}

const ENTRIES: Readonly<Record<number, (reader: ComponentReader) => Definition>> = {
  2: coreInstance,
  5: instance,
  6: alias,
  7: (reader) => ({ is: 'type', type: typeCode(reader) }),
  8: canon,
  10: (reader) => ({ is: 'import', name: externName(reader), description: description(reader) }),
  11: (reader) => {
    const exported = { is: 'export' as const, name: externName(reader), ...sortIndex(reader) }
    reader.option(() => description(reader))
    return exported
  },
}

function entriesOf(id: number, reader: ComponentReader): readonly Definition[] {
  const read = ENTRIES[id]
  if (read === undefined)
    throw id === 9 || id === 12 ? unsupportedPart('values') : invalidComponent('a section')
  const entries = reader.list(() => read(reader))
  if (!reader.done) throw invalidComponent('a section is too long')
  return entries
}

const sortIndex = (reader: ComponentReader) => ({ sort: anySort(reader), index: reader.u32() })
const named = (reader: ComponentReader): Named => ({ name: reader.text(), ...sortIndex(reader) })

function coreInstance(reader: ComponentReader): Definition {
  if (reader.u8() === 1) {
    const exports = reader.list(() => ({
      name: reader.text(),
      sort: coreSort(reader),
      index: reader.u32(),
    }))
    return { is: 'core-exports', exports }
  }
  const module = reader.u32()
  const args = reader.list(() => {
    const name = reader.text()
    if (reader.u8() !== 0x12) throw invalidComponent('an argument of a core module')
    return { name, instance: reader.u32() }
  })
  return { is: 'core-instance', module, args }
}

function instance(reader: ComponentReader): Definition {
  if (reader.u8() === 0)
    return { is: 'instance', component: reader.u32(), args: reader.list(() => named(reader)) }
  const exports = reader.list(() => ({ name: externName(reader), ...sortIndex(reader) }))
  return { is: 'exports', exports }
}

const RESOURCE_OPS: Readonly<Record<number, 'new' | 'drop' | 'rep'>> = { 2: 'new', 3: 'drop', 4: 'rep' }

function canon(reader: ComponentReader): Definition {
  const kind = reader.u8()
  const op = RESOURCE_OPS[kind]
  if (op !== undefined) return { is: 'resource', op, type: reader.u32() }
  if (kind > 1) throw unsupportedPart('the asynchronous part of the component model')
  if (reader.u8() !== 0) throw invalidComponent('a function')
  const func = reader.u32()
  const options = canonOptions(reader)
  return kind === 0 ? { is: 'lift', func, options, type: reader.u32() } : { is: 'lower', func, options }
}

const ENCODINGS = ['utf8', 'utf16', 'latin1+utf16'] as const
const INDEXED: Readonly<Record<number, 'memory' | 'realloc' | 'postReturn'>> = {
  3: 'memory',
  4: 'realloc',
  5: 'postReturn',
}

function canonOptions(reader: ComponentReader): CanonOptions {
  const options: { -readonly [key in keyof CanonOptions]: CanonOptions[key] } = {
    encoding: 'utf8',
    memory: undefined,
    realloc: undefined,
    postReturn: undefined,
  }
  reader.list(() => {
    const kind = reader.u8()
    const [encoding, indexed] = [ENCODINGS[kind], INDEXED[kind]]
    if (encoding !== undefined) options.encoding = encoding
    else if (indexed !== undefined) options[indexed] = reader.u32()
    else throw unsupportedPart('the asynchronous part of the component model')
    return kind
  })
  return options
}
