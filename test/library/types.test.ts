import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { Sandbox, wrap } from '../../src/index.ts'

/** A wrong spec does not compile (`tsc` fails where a `@ts-expect-error` finds no error), and is refused at run time too. */

const base = mkdtempSync(join(tmpdir(), 'rf-types-'))
afterAll(() => rmSync(base, { recursive: true, force: true }))
const options = {
  env: { HOME: base, RINGFENCE_HOME: join(base, 'state'), PATH: process.env.PATH },
  cwd: base,
}
const REFUSED = { code: 'invalid-input' }

test('a misspelled field of a spec does not compile and is refused', async () => {
  // @ts-expect-error: `workspace`
  await expect(Sandbox.create({ workspce: base }, options)).rejects.toMatchObject(REFUSED)
  // @ts-expect-error: `memoryMb`
  await expect(Sandbox.create({ limits: { memoryMB: 64 } }, options)).rejects.toMatchObject(REFUSED)
  // @ts-expect-error: `workspace`
  await expect(wrap({ workspce: base }, ['true'], options)).rejects.toMatchObject(REFUSED)
})

test('a value of the wrong type does not compile and is refused', async () => {
  // @ts-expect-error: one of the presets
  await expect(Sandbox.create({ preset: 'readonly' }, options)).rejects.toMatchObject(REFUSED)
  // @ts-expect-error: one of the modes
  await expect(Sandbox.create({ network: { mode: 'online' } }, options)).rejects.toMatchObject(REFUSED)
  // @ts-expect-error: one of the guarantees
  await expect(wrap({ waive: ['fs.reed'] }, ['true'], options)).rejects.toMatchObject(REFUSED)
})
