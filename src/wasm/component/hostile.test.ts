import { afterAll, describe, expect, it } from 'vitest'
import { WasmSandbox } from '../sandbox.ts'
import {
  component,
  define,
  ECHO,
  exportExecute,
  host,
  TYPE,
  textModule,
  types,
} from '../testkit/component-builder.ts'
import { type FunctionSpec, I32, I64, op } from '../testkit/module-builder.ts'

/** The component declares the types of the host's functions; these declarations are lies. */

const box = new WasmSandbox({ fuel: 1_000_000, epochDeadline: 50, memoryMb: 4 })
afterAll(() => box.close())

type CoreType = { readonly params?: readonly number[]; readonly results?: readonly number[] }
type Sections = readonly (readonly number[])[]

/** Runs `body`, whose function n is the n-th of `calls`; `sections` define those as functions of the component. */
const calling = (
  sections: Sections,
  calls: readonly CoreType[],
  body: FunctionSpec['body'],
  typeCount: number,
): Uint8Array =>
  component(
    ...sections,
    ...calls.map((_, index) => define.lower(index)),
    define.functions(Object.fromEntries(calls.map((_, index) => [`f${index}`, index]))),
    define.module(
      textModule([...body, ...ECHO], {
        imports: calls.map((call, index) => ({ module: 'm', name: `f${index}`, ...call })),
      }),
    ),
    define.start(0, { m: 0 }),
    exportExecute(1, { funcs: calls.length, types: typeCount }),
    define.exportFunc('execute', calls.length),
  )

/** Rounds of a loop; `$0` is the first parameter of `execute`, whose text is not needed any more. */
const repeat = (rounds: number, body: FunctionSpec['body']): FunctionSpec['body'] => [
  ...[op.i32(rounds), op.set(0), op.loop, ...body],
  ...[op.get(0), op.i32(1), op.i32Sub, op.tee(0), op.brIf(0), op.end],
]

const STREAMS = (func: string, length: number): Sections => [
  define.type(
    host.instance(
      host.resource('input-stream'),
      host.resource('output-stream'),
      host.type(host.borrow(0)),
      host.type(host.borrow(1)),
      host.type(host.result),
      host.type(types.func([func.includes('input') ? 2 : 3, length], 4)),
      host.func(func, 5),
    ),
  ),
  define.importInstance('wasi:io/streams@0.2.0', 0),
]

describe('a component with wrong types', () => {
  it('gets no fuel back for a negative length', async () => {
    const skip = '[method]input-stream.skip'
    const bytes = calling(
      [
        ...STREAMS(skip, TYPE.s64),
        define.alias(3, 0, 'input-stream'),
        define.type(
          host.instance(
            host.outer(1),
            host.type(host.own(0)),
            host.type(types.func([], 1)),
            host.func('get-stdin', 2),
          ),
        ),
        define.importInstance('wasi:cli/stdin@0.2.0', 2),
        define.alias(1, 0, skip),
        define.alias(1, 1, 'get-stdin'),
      ],
      [{ params: [I32, I64], results: [I32] }, { results: [I32] }],
      [op.call(1), op.i64(-1_000_000_000_000), op.call(0), op.drop],
      3,
    )
    const result = await box.run(bytes)
    expect(result).toMatchObject({ error: { code: 'abi-error', message: 'a length is not valid' } })
    expect(result.fuel).toBeGreaterThan(0)
  })

  it.each([
    ['until', []],
    ['constructor', [['length', TYPE.u64]]],
    ['__proto__', [['constructor', TYPE.u64]]],
  ] as const)('cannot read `%s` of a resource', async (field, inner) => {
    const record = inner.length === 0 ? TYPE.u64 : 0
    const declared = [
      ...(inner.length === 0 ? [] : [host.type(types.record(inner))]),
      host.type(types.record([[field, record]])),
      host.type(types.func([TYPE.u64], inner.length === 0 ? 0 : 1)),
      host.func('subscribe-instant', inner.length === 0 ? 1 : 2),
    ]
    const bytes = calling(
      [
        define.type(host.instance(...declared)),
        define.importInstance('wasi:clocks/monotonic-clock@0.2.0', 0),
        define.alias(1, 0, 'subscribe-instant'),
      ],
      [{ params: [I64], results: [I64] }],
      [op.i64(7), op.call(0), op.drop],
      1,
    )
    expect(await box.run(bytes, 1)).toMatchObject({ error: { code: 'abi-error' } })
  })

  it('cannot keep more bytes in bodies than the host allows', async () => {
    const zeroes = '[method]output-stream.write-zeroes'
    const http = host.instance(
      host.outer(1),
      host.resource('fields'),
      host.resource('outgoing-request'),
      host.resource('outgoing-body'),
      ...[host.own(0), host.own(1), host.own(2), host.own(3), host.borrow(2), host.borrow(3)].map(host.type),
      // 10 and 11: of a `result`, only the value.
      host.type(types.record([['value', 7]])),
      host.type(types.record([['value', 4]])),
      host.type(types.func([], 5)),
      host.type(types.func([5], 6)),
      host.type(types.func([8], 10)),
      host.type(types.func([9], 11)),
      host.func('[constructor]fields', 12),
      host.func('[constructor]outgoing-request', 13),
      host.func('[method]outgoing-request.body', 14),
      host.func('[method]outgoing-body.write', 15),
    )
    const names = ['[constructor]fields', '[constructor]outgoing-request', '[method]outgoing-request.body']
    const request = [op.call(1), op.call(2), op.call(3), op.call(4), op.set(1)]
    const write = [op.get(1), op.i64(65_536), op.call(0), op.drop]
    const run = (rounds: number): Uint8Array =>
      calling(
        [
          ...STREAMS(zeroes, TYPE.u64),
          define.alias(3, 0, 'output-stream'),
          define.type(http),
          define.importInstance('wasi:http/types@0.2.0', 2),
          define.alias(1, 0, zeroes),
          ...[...names, '[method]outgoing-body.write'].map((name) => define.alias(1, 1, name)),
        ],
        [
          { params: [I32, I64], results: [I32] },
          { results: [I32] },
          ...[1, 2, 3].map(() => ({ params: [I32], results: [I32] })),
        ],
        repeat(rounds, [...request, ...Array.from({ length: 8 }, () => write).flat()]),
        3,
      )
    const rich = new WasmSandbox({ fuel: 1_000_000_000, epochDeadline: 50, memoryMb: 4 })
    try {
      expect(await rich.run(run(4))).toMatchObject({ error: { message: 'the result is not JSON' } })
      expect(await rich.run(run(100))).toMatchObject({
        error: {
          code: 'trap',
          message: expect.stringContaining('the resources of the component are too large'),
        },
      })
    } finally {
      rich.close()
    }
  })
})

describe('a component that wants work without fuel', () => {
  it('finds no outer component at any depth', async () => {
    const bytes = component(
      [6, 9, 1, 3, 2, ...[0xff, 0xff, 0xff, 0xff, 0x0f], 0],
      define.exportFunc('execute', 0),
    )
    expect(await box.run(bytes)).toMatchObject({
      error: { code: 'abi-error', message: 'an alias leads outside of the component' },
    })
  })

  it('pays for every further start of a module', async () => {
    const empty = [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]
    const large = Uint8Array.from([...empty, 0, 0x80, 0x80, 4, ...new Array(65_536).fill(0)])
    const started = (times: number): Uint8Array =>
      component(
        define.module(textModule(ECHO)),
        define.start(0),
        define.module(large),
        ...Array.from({ length: times }, () => define.start(1)),
        exportExecute(0),
        define.exportFunc('execute', 0),
      )
    const [once, twice] = [await box.run(started(1), 1), await box.run(started(2), 1)]
    expect([once, twice]).toMatchObject([{ ok: 1 }, { ok: 1 }])
    expect(twice.fuel - once.fuel).toBeGreaterThan(65_536)
  })
})
