import { randomBytes } from 'node:crypto'
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

/** Several test files use one cluster at once. */
const OWNER = `test-${randomBytes(6).toString('hex')}`

/** Whether there is no cluster; says so by name. */
export function noCluster(): boolean {
  const reason = kubeconfig === undefined ? 'RINGFENCE_TEST_KUBECONFIG is not set' : undefined
  const missing = reason ?? (existsSync(kubeconfig ?? '') ? undefined : `${kubeconfig} does not exist`)
  if (missing) process.stderr.write(`skipped: kubernetes: ${missing}\n`)
  return missing !== undefined
}

const library = (): Promise<ClientLibrary> => import('@kubernetes/client-node')

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
