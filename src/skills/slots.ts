import { FairQueue } from '../model/fair-queue.ts'

/** So many at once; the rest wait, fairly between callers. */
export class RunQueue {
  #free: number
  readonly #waiting = new FairQueue<() => void>()

  constructor(count: number) {
    this.#free = count
  }

  /** Runs an action when its turn comes. */
  async use<T>(caller: string, action: () => Promise<T>): Promise<T> {
    if (this.#free > 0) {
      this.#free--
      this.#waiting.started(caller)
    } else await new Promise<void>((resolve) => this.#waiting.push(caller, resolve))
    try {
      return await action()
    } finally {
      this.#waiting.ended(caller)
      const next = this.#waiting.shift()
      // The place goes over directly: whoever comes now does not overtake.
      if (next) next()
      else this.#free++
    }
  }
}
