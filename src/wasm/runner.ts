import { availableParallelism } from 'node:os'
import { SandboxError } from '../model/errors.ts'
import { FairQueue } from '../model/fair-queue.ts'
import type { GuestJob } from './worker/guest-protocol.ts'
import { type Answer, GuestWorker, type RunEnd } from './worker/guest-worker.ts'

/** One tick of the epoch clock, the unit of every deadline. */
export const EPOCH_TICK_MS = 100

/** The size of the pool. */
export type RunnerOptions = {
  /** How many guests run at once; the rest wait, fairly between callers. */
  readonly threads?: number
}

/** A warm pool of threads. Each job has a thread and a deadline of its own. */
export class WasmRunner {
  readonly #threads: number
  readonly #all = new Set<GuestWorker>()
  readonly #idle: GuestWorker[] = []
  readonly #waiting = new FairQueue<{
    readonly take: (worker: GuestWorker) => void
    readonly fail: (error: Error) => void
  }>()
  #closed = false

  constructor({ threads = Math.max(2, availableParallelism()) }: RunnerOptions = {}) {
    this.#threads = threads
  }

  /** Starts a thread in the background, so that the first run finds it warm. */
  warm(): void {
    if (this.#all.size === 0) this.#idle.push(this.#start())
  }

  async run(job: GuestJob, answer: Answer, caller = ''): Promise<RunEnd> {
    const worker = await this.#take(caller)
    try {
      const end = await worker.run(job, answer)
      this.#waiting.ended(caller)
      if (this.#all.has(worker)) this.#give(worker)
      return end
    } catch (error) {
      this.#waiting.ended(caller)
      throw error
    }
  }

  /** Ends every thread. Runs under way end without a result. */
  close(): void {
    this.#closed = true
    for (const { fail } of this.#waiting.drain()) fail(closed())
    for (const worker of [...this.#all]) worker.close()
  }

  #start(): GuestWorker {
    const worker = new GuestWorker((gone) => this.#lost(gone))
    this.#all.add(worker)
    return worker
  }

  #take(caller: string): Promise<GuestWorker> {
    if (this.#closed) return Promise.reject(closed())
    const free = this.#idle.pop() ?? (this.#all.size < this.#threads ? this.#start() : undefined)
    if (free === undefined) return new Promise((take, fail) => this.#waiting.push(caller, { take, fail }))
    this.#waiting.started(caller)
    return Promise.resolve(free)
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
    else if (!this.#closed && (this.#waiting.size > 0 || this.#idle.length === 0)) this.#give(this.#start())
  }
}

const closed = (): SandboxError => new SandboxError('wrong-state', 'the sandbox is closed')
