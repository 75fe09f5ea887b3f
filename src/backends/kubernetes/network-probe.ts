import { randomBytes } from 'node:crypto'
import type { V1Pod } from '@kubernetes/client-node'
import { monotonicMs } from '../../host/clock.ts'
import { SandboxError } from '../../model/errors.ts'
import type { ClusterApi, PodView } from './cluster-api.ts'
import { MANAGED, SANDBOX } from './launch.ts'
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
    await api.createPod(reachingPod(tries.free, settings, { ...labels, ...probe }))
    await api.createPod(reachingPod(tries.denied, settings, { ...labels, ...probe, ...SANDBOX }))
    const codes = await exitCodes(api, `ringfence.dev/probe=${name}`, settings.startMs)
    return codes.get(tries.free) === REACHED && codes.get(tries.denied) === NOT_REACHED
  } finally {
    for (const pod of Object.values(tries)) await api.deletePod(pod, 0).catch(() => {})
  }
}

const REACHED = 0
const NOT_REACHED = 3
const TRIES = '8'
const LOOK_MS = 300
const UID = 65_534

function reachingPod(name: string, settings: KubernetesSettings, labels: Record<string, string>): V1Pod {
  const amounts = { cpu: '50m', memory: '32Mi' }
  return {
    metadata: { name, labels: { ...MANAGED, ...labels } },
    spec: {
      restartPolicy: 'Never',
      automountServiceAccountToken: false,
      activeDeadlineSeconds: 120,
      terminationGracePeriodSeconds: 0,
      securityContext: {
        runAsNonRoot: true,
        runAsUser: UID,
        runAsGroup: UID,
        seccompProfile: { type: 'RuntimeDefault' },
      },
      ...(Object.keys(settings.nodeSelector).length > 0
        ? { nodeSelector: { ...settings.nodeSelector } }
        : {}),
      ...(settings.tolerations.length > 0
        ? { tolerations: settings.tolerations.map((one) => ({ ...one })) }
        : {}),
      ...(settings.pullSecrets.length > 0
        ? { imagePullSecrets: settings.pullSecrets.map((one) => ({ name: one })) }
        : {}),
      containers: [
        {
          name: 'reach',
          image: settings.agentImage,
          imagePullPolicy: settings.pullPolicy,
          command: ['/ringfence-agent', 'pod-reach', TRIES],
          securityContext: {
            allowPrivilegeEscalation: false,
            readOnlyRootFilesystem: true,
            capabilities: { drop: ['ALL'] },
          },
          resources: { requests: amounts, limits: amounts },
        },
      ],
    },
  }
}

const codeOf = ({ status }: PodView): number | undefined =>
  status?.containerStatuses?.[0]?.state?.terminated?.exitCode

async function exitCodes(
  api: ClusterApi,
  selector: string,
  withinMs: number,
): Promise<ReadonlyMap<string, number>> {
  const until = monotonicMs() + withinMs
  for (;;) {
    const { pods } = await api.listPods(selector)
    const codes = new Map(
      pods.flatMap((pod) => {
        const code = codeOf(pod)
        return code === undefined ? [] : ([[pod.metadata?.name ?? '', code]] as const)
      }),
    )
    if (codes.size === pods.length && pods.length > 0) return codes
    if (monotonicMs() > until)
      throw new SandboxError('timeout', 'the Pods that try the cluster’s network did not end in time', {
        hint: 'check `agent_image` in [kubernetes]: kubectl get pods -l app.kubernetes.io/managed-by=ringfence',
      })
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
  }
}
