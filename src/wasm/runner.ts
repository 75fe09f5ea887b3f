import { availableParallelism } from 'node:os'
import { SandboxError } from '../model/errors.ts'
import type { GuestJob } from './guest-protocol.ts'
import { type Answer, GuestWorker, type RunEnd } from './guest-worker.ts'

/** One tick of the epoch clock, the unit of every deadline. */
export const EPOCH_TICK_MS = 100

/** The size of the pool. */
export type RunnerOptions = {
  /** How many guests run at once; the rest wait in order. */
  readonly threads?: number
}

/** A warm pool of threads. Each job has a thread and a deadline of its own. */
export class WasmRunner {
  readonly #threads: number
  readonly #all = new Set<GuestWorker>()
  readonly #idle: GuestWorker[] = []
  readonly #waiting: {
    readonly take: (worker: GuestWorker) => void
    readonly fail: (error: Error) => void
  }[] = []
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
    for (const { fail } of this.#waiting.splice(0)) fail(closed())
    for (const worker of [...this.#all]) worker.close()
  }

  #start(): GuestWorker {
    const worker = new GuestWorker((gone) => this.#lost(gone))
    this.#all.add(worker)
    return worker
  }

  #take(): Promise<GuestWorker> {
    if (this.#closed) return Promise.reject(closed())
    const idle = this.#idle.pop()
    if (idle) return Promise.resolve(idle)
    if (this.#all.size < this.#threads) return Promise.resolve(this.#start())
    return new Promise((take, fail) => this.#waiting.push({ take, fail }))
  }

  #give(worker: GuestWorker): void {
    const next = this.#waiting.shift()
    if (next) next.take(worker)
    else this.#idle.push(worker)
  }

  /**
   * A thread that was ended during a run is replaced for whoever waits, or else by one spare: starting a thread takes
   * this one some milliseconds, and twenty deadlines may fall together.
   */
  #lost(worker: GuestWorker): void {
    this.#all.delete(worker)
    const place = this.#idle.indexOf(worker)
    // One that dies idle may be unable to start at all; its successor waits until somebody needs it.
    if (place !== -1) this.#idle.splice(place, 1)
    else if (!this.#closed && (this.#waiting.length > 0 || this.#idle.length === 0)) this.#give(this.#start())
  }
}

const closed = (): SandboxError => new SandboxError('wrong-state', 'the sandbox is closed')
