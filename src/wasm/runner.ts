import { availableParallelism } from 'node:os'
import { Admission } from '../model/admission.ts'
import { SandboxError } from '../model/errors.ts'
import type { GuestJob } from './worker/guest-protocol.ts'
import { type Answer, GuestWorker, type RunEnd } from './worker/guest-worker.ts'

/** One epoch tick, the unit of every deadline. */
export const EPOCH_TICK_MS = 100

/** The size of the pool. */
export type RunnerOptions = {
  /** How many guests run at once; further runs wait in a queue that is fair between callers. */
  readonly threads?: number
}

/** A warm pool of threads. Each job gets its own thread and its own deadline. */
export class WasmRunner {
  readonly #threads: number
  readonly #all = new Set<GuestWorker>()
  readonly #idle: GuestWorker[] = []
  readonly #admission: Admission
  #closed = false

  constructor({ threads = Math.max(2, availableParallelism()) }: RunnerOptions = {}) {
    this.#threads = threads
    this.#admission = new Admission('guests', {
      running: threads,
      waiting: Number.POSITIVE_INFINITY,
      strict: true,
    })
  }

  /** Starts a thread in the background, so that the first run does not pay for the cold start. */
  warm(): void {
    if (this.#all.size === 0) this.#idle.push(this.#start())
  }

  async run(job: GuestJob, answer: Answer, caller = ''): Promise<RunEnd> {
    if (this.#closed) throw closed()
    const release = await this.#admission.enter({ tenant: '', keyId: caller })
    try {
      if (this.#closed) throw closed()
      // INVARIANT: there are never more threads than slots, so a thread is idle or can be started.
      const worker = this.#idle.pop() ?? this.#start()
      const end = await worker.run(job, answer)
      if (this.#all.has(worker)) this.#idle.push(worker)
      return end
    } finally {
      release()
    }
  }

  /** Terminates every thread. Runs in progress end without a result. */
  close(): void {
    this.#closed = true
    this.#admission.turnAway(closed())
    for (const worker of [...this.#all]) worker.close()
  }

  #start(): GuestWorker {
    const worker = new GuestWorker((gone) => this.#lost(gone))
    this.#all.add(worker)
    return worker
  }

  /**
   * Replaces a thread that was terminated during a run, with at most one spare: starting a thread blocks this one for some
   * milliseconds, and many deadlines may expire at the same time.
   */
  #lost(worker: GuestWorker): void {
    this.#all.delete(worker)
    const index = this.#idle.indexOf(worker)
    // A thread that died while idle may be unable to start at all; its replacement is started only when needed.
    if (index !== -1) this.#idle.splice(index, 1)
    else if (!this.#closed && this.#idle.length === 0 && this.#all.size < this.#threads)
      this.#idle.push(this.#start())
  }
}

const closed = (): SandboxError => new SandboxError('wrong-state', 'the sandbox is closed')
