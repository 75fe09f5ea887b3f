import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { WasmSandbox } from './sandbox.ts'
import { buildModule, I32, op } from './testkit/module-builder.ts'

let directory: string
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'rf-modules-'))
})
afterEach(() => rmSync(directory, { recursive: true, force: true }))

/** A module of about 100 KB that returns 7. */
const large = buildModule({
  functions: [
    { export: 'run', results: [I32], body: [op.i32(7)] },
    ...Array.from({ length: 40 }, () => ({ body: Array.from({ length: 2500 }, () => [0x01]) })),
  ],
})

async function run(): Promise<unknown> {
  const sandbox = new WasmSandbox({ cacheDirectory: directory })
  try {
    return await sandbox.run(large)
  } finally {
    sandbox.close()
  }
}

it('a metered module is cached for the next process, readable only by its owner', async () => {
  expect(await run()).toMatchObject({ ok: 7 })
  const [name = '', ...more] = readdirSync(directory)
  expect(more).toEqual([])
  const file = join(directory, name)
  expect(statSync(file).mode & 0o077).toBe(0)
  const before = readFileSync(file)
  expect(await run()).toMatchObject({ ok: 7 })
  expect(readFileSync(file)).toEqual(before)
})

it('a damaged or truncated cache file is metered again', async () => {
  await run()
  const file = join(directory, readdirSync(directory)[0] ?? '')
  const whole = readFileSync(file)
  const damaged = Buffer.from(whole)
  damaged[damaged.length - 100] = (damaged.at(-100) ?? 0) ^ 0xff
  for (const bytes of [damaged, whole.subarray(0, 1000), Buffer.alloc(0)]) {
    writeFileSync(file, bytes)
    expect(await run()).toMatchObject({ ok: 7 })
    expect(readFileSync(file)).toEqual(whole)
  }
})
