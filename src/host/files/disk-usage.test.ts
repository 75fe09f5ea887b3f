import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { diskUsage } from './disk-usage.ts'

const dir = mkdtempSync(join(tmpdir(), 'rf-usage-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))

test('bytes of files count', async () => {
  mkdirSync(join(dir, 'full'))
  writeFileSync(join(dir, 'full', 'file'), Buffer.alloc(1_000_000, 'x'))
  const used = await diskUsage(join(dir, 'full'))
  expect(used).toBeGreaterThanOrEqual(1_000_000)
  expect(used).toBeLessThan(1_200_000)
})

test('an empty file counts as a block', async () => {
  mkdirSync(join(dir, 'empty'))
  for (let n = 0; n < 500; n++) writeFileSync(join(dir, 'empty', `f${n}`), '')
  expect(await diskUsage(join(dir, 'empty'))).toBeGreaterThanOrEqual(500 * 4096)
})
