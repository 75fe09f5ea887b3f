import { createHash } from 'node:crypto'
import { monotonicMs } from '../../host/clock.ts'
import type { Plan } from '../../model/plan.ts'
import { type PodView, selectorOf } from './cluster-api.ts'
import { podOf } from './launch.ts'
import { claimPod, type PodParts, SandboxPod } from './pod.ts'
import { endProblem, isRunning } from './pod-state.ts'

/** The label of Pods that belong to nobody yet; its value is their kind. */
const POOL = 'ringfence.dev/pool'
/** A Pod that nobody took ends itself after this time. */
const POOL_SECS = 3600
const LOCK_SECS = 30
const MAX_KINDS = 16
const REFILL_MS = 200
const LOOK_MS = 60_000
const TRIES = 3

type Kind = { readonly plan: Plan; readonly image: string; usedAt: number }

/**
 * Pods that run and wait for a sandbox. All servers of a namespace share them: a Pod is claimed by one conditional update, so that
 * of two servers one gets it. INVARIANT: Pods are created only while holding the kind's lock and after counting, so that there are
 * never more than configured.
 * SECURITY: nothing has run in them, and they contain nothing of a tenant; everything else is configured after the claim.
 */
export class PodPool {
  readonly #parts: PodParts
  readonly #size: number
  readonly #kinds = new Map<string, Kind>()
  readonly #filling = new Map<string, Promise<void>>()
  #timer: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(parts: PodParts, size: number) {
    this.#parts = parts
    this.#size = size
  }

  /** A Pod for this plan, or undefined; the pool is filled again in the background. */
  async take(
    plan: Plan,
    image: string,
    sandbox: Readonly<Record<string, string>> = {},
  ): Promise<SandboxPod | undefined> {
    if (this.#size === 0) return undefined
    const kind = this.#kindOf(plan, image)
    this.#remember(kind, plan, image)
    try {
      return await this.#claim(kind, sandbox)
    } finally {
      setTimeout(() => void this.fill(kind).catch(() => {}), REFILL_MS).unref()
    }
  }

  /** Removes the Pods that this process created and nobody took. */
  async close(): Promise<void> {
    this.#isClosed = true
    clearInterval(this.#timer)
    await Promise.allSettled(this.#filling.values())
    if (this.#size === 0) return
    await this.#removePods(POOL)
  }

  /** Creates what is missing of a kind. One at a time in this process, and by the lock in the namespace. */
  fill(kind: string): Promise<void> {
    const running = this.#filling.get(kind)
    if (running || this.#isClosed) return running ?? Promise.resolve()
    const filling = this.#fill(kind).finally(() => {
      this.#filling.delete(kind)
      if (!this.#kinds.has(kind)) this.#removeFree(kind)
    })
    this.#filling.set(kind, filling)
    return filling
  }

  #remember(kind: string, plan: Plan, image: string): void {
    this.#kinds.delete(kind)
    this.#kinds.set(kind, { plan, image, usedAt: monotonicMs() })
    for (const old of [...this.#kinds.keys()].slice(0, -MAX_KINDS)) this.#forget(old)
    this.#timer ??= setInterval(() => this.#look(), LOOK_MS).unref()
  }

  /** Pods of the pool may end without us; a kind that nobody asked for in an hour is not kept. */
  #look(): void {
    for (const [kind, { usedAt }] of this.#kinds) {
      if (monotonicMs() - usedAt > POOL_SECS * 1000) this.#forget(kind)
      else void this.fill(kind).catch(() => {})
    }
  }

  /** SECURITY: its Pods go too, or callers who ask for ever new kinds would fill the cluster with Pods that count for nobody. */
  #forget(kind: string): void {
    this.#kinds.delete(kind)
    if (!this.#filling.has(kind)) this.#removeFree(kind)
  }

  #removeFree(kind: string): void {
    void this.#removePods(`${POOL}=${kind}`).catch(() => {})
  }

  /** Removes Pods that this process created and nobody took, not even while they are removed. */
  async #removePods(selector: string): Promise<void> {
    const { api, labels } = this.#parts
    const { pods } = await api.listPods(`${selector},${selectorOf(labels)}`)
    await Promise.allSettled(
      pods.map(({ metadata }) => {
        const kind = metadata?.labels?.[POOL] ?? ''
        return api.deleteOwnPod(metadata?.name ?? '', { ...labels, [POOL]: kind }, 0)
      }),
    )
  }

  async #claim(kind: string, sandbox: Readonly<Record<string, string>>): Promise<SandboxPod | undefined> {
    for (let tries = 0; tries < TRIES; tries++) {
      const { pods } = await this.#parts.api.listPods(`${POOL}=${kind}`)
      const ready = pods.filter(isFree)
      if (ready.length === 0) return undefined
      for (const pod of ready) {
        const claimed = await claimPod(this.#parts, pod, { ...sandbox, [POOL]: null })
        if (claimed) return SandboxPod.adopt(this.#parts, claimed)
      }
    }
    return undefined
  }

  async #fill(kind: string): Promise<void> {
    const wanted = this.#kinds.get(kind)
    const { api, labels } = this.#parts
    const holder = Object.values(labels).join('.')
    if (!wanted || !(await api.lock(`ringfence-pool-${kind}`, holder, LOCK_SECS))) return
    try {
      const { pods } = await api.listPods(`${POOL}=${kind}`)
      for (const pod of pods.filter(endProblem)) await api.deletePod(pod.metadata?.name ?? '', 0)
      const missing = this.#size - pods.filter((pod) => !endProblem(pod)).length
      const isWanted = (): boolean => !this.#isClosed && this.#kinds.has(kind)
      for (let made = 0; made < missing && isWanted(); made++) await this.#create(kind, wanted)
    } finally {
      await api.unlock(`ringfence-pool-${kind}`, holder)
    }
  }

  async #create(kind: string, { plan, image }: Kind): Promise<void> {
    const options = { image, patienceSecs: POOL_SECS, labels: { [POOL]: kind } }
    await SandboxPod.prepare(this.#parts, plan, options)
  }

  /** INVARIANT: the whole specification of the Pod. */
  #kindOf(plan: Plan, image: string): string {
    const { takeoverSecs } = this.#parts
    const shared = { name: '', uid: 0, labels: {}, annotations: {}, patienceSecs: POOL_SECS }
    const context = { ...shared, image, takeoverSecs }
    const { spec } = podOf(plan, this.#parts.settings, context)
    return createHash('sha256').update(JSON.stringify(spec)).digest('hex').slice(0, 32)
  }
}

const isFree = (pod: PodView): boolean =>
  isRunning(pod) && !endProblem(pod) && pod.metadata?.deletionTimestamp === undefined
