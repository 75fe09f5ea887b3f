import type { V1Pod } from '@kubernetes/client-node'
import { monotonicMs } from '../../host/clock.ts'
import { SandboxError } from '../../model/errors.ts'
import type { ClusterApi, PodView } from './cluster-api.ts'
import { MANAGED } from './launch.ts'
import type { KubernetesSettings } from './settings.ts'

/** Pods that run the agent once, to find out what a cluster does. */

const LOOK_MS = 300
const UID = 65_534

/** What a probe runs, and where. */
export type ProbePod = {
  readonly name: string
  readonly labels: Readonly<Record<string, string>>
  /** The agent's arguments. */
  readonly args: readonly string[]
  readonly runtimeClass?: string | undefined
  /** Absent: the scheduler chooses. */
  readonly node?: string | undefined
}

/** A Pod that ends by itself. */
export function probePod(settings: KubernetesSettings, probe: ProbePod): V1Pod {
  const amounts = { cpu: '50m', memory: '32Mi', 'ephemeral-storage': '16Mi' }
  const { nodeSelector, tolerations, pullSecrets } = settings
  return {
    metadata: { name: probe.name, labels: { ...MANAGED, ...probe.labels } },
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
      ...(probe.node === undefined ? {} : { nodeName: probe.node }),
      ...(probe.runtimeClass === undefined ? {} : { runtimeClassName: probe.runtimeClass }),
      ...(Object.keys(nodeSelector).length > 0 ? { nodeSelector: { ...nodeSelector } } : {}),
      ...(tolerations.length > 0 ? { tolerations: tolerations.map((one) => ({ ...one })) } : {}),
      ...(pullSecrets.length > 0 ? { imagePullSecrets: pullSecrets.map((one) => ({ name: one })) } : {}),
      containers: [
        {
          name: 'probe',
          image: settings.agentImage,
          imagePullPolicy: settings.pullPolicy,
          command: ['/ringfence-agent', ...probe.args],
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

/** How a probe ended. */
export type ProbeEnd = { readonly code: number; readonly said: string; readonly node: string }

function endOf({ spec, status }: PodView): ProbeEnd | undefined {
  const ended = status?.containerStatuses?.[0]?.state?.terminated
  return ended && { code: ended.exitCode, said: ended.message ?? '', node: spec?.nodeName ?? '' }
}

/** Waits until all Pods of a selector have ended. */
export async function endsOf(
  api: ClusterApi,
  selector: string,
  withinMs: number,
): Promise<ReadonlyMap<string, ProbeEnd>> {
  const until = monotonicMs() + withinMs
  for (;;) {
    const { pods } = await api.listPods(selector)
    const ends = new Map(
      pods.flatMap((pod) => {
        const end = endOf(pod)
        return end === undefined ? [] : ([[pod.metadata?.name ?? '', end]] as const)
      }),
    )
    if (ends.size === pods.length && pods.length > 0) return ends
    if (monotonicMs() > until)
      throw new SandboxError('timeout', 'the Pods that try the cluster did not end in time', {
        hint: 'check `agent_image` in [kubernetes]: kubectl get pods -l app.kubernetes.io/managed-by=ringfence',
      })
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
  }
}
