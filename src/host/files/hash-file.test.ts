import { createHash } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { hashFile } from './hash-file.ts'

const dir = mkdtempSync(join(tmpdir(), 'rf-hash-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))

test.each([0, 1, 1024 * 1024, 3 * 1024 * 1024 + 7])('hashes a file of %i bytes', async (bytes) => {
  const content = Buffer.alloc(bytes, 'content')
  writeFileSync(join(dir, 'file'), content)
  const sha256 = createHash('sha256').update(content).digest('hex')
  expect(await hashFile(join(dir, 'file'))).toEqual({ sha256, bytes })
})

test('reports a missing file', async () => {
  await expect(hashFile(join(dir, 'none'))).rejects.toMatchObject({ code: 'ENOENT' })
})

/** How long this thread has run, in nanoseconds of the processor: other work on the machine does not count. */
const ranFor = (): number => Number(readFileSync('/proc/thread-self/schedstat', 'utf8').split(' ')[0])

test('hashes a large file without blocking the main thread', async () => {
  const file = join(dir, 'sparse')
  writeFileSync(file, '')
  truncateSync(file, 256 * 1024 * 1024)
  const before = ranFor()
  expect((await hashFile(file)).bytes).toBe(256 * 1024 * 1024)
  const taken = ranFor() - before
  const hash = createHash('sha256')
  const zeros = Buffer.alloc(1024 * 1024)
  const begun = ranFor()
  for (let at = 0; at < 128; at++) hash.update(zeros)
  // Less than hashing half of it here takes, however fast the processor is.
  expect(taken).toBeLessThan(ranFor() - begun)
})
