import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { wasmEngine } from '../wasm/engine.ts'
import { I32, op, plain } from '../wasm/testkit/module-builder.ts'
import { wasm } from './wasm.ts'

let dir: string
let out: string
let err: string
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'rf-wasm-cli-'))
  out = err = ''
  vi.spyOn(process.stdout, 'write').mockImplementation((text) => {
    out += String(text)
    return true
  })
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => {
    err += String(text)
    return true
  })
})
afterEach(() => {
  vi.restoreAllMocks()
  rmSync(dir, { recursive: true, force: true })
})

const file = (bytes: Uint8Array): string => {
  writeFileSync(join(dir, 'm.wasm'), bytes)
  return join(dir, 'm.wasm')
}
const DOUBLE = plain([op.get(0), op.get(0), op.i32Add], { params: [I32], results: [I32] })
const SPIN = plain([op.loop, op.br(0), op.end])

describe('wasm run', () => {
  it('prints the value', async () => {
    expect(await wasm(['run', file(DOUBLE), '--input', '21'])).toBe(0)
    expect(out).toBe('42\n')
  })
  it('prints everything as JSON', async () => {
    expect(await wasm(['run', file(DOUBLE), '--input', '21', '--json'])).toBe(0)
    expect(JSON.parse(out)).toMatchObject({
      ok: 42,
      fuel: 4,
      violations: [],
      duration_ms: expect.any(Number),
    })
  })
  it.each<[string, Uint8Array, readonly string[], number, RegExp]>([
    ['a limit', SPIN, ['--fuel', '1000'], 124, /resource-exhausted: the run used up its fuel/],
    ['no fuel', DOUBLE, ['--fuel', '0', '--input', '1'], 124, /fuel/],
    ['the clock', SPIN, ['--fuel', '10000000000', '--timeout', '0.2'], 124, /timeout/],
    ['a trap', plain([op.unreachable]), [], 1, /trap: unreachable/],
    ['a broken file', new Uint8Array(8), [], 2, /invalid-module/],
  ])('%s', async (_, bytes, flags, code, message) => {
    expect(await wasm(['run', file(bytes), ...flags])).toBe(code)
    expect(err).toMatch(message)
  })
  it.each<[readonly string[], RegExp]>([
    [[], /missing action/],
    [['run'], /takes one file/],
    [['run', '/no/such/file'], /cannot be read/],
    [['run', '__FILE__', '--input', '{'], /takes JSON/],
    [['run', '__FILE__', '--fuel', '1e3'], /takes a number/],
    [['run', '__FILE__', '--grant', 'Everything'], /is not a capability/],
    [['meter', '__FILE__'], /needs `-o OUT`/],
  ])('%j is wrong usage', async (args, message) => {
    const given = args.map((arg) => (arg === '__FILE__' ? file(DOUBLE) : arg))
    await expect(wasm(given)).rejects.toMatchObject({ exitCode: 2, message: expect.stringMatching(message) })
  })
})

describe('wasm meter', () => {
  it('writes a module that stops by itself', async () => {
    const target = join(dir, 'out.wasm')
    expect(await wasm(['meter', file(SPIN), '-o', target, '--fuel', '500'])).toBe(0)
    const { exports } = new (wasmEngine().Instance)(new (wasmEngine().Module)(readFileSync(target)), {})
    expect(exports.run as () => void).toThrow('unreachable')
    expect(out).toContain('500 fuel')
  })
})
