import { SandboxError } from '../model/errors.ts'

/** So many at once, so many waiting, the rest is told to come back. */
export class Admission {
  readonly #what: string
  readonly #limits: { readonly running: number; readonly waiting: number }
  readonly #queue: { readonly go: () => void; readonly leave: (error: unknown) => void }[] = []
  #running = 0

  constructor(what: string, limits: { readonly running: number; readonly waiting: number }) {
    this.#what = what
    this.#limits = limits
  }

  get running(): number {
    return this.#running
  }

  get waiting(): number {
    return this.#queue.length
  }

  /** Runs the work when it is its turn. */
  async run<T>(work: () => Promise<T>): Promise<T> {
    const release = await this.enter()
    try {
      return await work()
    } finally {
      release()
    }
  }

  /** Resolves at one's turn with what gives the place back. */
  async enter(): Promise<() => void> {
    if (this.#running < this.#limits.running) this.#running++
    else await this.#wait()
    let left = false
    return () => {
      if (left) return
      left = true
      const next = this.#queue.shift()
      // The place is handed on, so nobody can slip in between.
      if (next) next.go()
      else this.#running--
    }
  }

  /** Sends everybody who waits away. */
  turnAway(error: unknown): void {
    for (const { leave } of this.#queue.splice(0)) leave(error)
  }

  #wait(): Promise<void> {
    if (this.#queue.length >= this.#limits.waiting)
      throw new SandboxError('too-many-requests', `too many ${this.#what} at once`, {
        hint: `at most ${this.#limits.running} at once and ${this.#limits.waiting} waiting; try again later`,
        retryAfterSecs: 1,
      })
    return new Promise((go, leave) => {
      this.#queue.push({ go, leave })
    })
  }
}

/** Counts per name, with a ceiling. */
export class Quota {
  readonly #what: string
  readonly #most: number
  readonly #used = new Map<string, number>()

  constructor(what: string, most: number) {
    this.#what = what
    this.#most = most
  }

  used(name: string): number {
    return this.#used.get(name) ?? 0
  }

  take(name: string): void {
    const used = this.used(name)
    if (used >= this.#most)
      throw new SandboxError('too-many-requests', `this key already has ${used} ${this.#what}`, {
        hint: 'end some, or ask the operator for more',
        retryAfterSecs: 5,
      })
    this.#used.set(name, used + 1)
  }

  give(name: string): void {
    const left = this.used(name) - 1
    if (left > 0) this.#used.set(name, left)
    else this.#used.delete(name)
  }
}
