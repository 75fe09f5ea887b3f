import { existsSync } from 'node:fs'
import { type KubernetesParts, kubernetes } from '../../src/backends/kubernetes/backend.ts'
import { type ClientLibrary, ClusterApi } from '../../src/backends/kubernetes/cluster-api.ts'
import { type KubernetesSettings, settingsOf } from '../../src/backends/kubernetes/settings.ts'
import { VERSION } from '../../src/model/version.ts'
import { refusedBy } from '../../src/policy/paths/protect.ts'
import { planOf } from '../conformance/world.ts'

/**
 * A real cluster for the tests, which whoever runs them has started:
 * RINGFENCE_TEST_KUBECONFIG names its kubeconfig. The images are on its nodes already: RINGFENCE_TEST_POD_IMAGE (default: what
 * `npm run image:pod` names it) and RINGFENCE_TEST_SANDBOX_IMAGE, with bash, Python and curl. This process must reach Pods.
 */
const kubeconfig = process.env.RINGFENCE_TEST_KUBECONFIG
const image = process.env.RINGFENCE_TEST_SANDBOX_IMAGE ?? 'debian:12'
const NAMESPACE = process.env.RINGFENCE_TEST_NAMESPACE ?? 'ringfence'

/** Whether there is no cluster; says so by name. */
export function noCluster(): boolean {
  const reason = kubeconfig === undefined ? 'RINGFENCE_TEST_KUBECONFIG is not set' : undefined
  const missing = reason ?? (existsSync(kubeconfig ?? '') ? undefined : `${kubeconfig} does not exist`)
  if (missing) process.stderr.write(`skipped: kubernetes: ${missing}\n`)
  return missing !== undefined
}

export const library = (): Promise<ClientLibrary> => import('@kubernetes/client-node')

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
    owner: 'test',
    refuses: refusedBy,
    ...parts,
  })

/** The cluster's API, for what a test wants to see for itself. */
export const testApi = async (): Promise<ClusterApi> => new ClusterApi(await library(), testSettings())

/** What is left in the namespace of our Pods and their keys. */
export async function leftovers(api: ClusterApi): Promise<readonly string[]> {
  const { pods } = await api.listPods('app.kubernetes.io/managed-by=ringfence')
  return pods.map((pod) => pod.metadata?.name ?? '')
}
