import { createHash } from 'node:crypto'
import type { V1LimitRange, V1Namespace, V1ResourceQuota } from '@kubernetes/client-node'
import { SandboxError } from '../../model/errors.ts'
import type { ClusterApi } from './cluster-api.ts'
import { MANAGED } from './launch.ts'
import type { KubernetesSettings } from './settings.ts'

/** A namespace for each tenant: the cluster's own quotas, and no Pod of one tenant beside that of another. */

/** The name of the quota and of the limits in a namespace that we create. */
export const QUOTA_NAME = 'ringfence-tenant'
const LONGEST_NAME = 63
const HASH_CHARS = 10
const PLAIN = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?$/
/** Such a name could be the one of another tenant. */
const HASHED = new RegExp(`-[0-9a-f]{${HASH_CHARS}}$`)

/** The namespace of a tenant's Pods. INVARIANT: two tenants never have the same. */
export function namespaceOf(
  { namespace, tenantNamespaces }: KubernetesSettings,
  tenant: string | undefined,
): string {
  if (tenantNamespaces === undefined || tenant === undefined) return namespace
  const whole = `${namespace}-${tenant}`
  if (PLAIN.test(tenant) && !HASHED.test(tenant) && whole.length <= LONGEST_NAME) return whole
  const hash = createHash('sha256').update(tenant).digest('hex').slice(0, HASH_CHARS)
  const readable = tenant.toLowerCase().replace(/[^a-z0-9]+/g, '-')
  const shortened = `${namespace}-${readable}`.slice(0, LONGEST_NAME - HASH_CHARS - 1)
  return `${shortened.replace(/-+$/, '')}-${hash}`
}

/** The settings for the sandboxes of one tenant. Warm Pods would count against its quota before they are its own. */
export const settingsFor = (
  settings: KubernetesSettings,
  tenant: string | undefined,
): KubernetesSettings => ({
  ...settings,
  namespace: namespaceOf(settings, tenant),
})

const namespaceObject = (name: string, tenant: string): V1Namespace => ({
  metadata: {
    name,
    labels: { ...MANAGED, 'pod-security.kubernetes.io/enforce': 'restricted' },
    annotations: { 'ringfence.dev/tenant': tenant },
  },
})

/** The quota of a namespace, as the cluster counts it. */
export function quotaObject({ tenantQuota }: KubernetesSettings): V1ResourceQuota {
  const { pods, cpus, memory_mb, disk_mb } = tenantQuota
  const amounts = {
    cpu: cpus === undefined ? undefined : String(cpus),
    memory: memory_mb === undefined ? undefined : `${memory_mb}Mi`,
    'ephemeral-storage': disk_mb === undefined ? undefined : `${disk_mb}Mi`,
  }
  const hard = Object.entries(amounts).flatMap(([name, amount]) =>
    amount === undefined ? [] : ['requests', 'limits'].map((kind) => [`${kind}.${name}`, amount] as const),
  )
  return {
    metadata: { name: QUOTA_NAME, labels: { ...MANAGED } },
    spec: { hard: { ...(pods === undefined ? {} : { pods: String(pods) }), ...Object.fromEntries(hard) } },
  }
}

/** What a container without limits gets, so that nothing in the namespace is uncounted. */
export function limitsObject({ cpus, memoryMb, diskMb }: KubernetesSettings): V1LimitRange {
  const amounts = {
    cpu: `${Math.round(cpus * 1000)}m`,
    memory: `${memoryMb}Mi`,
    'ephemeral-storage': `${diskMb}Mi`,
  }
  return {
    metadata: { name: QUOTA_NAME, labels: { ...MANAGED } },
    spec: { limits: [{ type: 'Container', _default: amounts, defaultRequest: amounts }] },
  }
}

/** Makes sure that the namespace of a tenant exists. The quota is there before the first Pod can be. */
export async function ensureNamespace(
  api: ClusterApi,
  settings: KubernetesSettings,
  tenant: string,
): Promise<void> {
  if (settings.tenantNamespaces === 'create') {
    await unlessThere(() => api.createNamespace(namespaceObject(api.namespace, tenant)))
    await unlessThere(() => api.createQuota(quotaObject(settings)))
    await unlessThere(() => api.createLimits(limitsObject(settings)))
    return
  }
  if (await api.hasNamespace()) return
  throw new SandboxError(
    'backend-unavailable',
    `the namespace ${api.namespace} of this tenant does not exist`,
    {
      hint: 'create it with its quota, or set `tenant_namespaces = "create"` in [kubernetes]',
    },
  )
}

/** Another server, or an earlier run, may have created it. */
async function unlessThere(create: () => Promise<unknown>): Promise<void> {
  try {
    await create()
  } catch (error) {
    if (!(error instanceof SandboxError && error.code === 'conflict')) throw error
  }
}
