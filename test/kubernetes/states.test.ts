import { afterAll, describe, expect, test } from 'vitest'
import type { BackendSandbox } from '../../src/backends/backend.ts'
import type { PodView } from '../../src/backends/kubernetes/cluster-api.ts'
import { isRunning } from '../../src/backends/kubernetes/pod-state.ts'
import { planOf } from '../conformance/world.ts'
import { leftovers, noFullCluster, ownPods, runningPod, testApi, testBackend } from './lab.ts'

const MINUTES = 60_000
const plan = (more: Record<string, unknown> = {}) =>
  planOf({ backend: 'kubernetes', waive: ['net.offline'], ...more })

describe.skipIf(noFullCluster())('problems of the cluster are reported', () => {
  const backend = testBackend({ startMs: 8000 })
  afterAll(() => backend.close())

  test('no node with enough room, with the message of the scheduler', { timeout: MINUTES }, async () => {
    const opened = backend.open(plan({ limits: { memoryMb: 2 ** 22 } }))
    await expect(opened).rejects.toMatchObject({
      code: 'resource-exhausted',
      message: expect.stringMatching(/unschedulable: .*nodes are available.*Insufficient memory/),
    })
  })

  test('an image that cannot be pulled', { timeout: MINUTES }, async () => {
    const opened = backend.open(plan({ image: 'nobody.invalid/none:1' }))
    await expect(opened).rejects.toMatchObject({
      code: 'invalid-input',
      message: expect.stringMatching(/image: the image nobody.invalid\/none:1 cannot be used/),
    })
  })

  test('a Pod that is deleted', { timeout: 2 * MINUTES }, async () => {
    const api = await testApi()
    const sandbox = await testBackend().open(plan())
    const running = sandbox.exec({ argv: ['/bin/sleep', '100'] }).catch((error: Error) => error.message)
    await api.deletePod((await runningPod(api)).name, 1)
    expect(await sandbox.ended).toMatch(/^evicted: /)
    expect(await running).toMatch(/the sandbox is gone/)
    await sandbox.close()
    expect(await leftovers(api)).toEqual([])
  })
})

describe.skipIf(noFullCluster())('the warm pool', () => {
  test('hands out every Pod once, and never exceeds its size', {
    timeout: 5 * MINUTES,
  }, async () => {
    const api = await testApi()
    // Two servers of one namespace.
    const servers = [testBackend({}, { ready: 2 }), testBackend({}, { ready: 2 })]
    const pooled = async (): Promise<readonly PodView[]> =>
      (await ownPods(api)).filter(({ metadata }) => metadata?.labels?.['ringfence.dev/pool'] !== undefined)
    let most = 0
    const look = setInterval(() => {
      void pooled().then(({ length }) => {
        most = Math.max(most, length)
      })
    }, 100)
    const first = await Promise.all(servers.map((server) => server.open(plan())))
    await expect.poll(async () => (await pooled()).filter(isRunning).length, { timeout: MINUTES }).toBe(2)
    // Both claim at once: each gets one of its own.
    const second = await Promise.all(servers.map((server) => server.open(plan())))
    const uid = async (one: BackendSandbox): Promise<string> =>
      String((await one.exec({ argv: ['/usr/bin/id', '-u'] })).stdout)
    expect(new Set(await Promise.all([...first, ...second].map(uid))).size).toBe(4)
    await expect.poll(async () => (await pooled()).filter(isRunning).length, { timeout: MINUTES }).toBe(2)
    clearInterval(look)
    expect(most).toBe(2)
    await Promise.all([...first, ...second].map((one) => one.close()))
    await Promise.all(servers.map((server) => server.close()))
    await expect.poll(() => leftovers(api), { timeout: MINUTES }).toEqual([])
  })

  test('refuses a stale claim', { timeout: 2 * MINUTES }, async () => {
    const api = await testApi()
    const sandbox = await testBackend().open(plan())
    const { name, metadata } = await runningPod(api)
    const { resourceVersion } = metadata ?? {}
    await api.claimPod(name, { resourceVersion, annotations: { first: 'yes' } })
    await expect(
      api.claimPod(name, { resourceVersion, annotations: { second: 'yes' } }),
    ).rejects.toMatchObject({
      code: 'conflict',
    })
    await sandbox.close()
  })
})
