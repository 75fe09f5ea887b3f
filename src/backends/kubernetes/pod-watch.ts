import type { ClusterApi, PodView } from './cluster-api.ts'

/** Called with a Pod as it is now; undefined: it is gone. */
export type PodListener = (pod: PodView | undefined) => void

const RETRY_MS = 500
const MAX_RETRY_MS = 10_000

/**
 * Follows all Pods of this process with one connection. When the connection ends, or the API server was away, it lists them
 * again, so that nothing that happened meanwhile is missed.
 */
export class PodWatch {
  readonly #api: ClusterApi
  readonly #selector: string
  readonly #listeners = new Map<string, PodListener>()
  #stop: (() => void) | undefined
  #running = false
  #retryMs = RETRY_MS
  #timer: NodeJS.Timeout | undefined

  constructor(api: ClusterApi, selector: string) {
    this.#api = api
    this.#selector = selector
  }

  /** Tells about one Pod until the returned function is called. Nothing is followed while nobody listens. */
  follow(name: string, listener: PodListener): () => void {
    this.#listeners.set(name, listener)
    if (!this.#running) this.#begin()
    return () => {
      if (this.#listeners.get(name) === listener) this.#listeners.delete(name)
      if (this.#listeners.size === 0) this.close()
    }
  }

  close(): void {
    this.#running = false
    clearTimeout(this.#timer)
    this.#stop?.()
    this.#stop = undefined
  }

  #begin(): void {
    this.#running = true
    void this.#list().then(
      () => {
        this.#retryMs = RETRY_MS
      },
      () => this.#again(),
    )
  }

  #again(): void {
    this.#stop = undefined
    if (!this.#running) return
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.#begin(), this.#retryMs)
    this.#retryMs = Math.min(this.#retryMs * 2, MAX_RETRY_MS)
  }

  async #list(): Promise<void> {
    const before = [...this.#listeners.keys()]
    const { pods, version } = await this.#api.listPods(this.#selector)
    const names = new Set(pods.map((pod) => pod.metadata?.name))
    for (const pod of pods) this.#tell(pod.metadata?.name, pod)
    for (const name of before) if (!names.has(name)) this.#tell(name, undefined)
    if (!this.#running) return
    let isOver = false
    const stop = await this.#api.watchPods(
      this.#selector,
      version,
      ({ kind, pod }) => this.#tell(pod.metadata?.name, kind === 'gone' ? undefined : pod),
      () => {
        isOver = true
        this.#again()
      },
    )
    if (!this.#running) stop()
    else if (!isOver) this.#stop = stop
  }

  #tell(name: string | undefined, pod: PodView | undefined): void {
    if (name !== undefined) this.#listeners.get(name)?.(pod)
  }
}
