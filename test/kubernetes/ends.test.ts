import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { planOf } from '../conformance/world.ts'
import { NAMESPACE, noFullCluster, ownPods, testApi, testBackend, testClients, testSettings } from './lab.ts'

/** Ends that only a cluster can cause. */

const MINUTES = 60_000
const plan = (more: Record<string, unknown> = {}) =>
  planOf({ backend: 'kubernetes', waive: ['net.offline'], ...more })

describe.skipIf(noFullCluster())('a sandbox reports why its Pod ended', () => {
  test('OOMKilled, for memory in tmpfs files', { timeout: 3 * MINUTES }, async () => {
    const backend = testBackend({ memoryMb: 4 })
    const sandbox = await backend.open(plan())
    const fill = async (): Promise<void> => {
      for (let file = 0; file < 200; file++)
        await sandbox.exec({ argv: ['/bin/sh', '-c', `head -c 2M /dev/zero > /dev/shm/f${file}`] })
    }
    const filling = fill().catch(() => {})
    expect(await sandbox.ended).toMatch(/OOMKilled/)
    await filling
    await sandbox.close()
    await backend.close()
  })

  describe('preemption', () => {
    const name = `rf-${randomBytes(4).toString('hex')}`
    beforeAll(async () => {
      const { scheduling } = await testClients()
      await scheduling.createPriorityClass({ body: { metadata: { name }, value: 1000 } })
    })
    afterAll(async () => {
      const { core, scheduling } = await testClients()
      await core.deleteNamespacedPod({ name, namespace: NAMESPACE, gracePeriodSeconds: 0 }).catch(() => {})
      await scheduling.deletePriorityClass({ name })
    })

    test('a Pod with a higher priority', { timeout: 3 * MINUTES }, async () => {
      const backend = testBackend({ cpus: 1.2 })
      const { core } = await testClients()
      const sandbox = await backend.open(plan())
      const [pod] = await ownPods(await testApi())
      const nodeSelector = { 'kubernetes.io/hostname': pod?.spec?.nodeName ?? '' }
      const requests = { cpu: '1500m' }
      const { agentImage: image } = testSettings()
      const container = { name: 'more', image, command: ['/ringfence-agent', 'pod-reach', '1000'] }
      const spec = {
        priorityClassName: name,
        nodeSelector,
        containers: [{ ...container, resources: { requests } }],
      }
      await core.createNamespacedPod({ namespace: NAMESPACE, body: { metadata: { name }, spec } })
      expect(await sandbox.ended).toMatch(/^preempted: /)
      await sandbox.close()
      await backend.close()
    })
  })
})
