import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { type KubernetesParts, kubernetes } from '../../src/backends/kubernetes/backend.ts'
import { type ClientLibrary, ClusterApi } from '../../src/backends/kubernetes/cluster-api.ts'
import { type KubernetesSettings, settingsOf } from '../../src/backends/kubernetes/settings.ts'
import { VERSION } from '../../src/model/version.ts'
import { refusedBy } from '../../src/policy/paths/protect.ts'
import { planOf } from '../conformance/world.ts'

/**
 * A real cluster for the tests. Start it before the tests:
 * RINGFENCE_TEST_KUBECONFIG names its kubeconfig. The images are on its nodes already: RINGFENCE_TEST_POD_IMAGE (default: what
 * `npm run image:pod` names it) and RINGFENCE_TEST_SANDBOX_IMAGE, with bash, Python and curl. This process must reach Pods.
 */
const kubeconfig = process.env.RINGFENCE_TEST_KUBECONFIG
const image = process.env.RINGFENCE_TEST_SANDBOX_IMAGE ?? 'debian:12'
export const NAMESPACE = process.env.RINGFENCE_TEST_NAMESPACE ?? 'ringfence'

/** Several test files use one cluster at once. */
const OWNER = `test-${randomBytes(6).toString('hex')}`

/** Whether there is no cluster; says so by name. */
export function noCluster(): boolean {
  const reason = kubeconfig === undefined ? 'RINGFENCE_TEST_KUBECONFIG is not set' : undefined
  const missing = reason ?? (existsSync(kubeconfig ?? '') ? undefined : `${kubeconfig} does not exist`)
  if (missing) process.stderr.write(`skipped: kubernetes: ${missing}\n`)
  return missing !== undefined
}

/** The same for tests that take minutes; `npm test` runs one sandbox as a Pod. */
export function noFullCluster(): boolean {
  const isFull = process.env.RINGFENCE_FULL === '1'
  if (!isFull && kubeconfig)
    process.stderr.write('skipped: kubernetes: takes minutes, RINGFENCE_FULL is not 1\n')
  return !isFull || noCluster()
}

export const library = (): Promise<ClientLibrary> => import('@kubernetes/client-node')

/** The configuration of a server whose sandboxes are Pods of the cluster; it cannot enforce network policies. */
export const configText = (more: Readonly<Record<string, unknown>> = {}): string => {
  const { agentImage, pullPolicy } = testSettings()
  const settings = {
    kubeconfig,
    agent_image: agentImage,
    namespace: NAMESPACE,
    image,
    image_pull_policy: pullPolicy,
    cpus: 0.2,
    memory_mb: 256,
    disk_mb: 256,
    waive: ['net.offline', 'net.loopback', 'net.fetch'],
    ...more,
  }
  const lines = Object.entries(settings).map(([name, value]) => `${name} = ${JSON.stringify(value)}`)
  return `[backends]\norder = ["kubernetes"]\n[kubernetes]\n${lines.join('\n')}\n`
}

export const testSettings = (more: Partial<KubernetesSettings> = {}): KubernetesSettings => ({
  ...settingsOf({
    ...(kubeconfig === undefined ? {} : { kubeconfig }),
    agent_image: process.env.RINGFENCE_TEST_POD_IMAGE ?? `ringfence-pod:${VERSION}`,
    namespace: NAMESPACE,
    image,
    image_pull_policy: 'Never',
    cpus: 0.3,
    memory_mb: 256,
    disk_mb: 256,
  }),
  ...more,
})

export const testBackend = (
  more: Partial<KubernetesSettings> = {},
  parts: Partial<KubernetesParts> = {},
): ReturnType<typeof kubernetes> =>
  kubernetes({
    settings: testSettings(more),
    library,
    probePlan: () => planOf({ limits: { wallMs: 10_000 } }),
    owner: OWNER,
    refuses: refusedBy,
    ...parts,
  })

/** The cluster's API, for what a test wants to see for itself. */
export const testApi = async (): Promise<ClusterApi> => new ClusterApi(await library(), testSettings())

/** The Pods of this test file. */
export const ownPods = async (api: ClusterApi) => (await api.listPods(`ringfence.dev/owner=${OWNER}`)).pods

/** The Pod of this test file that runs. */
export async function runningPod(api: ClusterApi) {
  const found = (await ownPods(api)).find(({ status }) => status?.phase === 'Running')
  if (!found?.metadata?.name) throw new Error('no Pod runs')
  return { ...found, name: found.metadata.name }
}

/** What is left of our Pods. */
export const leftovers = async (api: ClusterApi): Promise<readonly string[]> =>
  (await ownPods(api)).map((pod) => pod.metadata?.name ?? '')

/** The whole API, for what an operator does. */
export async function testClients() {
  const all = await library()
  const config = new all.KubeConfig()
  config.loadFromFile(kubeconfig ?? '')
  return {
    config,
    rbac: config.makeApiClient(all.RbacAuthorizationV1Api),
    core: config.makeApiClient(all.CoreV1Api),
    networking: config.makeApiClient(all.NetworkingV1Api),
    coordination: config.makeApiClient(all.CoordinationV1Api),
    node: config.makeApiClient(all.NodeV1Api),
    scheduling: config.makeApiClient(all.SchedulingV1Api),
  }
}

/**
 * Everything that a sandbox could leave in the namespace: secrets, claims, policies, leases, quotas with what they count. Other test files
 * may use the same namespace, so Pods and their keys count only if they are ours.
 */
export async function objectsLeft(namespace = NAMESPACE): Promise<readonly string[]> {
  const { core, networking, coordination } = await testClients()
  const [api, secrets, claims, quotas, policies, leases] = await Promise.all([
    testApi(),
    core.listNamespacedSecret({ namespace }),
    core.listNamespacedPersistentVolumeClaim({ namespace }),
    core.listNamespacedResourceQuota({ namespace }),
    networking.listNamespacedNetworkPolicy({ namespace }),
    coordination.listNamespacedLease({ namespace }),
  ])
  const named = (kind: string, { items }: { items: { metadata?: { name?: string } }[] }): string[] =>
    items.map(({ metadata }) => `${kind} ${metadata?.name}`)
  return [
    ...(await leftovers(api)).map((name) => `pod ${name}`),
    ...named('secret', secrets).filter((name) => !name.startsWith('secret default-token')),
    ...named('claim', claims),
    ...named('policy', policies),
    ...named('lease', leases),
    ...quotas.items.map(({ metadata, status }) => `quota ${metadata?.name} ${JSON.stringify(status?.used)}`),
  ].sort()
}

/** FAKE: the Secrets of a namespace, in memory: of no cluster, or of one whose Pods do not know it. */
export function secrets(): ClusterApi {
  const kept = new Map<string, { data: Record<string, string> }>()
  return {
    readSecret: async (name: string) => kept.get(name),
    createSecret: async (secret: { metadata: { name: string }; stringData: Record<string, string> }) => {
      const encoded = Object.entries(secret.stringData).map(([name, text]) => [
        name,
        Buffer.from(text).toString('base64'),
      ])
      const made = { data: Object.fromEntries(encoded) as Record<string, string> }
      kept.set(secret.metadata.name, made)
      return made
    },
  } as unknown as ClusterApi
}
