import { randomBytes, randomInt } from 'node:crypto'
import type { Duplex } from 'node:stream'
import { monotonicMs } from '../../host/clock.ts'
import { fillMounts, openChannel } from '../../host/net/pod-channel.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { ContainerHandle } from '../container-handle.ts'
import { type ChannelAuthority, podHost } from './authority.ts'
import type { ClusterApi, PodView } from './cluster-api.ts'
import { FIRST_UID, type PodContext, podOf, secretOf, UIDS } from './launch.ts'
import {
  deletionProblem,
  endProblem,
  hasStopped,
  isRunning,
  type PodProblem,
  startProblem,
} from './pod-state.ts'
import type { PodWatch } from './pod-watch.ts'
import type { KubernetesSettings } from './settings.ts'

/** What every Pod of this process shares. */
export type PodParts = {
  readonly api: ClusterApi
  readonly authority: ChannelAuthority
  readonly watch: PodWatch
  readonly settings: KubernetesSettings
  /** Labels that say whose Pod it is. */
  readonly labels: Readonly<Record<string, string>>
  readonly owner: PodContext['owner']
  /** How long a Pod waits for another server when this one is gone; 0: no other server takes Pods over. */
  readonly takeoverSecs: number
}

/** The label that names the sandbox of a Pod. */
export const SANDBOX_ID = 'ringfence.dev/sandbox'

const CONNECT_MS = 10_000
const CONNECT_PAUSE_MS = 25
const GRACE_SECS = 1
/** After this the Pod's node does not answer, and only the record of the Pod is removed. */
const REMOVE_MS = 45_000
const REASON_MS = 4000
const RETRY_MS = 250
/** An epoch is a generation, and how often it tried to connect. */
const ATTEMPT_BITS = 32n

/** A new name, which is also the name in the Pod's certificate. */
const newName = (): string => `rf-${randomBytes(8).toString('hex')}`

/** How a Pod is created. */
export type PodOptions = {
  readonly image: string
  /** How long it waits for a connection. */
  readonly patienceSecs: number
  readonly labels?: Readonly<Record<string, string>>
}

/** The Pod and its key. The cluster removes the key with the Pod. */
async function createObjects(
  { api, authority, settings, labels, owner, takeoverSecs }: PodParts,
  plan: Plan,
  name: string,
  options: PodOptions,
): Promise<PodView> {
  const context: PodContext = {
    name,
    image: options.image,
    uid: FIRST_UID + randomInt(UIDS),
    labels: { ...labels, ...options.labels },
    annotations: {},
    owner,
    patienceSecs: options.patienceSecs,
    takeoverSecs,
  }
  const made = await api.createPod(podOf(plan, settings, context))
  const { certificate, key, authority: signer } = authority.forPod(name, settings.maxLifetimeSecs)
  try {
    const secret = { certificate, key, authority: signer }
    await api.createSecret(secretOf({ name, uid: made.metadata?.uid ?? '' }, secret))
    return made
  } catch (error) {
    await api.deletePod(name, 0).catch(() => {})
    throw error
  }
}

/**
 * Makes a Pod that somebody else created this server's. The cluster refuses the update if anybody changed the Pod since we saw it.
 * Resolves with undefined then.
 */
export async function claimPod(
  { api, labels, owner }: PodParts,
  { metadata }: PodView,
  more: Readonly<Record<string, string | null>> = {},
): Promise<PodView | undefined> {
  const ownerReferences = owner ? [{ apiVersion: 'v1', kind: 'Pod', ...owner }] : []
  try {
    return await api.claimPod(metadata?.name ?? '', {
      resourceVersion: metadata?.resourceVersion,
      labels: { ...labels, ...more },
      ownerReferences,
    })
  } catch (error) {
    const lost = error instanceof SandboxError && ['conflict', 'not-found'].includes(error.code)
    if (lost) return undefined
    throw error
  }
}

/** One Pod, from its creation until it is removed. */
export class SandboxPod implements ContainerHandle {
  readonly name: string
  readonly pid = undefined
  readonly group = undefined
  oomKills = 0
  readonly #parts: PodParts
  readonly #unfollow: () => void
  #channel: Duplex | undefined
  /** The Pod as it was last seen; undefined: not yet, or not any more. */
  #seen: PodView | undefined
  #isCreated = false
  #isGone = false
  #changed: (() => void)[] = []
  #removal: Promise<void> | undefined

  private constructor(parts: PodParts, name: string) {
    this.#parts = parts
    this.name = name
    this.#unfollow = parts.watch.follow(name, (pod) => this.#hear(pod))
  }

  /** Creates a Pod and resolves when it runs. Leaves nothing behind on failure. */
  static async create(
    parts: PodParts,
    plan: Plan,
    options: PodOptions,
    signal?: AbortSignal,
  ): Promise<SandboxPod> {
    const pod = new SandboxPod(parts, newName())
    try {
      pod.#created(await createObjects(parts, plan, pod.name, options))
      await pod.#running(signal)
      return pod
    } catch (error) {
      await pod.destroy().catch(() => {})
      throw error
    }
  }

  /** Creates a Pod that nobody waits for. */
  static async prepare(parts: PodParts, plan: Plan, options: PodOptions): Promise<void> {
    await createObjects(parts, plan, newName(), options)
  }

  /** A Pod that was created earlier, perhaps by another server, and belongs to this one now. */
  static adopt(parts: PodParts, seen: PodView): SandboxPod {
    const pod = new SandboxPod(parts, seen.metadata?.name ?? '')
    pod.#created(seen)
    return pod
  }

  /**
   * Connects to the agent and fills the read-only directories. INVARIANT: called once for each generation, which grows when another
   * server takes the sandbox over; so do the epochs.
   */
  async connect(archives: readonly Iterable<Uint8Array>[], generation: number): Promise<void> {
    let epoch = BigInt(generation) << ATTEMPT_BITS
    const { authority, settings, api } = this.#parts
    const until = monotonicMs() + CONNECT_MS
    const address = this.#seen?.status?.podIP ?? ''
    for (;;) {
      try {
        const channel = await openChannel({
          pod: this.name,
          host: podHost(this.name),
          address,
          port: settings.port,
          epoch: ++epoch,
          identity: authority.forControlPlane(),
          timeoutMs: Math.max(1000, until - monotonicMs()),
        })
        this.#channel = channel
        await fillMounts(channel, archives)
        break
      } catch (error) {
        const isOver = this.#problem() !== undefined || monotonicMs() > until
        if (isOver || !(error instanceof SandboxError) || error.code !== 'unreachable') throw error
        await pause(CONNECT_PAUSE_MS)
      }
    }
    // The key has been read: nobody needs it any more.
    void api.deleteSecret(this.name).catch(() => {})
  }

  /** Whether another server can take the Pod over. */
  get outlives(): boolean {
    return this.#parts.takeoverSecs > 0
  }

  get channel(): Duplex {
    if (!this.#channel) throw new SandboxError('internal', 'the Pod has no channel yet')
    return this.#channel
  }

  async errorText(): Promise<string> {
    return (await this.endReason()) ?? ''
  }

  /** Why the sandbox ended, if the cluster knows; the kubelet reports it a moment after the channel has closed. */
  async endReason(): Promise<string | undefined> {
    if (this.#removal) return undefined
    await this.#until(() => this.#problem() !== undefined || this.#isDeleted, REASON_MS)
    const problem = this.#problem() ?? (this.#isDeleted ? await this.#deletion() : undefined)
    return problem?.text
  }

  pause(): Promise<void> {
    return Promise.resolve()
  }

  resume(): Promise<void> {
    return Promise.resolve()
  }

  destroy(): Promise<void> {
    this.#removal ??= this.#remove()
    return this.#removal
  }

  /** Leaves the Pod to another server. */
  leave(): void {
    this.#removal ??= Promise.resolve()
    this.#channel?.destroy()
    this.#unfollow()
  }

  #created(pod: PodView): void {
    this.#isCreated = true
    this.#seen ??= pod
  }

  get #isDeleted(): boolean {
    return this.#isGone || this.#seen?.metadata?.deletionTimestamp !== undefined
  }

  #problem(): PodProblem | undefined {
    return this.#seen && endProblem(this.#seen)
  }

  async #deletion(): Promise<PodProblem | undefined> {
    if (!this.#seen) return undefined
    const events = await this.#parts.api.eventsOf(this.name).catch(() => [])
    return deletionProblem(this.#seen, events)
  }

  #hear(pod: PodView | undefined): void {
    // The list may be older than the Pod.
    if (!pod && !this.#isCreated) return
    if (pod) this.#seen = pod
    else this.#isGone = true
    if (this.#problem()?.kind === 'oom') this.oomKills = 1
    // Somebody else has ended it: nothing more can be expected of the channel.
    if (!this.#removal && (this.#isDeleted || this.#problem())) this.#channel?.destroy()
    for (const changed of this.#changed.splice(0)) changed()
  }

  /** Resolves with whether the condition was met in time. */
  async #until(isMet: () => boolean, withinMs: number, signal?: AbortSignal): Promise<boolean> {
    const until = monotonicMs() + withinMs
    while (!isMet()) {
      const left = until - monotonicMs()
      if (left <= 0 || signal?.aborted) return false
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, Math.min(left, 1000))
        this.#changed.push(() => {
          clearTimeout(timer)
          resolve()
        })
      })
    }
    return true
  }

  async #running(signal?: AbortSignal): Promise<void> {
    const decided = (): boolean => {
      const problem = this.#seen && startProblem(this.#seen)
      return this.#isDeleted || (problem !== undefined && !problem.passing) || isRunning(this.#seen ?? {})
    }
    const { startMs } = this.#parts.settings
    await this.#until(decided, startMs, signal)
    signal?.throwIfAborted()
    if (this.#seen && isRunning(this.#seen) && !this.#isDeleted) return
    const problem =
      (this.#seen && startProblem(this.#seen)) ?? (this.#isDeleted ? await this.#deletion() : undefined)
    throw failureOf(problem, startMs)
  }

  async #remove(): Promise<void> {
    this.#channel?.destroy()
    try {
      if (!this.#isCreated) return
      const until = monotonicMs() + REMOVE_MS
      await this.#ask(GRACE_SECS, until)
      await this.#until(() => this.#isGone || hasStopped(this.#seen), until - monotonicMs())
      // A kubelet keeps the record of a stopped Pod for up to 10 s; nothing runs any more, so nobody needs to wait for it.
      if (!this.#isGone) await this.#ask(0, monotonicMs() + REMOVE_MS)
    } finally {
      this.#unfollow()
    }
  }

  /** An API server that restarts answers again after a moment. */
  async #ask(graceSecs: number, until: number): Promise<void> {
    const { api, labels, takeoverSecs } = this.#parts
    for (;;) {
      try {
        if (takeoverSecs > 0) return await api.deleteOwnPod(this.name, labels, graceSecs)
        return await api.deletePod(this.name, graceSecs)
      } catch (error) {
        if (monotonicMs() > until) throw error
        await pause(RETRY_MS)
      }
    }
  }
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

const CODES = { unschedulable: 'resource-exhausted', image: 'invalid-input' } as const

function failureOf(problem: PodProblem | undefined, startMs: number): SandboxError {
  if (!problem)
    return new SandboxError('timeout', `the Pod did not start within ${startMs / 1000} s`, {
      hint: 'raise `start_secs` in [kubernetes], or see: kubectl describe pod',
    })
  const code = CODES[problem.kind as keyof typeof CODES] ?? 'launch-failed'
  const hint =
    problem.kind === 'unschedulable' ? { hint: 'ask for less, or add nodes', retryAfterSecs: 10 } : {}
  return new SandboxError(code, `${problem.kind}: ${problem.text}`, hint)
}
