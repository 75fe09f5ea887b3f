import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import type { Backend } from '../../src/backends/backend.ts'
import { planOf } from '../conformance/world.ts'
import { leftovers, noCluster, objectsLeft, testApi, testBackend } from './lab.ts'

const FULL = process.env.RINGFENCE_FULL === '1'
const MINUTES = 60_000
const CYCLES = FULL ? 200 : 0
const LANES = 4

/** Create, exec, destroy. */
async function cycle(backend: Backend): Promise<void> {
  const sandbox = await backend.open(planOf({ backend: 'kubernetes', network: { mode: 'loopback' } }))
  const { outcome, stdout } = await sandbox.exec({ argv: ['/bin/sh', '-c', 'echo $((40 + 2)); exit 3'] })
  expect([outcome, String(stdout)]).toEqual([{ kind: 'exited', code: 3 }, '42\n'])
  await sandbox.files.write('/tmp/a/b', [Buffer.from('text')])
  expect((await sandbox.files.stat('/tmp/a/b')).size).toBe(4)
  await sandbox.close()
}

describe.skipIf(noCluster())('a sandbox in a Pod', () => {
  const backend = testBackend()
  afterAll(() => backend.close())

  test('supports commands, files and ports, and leaves nothing behind', {
    timeout: 60 * MINUTES,
  }, async () => {
    await cycle(backend)
    const before = await objectsLeft()
    let left = CYCLES
    const lane = async (): Promise<void> => {
      while (left-- > 0) await cycle(backend)
    }
    await Promise.all(Array.from({ length: Math.min(LANES, CYCLES) }, lane))
    expect(await leftovers(await testApi())).toEqual([])
    expect(await objectsLeft()).toEqual(before)
  })

  test.skipIf(!FULL)('copies directories in, and changes back', { timeout: 2 * MINUTES }, async () => {
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

  test.skipIf(!FULL)(
    'protects names in a workspace below /tmp, and not in its own /tmp',
    {
      timeout: 2 * MINUTES,
    },
    async () => {
      const dir = mkdtempSync('/tmp/rf-kube-')
      mkdirSync(join(dir, '.git', 'hooks'), { recursive: true })
      const sandbox = await backend.open(
        planOf({ backend: 'kubernetes', workspace: dir, waive: ['net.offline'] }),
      )
      const script = [
        `echo x > ${dir}/.git/hooks/pre-commit || echo refused`,
        'mkdir -p /tmp/own/.git/hooks && echo x > /tmp/own/.git/hooks/pre-commit && echo own',
      ]
      const { stdout } = await sandbox.exec({ argv: ['/bin/sh', '-c', script.join('\n')] })
      await sandbox.close()
      expect(String(stdout)).toBe('refused\nown\n')
      rmSync(dir, { recursive: true })
    },
  )
})
