import { randomBytes } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { loadAllYaml, type V1Role } from '@kubernetes/client-node'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot, planOf } from '../conformance/world.ts'
import { until } from '../server/process.ts'
import { noFullCluster, testBackend, testClients } from './lab.ts'

const MINUTES = 60_000
const namespace = `rf-rights-${randomBytes(4).toString('hex')}`
const dir = mkdtempSync(join(tmpdir(), 'rf-rights-'))
const kubeconfig = join(dir, 'kubeconfig.json')

/** A service account of a namespace of its own with the role of deploy/kubernetes/sandboxes, and nothing else. */
async function makeAccount(): Promise<void> {
  const { core, rbac, config } = await testClients()
  const file = join(packageRoot(), 'deploy', 'kubernetes', 'sandboxes', 'rbac.yaml')
  const role = (loadAllYaml(readFileSync(file, 'utf8')) as V1Role[]).find(({ kind }) => kind === 'Role')
  const name = 'ringfence'
  await core.createNamespace({ body: { metadata: { name: namespace } } })
  await core.createNamespacedServiceAccount({ namespace, body: { metadata: { name } } })
  await rbac.createNamespacedRole({ namespace, body: { metadata: { name }, rules: role?.rules ?? [] } })
  const subjects = [{ kind: 'ServiceAccount', name, namespace }]
  const roleRef = { apiGroup: 'rbac.authorization.k8s.io', kind: 'Role', name }
  await rbac.createNamespacedRoleBinding({ namespace, body: { metadata: { name }, subjects, roleRef } })
  const body = {
    metadata: { name: 'token', annotations: { 'kubernetes.io/service-account.name': name } },
    type: 'kubernetes.io/service-account-token',
  }
  await core.createNamespacedSecret({ namespace, body })
  const tokenOf = async (): Promise<string> =>
    (await core.readNamespacedSecret({ name: 'token', namespace })).data?.token ?? ''
  expect(await until(async () => (await tokenOf()) !== '', MINUTES)).toBe(true)
  const token = Buffer.from(await tokenOf(), 'base64').toString('utf8')
  const { server, caFile, caData } = config.getCurrentCluster() ?? {}
  const trust = caFile ? { 'certificate-authority': caFile } : { 'certificate-authority-data': caData }
  const whole = {
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'c', cluster: { server, ...trust } }],
    users: [{ name: 'u', user: { token } }],
    contexts: [{ name: 'x', context: { cluster: 'c', user: 'u' } }],
    'current-context': 'x',
  }
  writeFileSync(kubeconfig, JSON.stringify(whole), { mode: 0o600 })
}

describe.skipIf(noFullCluster())('the permissions of deploy/kubernetes/sandboxes', () => {
  beforeAll(makeAccount, MINUTES)
  afterAll(async () => {
    rmSync(dir, { recursive: true })
    const { core } = await testClients()
    await core.deleteNamespace({ name: namespace })
  })

  test('are sufficient for the probe, a warm pool and a takeover', { timeout: 4 * MINUTES }, async () => {
    const settings = { kubeconfig, namespace }
    const servers = [0, 1].map(() => testBackend(settings, { ready: 1, outlives: true }))
    const [first, second] = servers as [(typeof servers)[0], (typeof servers)[0]]
    expect(await first.probe()).toMatchObject({ available: true })
    const plan = planOf({ backend: 'kubernetes', waive: ['net.offline'] })
    const one = await first.open(plan, { id: 'sb_rights' })
    const two = await second.open(plan, { id: 'sb_rights', generation: 2, takesOver: true })
    const { stdout } = await two.exec({ argv: ['/bin/echo', 'works'] })
    expect(String(stdout)).toBe('works\n')
    await one.close()
    await two.close()
    await Promise.all(servers.map((server) => server.close()))
  })

  test('are reported by name if one is missing', { timeout: MINUTES }, async () => {
    const { rbac } = await testClients()
    const role = await rbac.readNamespacedRole({ name: 'ringfence', namespace })
    const rules = (role.rules ?? []).filter(({ resources }) => !resources?.includes('leases'))
    await rbac.replaceNamespacedRole({ name: 'ringfence', namespace, body: { ...role, rules } })
    const backend = testBackend({ kubeconfig, namespace })
    expect(await backend.probe()).toMatchObject({
      available: false,
      reason: expect.stringContaining('create leases, get leases, update leases'),
    })
    await backend.close()
  })
})
