import { ByteWriter } from '../meter/bytes.ts'
import { buildModule, type FunctionSpec, I32, type ModuleSpec, op } from './module-builder.ts'

/** Builds components for tests, byte by byte: each function makes one section with one entry. */

type Bytes = readonly number[]
const leb = (value: number): Bytes => {
  const writer = new ByteWriter()
  writer.u32(value)
  return [...writer.done()]
}
const name = (text: string): Bytes => {
  const bytes = [...new TextEncoder().encode(text)]
  return [...leb(bytes.length), ...bytes]
}
const section = (id: number, content: Bytes): Bytes => [id, ...leb(content.length), ...content]
const one = (id: number, entry: Bytes): Bytes => section(id, [1, ...entry])
const vec = (items: readonly Bytes[]): Bytes => [...leb(items.length), ...items.flat()]

/** The bytes of a component. */
export const component = (...sections: readonly Bytes[]): Uint8Array =>
  Uint8Array.from([0, 0x61, 0x73, 0x6d, 0x0d, 0, 1, 0, ...sections.flat()])

/** The value types that tests use. */
export const TYPE = { string: 0x73, u64: 0x77, s64: 0x78, u32: 0x79, u8: 0x7d } as const

/** Definitions of a component. */
export const define = {
  module: (bytes: Uint8Array): Bytes => section(1, [...bytes]),
  nested: (bytes: Uint8Array): Bytes => section(4, [...bytes]),
  start: (module: number, args: Readonly<Record<string, number>> = {}): Bytes =>
    one(2, [
      0,
      ...leb(module),
      ...vec(Object.entries(args).map(([arg, instance]) => [...name(arg), 0x12, ...leb(instance)])),
    ]),
  /** A core instance of core functions. */
  functions: (exports: Readonly<Record<string, number>>): Bytes =>
    one(2, [1, ...vec(Object.entries(exports).map(([as, index]) => [...name(as), 0, ...leb(index)]))]),
  instantiate: (of: number): Bytes => one(5, [0, ...leb(of), 0]),
  /** Kinds: 0 function, 1 table, 2 memory, 3 global. */
  coreAlias: (kind: number, instance: number, of: string): Bytes =>
    one(6, [0, kind, 1, ...leb(instance), ...name(of)]),
  alias: (sort: number, instance: number, of: string): Bytes =>
    one(6, [sort, 0, ...leb(instance), ...name(of)]),
  type: (type: Bytes): Bytes => one(7, type),
  lift: (func: number, type: number, options: readonly Bytes[] = []): Bytes =>
    one(8, [0, 0, ...leb(func), ...vec(options), ...leb(type)]),
  lower: (func: number): Bytes => one(8, [1, 0, ...leb(func), 0]),
  resourceDrop: (type: number): Bytes => one(8, [3, ...leb(type)]),
  importInstance: (as: string, type: number): Bytes => one(10, [0, ...name(as), 5, ...leb(type)]),
  exportFunc: (as: string, index: number): Bytes => one(11, [0, ...name(as), 1, ...leb(index), 0]),
} as const

/** Types of a component. */
export const types = {
  func: (params: readonly number[], result: number): Bytes => [
    0x40,
    ...vec(params.map((type, index) => [...name(`p${index}`), type])),
    0,
    type0(result),
  ],
  record: (fields: readonly (readonly [string, number])[]): Bytes => [
    0x72,
    ...vec(fields.map(([label, type]) => [...name(label), ...leb(type)])),
  ],
  list: (of: number): Bytes => [0x70, ...leb(of)],
  resource: [0x3f, 0x7f, 0] as Bytes,
  /** An instance with one function without parameters. */
  instance: (func: string, result: number): Bytes => [
    ...[0x42, 2, 1, 0x40, 0, 0, type0(result)],
    ...[4, 0, ...name(func), 1, 0],
  ],
} as const

const type0 = (type: number): number => type

/** Types of the host's interfaces, as a component declares them. */
export const host = {
  instance: (...declarations: readonly Bytes[]): Bytes => [0x42, ...vec(declarations)],
  resource: (as: string): Bytes => [4, 0, ...name(as), 3, 1],
  type: (type: Bytes): Bytes => [1, ...type],
  /** A type of the component itself. */
  outer: (index: number): Bytes => [2, 3, 2, 1, ...leb(index)],
  func: (as: string, type: number): Bytes => [4, 0, ...name(as), 1, ...leb(type)],
  own: (of: number): Bytes => [0x69, ...leb(of)],
  borrow: (of: number): Bytes => [0x68, ...leb(of)],
  /** A `result` without values. */
  result: [0x6a, 0, 0] as Bytes,
} as const

/** `cabi_realloc` that allocates from 64 KiB upwards, eight bytes aligned; it uses global 0. */
const REALLOC: FunctionSpec = {
  export: 'cabi_realloc',
  params: [I32, I32, I32, I32],
  results: [I32],
  body: [
    [0x23, 0],
    ...[[0x23, 0], op.get(3), op.i32Add, op.i32(7), op.i32Add, op.i32(-8), [0x71], [0x24, 0]],
  ],
}

/** Returns the text that `execute` got: stores address and length, and returns their address. */
export const ECHO: FunctionSpec['body'] = [
  ...[op.i32(0), op.get(0), [0x36, 2, 0], op.i32(0), op.get(1), [0x36, 2, 4]],
  op.i32(0),
]

/** A core module with `execute`, which takes and returns text. */
export const textModule = (body: FunctionSpec['body'], more: ModuleSpec = {}): Uint8Array =>
  buildModule({
    memory: { min: 4 },
    globals: [{ type: I32, mutable: true, value: 65_536 }],
    ...more,
    functions: [
      { export: 'execute', params: [I32, I32], results: [I32], body },
      REALLOC,
      ...(more.functions ?? []),
    ],
  })

/** Exports `execute` of a core instance; core functions, memories and types of the component start at these indices. */
export const exportExecute = (
  instance: number,
  { funcs = 0, memories = 0, types: first = 0 } = {},
): Bytes => [
  ...define.coreAlias(0, instance, 'execute'),
  ...define.coreAlias(0, instance, 'cabi_realloc'),
  ...define.coreAlias(2, instance, 'memory'),
  ...define.type(types.func([TYPE.string], TYPE.string)),
  ...define.lift(funcs, first, [
    [3, ...leb(memories)],
    [4, ...leb(funcs + 1)],
  ]),
]

/** A component with one core module. */
export const textComponent = (body: FunctionSpec['body'] = ECHO, more: ModuleSpec = {}): Uint8Array =>
  component(
    define.module(textModule(body, more)),
    define.start(0),
    exportExecute(0),
    define.exportFunc('execute', 0),
  )
