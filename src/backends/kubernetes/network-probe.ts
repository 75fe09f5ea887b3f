import { randomBytes } from 'node:crypto'
import type { ClusterApi } from './cluster-api.ts'
import { SANDBOX } from './launch.ts'
import { endsOf, probePod } from './probe-pod.ts'
import type { KubernetesSettings } from './settings.ts'

/**
 * Whether the cluster's network enforces NetworkPolicy, measured: two Pods try to reach the cluster's API, of which one has the
 * label that our policy applies to. Only if the other one succeeds and this one does not, the policy is enforced.
 */
export async function isNetworkEnforced(
  api: ClusterApi,
  settings: KubernetesSettings,
  labels: Readonly<Record<string, string>>,
): Promise<boolean> {
  const name = `rf-reach-${randomBytes(6).toString('hex')}`
  const probe = { 'ringfence.dev/probe': name }
  const tries = { free: `${name}-free`, denied: `${name}-denied` }
  try {
    const reach = (pod: string, more: Readonly<Record<string, string>>) =>
      api.createPod(
        probePod(settings, {
          name: pod,
          labels: { ...labels, ...probe, ...more },
          args: ['pod-reach', TRIES],
        }),
      )
    await reach(tries.free, {})
    await reach(tries.denied, SANDBOX)
    const ends = await endsOf(api, `ringfence.dev/probe=${name}`, settings.startMs)
    return ends.get(tries.free)?.code === REACHED && ends.get(tries.denied)?.code === NOT_REACHED
  } finally {
    for (const pod of Object.values(tries)) await api.deletePod(pod, 0).catch(() => {})
  }
}

const REACHED = 0
const NOT_REACHED = 3
const TRIES = '8'
