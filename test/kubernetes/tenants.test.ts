import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ClusterApi } from '../../src/backends/kubernetes/cluster-api.ts'
import { namespaceOf, QUOTA_NAME } from '../../src/backends/kubernetes/tenant-namespace.ts'
import { planOf } from '../conformance/world.ts'
import { library, noFullCluster, testBackend, testClients, testSettings } from './lab.ts'

const MINUTES = 60_000
const TENANT = `t${randomBytes(4).toString('hex')}`
const SETTINGS = { tenantNamespaces: 'create', tenantQuota: { pods: 1, cpus: 1, memory_mb: 600 } } as const
const plan = () => planOf({ backend: 'kubernetes', waive: ['net.offline'] })

describe.skipIf(noFullCluster())('a namespace for each tenant', () => {
  const backend = testBackend(SETTINGS, { ready: 1 })
  const namespace = namespaceOf(testSettings(SETTINGS), TENANT)
  afterAll(async () => {
    await backend.close()
    await (await testClients()).core.deleteNamespace({ name: namespace }).catch(() => {})
  })

  test('has a quota that counts sandboxes while they exist', { timeout: 3 * MINUTES }, async () => {
    const { core } = await testClients()
    const used = async (): Promise<string | undefined> =>
      (await core.readNamespacedResourceQuota({ name: QUOTA_NAME, namespace })).status?.used?.pods
    const sandbox = await backend.open(plan(), { owner: TENANT })
    const api = new ClusterApi(await library(), { ...testSettings(), namespace })
    expect((await api.listPods('ringfence.dev/part=sandbox')).pods).toHaveLength(1)
    // No warm Pod counts for the tenant.
    await expect.poll(used, { timeout: MINUTES }).toBe('1')
    await expect(backend.open(plan(), { owner: TENANT })).rejects.toMatchObject({
      code: 'too-many-requests',
      message: expect.stringContaining('exceeded quota'),
    })
    const { stdout } = await sandbox.exec({ argv: ['/bin/echo', 'works'] })
    expect(String(stdout)).toBe('works\n')
    await sandbox.close()
    await expect.poll(used, { timeout: MINUTES }).toBe('0')
    const limits = await core.readNamespacedLimitRange({ name: QUOTA_NAME, namespace })
    expect(limits.spec?.limits?.[0]?._default).toMatchObject({ memory: '256Mi' })
    const again = await backend.open(plan(), { owner: TENANT })
    await again.close()
  })

  test('is refused if the operator did not create it', { timeout: MINUTES }, async () => {
    const strict = testBackend({ tenantNamespaces: 'use' })
    await expect(strict.open(plan(), { owner: 'nobody' })).rejects.toMatchObject({
      code: 'backend-unavailable',
      message: expect.stringContaining('does not exist'),
    })
    await strict.close()
  })
})

describe.skipIf(noFullCluster())('the configured runtime of a RuntimeClass', () => {
  const name = `rf-${randomBytes(4).toString('hex')}`
  beforeAll(async () => {
    const { node } = await testClients()
    // PLATFORM: the cluster of the tests has no other runtime; this one only has another name.
    await node.createRuntimeClass({ body: { metadata: { name }, handler: 'runc' } })
  })
  afterAll(async () => {
    const { node } = await testClients()
    await node.deleteRuntimeClass({ name })
  })

  test.each(['gvisor', 'microvm'] as const)(
    'is not accepted as %s if its Pods see the kernel of the node',
    {
      timeout: 2 * MINUTES,
    },
    async (runtime) => {
      const backend = testBackend({ runtimeClass: name, runtime })
      expect(backend.level).toBe(runtime)
      expect(await backend.probe()).toMatchObject({
        available: false,
        reason: expect.stringContaining('its Pods see the kernel of their node'),
      })
      await backend.close()
    },
  )
})
