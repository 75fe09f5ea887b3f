import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { planOf } from '../conformance/world.ts'
import { leftovers, noCluster, testApi, testBackend } from './lab.ts'

const FULL = process.env.RINGFENCE_FULL === '1'
const MINUTES = 60_000
const CYCLES = FULL ? 200 : 1

describe.skipIf(noCluster())('a sandbox is a Pod', () => {
  const backend = testBackend()
  afterAll(() => backend.close())

  test('commands, files and ports work; nothing is left', { timeout: 60 * MINUTES }, async () => {
    for (let round = 0; round < CYCLES; round++) {
      const sandbox = await backend.open(planOf({ backend: 'kubernetes', network: { mode: 'loopback' } }))
      const { outcome, stdout } = await sandbox.exec({ argv: ['/bin/sh', '-c', 'echo $((40 + 2)); exit 3'] })
      expect([outcome, String(stdout)]).toEqual([{ kind: 'exited', code: 3 }, '42\n'])
      await sandbox.files.write('/tmp/a/b', [Buffer.from('text')])
      expect((await sandbox.files.stat('/tmp/a/b')).size).toBe(4)
      await sandbox.close()
    }
    expect(await leftovers(await testApi())).toEqual([])
  })

  test('directories are copied in, and changes back', { timeout: 2 * MINUTES }, async () => {
    const dir = mkdtempSync(join(tmpdir(), 'rf-kube-'))
    for (const name of ['rw', 'ro']) mkdirSync(join(dir, name))
    writeFileSync(join(dir, 'rw', 'in'), 'in')
    writeFileSync(join(dir, 'ro', 'in'), 'in')
    const spec = { backend: 'kubernetes', write: [join(dir, 'rw')], read: [join(dir, 'ro')] }
    const sandbox = await backend.open(planOf(spec))
    const script = `cat rw/in ro/in; echo new > rw/out; echo no > ro/in || echo refused`
    const { stdout } = await sandbox
      .exec({ argv: ['/bin/sh', '-c', script], cwd: dir })
      .catch(() => ({ stdout: '' }))
    await sandbox.close()
    expect(String(stdout)).toBe('ininrefused\n')
    expect(readFileSync(join(dir, 'rw', 'out'), 'utf8')).toBe('new\n')
    expect(readFileSync(join(dir, 'ro', 'in'), 'utf8')).toBe('in')
    rmSync(dir, { recursive: true })
  })
})
