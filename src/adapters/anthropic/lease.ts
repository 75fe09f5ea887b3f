import type { AnthropicClient, WorkItem } from './environment-client.ts'

/** The value that the first heartbeat expects. */
const NO_HEARTBEAT = 'NO_HEARTBEAT'
const BEAT_MS = 30_000
const TTL_MS = 90_000

/** Why a lease ended: our work is done, the environment wants it stopped, or another worker may have it. */
export type LeaseEnd = 'done' | 'stopped' | 'lost'

/** Renews the lease of a work item until it ends. */
export class Lease {
  readonly #client: AnthropicClient
  readonly #work: WorkItem
  readonly #controller = new AbortController()
  readonly #beating: Promise<void>
  #end: LeaseEnd | undefined

  constructor(client: AnthropicClient, work: WorkItem) {
    this.#client = client
    this.#work = work
    this.#beating = this.#beat()
  }

  /** Aborted when the lease has ended. */
  get signal(): AbortSignal {
    return this.#controller.signal
  }

  /** Ends the lease; the first reason counts. */
  finish(end: LeaseEnd): void {
    this.#end ??= end
    this.#controller.abort()
  }

  /** Resolves when no more heartbeats are sent. */
  async ended(): Promise<LeaseEnd> {
    await this.#beating
    return this.#end ?? 'done'
  }

  async #beat(): Promise<void> {
    let expected = NO_HEARTBEAT
    let [waitMs, ttlMs, last] = [BEAT_MS, TTL_MS, Date.now()]
    while (!this.signal.aborted) {
      try {
        const answer = await this.#send(expected, waitMs)
        expected = answer.last_heartbeat
        last = Date.now()
        if (answer.ttl_seconds > 0) {
          ttlMs = answer.ttl_seconds * 1000
          waitMs = Math.max(1000, Math.min(ttlMs / 2, BEAT_MS))
        }
        if (/^stopp/.test(answer.state) || !answer.lease_extended) this.finish('stopped')
      } catch (error) {
        if (this.signal.aborted) return
        const { status } = error as { readonly status?: number }
        // SECURITY: two workers must never serve one session, so a doubtful lease is a lost one.
        if (isFinal(status) || Date.now() - last > ttlMs) this.finish('lost')
      }
      await pause(waitMs, this.signal)
    }
  }

  #send(
    expected: string,
    cutMs: number,
  ): ReturnType<AnthropicClient['beta']['environments']['work']['heartbeat']> {
    const signal = AbortSignal.any([this.signal, AbortSignal.timeout(cutMs)])
    const params = { environment_id: this.#work.environment_id, expected_last_heartbeat: expected }
    return this.#client.beta.environments.work.heartbeat(this.#work.id, params, { signal })
  }
}

/** The environment refused: another attempt would not help. */
const isFinal = (status: number | undefined): boolean =>
  status !== undefined && status >= 400 && status < 500 && ![408, 409, 425, 429].includes(status)

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) return resolve()
    const done = (): void => {
      clearTimeout(timer)
      signal.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, ms)
    signal.addEventListener('abort', done, { once: true })
  })
