import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { assertFreeSpace } from './readiness.ts'

const dir = mkdtempSync(join(tmpdir(), 'rf-ready-'))
const isRoot = process.getuid?.() === 0
const mount = (options: string): void =>
  void spawnSync('mount', ['-t', 'tmpfs', '-o', options, 'tmpfs', dir], { stdio: 'inherit' })
beforeAll(() => void (isRoot && mount('size=64m,nr_inodes=2000')))
afterAll(() => {
  if (isRoot) spawnSync('umount', [dir])
  rmSync(dir, { recursive: true, force: true })
})

describe.runIf(isRoot)('a disk', () => {
  test('with room for bytes and for files is ready', () => assertFreeSpace(dir))

  test('on which no files can be created is full', () => {
    mount('remount,nr_inodes=900')
    expect(() => assertFreeSpace(dir)).toThrow('fewer than 1000 files can be created')
  })
})
