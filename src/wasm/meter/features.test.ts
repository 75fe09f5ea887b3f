import { describe, expect, it } from 'vitest'
import { wasmEngine } from '../engine.ts'
import { WasmSandbox } from '../sandbox.ts'
import { meterModule } from './meter.ts'

/** WebAssembly 3.0 on the engines that run it, and the errors of those that do not. */

const number = (value: number): number[] => {
  const bytes: number[] = []
  for (let rest = value; ; rest >>= 7) {
    if (rest < 64) return [...bytes, rest]
    bytes.push((rest & 0x7f) | 0x80)
  }
}
const section = (id: number, content: readonly number[]): number[] => [id, content.length, ...content]
const HEADER = [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]

type Parts = {
  readonly types?: readonly number[]
  readonly globals?: readonly number[]
  readonly memories?: readonly number[]
  readonly body?: readonly number[]
}

/** Types 0 and 1 are `array (mut i64)` and `struct (next, data)`; type 2 is the type of `run`. */
const OBJECT_TYPES = [3, 0x5e, 0x7e, 1, 0x5f, 2, 0x63, 1, 0, 0x63, 0, 0, 0x60, 0, 0]

function build({ types = [1, 0x60, 0, 0], globals, memories, body = [] }: Parts): Uint8Array {
  const code = [0, ...body, 0x0b]
  const run = types === OBJECT_TYPES ? 2 : 0
  return Uint8Array.from([
    ...HEADER,
    ...section(1, types),
    ...section(3, [1, run]),
    ...(memories ? section(5, memories) : []),
    ...(globals ? section(6, globals) : []),
    ...section(7, [1, 3, 0x72, 0x75, 0x6e, 0, 0]),
    ...section(10, [1, code.length, ...code]),
  ])
}

/** Creates a list whose every entry holds an array of this length, without end. */
const list = (length: number): Uint8Array =>
  build({
    types: OBJECT_TYPES,
    globals: [1, 0x63, 1, 1, 0xd0, 1, 0x0b],
    body: [3, 0x40, 0x23, 0, 0x41, ...number(length), 0xfb, 7, 0, 0xfb, 0, 1, 0x24, 0, 0x0c, 0, 0x0b],
  })

/** A global whose initial value is an array of this length. */
const initialArray = (length: number): Uint8Array =>
  build({
    types: OBJECT_TYPES,
    globals: [1, 0x63, 0, 0, 0x41, ...number(length), 0xfb, 7, 0, 0x0b],
  })

const MODULES: readonly (readonly [feature: string, node: number, bytes: Uint8Array])[] = [
  ['garbage collection', 22, list(1)],
  ['multiple memories', 22, build({ memories: [2, 0, 1, 0, 1] })],
  ['64-bit memory', 22, build({ memories: [1, 4, 1] })],
  ['exceptions with references (try_table)', 22, build({ body: [0x1f, 0x40, 0, 0x0b] })],
  ['typed references', 22, build({ types: [2, 0x60, 0, 0, 0x60, 1, 0x63, 0, 0] })],
]

describe.each(MODULES)('%s', (feature, node, bytes) => {
  const runs = wasmEngine().validate(bytes)

  it.runIf(runs)('is metered', () => {
    expect(wasmEngine().validate(meterModule(bytes).bytes)).toBe(true)
  })

  it.skipIf(runs)('is refused by name if the engine does not support it', () => {
    expect(() => meterModule(bytes)).toThrow(
      expect.objectContaining({
        message: `the module uses ${feature}, which Node ${process.versions.node} cannot run`,
        hint: expect.stringContaining(`Node ${node} or newer`),
      }),
    )
  })
})

describe.runIf(wasmEngine().validate(list(1)))('garbage-collected objects', () => {
  // Without the limit, V8 ends the whole process for some of these lengths.
  it.each([1, 100, 4_000, 1_000_000, 10_000_000])(
    'in arrays of %i elements end the run, not the process',
    async (length) => {
      const sandbox = new WasmSandbox({ fuel: 2_000_000_000, epochDeadline: 100 })
      expect(await sandbox.run(list(length))).toMatchObject({
        error: { code: 'resource-exhausted', resource: 'memory' },
      })
    },
  )

  it('created by initial values are counted', () => {
    expect(() => meterModule(initialArray(1_000_000))).not.toThrow()
    expect(() => meterModule(initialArray(100_000_000))).toThrow(/create 800000016 bytes of objects/)
  })
})

/** Calls itself 500 times, then throws; `run` catches that 50 times, at the label of a block or of its loop. */
const thrower = (run: readonly number[]): Uint8Array => {
  const deep = [0, 0x20, 0, 0x45, 0x04, 0x40, 0x08, 0, 0x0b, 0x20, 0, 0x41, 1, 0x6b, 0x10, 0, 0x0b]
  const body = [1, 1, 0x7f, ...run, 0x0b]
  return Uint8Array.from([
    ...HEADER,
    ...section(1, [2, 0x60, 0, 0, 0x60, 1, 0x7f, 0]),
    ...section(3, [2, 1, 0]),
    ...section(13, [1, 0, 0]),
    ...section(7, [1, 3, 0x72, 0x75, 0x6e, 0, 1]),
    ...section(10, [2, deep.length, ...deep, body.length, ...body]),
  ])
}
const COUNT = [0x20, 0, 0x41, 1, 0x6a, 0x22, 0, 0x41, 50]
const TRY = [0x1f, 0x40, 1, 2, 0, 0x41, 0xf4, 3, 0x10, 0, 0x0b]
const AT_BLOCK = thrower([3, 0x40, 2, 0x40, ...TRY, 0x0b, ...COUNT, 0x49, 0x0d, 0, 0x0b])
const AT_LOOP = thrower([3, 0x40, ...COUNT, 0x4f, 4, 0x40, 0x0f, 0x0b, ...TRY, 0x0b])

describe.runIf(wasmEngine().validate(AT_BLOCK))('try_table handlers', () => {
  it.each([
    ['a block', AT_BLOCK, 50],
    ['a loop', AT_LOOP, 49],
  ])('an exception caught at %s releases its frames and keeps its fuel charged', async (_, bytes, times) => {
    const { fuel, ...result } = await new WasmSandbox({ stack: 600 }).run(bytes)
    expect(result).toMatchObject({ ok: null })
    // 501 calls of the function: one unit to enter, three for the test, four for the call, or one for the throw.
    expect(fuel).toBeGreaterThan(times * 501 * 7)
    expect(fuel).toBeLessThan(times * 501 * 9)
  })

  it('exceptions count as objects, because a handler can keep them', async () => {
    const endless = thrower([3, 0x40, 2, 0x40, 0x1f, 0x40, 1, 2, 0, 8, 0, 0x0b, 0x0b, 0x0c, 0, 0x0b])
    const sandbox = new WasmSandbox({ fuel: 2_000_000_000, epochDeadline: 600 })
    expect(await sandbox.run(endless)).toMatchObject({
      error: { code: 'resource-exhausted', resource: 'memory' },
    })
  })

  it('fuel ends a loop that only throws and catches', async () => {
    const endless = thrower([3, 0x40, ...TRY, 0x0c, 0, 0x0b])
    expect(await new WasmSandbox({ fuel: 1_000_000 }).run(endless)).toMatchObject({
      error: { code: 'resource-exhausted', resource: 'fuel' },
    })
  })
})

/** `run` calls function 0, which has this body, ten times. */
function called(
  body: readonly number[],
  call = [0x10, 0, 0x1a],
  tables: number[] = [],
  elements: number[] = [],
): Uint8Array {
  const bodies = [body, Array.from({ length: 10 }, () => call).flat()].map((one) => [0, ...one, 0x0b])
  const code = [2, ...bodies.flatMap((one) => [...number(one.length), ...one])]
  return Uint8Array.from([
    ...HEADER,
    ...section(1, [2, 0x60, 0, 1, 0x7f, 0x60, 0, 0]),
    ...section(3, [2, 0, 1]),
    ...tables,
    ...section(7, [1, 3, 0x72, 0x75, 0x6e, 0, 1]),
    ...elements,
    ...[10, ...number(code.length), ...code],
  ])
}

describe.runIf(wasmEngine().validate(AT_BLOCK))('typed tables and code that is never reached', () => {
  it('a try_table behind a return does not make a function free', async () => {
    const work = [0x41, 0, ...Array.from({ length: 90 }, () => 0x45), 0x0f]
    const { fuel } = await new WasmSandbox().run(called([...work, 0x1f, 0x40, 0, 0x0b, 0x00]))
    expect(fuel).toBeGreaterThan(900)
  })

  it.each<[string, number[], number[]]>([
    ['a table with an initial value', [1, 0x40, 0, 0x63, 0, 0, 1, 0xd2, 0, 0x0b], [0]],
    ['a segment', [1, 0x63, 0, 0, 1], [1, 6, 0, 0x41, 0, 0x0b, 0x63, 0, 1, 0xd2, 0, 0x0b]],
  ])('functions can be called through %s of their type', async (_, table, segments) => {
    const call = [0x41, 0, 0x11, 0, 0, 0x1a]
    const bytes = called([0x41, 7], call, section(4, table), section(9, segments))
    expect(wasmEngine().validate(bytes)).toBe(true)
    expect(await new WasmSandbox().run(bytes)).toMatchObject({ ok: null })
  })
})

it('a damaged module is refused at once, whatever lengths it claims', () => {
  const huge = [0xff, 0xff, 0xff, 0xff, 0x0f]
  for (const id of [1, 2, 3, 4, 5, 6, 7, 9, 10]) {
    const bytes = Uint8Array.from([...HEADER, ...section(id, [...huge, 0, 0])])
    expect(() => meterModule(bytes)).toThrow('not a valid WebAssembly module')
  }
})
