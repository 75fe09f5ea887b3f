import { afterAll, describe, expect, it } from 'vitest'
import { WasmSandbox } from '../sandbox.ts'
import {
  component,
  define,
  ECHO,
  exportExecute,
  TYPE,
  textComponent,
  textModule,
  types,
} from '../testkit/component-builder.ts'
import { buildModule, I32, I64, op } from '../testkit/module-builder.ts'

const box = new WasmSandbox({ fuel: 1_000_000, epochDeadline: 50, memoryMb: 4 })
afterAll(() => box.close())

const FOREVER = [op.loop, op.br(0), op.end, op.unreachable]
const exhausted = (resource: string) => ({ error: { code: 'resource-exhausted', resource } })

describe('a component', () => {
  it('takes and returns text', async () => {
    const input = { same: ['é', '𝄞', null] }
    expect(await box.run(textComponent(), input)).toMatchObject({ ok: input })
  })

  it('pays fuel for its code and for its values', async () => {
    const short = await box.run(textComponent(), 'a')
    const long = await box.run(textComponent(), 'a'.repeat(5000))
    expect(short.fuel).toBeGreaterThan(100)
    expect(long.fuel).toBeGreaterThan(short.fuel + 5000)
    expect((await box.run(textComponent(), 'a')).fuel).toBe(short.fuel)
  })

  it('ends when its fuel is used up', async () => {
    expect(await box.run(textComponent(FOREVER))).toMatchObject({ ...exhausted('fuel'), fuel: 1_000_000 })
  })

  it('has the memory limit of a module', async () => {
    const grow = [op.i32(1000), op.memoryGrow, op.i32(1), op.i32Add, [0x04, 0x40], op.unreachable, op.end]
    expect(await box.run(textComponent([...grow, ...ECHO]), 1)).toMatchObject({ ok: 1 })
    const large = textComponent(ECHO, { memory: { min: 100 } })
    expect(await box.run(large)).toMatchObject({ error: { code: 'resource-exhausted' } })
  })
})

/** `execute` of the first module calls `other` of the second one. */
const calling = (other: Parameters<typeof buildModule>[0]): Uint8Array =>
  component(
    define.module(buildModule(other)),
    define.module(textModule([op.call(0), ...ECHO], { imports: [{ module: 'm', name: 'other' }] })),
    define.start(0),
    define.start(1, { m: 0 }),
    exportExecute(1),
    define.exportFunc('execute', 0),
  )

describe('core modules of one component', () => {
  it('share the fuel', async () => {
    expect(await box.run(calling({ functions: [{ export: 'other', body: [] }] }), 2)).toMatchObject({ ok: 2 })
    const looping = calling({ functions: [{ export: 'other', body: [op.loop, op.br(0), op.end] }] })
    expect(await box.run(looping)).toMatchObject({ ...exhausted('fuel'), fuel: 1_000_000 })
  })

  it('count the fuel of their start functions', async () => {
    const functions = [{ export: 'other', body: [op.loop, op.br(0), op.end] }]
    expect(await box.run(calling({ functions, start: 0 }))).toMatchObject(exhausted('fuel'))
  })

  it('are refused if an import is missing', async () => {
    const bytes = component(
      define.module(textModule(ECHO, { imports: [{ module: 'm"\n', name: 'gone' }] })),
      define.start(0),
      exportExecute(0),
      define.exportFunc('execute', 0),
    )
    expect(await box.run(bytes)).toMatchObject({
      error: { code: 'abi-error', message: 'the imports of a core module do not fit' },
    })
  })

  it('cannot reach the meter of another one', async () => {
    const stolen = component(
      define.module(textModule(ECHO)),
      define.start(0),
      define.coreAlias(3, 0, '\0ringfence.meter'),
      exportExecute(0),
      define.exportFunc('execute', 0),
    )
    expect(await box.run(stolen)).toMatchObject({
      error: { code: 'abi-error', message: 'an alias names no core export' },
    })
  })

  it('trap if they are reached through a shared table', async () => {
    // The second module puts its endless function into the table of the first one, which calls it.
    const leb = (text: string) => [text.length, ...new TextEncoder().encode(text)]
    const filler = Uint8Array.from([
      ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
      ...[1, 4, 1, 0x60, 0, 0],
      ...[2, 9, 1, ...leb('m'), ...leb('t'), 1, 0x70, 0, 1],
      ...[3, 2, 1, 0],
      ...[9, 7, 1, 0, 0x41, 0, 0x0b, 1, 0],
      ...[10, 9, 1, 7, 0, 0x03, 0x40, 0x0c, 0, 0x0b, 0x0b],
    ])
    const body = [op.i32(0), [0x11, 2, 0], ...ECHO]
    const main = textModule(body, {
      table: { min: 1 },
      extraExports: [{ name: 't', kind: 1, index: 0 }],
      functions: [{ body: [] }],
    })
    const bytes = component(
      define.module(main),
      define.module(filler),
      define.start(0),
      define.start(1, { m: 0 }),
      exportExecute(0),
      define.exportFunc('execute', 0),
    )
    expect(await box.run(bytes)).toMatchObject({ error: { code: 'trap' } })
  })

  it('have one memory limit together', async () => {
    const twice = component(
      define.module(textModule(ECHO)),
      define.start(0),
      define.start(0),
      exportExecute(0),
      define.exportFunc('execute', 0),
    )
    expect(await box.run(twice)).toMatchObject(exhausted('memory'))
  })

  it('cannot catch the end of a run', async () => {
    // A handle that does not exist is dropped inside `try … catch_all`.
    const caught = [op.try, op.i32(99), op.call(0), op.catchAll, op.end, ...ECHO]
    const imports = [{ module: 'm', name: 'drop', params: [I32] }]
    const bytes = component(
      define.type(types.resource),
      define.resourceDrop(0),
      define.functions({ drop: 0 }),
      define.module(textModule(caught, { imports })),
      define.start(0, { m: 0 }),
      exportExecute(1, { funcs: 1, types: 1 }),
      define.exportFunc('execute', 0),
    )
    expect(await box.run(bytes)).toMatchObject({
      error: { code: 'abi-error', message: 'a handle is not valid' },
    })
  })
})

/** Calls a function of an interface and returns its 64-bit result as eight bytes of text. */
const asking = (from: string, func: string): Uint8Array => {
  const store = [op.i32(16), op.call(0), [0x37, 3, 0]]
  const body = [...store, op.i32(0), op.i32(16), [0x36, 2, 0], op.i32(0), op.i32(2), [0x36, 2, 4], op.i32(0)]
  const imports = [{ module: 'm', name: 'f', results: [I64] }]
  // The text is `{}`, so that the result is JSON.
  const text = [op.i32(16), op.i32(0x7d7b), [0x36, 2, 0]]
  return component(
    define.type(types.instance(func, TYPE.u64)),
    define.importInstance(from, 0),
    define.alias(1, 0, func),
    define.lower(0),
    define.functions({ f: 0 }),
    define.module(textModule([...store, ...text, ...body.slice(store.length)], { imports })),
    define.start(0, { m: 0 }),
    exportExecute(1, { funcs: 1, types: 1 }),
    define.exportFunc('execute', 1),
  )
}

describe('imports of a component', () => {
  it('are interfaces of WASI 0.2', async () => {
    expect(await box.run(asking('wasi:random/random@0.2.3', 'get-random-u64'))).toMatchObject({ ok: {} })
    expect(await box.run(asking('wasi:clocks/monotonic-clock@0.2.0', 'now'))).toMatchObject({ ok: {} })
  })

  it('are refused by name if they do not exist', async () => {
    for (const name of ['wasi:random/random@0.3.0', 'other:host/env@0.2.0', '__proto__', `a"\`\${x}\n`]) {
      const { error } = (await box.run(asking(name, 'f'))) as { error?: { code: string; message: string } }
      expect(error).toMatchObject({ code: 'abi-error' })
      expect(error?.message).toContain('which does not exist')
    }
  })

  it('end the run when a missing function is called', async () => {
    for (const name of ['constructor', '__proto__', 'toString', 'a"b'])
      expect(await box.run(asking('wasi:random/random@0.2.0', name))).toMatchObject({
        error: { code: 'abi-error', message: `\`wasi:random/random ${name}\` is not supported` },
      })
  })
})

describe('a hostile component', () => {
  it('runs whatever its names are', async () => {
    for (const name of [
      '__proto__',
      'constructor',
      '"];process.exit(9)//',
      `\`\${process.exit(9)}\``,
      '\u2028',
    ]) {
      const bytes = component(
        define.module(textModule(ECHO)),
        define.start(0),
        exportExecute(0),
        define.type(types.record([[name, TYPE.u8]])),
        define.exportFunc(name, 0),
        define.exportFunc('execute', 0),
      )
      expect(await box.run(bytes, name)).toMatchObject({ ok: name })
    }
  })

  it('with types that grow without end ends with an error', async () => {
    // Each record contains the one before twice; each list the one before.
    for (const next of [
      (at: number) =>
        types.record([
          ['a', at],
          ['b', at],
        ]),
      types.list,
    ]) {
      const bytes = component(
        define.module(textModule(ECHO)),
        define.start(0),
        define.type(types.record([['a', TYPE.u8]])),
        ...Array.from({ length: 60 }, (_, at) => define.type(next(at))),
        define.type(types.func([60], TYPE.string)),
        define.coreAlias(0, 0, 'execute'),
        define.coreAlias(0, 0, 'cabi_realloc'),
        define.coreAlias(2, 0, 'memory'),
        define.lift(0, 61, [
          [3, 0],
          [4, 1],
        ]),
        define.exportFunc('execute', 0),
      )
      expect(await box.run(bytes)).toMatchObject({ error: { code: 'abi-error' } })
    }
  })

  it('that starts itself again and again ends at a limit', async () => {
    let inner = component(define.module(buildModule({})), ...Array.from({ length: 4 }, () => define.start(0)))
    for (let depth = 0; depth < 12; depth++)
      inner = component(define.nested(inner), ...Array.from({ length: 8 }, () => define.instantiate(0)))
    const bytes = component(
      define.nested(inner),
      define.instantiate(0),
      define.module(textModule(ECHO)),
      define.start(1),
      exportExecute(0),
      define.exportFunc('execute', 0),
    )
    expect(await box.run(bytes)).toHaveProperty('error')
  })

  it('with very many sections or entries is refused', async () => {
    const sections = component(new Array(1_000_000).fill(0))
    const entries = component([7, 5, 0xff, 0xff, 0xff, 0xff, 0x0f])
    for (const bytes of [sections, entries])
      expect(await box.run(bytes)).toMatchObject({
        error: { code: 'unsupported', message: expect.stringContaining('more than 100000 entries') },
      })
  })

  it('that is cut off or damaged never runs to a crash', async () => {
    const bytes = asking('wasi:random/random@0.2.0', 'get-random-u64')
    for (let length = 0; length < bytes.length; length += 7)
      expect(await box.run(bytes.subarray(0, length))).toHaveProperty('error')
    let seed = 7
    const next = (below: number): number => {
      seed = (seed * 1_103_515_245 + 12_345) & 0x7fff_ffff
      return seed % below
    }
    const codes = new Set<string>()
    for (let round = 0; round < 300; round++) {
      const damaged = bytes.slice()
      for (let count = 1 + next(3); count > 0; count--) damaged[8 + next(bytes.length - 8)] = next(256)
      const result = await box.run(damaged)
      codes.add('error' in result ? result.error.code : 'ok')
    }
    expect([...codes]).not.toContain('internal')
  })
})
