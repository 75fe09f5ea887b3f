import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { cli } from './program.ts'

/** On a full disk every command reports that and what to do; none reports a defect or a damaged audit log. */

const dir = mkdtempSync(join(tmpdir(), 'rf-full-'))
const work = mkdtempSync(join(tmpdir(), 'rf-work-'))
const isRoot = process.getuid?.() === 0
beforeAll(() => void (isRoot && spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=512k', 'tmpfs', dir])))
afterAll(() => {
  if (isRoot) spawnSync('umount', [dir])
  for (const one of [dir, work]) rmSync(one, { recursive: true, force: true })
})

/** Fills the disk except for the given number of bytes. */
function fill(left: number): void {
  rmSync(join(dir, 'state'), { recursive: true, force: true })
  rmSync(join(dir, 'fill'), { force: true })
  writeFileSync(join(dir, 'fill'), Buffer.alloc(512 * 1024 - left - 4096))
}

function ringfence(...args: readonly string[]) {
  const env = { PATH: process.env.PATH, HOME: dir, RINGFENCE_HOME: join(dir, 'state') }
  return spawnSync(...cli([...args]), {
    env,
    cwd: work,
    encoding: 'utf8',
    timeout: 30_000,
  })
}

describe.runIf(isRoot)('on a full disk', () => {
  test.each([
    ['serve', ['serve', '--port', '0']],
    ['key', ['key', 'create']],
    ['run', ['run', '--', 'true']],
  ] as const)('%s fails with a hint to free space', (_, args) => {
    for (const left of [0, 4096]) {
      fill(left)
      const { status, stderr } = ringfence(...args)
      expect(stderr, `${left}`).toMatch(/hint: free some space/)
      expect(stderr).not.toMatch(/defect|tampered|damaged|corrupt/)
      expect(status).toBe(125)
    }
  })
})
