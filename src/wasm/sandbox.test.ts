import { afterAll, describe, expect, it } from 'vitest'
import { WasmRunner } from './runner.ts'
import { WasmSandbox, type WasmSandboxOptions } from './sandbox.ts'
import { I32, I64, op, packed, plain, skill } from './testkit/module-builder.ts'

const runner = new WasmRunner({ threads: 2 })
const sandbox = (options: WasmSandboxOptions = {}): WasmSandbox => new WasmSandbox({ runner, ...options })
afterAll(() => runner.close())

const LOOP = plain([op.loop, op.br(0), op.end])
const ECHO = skill([...packed([op.get(0)], [op.get(1)])])

describe('results', () => {
  it('echoes JSON and counts fuel', async () => {
    const input = { a: [1, 'zwei', null, { ü: true }] }
    const result = await sandbox().run(ECHO, input)
    expect(result).toMatchObject({ ok: input, violations: [] })
    expect(result.fuel).toBeGreaterThan(0)
  })
  it('runs a plain function with numbers', async () => {
    const add = plain([op.get(0), op.get(1), op.i32Add], { params: [I32, I32], results: [I32] })
    expect(await sandbox().run(add, [40, 2])).toMatchObject({ ok: 42, fuel: 4 })
    const big = plain([op.get(0)], { params: [I64], results: [I64] })
    expect(await sandbox().run(big, '9223372036854775807')).toMatchObject({ ok: '9223372036854775807' })
    expect(await sandbox().run(plain([]))).toMatchObject({ ok: null, fuel: 1 })
  })
  it('stops a loop', async () => {
    const result = await sandbox({ fuel: 10_000 }).run(LOOP)
    expect(result).toMatchObject({ error: { code: 'resource-exhausted', resource: 'fuel' }, fuel: 10_000 })
    expect(result.violations).toEqual([{ violationType: 'ResourceExhausted', details: 'fuel' }])
  })
})
