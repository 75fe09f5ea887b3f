import { ByteWriter } from '../bytes.ts'

/** Makes modules for tests, byte by byte. */

export const I32 = 0x7f
export const I64 = 0x7e
export const F64 = 0x7c
export const VOID = 0x40

export type Code = readonly (number | readonly number[])[]

type TypeSpec = { readonly params?: readonly number[]; readonly results?: readonly number[] }
export type FunctionSpec = TypeSpec & {
  readonly export?: string
  /** Value types, one for each local. */
  readonly locals?: readonly number[]
  /** Without the final `end`. */
  readonly body: Code
}
export type ModuleSpec = {
  readonly imports?: readonly (TypeSpec & { readonly module: string; readonly name: string })[]
  readonly functions?: readonly FunctionSpec[]
  readonly memory?: { readonly min: number; readonly max?: number }
  readonly table?: { readonly min: number; readonly max?: number }
  /** Function indices put into the table from 0 on. */
  readonly elements?: readonly number[]
  readonly globals?: readonly { readonly type: number; readonly mutable: boolean; readonly value: number }[]
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
const section = (id: number, content: readonly number[]): readonly number[] => [
  id,
  ...leb(content.length),
  ...content,
]
const when = (present: unknown, bytes: () => readonly number[]): readonly number[] => (present ? bytes() : [])

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

/** The bytes of a module. */
export function buildModule(spec: ModuleSpec): Uint8Array {
  const { imports = [], functions = [], globals = [], tags = [], extraExports = [] } = spec
  const types = [...imports, ...functions, ...tags]
  const exports = [
    ...functions.flatMap((fn, index) =>
      fn.export === undefined ? [] : [[...name(fn.export), 0, ...leb(imports.length + index)]],
    ),
    ...(spec.memory ? [[...name('memory'), 2, 0]] : []),
    ...extraExports.map((entry) => [...name(entry.name), entry.kind, ...leb(entry.index)]),
  ]
  return Uint8Array.from([
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(
      1,
      vec(
        types.map(({ params = [], results = [] }) => [
          0x60,
          ...vec(params.map((type) => [type])),
          ...vec(results.map((type) => [type])),
        ]),
      ),
    ),
    ...when(imports.length, () =>
      section(
        2,
        vec(imports.map((entry, index) => [...name(entry.module), ...name(entry.name), 0, ...leb(index)])),
      ),
    ),
    ...section(3, vec(functions.map((_, index) => leb(imports.length + index)))),
    ...when(spec.table, () => section(4, vec([[0x70, ...limits(spec.table as { min: number })]]))),
    ...when(spec.memory, () => section(5, vec([limits(spec.memory as { min: number })]))),
    ...when(tags.length, () =>
      section(13, vec(tags.map((_, index) => [0, ...leb(imports.length + functions.length + index)]))),
    ),
    ...when(globals.length, () =>
      section(
        6,
        vec(
          globals.map(({ type, mutable, value }) => [
            type,
            mutable ? 1 : 0,
            type === I32 ? 0x41 : 0x42,
            ...sleb(value),
            0x0b,
          ]),
        ),
      ),
    ),
    ...when(exports.length, () => section(7, vec(exports))),
    ...when(spec.start !== undefined, () => section(8, leb(spec.start as number))),
    ...when(spec.elements, () =>
      section(9, vec([[0, 0x41, 0, 0x0b, ...vec((spec.elements as number[]).map(leb))]])),
    ),
    ...section(
      10,
      vec(
        functions.map((fn) => {
          const body = [...vec((fn.locals ?? []).map((type) => [1, type])), ...fn.body.flat(), 0x0b]
          return [...leb(body.length), ...body]
        }),
      ),
    ),
    ...when(spec.data, () =>
      section(
        11,
        vec([
          [
            0,
            0x41,
            ...sleb((spec.data as { at: number }).at),
            0x0b,
            ...name((spec.data as { text: string }).text),
          ],
        ]),
      ),
    ),
  ])
}

/** `alloc` that gives out memory from 64 KiB on and never takes it back; it uses global 0. */
export const BUMP_ALLOC: FunctionSpec = {
  export: 'alloc',
  params: [I32],
  results: [I32],
  body: [[0x23, 0], [0x23, 0], op.get(0), op.i32Add, [0x24, 0]],
}
export const BUMP_GLOBAL = { type: I32, mutable: true, value: 65_536 } as const

/** Packs two i32 on the stack order `ptr`, `len` (given as code) into the ABI's i64. */
export const packed = (ptr: Code, len: Code): Code => [
  ...ptr,
  op.extendU,
  op.i64(32),
  op.i64Shl,
  ...len,
  op.extendU,
  op.i64Or,
]

/** A skill whose `execute` has this body. */
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

/** A module with one function `run` of this body. */
export const plain = (body: Code, more: ModuleSpec & Partial<FunctionSpec> = {}): Uint8Array => {
  const { params = [], results = [], locals = [], functions = [], ...spec } = more
  return buildModule({ ...spec, functions: [{ export: 'run', params, results, locals, body }, ...functions] })
}
