import type { CoreV1Event, V1ContainerStatus } from '@kubernetes/client-node'
import type { PodView } from './cluster-api.ts'

/** What the cluster says about a Pod, in words for people. Pure. */

/** What keeps a Pod from running, or why it does not run any more. */
export type PodProblem = {
  readonly kind:
    | 'unschedulable'
    | 'image'
    | 'refused'
    | 'evicted'
    | 'preempted'
    | 'node-lost'
    | 'oom'
    | 'deadline'
    | 'ended'
  readonly text: string
  /** It may still go away by itself. */
  readonly passing?: boolean
}

/** Nothing but a new request helps against these. */
const BAD_IMAGE = ['ImagePullBackOff', 'InvalidImageName', 'ErrImageNeverPull', 'ImageInspectError']
const BAD_CONTAINER = ['CreateContainerError', 'RunContainerError', 'CrashLoopBackOff']

const statusesOf = ({ status }: PodView): readonly V1ContainerStatus[] => [
  ...(status?.initContainerStatuses ?? []),
  ...(status?.containerStatuses ?? []),
]

/** Whether the channel of a Pod can be connected to. */
export const isRunning = (pod: PodView): boolean =>
  pod.status?.phase === 'Running' &&
  pod.status.podIP !== undefined &&
  ['channel', 'sandbox'].every((name) =>
    (pod.status?.containerStatuses ?? []).some(
      (one) => one.name === name && one.state?.running !== undefined,
    ),
  )

/** Whether the kubelet says that every container of a Pod has ended. */
export const hasStopped = (pod: PodView | undefined): boolean => {
  const { phase, containerStatuses: all = [] } = pod?.status ?? {}
  const isOver = phase === 'Failed' || phase === 'Succeeded'
  return isOver && all.length > 0 && all.every(({ state }) => state?.terminated !== undefined)
}

/** Why a Pod that was just created does not run yet; undefined: it is on its way. */
export function startProblem(pod: PodView): PodProblem | undefined {
  const ended = endProblem(pod)
  if (ended) return ended
  const scheduled = pod.status?.conditions?.find(({ type }) => type === 'PodScheduled')
  if (scheduled?.status === 'False' && scheduled.reason === 'Unschedulable')
    return { kind: 'unschedulable', text: `no node has room: ${scheduled.message ?? ''}`, passing: true }
  for (const { name, image, state } of statusesOf(pod)) {
    const { reason = '', message = '' } = state?.waiting ?? {}
    if (BAD_IMAGE.includes(reason))
      return { kind: 'image', text: `the image ${image} cannot be used (${reason}): ${message}` }
    if (BAD_CONTAINER.includes(reason))
      return { kind: 'refused', text: `the container ${name} cannot start (${reason}): ${message}` }
  }
  return undefined
}

/** Why a Pod is over; undefined: it is not. */
export function endProblem(pod: PodView): PodProblem | undefined {
  const { phase, reason = '', message = '' } = pod.status ?? {}
  if (reason === 'Evicted') return { kind: 'evicted', text: `evicted: ${message}` }
  if (reason === 'NodeLost' || pod.status?.reason === 'NodeLost')
    return { kind: 'node-lost', text: `node lost: ${message || (pod.spec?.nodeName ?? '')}` }
  if (reason === 'Preempting' || reason === 'Preempted')
    return { kind: 'preempted', text: `preempted: ${message}` }
  if (reason === 'DeadlineExceeded')
    return { kind: 'deadline', text: 'the cluster ended it at its longest lifetime' }
  const killed = statusesOf(pod).find(({ state }) => state?.terminated?.reason === 'OOMKilled')
  if (killed) return { kind: 'oom', text: `the kernel killed it for memory (OOMKilled): ${killed.name}` }
  const disruption = pod.status?.conditions?.find(
    ({ type, status }) => type === 'DisruptionTarget' && status === 'True',
  )
  if (disruption) return disrupted(disruption.reason ?? '', disruption.message ?? '')
  if (phase !== 'Failed' && phase !== 'Succeeded') return undefined
  const failed = statusesOf(pod).find(({ state }) => (state?.terminated?.exitCode ?? 0) !== 0)
  const code = failed?.state?.terminated?.exitCode
  return {
    kind: 'ended',
    text: `the Pod ended${reason ? ` (${reason})` : ''}${failed ? `: ${failed.name} exited with ${code}` : ''}`,
  }
}

/** Newer clusters say it as a condition. */
function disrupted(reason: string, message: string): PodProblem {
  if (reason === 'PreemptionByScheduler') return { kind: 'preempted', text: `preempted: ${message}` }
  if (reason === 'DeletionByTaintManager' || reason === 'DeletionByPodGC')
    return { kind: 'node-lost', text: `node lost: ${message}` }
  return { kind: 'evicted', text: `evicted: ${message}` }
}

/** Why somebody else deleted a Pod, from what the cluster's parts said about it. */
export function deletionProblem(pod: PodView, events: readonly CoreV1Event[]): PodProblem {
  const known = endProblem(pod)
  if (known && known.kind !== 'ended') return known
  const said = (reason: string): string | undefined =>
    events.find((one) => one.reason === reason)?.message ?? undefined
  const preempted = said('Preempted')
  if (preempted !== undefined) return { kind: 'preempted', text: `preempted: ${preempted}` }
  if (said('TaintManagerEviction') !== undefined || said('NodeNotReady') !== undefined)
    return { kind: 'node-lost', text: `node lost: ${pod.spec?.nodeName ?? 'its node'} does not answer` }
  return { kind: 'evicted', text: 'evicted: somebody deleted the Pod, or drained its node' }
}
