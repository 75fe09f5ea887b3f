import { randomBytes } from 'node:crypto'
import { afterAll, describe, expect, test } from 'vitest'
import { type BackendSandbox, canDetach } from '../../src/backends/backend.ts'
import { planOf } from '../conformance/world.ts'
import { leftovers, noFullCluster, testApi, testBackend } from './lab.ts'

const MINUTES = 60_000
const plan = () => planOf({ backend: 'kubernetes', waive: ['net.offline'] })
const newId = (): string => `sb_${randomBytes(8).toString('hex')}`

const said = async (sandbox: BackendSandbox, script: string): Promise<string> =>
  String((await sandbox.exec({ argv: ['/bin/sh', '-c', script] })).stdout)

describe.skipIf(noFullCluster())('taking over a sandbox from another server', () => {
  const servers = [0, 1].map(() => testBackend({}, { outlives: true }))
  const [first, second] = servers as [(typeof servers)[0], (typeof servers)[0]]
  afterAll(() => Promise.all(servers.map((one) => one.close())))

  test('keeps its files, and ends its processes', {
    timeout: 3 * MINUTES,
  }, async () => {
    const id = newId()
    const one = await first.open(plan(), { id })
    expect(canDetach(one)).toBe(true)
    await said(one, 'echo kept > /tmp/file; ulimit -n > /tmp/limit')
    const long = one.exec({ argv: ['/bin/sleep', '1000'] }).catch((error: Error) => error.message)
    const layers = await one.layers()
    // The first server hangs and does not know.
    const two = await second.open(plan(), { id, generation: 2, takesOver: true })
    expect(await long).toMatch(/the sandbox is gone/)
    expect(await said(two, 'cat /tmp/file; ps -e -o comm= | grep -c sleep')).toBe('kept\n0\n')
    expect(await said(two, '[ "$(ulimit -n)" = "$(cat /tmp/limit)" ] && echo same')).toBe('same\n')
    expect(await two.layers()).toEqual(expect.arrayContaining([...layers]))
    // It removes nothing that is another server's by now.
    await one.close()
    expect(await said(two, 'echo alive')).toBe('alive\n')
    await expect(first.open(plan(), { id, generation: 1, takesOver: true })).rejects.toThrow()
    await two.close()
    await expect.poll(async () => leftovers(await testApi()), { timeout: MINUTES }).toEqual([])
  })

  test('works after a detach, and reports a deleted sandbox as not found', {
    timeout: 3 * MINUTES,
  }, async () => {
    const id = newId()
    const one = await first.open(plan(), { id })
    if (!canDetach(one)) throw new Error('it ends with its server')
    await one.files.write('/tmp/file', [Buffer.from('kept')])
    await one.detach()
    const two = await second.open(plan(), { id, generation: 2, takesOver: true })
    expect(await said(two, 'cat /tmp/file')).toBe('kept')
    await two.close()
    await expect(second.open(plan(), { id, generation: 3, takesOver: true })).rejects.toMatchObject({
      code: 'not-found',
    })
  })

  test('works after its lease expired: the commands have ended, the Pod stays', {
    timeout: 3 * MINUTES,
  }, async () => {
    const id = newId()
    const one = await first.open(plan(), { id })
    await said(one, 'echo kept > /tmp/file; sleep 1000 > /dev/null 2>&1 &')
    ;(one as unknown as { lease: (ms: number) => void }).lease(300)
    expect(await one.ended).toContain('renewed the lease')
    const two = await second.open(plan(), { id, generation: 2, takesOver: true })
    expect(await said(two, 'cat /tmp/file; ps -e -o comm= | grep -c sleep')).toBe('kept\n0\n')
    await one.close()
    await two.close()
  })

  test('keeps its disk usage', { timeout: 3 * MINUTES }, async () => {
    const id = newId()
    const small = planOf({ backend: 'kubernetes', waive: ['net.offline'], limits: { diskMb: 40 } })
    const one = await first.open(small, { id })
    await said(one, 'head -c 30000000 /dev/zero > /tmp/a')
    const two = await second.open(small, { id, generation: 2, takesOver: true })
    const { outcome } = await two.exec({
      argv: ['/bin/sh', '-c', 'head -c 20000000 /dev/zero > /tmp/b; sleep 5'],
    })
    expect(outcome).toMatchObject({ kind: 'stopped', limit: 'disk' })
    await one.close()
    await two.close()
  })
})
