import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { OpenOptions } from '../backend.ts'
import { type ClusterApi, type PodView, selectorOf } from './cluster-api.ts'
import { MANAGED, SANDBOX } from './launch.ts'
import { claimPod, type PodParts, SANDBOX_ID, SandboxPod } from './pod.ts'
import { endProblem, isRunning } from './pod-state.ts'
import { isCopiedBack } from './sandbox.ts'

/** What servers that are gone have left: Pods to go on with, and Pods to remove. */

const CLAIM_TRIES = 5
/** The label that names the generation of the server that took a Pod over; a Pod without it is the first one's. */
const GENERATION = 'ringfence.dev/generation'

const generationOf = ({ metadata }: PodView): number => Number(metadata?.labels?.[GENERATION] ?? 1)

/**
 * The Pod of a sandbox whose server is gone; from now on it is ours. SECURITY: only a later generation gets it. A server that slept during
 * its takeover would otherwise make the Pod its own again, be refused by the agent, and remove what another server has by now.
 */
export async function podLeftBehind(
  parts: PodParts,
  plan: Plan,
  { id, generation = 1 }: OpenOptions,
): Promise<SandboxPod> {
  if (isCopiedBack(plan))
    throw new SandboxError('unsupported', 'its directories were on the server that is gone')
  for (let tries = 0; tries < CLAIM_TRIES; tries++) {
    const { pods } = await parts.api.listPods(`${SANDBOX_ID}=${id}`)
    const pod = pods.find((one) => isRunning(one) && !endProblem(one) && !one.metadata?.deletionTimestamp)
    if (pod && generationOf(pod) >= generation)
      throw new SandboxError('conflict', 'another server has taken the sandbox over')
    const claimed = pod && (await claimPod(parts, pod, { [GENERATION]: String(generation) }))
    if (claimed) return SandboxPod.adopt(parts, claimed)
    if (!pod) throw new SandboxError('not-found', `its Pod is gone${reasonOf(pods[0])}`)
  }
  throw new SandboxError('conflict', 'its Pod changes all the time')
}

const reasonOf = (pod: PodView | undefined): string => {
  const problem = pod && endProblem(pod)
  return problem ? `: ${problem.text}` : ''
}

/** After this time the server that created an ended Pod has read why it ended, or is gone. */
const ENDED_MS = 60_000

const endedAt = ({ status }: PodView): number =>
  Math.max(
    0,
    ...(status?.containerStatuses ?? []).map(({ state }) =>
      new Date(state?.terminated?.finishedAt ?? 0).getTime(),
    ),
  )

/** Pods that have ended are removed, also those of other processes: their sandbox is over. */
export async function removeEnded(api: ClusterApi, owner: string): Promise<void> {
  const { pods } = await api.listPods(selectorOf({ ...MANAGED, ...SANDBOX }))
  for (const pod of pods) {
    const { metadata, status } = pod
    const isOver = status?.phase === 'Failed' || status?.phase === 'Succeeded'
    const isOurs = metadata?.labels?.['ringfence.dev/owner'] === owner
    if (metadata?.name && isOver && (isOurs || Date.now() - endedAt(pod) > ENDED_MS))
      await api.deletePod(metadata.name, 0)
  }
}
