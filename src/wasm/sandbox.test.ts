import { afterAll, describe, expect, it } from 'vitest'
import { WasmRunner } from './runner.ts'
import { WasmSandbox, type WasmSandboxOptions } from './sandbox.ts'
import {
  BUMP_ALLOC,
  BUMP_GLOBAL,
  buildModule,
  type Code,
  I32,
  I64,
  op,
  packed,
  plain,
  skill,
} from './testkit/module-builder.ts'

const runner = new WasmRunner({ threads: 2 })
const sandbox = (options: WasmSandboxOptions = {}): WasmSandbox =>
  new WasmSandbox({ runner, epochDeadline: 100, ...options })
afterAll(() => runner.close())

const LOOP: Code = [op.loop, op.br(0), op.end]
const ECHO = skill([...packed([op.get(0)], [op.get(1)])])
/** A module whose `execute` returns this text. */
const saying = (text: string): Uint8Array =>
  skill([...packed([op.i32(0)], [op.i32(Buffer.byteLength(text))])], { data: { at: 0, text } })

describe('results', () => {
  it('echoes JSON and counts fuel', async () => {
    const input = { a: [1, 'zwei', null, { ü: true }] }
    const result = await sandbox().run(ECHO, input)
    expect(result).toMatchObject({ ok: input, violations: [] })
    expect(result.fuel).toBeGreaterThan(0)
    expect((await sandbox().run(ECHO, input)).fuel).toBe(result.fuel)
  })

  it('runs a plain function with numbers', async () => {
    const add = plain([op.get(0), op.get(1), op.i32Add], { params: [I32, I32], results: [I32] })
    expect(await sandbox().run(add, [40, 2])).toMatchObject({ ok: 42, fuel: 4 })
    expect(await sandbox().run(add, [1])).toMatchObject({ error: { code: 'abi-error' } })
    expect(await sandbox().run(add, ['1', 2])).toMatchObject({ error: { code: 'abi-error' } })
    const big = plain([op.get(0)], { params: [I64], results: [I64] })
    expect(await sandbox().run(big, '9223372036854775807')).toMatchObject({ ok: '9223372036854775807' })
    expect(await sandbox().run(plain([]))).toMatchObject({ ok: null, fuel: 1 })
  })

  it('accepts a loaded module, and gives each call a new instance', async () => {
    const counter = plain([[0x23, 0], op.i32(1), op.i32Add, [0x24, 0], [0x23, 0]], {
      results: [I32],
      globals: [{ type: I32, mutable: true, value: 0 }],
    })
    const box = sandbox()
    const loaded = await box.load(counter)
    expect(await box.run(loaded)).toMatchObject({ ok: 1 })
    expect(await box.run(loaded)).toMatchObject({ ok: 1 })
    expect((await box.load(counter)) === loaded).toBe(true)
    await expect(sandbox().run(loaded)).rejects.toThrow('of the same sandbox')
    await expect(box.run({ ...loaded })).rejects.toThrow('of the same sandbox')
  })

  it('a guest can report an error, but cannot forge a limit', async () => {
    expect(await sandbox().run(saying('{"error":"no such thing"}'))).toMatchObject({
      error: { code: 'guest-error', message: 'no such thing' },
    })
    expect(await sandbox().run(saying('{"error":"x\\ny","code":"timeout"}'))).toMatchObject({
      error: { code: 'guest-error', message: 'x y' },
    })
    expect(await sandbox().run(saying('{"error":1,"more":2}'))).toMatchObject({ ok: { error: 1, more: 2 } })
  })
})

describe('limits', () => {
  it.each<[string, WasmSandboxOptions, Uint8Array, string]>([
    ['a loop', { fuel: 10_000 }, plain(LOOP), 'fuel'],
    ['no fuel at all', { fuel: 0 }, plain([]), 'fuel'],
    [
      'a short function beyond the budget',
      { fuel: 2 },
      plain([op.i32(1), op.i32(1), op.i32Add, op.drop]),
      'fuel',
    ],
    ['a loop in start', {}, plain([], { start: 1, functions: [{ body: LOOP }] }), 'fuel'],
    ['a loop in _initialize', {}, plain([], { functions: [{ export: '_initialize', body: LOOP }] }), 'fuel'],
    ['recursion', {}, plain([op.call(0)]), 'stack'],
    [
      'recursion with frames that fill the native stack',
      {},
      plain([op.call(0)], { locals: Array.from({ length: 30_000 }, () => I64) }),
      'stack',
    ],
    ['circular tail calls', {}, plain([op.tailCall(1)], { functions: [{ body: [op.tailCall(0)] }] }), 'fuel'],
    ['memory at the start', {}, plain([], { memory: { min: 2000 } }), ''],
  ])('%s', async (_, options, bytes, resource) => {
    const result = await sandbox(options).run(bytes)
    expect(result).toMatchObject({ error: { code: 'resource-exhausted' } })
    if (resource === '') return
    expect(result).toMatchObject({ error: { resource } })
    expect(result.violations).toEqual([{ violationType: 'ResourceExhausted', details: resource }])
  })

  it('an endless loop in alloc is reported as exhausted fuel, not as an ABI error', async () => {
    const bytes = buildModule({
      memory: { min: 1 },
      functions: [
        { export: 'execute', params: [I32, I32], results: [I64], body: [op.i64(0)] },
        { export: 'alloc', params: [I32], results: [I32], body: [...LOOP, op.i32(0)] },
      ],
    })
    expect(await sandbox().run(bytes)).toMatchObject({
      error: { code: 'resource-exhausted', resource: 'fuel' },
    })
  })

  it('rejects invalid limits', () => {
    for (const options of [{ fuel: -1 }, { fuel: 1e11 }, { stack: 40_000 }, { memoryMb: Number.NaN }]) {
      expect(() => sandbox(options)).toThrow()
    }
  })
})

describe('the interface', () => {
  const result = (pointer: number, length: number): Uint8Array =>
    skill([...packed([op.i32(pointer)], [op.i32(length)])])
  it.each<[string, Uint8Array, RegExp]>([
    ['no entry point', buildModule({ functions: [] }), /neither `execute`/],
    ['a result with a negative pointer', result(-8, 4), /lies outside the memory/],
    ['a result that wraps around', result(-1, 2), /lies outside the memory/],
    ['a result with a negative length', result(0, -1), /longer than/],
    ['a result that is too long', result(0, 2_000_000), /longer than/],
    ['a result that is not JSON', saying('{'), /not JSON/],
    [
      'a result that is not UTF-8',
      skill([op.i32(0), op.i32(255), op.store8(0), ...packed([op.i32(0)], [op.i32(1)])]),
      /UTF-8/,
    ],
    ['a result that is too deep', saying('['.repeat(300) + ']'.repeat(300)), /not JSON/],
    [
      'an unknown import',
      buildModule({ imports: [{ module: 'env', name: 'x' }], functions: [{ export: 'run', body: [] }] }),
      /`env.x`, which does not exist/,
    ],
    [
      'an inherited name',
      buildModule({
        imports: [{ module: 'ringfence', name: 'toString' }],
        functions: [{ export: 'run', body: [] }],
      }),
      /does not exist/,
    ],
    [
      'an import of another type',
      buildModule({
        imports: [{ module: 'ringfence', name: 'host_call' }],
        functions: [{ export: 'run', body: [] }],
      }),
      /another type/,
    ],
    [
      'execute without alloc',
      buildModule({
        memory: { min: 1 },
        functions: [{ export: 'execute', params: [I32, I32], results: [I64], body: [op.i64(0)] }],
      }),
      /must export `alloc`/,
    ],
  ])('%s is an abi-error', async (_, bytes, message) => {
    expect(await sandbox().run(bytes)).toMatchObject({
      error: { code: 'abi-error', message: expect.stringMatching(message) },
    })
  })

  it('reports traps, invalid modules and unsupported features', async () => {
    expect(await sandbox().run(plain([op.unreachable]))).toMatchObject({
      error: { code: 'trap', message: 'unreachable' },
    })
    expect(await sandbox().run(new Uint8Array([1, 2, 3]))).toMatchObject({
      error: { code: 'invalid-module' },
    })
    expect(await sandbox().run(plain([[0xfe, 0x03, 0x00]]))).toMatchObject({
      error: { code: 'unsupported', message: expect.stringContaining('threads') },
    })
  })

  it('detects an allocator that returns invalid pointers', async () => {
    const bytes = buildModule({
      memory: { min: 1 },
      functions: [
        { export: 'execute', params: [I32, I32], results: [I64], body: [op.i64(0)] },
        { export: 'alloc', params: [I32], results: [I32], body: [op.i32(-4)] },
      ],
    })
    expect(await sandbox().run(bytes)).toMatchObject({ error: { code: 'abi-error' } })
  })
})

/** Calls `host_call` (function 0) with the input and returns its reply. */
const ASKING = buildModule({
  imports: [{ module: 'openfang', name: 'host_call', params: [I32, I32], results: [I64] }],
  memory: { min: 4 },
  globals: [BUMP_GLOBAL],
  functions: [
    { export: 'execute', params: [I32, I32], results: [I64], body: [op.get(0), op.get(1), op.call(0)] },
    BUMP_ALLOC,
  ],
})

describe('host calls', () => {
  it('time_now needs no grant; other functions are denied, and the result says so', async () => {
    expect(await sandbox().run(ASKING, { method: 'time_now' })).toMatchObject({
      ok: { ok: expect.any(Number) },
    })
    const denied = await sandbox().run(ASKING, { method: 'fs_read', params: { path: '/etc/passwd' } })
    expect(denied).toMatchObject({
      error: { code: 'capability-denied', message: '`/etc/passwd` is missing or not granted' },
      violations: [{ violationType: 'CapabilityDenied', details: 'file_read /etc/passwd' }],
    })
    expect(await sandbox().run(ASKING, { method: 'nope' })).toMatchObject({
      error: { message: 'unknown method `nope`' },
    })
    expect(await sandbox().run(ASKING, { method: 'fs_read' })).toMatchObject({
      error: { message: 'missing parameter `path`' },
    })
    expect(await sandbox().run(ASKING, 7)).toMatchObject({
      error: { message: 'the request is not a JSON object' },
    })
  })

  it('a tool of the caller needs its grant, and costs fuel', async () => {
    const hostCall = async (_: string, params: unknown): Promise<string> => `got ${JSON.stringify(params)}`
    const request = { method: 'ping', params: { a: 1 } }
    expect(await sandbox().run(ASKING, request, { hostCall })).toMatchObject({
      error: { code: 'capability-denied' },
    })
    const granted = await sandbox().run(ASKING, request, { hostCall, grants: ['ToolInvoke(ping)'] })
    expect(granted).toMatchObject({ ok: { ok: 'got {"a":1}' } })
    expect(granted.fuel).toBeGreaterThan(1000)
    const poor = await sandbox({ fuel: 900 }).run(ASKING, request, { hostCall, grants: ['ToolInvoke(ping)'] })
    expect(poor).toMatchObject({ error: { resource: 'fuel' } })
  })

  it('a tool that returns an invalid value does no harm', async () => {
    const hostCall = async (): Promise<never> => 1n as never
    const result = await sandbox().run(ASKING, { method: 'odd' }, { hostCall, grants: ['ToolAll'] })
    expect(result).toMatchObject({ error: { code: 'guest-error', message: 'the host could not do it' } })
  })

  it('a reply that is too long is refused', async () => {
    const hostCall = async (): Promise<string> => 'x'.repeat(2_000_000)
    const result = await sandbox().run(ASKING, { method: 'big' }, { hostCall, grants: ['ToolAll'] })
    expect(result).toMatchObject({ error: { message: expect.stringContaining('longer than') } })
  })

  it('ends the run past every handler if a pointer is invalid', async () => {
    const bytes = buildModule({
      imports: [{ module: 'ringfence', name: 'host_call', params: [I32, I32], results: [I64] }],
      memory: { min: 1 },
      tags: [{}],
      functions: [
        {
          export: 'run',
          body: [
            op.loop,
            op.try,
            op.i32(-4),
            op.i32(8),
            op.call(0),
            op.drop,
            op.catchAll,
            op.end,
            op.br(0),
            op.end,
          ],
        },
        BUMP_ALLOC,
      ],
      globals: [BUMP_GLOBAL],
    })
    expect(await sandbox().run(bytes)).toMatchObject({
      error: { code: 'abi-error', message: 'the request lies outside the memory' },
    })
  })

  it('keeps a bounded log with one line per call', async () => {
    const text = 'first\nERROR forged\u2028x'
    const length = Buffer.byteLength(text)
    const bytes = buildModule({
      imports: [{ module: 'ringfence', name: 'host_log', params: [I32, I32, I32] }],
      memory: { min: 1 },
      data: { at: 0, text },
      functions: [
        {
          export: 'run',
          locals: [I32],
          body: [
            op.i32(2000),
            op.set(0),
            op.loop,
            op.i32(3),
            op.i32(0),
            op.i32(length),
            op.call(0),
            op.get(0),
            op.i32(1),
            op.i32Sub,
            op.tee(0),
            op.brIf(0),
            op.end,
          ],
        },
      ],
    })
    const { log } = await sandbox().run(bytes)
    expect(log[0]).toEqual({ level: 'warn', text: 'first ERROR forged x' })
    expect(log.length).toBe(1000)
  })
})

describe('modules of AssemblyScript', () => {
  const ABORT = { module: 'env', name: 'abort', params: [I32, I32, I32, I32] }
  const SEED = { module: 'env', name: 'seed', results: [0x7c] }
  it('say why they aborted, and have a seed', async () => {
    const bytes = buildModule({
      imports: [ABORT, SEED],
      memory: { min: 1 },
      data: { at: 12, text: '\x0c\0\0\0b\0r\0o\0k\0e\0n\0' },
      functions: [
        {
          export: 'run',
          body: [op.i32(16), op.i32(0), op.i32(3), op.i32(7), op.call(0), op.call(1), op.drop],
        },
      ],
    })
    expect(await sandbox().run(bytes)).toMatchObject({ error: { code: 'trap', message: 'abort: broken' } })
    const seed = buildModule({
      imports: [SEED],
      functions: [{ export: 'run', results: [0x7c], body: [op.call(0)] }],
    })
    expect(await sandbox().run(seed)).toMatchObject({ ok: 0x9e37_79b9 })
  })
  it('cannot make the host read outside the memory', async () => {
    for (const at of [8, 65_534, -1, 65_536]) {
      const bytes = buildModule({
        imports: [ABORT],
        memory: { min: 1 },
        data: { at: 4, text: '\x7f\x7f\x7f\x7f' },
        functions: [{ export: 'run', body: [op.i32(at), op.i32(at), op.i32(0), op.i32(0), op.call(0)] }],
      })
      expect(await sandbox().run(bytes)).toMatchObject({
        error: { message: expect.stringMatching(/abort|outside/) },
      })
    }
  })
})

describe('programs for WASI', () => {
  const WASI = 'wasi_snapshot_preview1'
  /** Reads 100 bytes of stdin to 64 and writes as many of them to stdout. */
  const cat: Code = [
    ...[op.i32(0), op.i32(64), [0x36, 2, 0], op.i32(4), op.i32(100), [0x36, 2, 0]],
    ...[op.i32(0), op.i32(0), op.i32(1), op.i32(8), op.call(0), op.drop],
    ...[op.i32(4), op.i32(8), [0x28, 2, 0], [0x36, 2, 0]],
    ...[op.i32(1), op.i32(0), op.i32(1), op.i32(8), op.call(1), op.drop],
  ]
  const program = (body: Code): Uint8Array =>
    buildModule({
      imports: [
        { module: WASI, name: 'fd_read', params: [I32, I32, I32, I32], results: [I32] },
        { module: WASI, name: 'fd_write', params: [I32, I32, I32, I32], results: [I32] },
        { module: WASI, name: 'proc_exit', params: [I32] },
        { module: WASI, name: 'sock_shutdown', params: [I32, I32], results: [I32] },
      ],
      memory: { min: 1 },
      functions: [{ export: '_start', body }],
    })

  it('read the input and write the result', async () => {
    expect(await sandbox().run(program(cat), { a: 1 })).toMatchObject({ ok: { a: 1 } })
    expect(await sandbox().run(program([...cat, op.i32(0), op.call(2)]), [2])).toMatchObject({ ok: [2] })
  })
  it('fail with their exit code, and have no sockets', async () => {
    expect(await sandbox().run(program([op.i32(3), op.call(2)]))).toMatchObject({
      error: { code: 'guest-error', message: 'the program exited with code 3' },
    })
    expect(await sandbox().run(program([op.i32(3), op.i32(0), op.call(3), op.call(2)]))).toMatchObject({
      error: { message: 'the program exited with code 8' },
    })
  })
})
