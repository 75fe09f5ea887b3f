import { afterAll, describe, expect, it } from 'vitest'
import { wasmEngine } from '../engine.ts'
import { WasmRunner } from '../runner.ts'
import { WasmSandbox, type WasmSandboxOptions } from '../sandbox.ts'
import {
  BUMP_ALLOC,
  BUMP_GLOBAL,
  buildModule,
  type Code,
  type FunctionSpec,
  I32,
  I64,
  op,
  plain,
} from '../testkit/module-builder.ts'
import { decodeModule } from './decode.ts'
import { METER_EXPORTS, meterModule } from './meter.ts'

/** Twenty known ways to bypass or crash a meter, each tried on the whole sandbox. */

const runner = new WasmRunner({ threads: 2 })
afterAll(() => runner.close())

const LOOP: Code = [op.loop, op.br(0), op.end]
const forever = (body: Code): Code => [op.loop, ...body, op.br(0), op.end]
const box = (options: WasmSandboxOptions = {}): WasmSandbox =>
  new WasmSandbox({ runner, epochDeadline: 100, ...options })
const ended = async (bytes: Uint8Array, options: WasmSandboxOptions = {}): Promise<unknown> => {
  const result = await box(options).run(bytes)
  if ('ok' in result) return result.ok
  return result.error.resource ?? result.error.code
}
const refusedAs = async (bytes: Uint8Array): Promise<unknown> => {
  const result = await box().run(bytes)
  return 'error' in result ? `${result.error.code}: ${result.error.message}` : 'ran'
}
const tags = [{}]

describe('the twenty pitfalls', { timeout: 120_000 }, () => {
  it('1: invalid modules are refused even if the added globals, locals and blocks would make them valid', async () => {
    const globals = [{ type: I64, mutable: true, value: 5 }]
    for (const bytes of [
      plain([op.i64(9), [0x24, 1]], { globals }),
      plain([], { globals, extraExports: [{ name: 'm', kind: 3, index: 1 }] }),
      plain([op.get(0)], { results: [I64] }),
      plain([op.br(1)]),
    ])
      expect(await refusedAs(bytes)).toContain('invalid-module')
  })

  it('2: the names of the added exports are reserved', async () => {
    for (const name of Object.values(METER_EXPORTS))
      expect(await refusedAs(plain([], { extraExports: [{ name, kind: 0, index: 0 }] }))).toContain(
        'reserved name',
      )
  })

  it('3: the rewrite adds no imports, and no module can import the meter', async () => {
    const echo = plain([op.get(0)], { params: [I32], results: [I32] })
    expect(decodeModule(meterModule(echo).bytes).imports).toEqual([])
    const own = buildModule({
      imports: [{ module: 'ringfence', name: METER_EXPORTS.meter }],
      functions: [{ export: 'run', body: [] }],
    })
    expect(await refusedAs(own)).toContain('does not exist')
  })

  it('4: a start function is metered', async () => {
    expect(await ended(plain([], { start: 1, functions: [{ body: LOOP }] }))).toBe('fuel')
  })

  it('5: no handler of the guest catches the end of a run', async () => {
    const endless = plain(forever([op.try, op.call(1), op.catchAll, op.end]), {
      tags,
      functions: [{ body: LOOP }],
    })
    expect(await ended(endless)).toBe('fuel')
    expect(await ended(plain(forever([op.try, op.call(0), op.catchAll, op.end]), { tags }))).toBe('stack')
  })

  it('6: exceptions do not bypass the accounting: frames are released, fuel is not refunded', async () => {
    const thrower: FunctionSpec = {
      params: [I32],
      body: [op.get(0), [0x04, 0x40], op.get(0), op.i32(1), op.i32Sub, op.call(1), op.end, op.throw(0)],
    }
    const once: Code = [op.try, op.i32(500), op.call(1), op.catchAll, op.end]
    const many = plain(Array.from({ length: 50 }, () => once).flat(), { tags, functions: [thrower] })
    const result = await box({ fuel: 50_000_000 }).run(many)
    expect(result).toMatchObject({ ok: null })
    expect(result.fuel).toBeGreaterThan(50 * 500 * 5)
  })

  it('7: recursion ends for every kind of call; a tail call takes no frame', async () => {
    expect(await ended(plain([op.call(0)]))).toBe('stack')
    expect(await ended(plain([op.i32(0), [0x11, 0, 0]], { table: { min: 1 }, elements: [0] }))).toBe('stack')
    expect(await ended(plain([op.tailCall(0)]))).toBe('fuel')
    // Through the host: it stores its reply with the guest's own `alloc`, which calls the host again.
    const reentrant = buildModule({
      imports: [{ module: 'ringfence', name: 'host_call', params: [I32, I32], results: [I64] }],
      memory: { min: 4 },
      globals: [BUMP_GLOBAL],
      functions: [
        { export: 'execute', params: [I32, I32], results: [I64], body: [op.get(0), op.get(1), op.call(0)] },
        {
          export: 'alloc',
          params: [I32],
          results: [I32],
          body: [op.i32(0), op.i32(2), op.call(0), op.drop, ...BUMP_ALLOC.body],
        },
      ],
      data: { at: 0, text: '{}' },
    })
    expect(['fuel', 'stack']).toContain(await ended(reentrant))
  })

  it('8: a tree of calls without a loop ends', async () => {
    const functions = Array.from(
      { length: 30 },
      (_, index): FunctionSpec => ({ body: [op.call(index + 2), op.call(index + 2)] }),
    )
    const bomb = plain([op.call(1)], { functions: [...functions, { body: [op.i32(1), op.drop] }] })
    expect(await ended(bomb)).toBe('fuel')
  })

  it('9: bulk operations cost fuel per element', async () => {
    const memory = { min: 1000 }
    const size = op.i32(1000 * 65_536)
    expect(await ended(plain([op.i32(0), op.i32(1), size, op.memoryFill], { memory }))).toBe('fuel')
    expect(await ended(plain([op.i32(0), op.i32(0), size, op.memoryCopy], { memory }))).toBe('fuel')
    const cheap = plain([op.i32(0), op.i32(1), op.i32(1000), op.memoryFill], { memory })
    expect((await box().run(cheap)).fuel).toBeGreaterThan(1000)
  })

  it('10: instructions that are slow in V8 have a surcharge', async () => {
    const table = { min: 1000 }
    for (const bytes of [
      plain(forever([op.try, op.throw(0), op.catchAll, op.end]), { tags }),
      plain(forever([op.i32(0), op.memoryGrow, op.drop]), { memory: { min: 1 } }),
      plain(forever([op.i32(0), op.nullFunction, op.i32(1000), op.tableFill]), { table }),
      plain(forever([op.i32(0), op.nullFunction, op.tableSet]), { table }),
    ]) {
      const result = await box().run(bytes)
      expect(result).toMatchObject({ error: { code: 'resource-exhausted', resource: 'fuel' } })
      if (process.env.RINGFENCE_FULL) expect(result.durationMs).toBeLessThan(1500)
    }
  })

  it('11: tables cannot bypass the memory limit', async () => {
    expect(await refusedAs(plain([], { table: { min: 10_000_000 } }))).toContain('table elements')
    const grow = plain([op.nullFunction, op.i32(9_000_000), op.tableGrow], {
      results: [I32],
      table: { min: 1 },
    })
    expect(await ended(grow, { fuel: 1_000_000_000 })).toBe(-1)
  })

  it('12: memory is limited, at the start and when it grows', async () => {
    const grow = (pages: number): Uint8Array =>
      plain([op.i32(pages), op.memoryGrow], { results: [I32], memory: { min: 1 } })
    expect(await ended(grow(1023))).toBe(1)
    expect(await ended(grow(1024))).toBe(-1)
    expect(await ended(plain([], { memory: { min: 1025 } }))).toBe('resource-exhausted')
    expect(await refusedAs(plain([[0x28, 0x40, 1, 0], op.drop], { memory: { min: 1 } }))).not.toBe('ran')
  })

  it('13: threads, shared memory and waiting are refused', async () => {
    expect(await refusedAs(plain([[0xfe, 0x03, 0x00]]))).toContain('threads')
  })

  it('14: garbage collection is refused', async () => {
    expect(await refusedAs(plain([[0xfb, 0, 0], op.drop]))).not.toBe('ran')
  })

  it('15: the same module costs the same every time; relaxed SIMD is refused', async () => {
    const work = plain([op.i32(3), op.memoryGrow, op.drop, op.i32(0), op.i32(7), op.i32(99), op.memoryFill], {
      memory: { min: 1 },
    })
    const costs = await Promise.all([1, 2, 3, 4, 5].map(async () => (await box().run(work)).fuel))
    expect(new Set(costs).size).toBe(1)
    expect(await refusedAs(plain([[0xfd, 0x80, 0x02]]))).not.toBe('ran')
  })

  it('16: code after a branch is metered if it turns out to be reachable', async () => {
    const bytes = plain([op.block, op.br(0), op.i32(1), op.drop, op.end, ...LOOP])
    expect(await ended(bytes)).toBe('fuel')
    const both = plain([op.block, op.i32(1), op.brIf(0), [0x00], op.end, ...LOOP])
    expect(await ended(both)).toBe('fuel')
  })

  it('17: huge frames end the run, not the process', async () => {
    const huge = plain([op.call(0)], { locals: Array.from({ length: 30_000 }, () => I64) })
    expect(await ended(huge)).toBe('stack')
    expect(await ended(plain([op.i32(1)], { results: [I32] }))).toBe(1)
  })

  it('18: unknown features are refused', async () => {
    for (const bytes of [plain([[0xfc, 19]]), plain([[0x27]]), Uint8Array.from([...plain([]), 60, 0])]) {
      expect(wasmEngine().validate(bytes)).toBe(false)
      expect(await refusedAs(bytes)).toContain('invalid-module')
    }
  })

  it('19: a run ended by the meter or the deadline is charged its whole budget', async () => {
    expect((await box({ fuel: 5000 }).run(plain(LOOP))).fuel).toBe(5000)
    const late = await box({ fuel: 10_000_000_000, epochDeadline: 1 }).run(plain(LOOP))
    expect(late).toMatchObject({ error: { code: 'timeout' }, fuel: 10_000_000_000 })
    const again = await box({ fuel: 5000 }).run(plain([op.i32(1)], { results: [I32] }))
    expect(again).toMatchObject({ ok: 1 })
  })

  it('20: compile bombs are bounded', async () => {
    expect(await refusedAs(new Uint8Array(16 * 1024 * 1024 + 1))).toContain('larger than')
    const nested = plain([
      ...Array.from({ length: 20_000 }, () => op.block),
      ...Array.from({ length: 20_000 }, () => op.end),
    ])
    expect(await ended(nested)).toBe(null)
    const loops = plain(Array.from({ length: 10_000 }, (): Code => [op.loop, op.end]).flat())
    // The cost of V8's optimising compiler grows with the square of the number of loops, outside of every limit.
    expect(await refusedAs(loops)).toContain('loops')
    const long = plain([Array.from({ length: 1_100_000 }, () => 1)])
    expect(await refusedAs(long)).toContain('longer than')
  })
})
