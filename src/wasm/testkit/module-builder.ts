import { ByteWriter } from '../meter/bytes.ts'

/** Builds modules for tests, byte by byte. */

export const I32 = 0x7f
export const I64 = 0x7e
const VOID = 0x40

/** Instructions, as nested parts. */
export type Code = readonly (number | readonly number[])[]

type TypeSpec = { readonly params?: readonly number[]; readonly results?: readonly number[] }
/** A function to build. */
export type FunctionSpec = TypeSpec & {
  readonly export?: string
  /** Value types, one per local. */
  readonly locals?: readonly number[]
  /** Without the final `end`. */
  readonly body: Code
}
type GlobalSpec = { readonly type: number; readonly mutable: boolean; readonly value: number }
/** A module to build. */
export type ModuleSpec = {
  readonly imports?: readonly (TypeSpec & { readonly module: string; readonly name: string })[]
  readonly functions?: readonly FunctionSpec[]
  readonly memory?: { readonly min: number; readonly max?: number }
  readonly table?: { readonly min: number; readonly max?: number }
  /** Function indices placed in the table, starting at 0. */
  readonly elements?: readonly number[]
  readonly globals?: readonly GlobalSpec[]
  readonly tags?: readonly TypeSpec[]
  readonly start?: number
  readonly data?: { readonly at: number; readonly text: string }
  readonly extraExports?: readonly { readonly name: string; readonly kind: number; readonly index: number }[]
}

const leb = (value: number): readonly number[] => {
  const writer = new ByteWriter()
  writer.u32(value)
  return [...writer.done()]
}
const sleb = (value: number): readonly number[] => {
  const writer = new ByteWriter()
  writer.signed(value)
  return [...writer.done()]
}
const vec = (items: readonly (readonly number[])[]): readonly number[] => [
  ...leb(items.length),
  ...items.flat(),
]
const name = (text: string): readonly number[] => {
  const bytes = [...new TextEncoder().encode(text)]
  return [...leb(bytes.length), ...bytes]
}
const limits = ({ min, max }: { min: number; max?: number }): readonly number[] =>
  max === undefined ? [0, ...leb(min)] : [1, ...leb(min), ...leb(max)]
/** A section that holds a list; omitted if the list is empty. */
const section = (id: number, items: readonly (readonly number[])[]): readonly number[] => {
  const content = vec(items)
  return items.length === 0 ? [] : [id, ...leb(content.length), ...content]
}

/** The instructions that tests use. */
export const op = {
  i32: (value: number): readonly number[] => [0x41, ...sleb(value)],
  i64: (value: number): readonly number[] => [0x42, ...sleb(value)],
  get: (index: number): readonly number[] => [0x20, ...leb(index)],
  set: (index: number): readonly number[] => [0x21, ...leb(index)],
  tee: (index: number): readonly number[] => [0x22, ...leb(index)],
  call: (index: number): readonly number[] => [0x10, ...leb(index)],
  tailCall: (index: number): readonly number[] => [0x12, ...leb(index)],
  br: (label: number): readonly number[] => [0x0c, ...leb(label)],
  brIf: (label: number): readonly number[] => [0x0d, ...leb(label)],
  load8: (offset: number): readonly number[] => [0x2d, 0, ...leb(offset)],
  store8: (offset: number): readonly number[] => [0x3a, 0, ...leb(offset)],
  loop: [0x03, VOID],
  block: [0x02, VOID],
  end: [0x0b],
  drop: [0x1a],
  unreachable: [0x00],
  memoryGrow: [0x40, 0],
  memorySize: [0x3f, 0],
  memoryFill: [0xfc, 11, 0],
  memoryCopy: [0xfc, 10, 0, 0],
  tableGrow: [0xfc, 15, 0],
  tableFill: [0xfc, 17, 0],
  nullFunction: [0xd0, 0x70],
  tableGet: [0x25, 0],
  tableSet: [0x26, 0],
  i32Add: [0x6a],
  i32Sub: [0x6b],
  i32Eqz: [0x45],
  i64Or: [0x84],
  i64Shl: [0x86],
  extendU: [0xad],
  try: [0x06, VOID],
  catchAll: [0x19],
  throw: (tag: number): readonly number[] => [0x08, ...leb(tag)],
} as const

const typeBytes = ({ params = [], results = [] }: TypeSpec): readonly number[] => [
  0x60,
  ...vec(params.map((type) => [type])),
  ...vec(results.map((type) => [type])),
]
const bodyBytes = ({ locals = [], body }: FunctionSpec): readonly number[] => {
  const code = [...vec(locals.map((type) => [1, type])), ...body.flat(), 0x0b]
  return [...leb(code.length), ...code]
}
const globalBytes = ({ type, mutable, value }: GlobalSpec): readonly number[] => [
  ...[type, mutable ? 1 : 0, type === I32 ? 0x41 : 0x42],
  ...[...sleb(value), 0x0b],
]

/** The bytes of a module. */
export function buildModule(spec: ModuleSpec): Uint8Array {
  const { imports = [], functions = [], globals = [], tags = [], extraExports = [], elements, data } = spec
  const first = imports.length
  const importing = imports.map((entry, index) => [
    ...name(entry.module),
    ...name(entry.name),
    0,
    ...leb(index),
  ])
  const exporting = [
    ...functions.flatMap((fn, index) =>
      fn.export === undefined ? [] : [[...name(fn.export), 0, ...leb(first + index)]],
    ),
    ...(spec.memory ? [[...name('memory'), 2, 0]] : []),
    ...extraExports.map((entry) => [...name(entry.name), entry.kind, ...leb(entry.index)]),
  ]
  return Uint8Array.from([
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, [...imports, ...functions, ...tags].map(typeBytes)),
    ...section(2, importing),
    ...section(
      3,
      functions.map((_, index) => leb(first + index)),
    ),
    ...section(4, spec.table ? [[0x70, ...limits(spec.table)]] : []),
    ...section(5, spec.memory ? [limits(spec.memory)] : []),
    ...section(
      13,
      tags.map((_, index) => [0, ...leb(first + functions.length + index)]),
    ),
    ...section(6, globals.map(globalBytes)),
    ...section(7, exporting),
    ...(spec.start === undefined ? [] : [8, leb(spec.start).length, ...leb(spec.start)]),
    ...section(9, elements ? [[0, 0x41, 0, 0x0b, ...vec(elements.map(leb))]] : []),
    ...section(10, functions.map(bodyBytes)),
    ...section(11, data ? [[0, 0x41, ...sleb(data.at), 0x0b, ...name(data.text)]] : []),
  ])
}

/** `alloc` that allocates from 64 KiB upwards and never frees; it uses global 0. */
export const BUMP_ALLOC: FunctionSpec = {
  export: 'alloc',
  params: [I32],
  results: [I32],
  body: [[0x23, 0], [0x23, 0], op.get(0), op.i32Add, [0x24, 0]],
}
export const BUMP_GLOBAL = { type: I32, mutable: true, value: 65_536 } as const

/** Packs two i32, pushed by `ptr` and `len` (given as code), into the ABI's i64. */
export const packed = (ptr: Code, len: Code): Code => [
  ...ptr,
  op.extendU,
  op.i64(32),
  op.i64Shl,
  ...len,
  op.extendU,
  op.i64Or,
]

/** A skill whose `execute` function has this body. */
export const skill = (
  body: Code,
  more: ModuleSpec & { readonly locals?: readonly number[] } = {},
): Uint8Array => {
  const { locals = [], ...spec } = more
  return buildModule({
    memory: { min: 4 },
    globals: [BUMP_GLOBAL],
    ...spec,
    functions: [
      { export: 'execute', params: [I32, I32], results: [I64], locals, body },
      BUMP_ALLOC,
      ...(spec.functions ?? []),
    ],
  })
}

/** A module with one function, `run`, that has this body. */
export const plain = (body: Code, more: ModuleSpec & Partial<FunctionSpec> = {}): Uint8Array => {
  const { params = [], results = [], locals = [], functions = [], ...spec } = more
  return buildModule({ ...spec, functions: [{ export: 'run', params, results, locals, body }, ...functions] })
}
