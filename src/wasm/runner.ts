import { availableParallelism } from 'node:os'
import type { GuestJob } from './guest-protocol.ts'
import { type Answer, GuestWorker, type RunEnd } from './guest-worker.ts'

/** One tick of the epoch clock, the unit of every deadline. */
export const EPOCH_TICK_MS = 100

export type RunnerOptions = {
  /** How many guests run at once; the rest wait in order. */
  readonly threads?: number
}

/** A warm pool of threads. Each job has a thread and a deadline of its own. */
export class WasmRunner {
  readonly #threads: number
  readonly #all = new Set<GuestWorker>()
  readonly #idle: GuestWorker[] = []
  readonly #waiting: ((worker: GuestWorker) => void)[] = []
  #closed = false

  constructor({ threads = Math.max(2, availableParallelism()) }: RunnerOptions = {}) {
    this.#threads = threads
  }

  /** Starts a thread in the background, so that the first run finds it warm. */
  warm(): void {
    if (this.#all.size === 0) this.#idle.push(this.#start())
  }

  async run(job: GuestJob, answer: Answer): Promise<RunEnd> {
    const worker = await this.#take()
    const end = await worker.run(job, answer)
    if (this.#all.has(worker)) this.#give(worker)
    return end
  }

  /** Ends every thread. Runs under way end without a result. */
  close(): void {
    this.#closed = true
    for (const worker of [...this.#all]) worker.close()
  }

  #start(): GuestWorker {
    const worker = new GuestWorker((gone) => this.#lost(gone))
    this.#all.add(worker)
    return worker
  }

  #take(): Promise<GuestWorker> {
    const idle = this.#idle.pop()
    if (idle) return Promise.resolve(idle)
    if (this.#all.size < this.#threads) return Promise.resolve(this.#start())
    return new Promise((resolve) => this.#waiting.push(resolve))
  }

  #give(worker: GuestWorker): void {
    const next = this.#waiting.shift()
    if (next) next(worker)
    else this.#idle.push(worker)
  }

  /** A thread that had to be ended is replaced at once: the next run pays nothing for it. */
  #lost(worker: GuestWorker): void {
    this.#all.delete(worker)
    const place = this.#idle.indexOf(worker)
    if (place !== -1) this.#idle.splice(place, 1)
    if (!this.#closed) this.#give(this.#start())
  }
}
