import { describe, expect, it } from 'vitest'
import { type WasmFunction, type WasmGlobal, wasmEngine } from '../engine.ts'
import {
  buildModule,
  type Code,
  type FunctionSpec,
  I32,
  I64,
  type ModuleSpec,
  op,
  plain,
} from '../testkit/module-builder.ts'
import { ByteReader } from './bytes.ts'
import { decodeModule } from './decode.ts'
import { loadMetered, METER_EXPORTS, type MeterOptions, meterModule, meterWord, readMeter } from './meter.ts'
import { rewriteModule } from './rewrite.ts'

type Metered = {
  readonly run: (
    fuel: number,
    frames?: number,
    work?: number,
  ) => { readonly did: string; readonly left: number }
  readonly exports: Readonly<Record<string, unknown>>
}

/** An instance whose `run` reports how it ended under a budget. */
function metered(
  bytes: Uint8Array,
  options: MeterOptions = {},
  imports: Record<string, Record<string, unknown>> = {},
): Metered {
  const rewritten = meterModule(bytes, options).bytes
  const { exports } = new (wasmEngine().Instance)(new (wasmEngine().Module)(rewritten), imports)
  const meter = exports[METER_EXPORTS.meter] as WasmGlobal
  const allowance = exports[METER_EXPORTS.work] as WasmGlobal
  return {
    exports,
    run(fuel, frames = 1024, work = 10_000_000) {
      meter.value = meterWord(fuel, frames)
      allowance.value = BigInt(work)
      let did = 'returned'
      try {
        did = String((exports.run as WasmFunction)() ?? did)
      } catch (error) {
        did = (error as Error).message
      }
      const { fuel: left, spent } = readMeter(meter.value)
      return { did: spent ?? (allowance.value < 0n ? 'work' : did), left }
    },
  }
}

/** Counts local 0 down from n and runs the body each time. */
const countdown = (n: number, body: Code): Code => [
  op.i32(n),
  op.set(0),
  op.loop,
  ...body,
  op.get(0),
  op.i32(1),
  op.i32Sub,
  op.tee(0),
  op.brIf(0),
  op.end,
]

const leafy: readonly FunctionSpec[] = [
  // An early return makes two paths with different costs meet at the end.
  {
    params: [I32],
    results: [I32],
    body: [op.get(0), [0x04, 0x40], op.i32(7), [0x0f], op.end, op.i32(1), op.i32(2), op.i32Add],
  },
]
const mixed = plain(
  [
    ...countdown(5, [
      op.get(0),
      op.call(1),
      op.drop,
      op.get(0),
      op.i32(1),
      [0x71],
      [0x04, 0x40],
      op.i32(1),
      op.drop,
      op.end,
    ]),
  ],
  {
    locals: [I32],
    functions: leafy,
  },
)

describe('the limit', () => {
  it.each<[string, Uint8Array]>([
    ['nothing', plain([])],
    ['a leaf', plain([op.i32(1), op.drop])],
    ['a loop with calls and branches', mixed],
    [
      'a switch',
      plain(
        [
          ...countdown(4, [
            op.block,
            op.block,
            op.block,
            op.get(0),
            [0x0e, 2, 0, 1, 2],
            op.end,
            op.i32(1),
            op.drop,
            op.end,
            op.i32(1),
            op.drop,
            op.end,
          ]),
        ],
        { locals: [I32] },
      ),
    ],
    [
      'bulk memory',
      plain([...countdown(3, [op.i32(0), op.i32(0), op.i32(100), op.memoryFill])], {
        locals: [I32],
        memory: { min: 1 },
      }),
    ],
    [
      'growth',
      plain([...countdown(3, [op.i32(2), op.memoryGrow, op.drop])], { locals: [I32], memory: { min: 1 } }),
    ],
    [
      'tail calls',
      plain([op.i32(5), op.tailCall(1)], {
        functions: [
          {
            params: [I32],
            body: [
              op.get(0),
              op.i32Eqz,
              [0x04, 0x40],
              [0x0f],
              op.end,
              op.get(0),
              op.i32(1),
              op.i32Sub,
              op.tailCall(1),
            ],
          },
        ],
      }),
    ],
  ])('is exact for %s: a run ends early exactly when its budget is too small', (_, bytes) => {
    const module = metered(bytes)
    const total = 1_000_000 - module.run(1_000_000).left
    for (let budget = 0; budget <= total + 3; budget++) {
      const { did, left } = module.run(budget)
      expect(`${budget}: ${did === 'fuel'}`).toBe(`${budget}: ${budget < total}`)
      if (budget >= total) expect(left).toBe(budget - total)
    }
  })

  it('counts every iteration of a loop right after a call', () => {
    const imports = [{ module: 'h', name: 'f' }]
    const body = [op.call(0), op.loop, op.call(0), op.i32(1), op.brIf(0), op.end]
    const bytes = buildModule({ imports, functions: [{ export: 'run', body }] })
    let calls = 0
    const f = (): void => {
      if (++calls > 1000) throw new Error('never ends')
    }
    expect(metered(bytes, {}, { h: { f } }).run(300).did).toBe('fuel')
    expect(calls).toBe(101)
    const inside = [op.call(1), op.loop, op.call(1), op.get(0), op.i32(1), op.i32Sub, op.tee(0), op.brIf(0)]
    const functions = [{ export: 'leaf', body: [op.i32(1), op.drop] }]
    const extraExports = [{ name: 'table', kind: 1, index: 0 }]
    const more = { locals: [I32], functions, table: { min: 1 }, elements: [1], extraExports }
    const counting = plain([op.i32(5), op.set(0), ...inside, op.end], more)
    // The entry, two for the counter, the calls, six per iteration, and two for each run of the leaf.
    expect(metered(counting).run(1000).left).toBe(1000 - 1 - 2 - 1 - 5 * 6 - 6 * 2)
  })

  it('counts frames: 1024 are allowed, one more is not', () => {
    const deep = (n: number): Uint8Array =>
      plain([op.i32(n), op.call(1)], {
        functions: [
          {
            params: [I32],
            body: [op.get(0), [0x04, 0x40], op.get(0), op.i32(1), op.i32Sub, op.call(1), op.end],
          },
        ],
      })
    // `run` is one frame, the recursion has n + 1.
    expect(metered(deep(1022)).run(1_000_000).did).toBe('returned')
    expect(metered(deep(1023)).run(1_000_000).did).toBe('stack')
  })

  it('stops recursion through tables, and runs tail calls in one frame', () => {
    const indirect = plain([op.i32(0), [0x11, 0, 0]], { table: { min: 1 }, elements: [0] })
    expect(metered(indirect).run(10_000_000).did).toBe('stack')
    expect(metered(plain([op.tailCall(0)])).run(100_000).did).toBe('fuel')
  })

  it('stops a tree of calls without a loop', () => {
    const functions = Array.from(
      { length: 20 },
      (_, index): FunctionSpec => ({ body: [op.call(index + 2), op.call(index + 2)] }),
    )
    const bomb = plain([op.call(1)], { functions: [...functions, { body: [op.i32(1), op.drop] }] })
    expect(metered(bomb).run(10_000).did).toBe('fuel')
  })

  it.each<[string, Code, ModuleSpec, string]>([
    [
      'memory.fill of everything',
      [op.i32(0), op.i32(0), op.i32(65_536), op.memoryFill],
      { memory: { min: 1 } },
      'fuel',
    ],
    [
      'memory.copy of everything',
      [op.i32(0), op.i32(0), op.i32(65_536), op.memoryCopy],
      { memory: { min: 1 } },
      'fuel',
    ],
    ['an absurd length', [op.i32(0), op.i32(0), op.i32(-1), op.memoryFill], { memory: { min: 1 } }, 'fuel'],
    ['memory.grow of nothing', [op.i32(0), op.memoryGrow, op.drop], { memory: { min: 1 } }, 'work'],
    [
      'table.fill',
      [op.i32(0), op.nullFunction, op.i32(1000), op.tableFill],
      { table: { min: 1000 } },
      'work',
    ],
    ['table.grow', [op.nullFunction, op.i32(1), op.tableGrow, op.drop], { table: { min: 1 } }, 'work'],
    ['table.set', [op.i32(0), op.nullFunction, op.tableSet], { table: { min: 1 } }, 'work'],
  ])('a loop of %s ends', (_, body, spec, what) => {
    const started = performance.now()
    const bytes = plain([op.loop, ...body, op.br(0), op.end], spec)
    expect(metered(bytes).run(1_000_000_000, 1024, 1_000_000).did).toBe(what === 'fuel' ? 'fuel' : 'work')
    if (process.env.RINGFENCE_FULL) expect(performance.now() - started).toBeLessThan(5000)
  })
})

describe('exceptions', () => {
  const tags = [{}]
  it('cannot catch the end of a run', () => {
    const endless = plain([op.loop, op.try, op.call(1), op.catchAll, op.end, op.br(0), op.end], {
      tags,
      functions: [{ body: [op.loop, op.br(0), op.end] }],
    })
    expect(metered(endless).run(100_000).did).toBe('fuel')
    const deep = plain([op.loop, op.try, op.call(0), op.catchAll, op.end, op.br(0), op.end], { tags })
    expect(metered(deep).run(1_000_000).did).toBe('stack')
  })

  it('release the frames that they unwind and keep the used fuel charged', () => {
    const thrower: FunctionSpec = {
      params: [I32],
      body: [op.get(0), [0x04, 0x40], op.get(0), op.i32(1), op.i32Sub, op.call(1), op.end, op.throw(0)],
    }
    const bytes = plain([...countdown(50, [op.try, op.i32(500), op.call(1), op.catchAll, op.end])], {
      locals: [I32],
      tags,
      functions: [thrower],
    })
    const { did, left } = metered(bytes).run(1_000_000)
    expect(did).toBe('returned')
    expect(left).toBeLessThan(1_000_000 - 50 * 500 * 5)
  })

  it('lose no fuel that was owed at the throwing call', () => {
    const bytes = plain(
      [op.try, op.call(2), op.i32(1), op.drop, op.i32(1), op.drop, op.call(1), op.catchAll, op.end],
      { tags, functions: [{ body: [op.throw(0)] }, { body: [] }] },
    )
    // run 1, try 1, two calls 2, two constants 2, the called ones 1 and 2.
    expect(metered(bytes).run(1000)).toEqual({ did: 'returned', left: 1000 - 9 })
  })

  it('cost extra fuel', () => {
    const bytes = plain([op.loop, op.try, op.throw(0), op.catchAll, op.end, op.br(0), op.end], { tags })
    expect(metered(bytes).run(1_000_000_000, 1024, 100_000).did).toBe('work')
  })

  it('thrown by the host do not stop the count', () => {
    const imports = {
      h: {
        f: () => {
          throw new Error('no')
        },
      },
    }
    const bytes = buildModule({
      imports: [{ module: 'h', name: 'f' }],
      functions: [
        { export: 'run', body: [op.loop, op.try, op.call(0), op.catchAll, op.end, op.br(0), op.end] },
      ],
    })
    expect(metered(bytes, {}, imports).run(100_000).did).toBe('fuel')
  })
})

describe('functions that take and return the meter', () => {
  const F64 = 0x7c
  const run = (functions: readonly FunctionSpec[], body: Code, more: ModuleSpec = {}): string =>
    metered(plain(body, { ...more, results: [I32], functions })).run(1_000_000).did

  it('their locals keep their values and types', () => {
    const locals = [F64, I32, I64]
    const body = [op.get(0), op.set(2), op.get(2), [0x44, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f], op.tee(1), [0xaa]]
    // 5, and 1.5 as an integer, plus 0 from the last local.
    const sum = [...body, op.i32Add, op.get(3), [0xa7], op.i32Add]
    expect(run([{ params: [I32], results: [I32], locals, body: sum }], [op.i32(5), op.call(1)])).toBe('6')
    const none = [op.get(0), op.get(0), op.i32Add]
    expect(run([{ params: [I32], results: [I32], body: none }], [op.i32(5), op.call(1)])).toBe('10')
  })

  it('several results, early returns and code that is never reached stay valid', () => {
    const pair: FunctionSpec = {
      results: [I32, I32],
      locals: [I64],
      body: [op.i32(3), op.i32(4), [0x0f], op.i32(1), op.call(2), [0x0f], op.i32(1), op.i32(1), op.br(0)],
    }
    const one: FunctionSpec = { params: [I32], results: [I32, I32], body: [op.get(0), op.i32(1)] }
    expect(run([pair, one], [op.call(1), op.i32Sub])).toBe('-1')
  })

  it('the limits are those of functions that others can reach', () => {
    const down: FunctionSpec = {
      params: [I32],
      body: [op.get(0), [0x04, 0x40], op.get(0), op.i32(1), op.i32Sub, op.call(1), op.end],
    }
    for (const [depth, fuel] of [
      [900, 1_000_000],
      [1022, 1_000_000],
      [1023, 1_000_000],
      [900, 5000],
    ] as const) {
      const body = [op.i32(depth), op.call(1)]
      const inner = metered(plain(body, { functions: [down] })).run(fuel)
      const exported = metered(plain(body, { functions: [{ ...down, export: 'down' }] })).run(fuel)
      expect(inner.did).toBe(exported.did)
      if (inner.did === 'returned') expect(inner.left).toBe(exported.left)
    }
  })

  it('host functions see the fuel that is left, and what they charge is charged', () => {
    const seen: number[] = []
    let meter: WasmGlobal | undefined
    const f = (): void => {
      if (!meter) return
      seen.push(readMeter(meter.value).fuel)
      meter.value -= 1000n << 16n
    }
    const bytes = buildModule({
      imports: [{ module: 'h', name: 'f' }],
      functions: [{ export: 'run', body: [op.call(2), op.call(2)] }, { body: [op.call(0)] }],
    })
    const module = metered(bytes, {}, { h: { f } })
    meter = module.exports[METER_EXPORTS.meter] as WasmGlobal
    expect(module.run(10_000)).toEqual({ did: 'returned', left: 10_000 - 2000 - 7 })
    expect(seen).toEqual([10_000 - 4, 10_000 - 1000 - 7])
  })

  it('in a module with tail calls, none does', () => {
    const tail: FunctionSpec = { results: [I32], body: [op.tailCall(2)] }
    expect(run([tail, { results: [I32], body: [op.i32(8)] }], [op.call(1)])).toBe('8')
    const never: FunctionSpec = { results: [I32], body: [op.i32(9), [0x0f], op.tailCall(2)] }
    expect(run([never, { results: [I32], body: [op.i32(8)] }], [op.call(1)])).toBe('9')
  })
})

describe('calls through a table', () => {
  const double: FunctionSpec = { params: [I32], results: [I32], body: [op.get(0), op.get(0), op.i32Add] }
  const wide: FunctionSpec = { params: [I64], results: [I32], body: [op.i32(3)] }
  const table = { min: 4 }
  const shared = { name: 'table', kind: 1, index: 0 }
  const call = (at: number, more: ModuleSpec = {}): Uint8Array =>
    plain([op.i32(21), op.i32(at), [0x11, 1, 0]], {
      results: [I32],
      table,
      elements: [1, 2],
      ...more,
      functions: [double, wide],
    })

  it.each([0, 1, 2, 4])(
    'entry %i behaves as in the original, whether the host can use the table or not',
    (at) => {
      const { exports } = new (wasmEngine().Instance)(new (wasmEngine().Module)(call(at)), {})
      let expected: string
      try {
        expected = String((exports.run as WasmFunction)())
      } catch (error) {
        expected = (error as Error).message
      }
      const own = metered(call(at)).run(1000)
      const other = metered(call(at, { extraExports: [shared] })).run(1000)
      expect(own.did).toBe(expected)
      expect(other.did).toBe(expected)
      if (at === 0) expect([own.left, other.left]).toEqual([1000 - 8, 1000 - 8])
    },
  )

  it('the host calls what it finds in an exported table, and exported functions keep their type', () => {
    const { exports, run } = metered(
      plain([op.i32(4), op.call(1)], {
        results: [I32],
        table,
        elements: [1],
        functions: [{ ...double, export: 'double' }],
        extraExports: [shared, { name: 'again', kind: 0, index: 1 }],
      }),
    )
    expect(run(1000).did).toBe('8')
    expect((exports.double as WasmFunction)(3)).toBe(6)
    expect(exports.again).toBe(exports.double)
    const { get } = exports.table as { get: (at: number) => WasmFunction }
    expect(get.call(exports.table, 0)(5)).toBe(10)
  })

  it('exported functions take a frame for the host and count their fuel', () => {
    const bytes = plain([op.i32(2), op.call(1)], {
      results: [I32],
      functions: [{ ...double, export: 'double' }],
    })
    const { exports, run } = metered(bytes)
    expect(run(1000)).toEqual({ did: '4', left: 1000 - 7 })
    expect(run(1000, 0).did).toBe('stack')
    const meter = exports[METER_EXPORTS.meter] as WasmGlobal
    meter.value = meterWord(100, 7)
    expect((exports.double as WasmFunction)(4)).toBe(8)
    expect(meter.value).toBe(meterWord(100 - 4, 7))
  })

  it('imported functions in a table, and references that the code creates, keep their types', () => {
    const imported = buildModule({
      imports: [{ module: 'h', name: 'f', results: [I32] }],
      functions: [{ export: 'run', results: [I32], body: [op.i32(0), [0x11, 0, 0]] }],
      table,
      elements: [0],
    })
    expect(metered(imported, {}, { h: { f: () => 77 } }).run(100).did).toBe('77')
    const created = plain([op.i32(3), [0xd2, 1], op.tableSet, op.i32(21), op.i32(3), [0x11, 1, 0]], {
      results: [I32],
      table,
      functions: [{ ...double, export: 'double' }],
    })
    expect(metered(created).run(1000).did).toBe('42')
  })
})

describe('code between two checks', () => {
  const WORK: Code = Array.from({ length: 200 }, () => op.i32Eqz)
  const leaf: FunctionSpec = { params: [I32], results: [I32], body: [op.get(0), ...WORK] }
  const deeper: Code = [op.get(0), [0x04, 0x40], op.get(0), op.i32(1), op.i32Sub, op.call(1), op.end]

  it.each<[string, Code]>([
    ['many calls', Array.from({ length: 500 }, () => [op.i32(0), op.call(2), op.drop]).flat()],
    ['many instructions', [op.i32(0), ...Array.from({ length: 100_000 }, () => op.i32Eqz), op.drop]],
    ['10,000 instructions', [op.i32(0), ...Array.from({ length: 10_000 }, () => op.i32Eqz), op.drop]],
    [
      'checks that other paths pass',
      Array.from({ length: 500 }, () => [
        ...[op.i32(0), op.call(2), op.drop],
        ...[op.i32(0), [0x04, 0x40], op.loop, op.i32(0), op.brIf(0), op.end, op.end],
      ]).flat(),
    ],
  ])('%s after a recursion cannot use much more than the fuel', (_, tail) => {
    const functions = [{ params: [I32], body: [...deeper, ...tail] }, leaf]
    const { did, left } = metered(plain([op.i32(1000), op.call(1)], { functions })).run(20_000)
    expect(did).toBe('fuel')
    expect(left).toBeGreaterThan(-20_000)
  })

  it('a function in a shared table does not run while its own module has no fuel', () => {
    const spec = { table: { min: 1 }, elements: [1], functions: [{ results: [I32], body: [op.i32(7)] }] }
    const shared = plain([], { ...spec, extraExports: [{ name: 'table', kind: 1, index: 0 }] })
    const { exports } = metered(shared)
    const meter = exports[METER_EXPORTS.meter] as WasmGlobal
    const found = (exports.table as { get(index: number): WasmFunction }).get(0)
    meter.value = 0n
    expect(() => found()).toThrow('unreachable')
    meter.value = meterWord(100, 10)
    expect(found()).toBe(7)
  })

  it('an exported function that code can refer to does not run while its module has no fuel', () => {
    const functions = [{ export: 'short', results: [I32], body: [op.i32(7)] }]
    for (const options of [{}, { initial: { fuel: 100, frames: 10 } }]) {
      const { exports } = metered(plain([[0xd2, 1], op.drop], { functions }), options)
      const meter = exports[METER_EXPORTS.meter] as WasmGlobal
      meter.value = 0n
      expect(() => (exports.short as WasmFunction)()).toThrow('unreachable')
      meter.value = meterWord(100, 10)
      expect((exports.short as WasmFunction)()).toBe(7)
    }
  })

  it('an exception that leaves a linked module has paid for every frame', () => {
    const deep = (last: Code): Uint8Array =>
      plain([op.i32(1000), op.call(1)], {
        tags: [{}],
        functions: [
          {
            params: [I32],
            body: [
              ...[op.call(2), op.i32(0), ...WORK.slice(0, 50), op.drop],
              ...[
                op.get(0),
                [0x04, 0x40],
                op.get(0),
                op.i32(1),
                op.i32Sub,
                op.call(1),
                [0x05],
                ...last,
                op.end,
              ],
            ],
          },
          { body: [] },
          // Nothing passes the meter in a module with a tail call.
          { body: [[0x00], op.tailCall(2)] },
        ],
      })
    const spent = (last: Code): number =>
      1_000_000 - metered(deep(last), { isLinked: true }).run(1_000_000).left
    expect(spent([op.throw(0)])).toBeGreaterThan(spent([]) - 4000)
  })

  it('a module with its own budget has spent what it used before a trap', () => {
    const trap: Code = [op.i32(1), op.i32(0), [0x6d], op.drop]
    const functions = [leaf]
    const bytes = plain([op.i32(0), op.call(1), op.drop, ...trap], { functions })
    const { exports } = metered(bytes, { initial: { fuel: 1000, frames: 10 } })
    expect(() => (exports.run as WasmFunction)()).toThrow('divide by zero')
    expect(readMeter((exports[METER_EXPORTS.meter] as WasmGlobal).value).fuel).toBeLessThan(800)
  })

  it('types with as many values as an engine allows can be called through a table', () => {
    const params = Array.from({ length: 1000 }, () => I32)
    const call: Code = [...params.map(() => op.i32(0)), op.i32(0), [0x11, 1, 0]]
    const spec = { table: { min: 1 }, elements: [1], functions: [{ params, body: [] }] }
    expect(metered(plain(call, spec)).run(10_000).did).toBe('returned')
  })
})

describe('memory and table limits', () => {
  it('memory grows to the limit and not beyond', () => {
    const grow = (pages: number): Uint8Array =>
      plain([op.i32(pages), op.memoryGrow], { results: [I32], memory: { min: 1 } })
    expect(metered(grow(15), { memoryMb: 1 }).run(1_000_000).did).toBe('1')
    expect(metered(grow(16), { memoryMb: 1 }).run(1_000_000).did).toBe('-1')
    expect(() => meterModule(plain([], { memory: { min: 17 } }), { memoryMb: 1 })).toThrow(/needs 17 pages/)
  })
  it('tables grow to the limit and not beyond', () => {
    const grow = plain([op.nullFunction, op.i32(100), op.tableGrow], { results: [I32], table: { min: 1 } })
    expect(metered(grow, { tableElements: 101 }).run(1_000_000).did).toBe('1')
    expect(metered(grow, { tableElements: 100 }).run(1_000_000).did).toBe('-1')
    expect(() => meterModule(plain([], { table: { min: 2_000_000 } }))).toThrow(/table elements/)
  })
  it('a smaller maximum declared by the module is kept', () => {
    const grow = plain([op.i32(2), op.memoryGrow], { results: [I32], memory: { min: 1, max: 2 } })
    expect(metered(grow).run(1000).did).toBe('-1')
  })
})

describe('the rewritten module', () => {
  const globals = [{ type: I64, mutable: true, value: 5 }]
  it.each<[string, Uint8Array]>([
    ['reads the meter', plain([[0x23, 1]], { results: [I64], globals })],
    ['writes the meter', plain([op.i64(9), [0x24, 1]], { globals })],
    ['writes the allowance', plain([op.i64(9), [0x24, 2]], { globals })],
    ['exports the meter', plain([], { globals, extraExports: [{ name: 'm', kind: 3, index: 1 }] })],
    ['reads our local', plain([op.get(0)], { results: [I64] })],
    ['branches to our blocks', plain([op.br(1)])],
    ['uses our block type', plain([[0x02, 2], op.i32(1), op.i32(2), op.end, op.drop, op.drop], {})],
  ])('a module that %s stays invalid and is refused', (_, bytes) =>
    expect(() => meterModule(bytes)).toThrow('not a valid WebAssembly module'),
  )
  it('a module that exports a reserved name is refused', () => {
    for (const name of [...Object.values(METER_EXPORTS), '\0x']) {
      expect(() => meterModule(plain([], { extraExports: [{ name, kind: 0, index: 0 }] }))).toThrow(
        /reserved name/,
      )
    }
  })
  it('keeps the exports and their values', () => {
    const module = metered(plain([[0x23, 0]], { results: [I64], globals, memory: { min: 1 } }))
    expect(module.run(10).did).toBe('5')
    expect(Object.keys(module.exports).sort()).toEqual([
      '\0ringfence.meter',
      '\0ringfence.work',
      'memory',
      'run',
    ])
  })
  it('keeps custom sections in their place, except those with offsets into the code', () => {
    const custom = (name: string): readonly number[] => {
      const text = [...new TextEncoder().encode(name)]
      return [0, text.length + 3, text.length, ...text, 1, 2]
    }
    const body = plain([[0x23, 0]], { results: [I64], globals })
    const middle = ['.debug_line', 'metadata.code.branch_hint', 'reloc.CODE', 'sourceMappingURL', 'producers']
    const bytes = new Uint8Array([
      ...body.subarray(0, 8),
      ...custom('dylink.0'),
      ...body.subarray(8),
      ...middle.flatMap(custom),
      ...custom('name'),
    ])
    const { sections } = decodeModule(meterModule(bytes).bytes)
    const after = meterModule(bytes).bytes
    const names = sections.map(({ id, start }) => (id === 0 ? new ByteReader(after, start).text() : id))
    expect(names).toEqual(['dylink.0', 1, 3, 6, 7, 10, 'producers', 'name'])
    // A dynamic linker walks all exports; with its own budget, such a module has only its own.
    const own = meterModule(bytes, { initial: { fuel: 100, frames: 10 } }).bytes
    const { exports } = new (wasmEngine().Instance)(new (wasmEngine().Module)(own), {})
    expect(Object.keys(exports)).toEqual(['run'])
    expect((exports.run as WasmFunction)()).toBe(5n)
  })
  it('the start function runs when the host calls it, and is metered', () => {
    const bytes = plain([], { start: 1, functions: [{ body: [op.loop, op.br(0), op.end] }] })
    const { exports } = metered(bytes)
    ;(exports[METER_EXPORTS.meter] as WasmGlobal).value = meterWord(1000, 1024)
    expect(exports[METER_EXPORTS.start] as WasmFunction).toThrow('unreachable')
    expect(readMeter((exports[METER_EXPORTS.meter] as WasmGlobal).value).spent).toBe('fuel')
  })
  it('a module with its own budget needs no host', () => {
    const looping = plain([op.loop, op.br(0), op.end])
    const { bytes } = meterModule(looping, { initial: { fuel: 1000, frames: 10 } })
    const { exports } = new (wasmEngine().Instance)(new (wasmEngine().Module)(bytes), {})
    expect(exports.run as WasmFunction).toThrow('unreachable')
  })
  it('gives the same bytes every time, at once or in steps', async () => {
    const again = await loadMetered(mixed)
    expect(Buffer.from(meterModule(mixed).bytes).equals(again.bytes)).toBe(true)
  })
  it('gives up when it takes too long', async () => {
    const functions = Array.from({ length: 500 }, () => ({
      body: Array(200)
        .fill([op.i32(1), [0x1a]])
        .flat(),
    }))
    await expect(loadMetered(plain([], { functions }), { loadMs: 1 })).rejects.toMatchObject({
      code: 'resource-limit-exceeded',
    })
  })
  it('ignores later changes of the input bytes', async () => {
    const bytes = plain([op.i32(7)], { results: [I32] })
    const loading = loadMetered(bytes)
    bytes.fill(0)
    const { exports } = new (wasmEngine().Instance)((await loading).module, {})
    ;(exports[METER_EXPORTS.meter] as WasmGlobal).value = meterWord(10, 10)
    expect((exports.run as WasmFunction)()).toBe(7)
  })
})

/** The rewrite alone, for features that this engine would not validate. */
function rewriteUnchecked(bytes: Uint8Array): void {
  const limits = {
    memoryPages: 100,
    objectBytes: 1 << 20,
    tableElements: 100,
    functions: 100,
    functionBytes: 10_000,
  }
  const steps = rewriteModule({ bytes, shape: decodeModule(bytes), limits, initial: 'host', isLinked: false })
  while (!steps.next().done);
}

describe('unsupported features are refused by name', () => {
  it.each<[string, Uint8Array]>([
    ['threads', plain([[0xfe, 0x03, 0x00]])],
    ['threads (shared memory)', sharedMemory()],
  ])('%s, even if this engine supports it', (feature, bytes) => {
    expect(wasmEngine().validate(bytes)).toBe(true)
    expect(() => meterModule(bytes)).toThrow(`the module uses ${feature}, which`)
  })

  it.each<[string, Uint8Array]>([
    ['the unknown instruction 0xfb 31', plain([[0xfb, 31]])],
    ['the unknown type 0x62', plain([[0xd0, 0x62]])],
    ['the unknown type 0x65', plain([[0x02, 0x64, 0x65], op.end])],
    ['the unknown type 0x68', plain([], { results: [0x68] })],
    ['stack switching', plain([[0xe0, 0]])],
    ['relaxed SIMD', plain([[0xfd, 0x80, 0x02]])],
    ['the unknown instruction 0xfc 19', plain([[0xfc, 19]])],
    ['the unknown instruction 0x27', plain([[0x27]])],
  ])('%s', (feature, bytes) =>
    expect(() => rewriteUnchecked(bytes)).toThrow(
      `the module uses ${feature}, which the meter does not support`,
    ),
  )

  it('refuses modules and functions that are too large', () => {
    expect(() => meterModule(new Uint8Array(16 * 1024 * 1024 + 1))).toThrow(/larger than/)
    expect(() => rewriteUnchecked(plain([Array.from({ length: 11_000 }, () => 1)]))).toThrow(/longer than/)
    const functions = Array.from({ length: 100 }, (): FunctionSpec => ({ body: [] }))
    expect(() => rewriteUnchecked(plain([], { functions }))).toThrow(/more than 100 functions/)
  })
})

function sharedMemory(): Uint8Array {
  const bytes = [...plain([], { memory: { min: 1, max: 1 } })]
  const at = bytes.findIndex(
    (byte, index) => byte === 5 && bytes[index + 1] === 4 && bytes[index + 2] === 1 && bytes[index + 3] === 1,
  )
  bytes[at + 3] = 3
  return Uint8Array.from(bytes)
}
