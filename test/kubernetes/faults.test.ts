import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { afterAll, describe, expect, test } from 'vitest'
import type { BackendSandbox } from '../../src/backends/backend.ts'
import { planOf } from '../conformance/world.ts'
import { leftovers, noFullCluster, ownPods, testApi, testBackend } from './lab.ts'

/**
 * Faults of a real cluster. RINGFENCE_TEST_FAULTS is a program that makes them: `stop NODE` kills a kubelet, `start NODE` starts it
 * again, `drain NODE`, `uncordon NODE`, `api SECONDS` restarts the API server, `kill NODE APP` kills the containers of the Pods with that label
 * on the node, whose kubelet is stopped.
 */
const faults = process.env.RINGFENCE_TEST_FAULTS
const MINUTES = 60_000
const fault = (...args: readonly string[]) => promisify(execFile)(faults ?? '', [...args])
const plan = () => planOf({ backend: 'kubernetes', waive: ['net.offline'] })

describe.skipIf(faults === undefined || noFullCluster())('cluster failures', () => {
  const backend = testBackend()
  afterAll(() => backend.close())

  /** A sandbox, and the node that it is on. */
  const placed = async (): Promise<{ sandbox: BackendSandbox; node: string }> => {
    const sandbox = await backend.open(plan())
    const [pod] = await ownPods(await testApi())
    return { sandbox, node: pod?.spec?.nodeName ?? '' }
  }

  test('a restart of the API server ends no sandbox', { timeout: 5 * MINUTES }, async () => {
    const { sandbox } = await placed()
    const long = sandbox.exec({ argv: ['/bin/sh', '-c', 'sleep 8; echo done'] })
    await fault('api', '3')
    expect(String((await long).stdout)).toBe('done\n')
    await sandbox.close()
    const again = await backend.open(plan())
    await again.close()
    expect(await leftovers(await testApi())).toEqual([])
  })

  test('draining a node ends its sandbox with a reason', { timeout: 5 * MINUTES }, async () => {
    const { sandbox, node } = await placed()
    try {
      await fault('drain', node)
      expect(await sandbox.ended).toMatch(/^evicted: /)
      await sandbox.close()
      expect(await leftovers(await testApi())).toEqual([])
    } finally {
      await fault('uncordon', node)
    }
  })

  test('killing a kubelet loses its sandbox', { timeout: 5 * MINUTES }, async () => {
    const { sandbox, node } = await placed()
    try {
      await fault('stop', node)
      expect(await sandbox.ended).toMatch(/^node lost: /)
      await sandbox.close()
      expect(await leftovers(await testApi())).toEqual([])
    } finally {
      await fault('start', node)
    }
  })
})
