import { monotonicMs, LONGEST_TIMER_MS as STEP_MS } from '../../host/clock.ts'

/** A deadline on the monotonic clock. It can be paused: while it is held, the remaining time stays the same. */
export class Deadline {
  readonly #act: () => void
  readonly #clock: () => number
  #at: number | undefined
  #held: number | undefined
  #timer: NodeJS.Timeout | undefined

  constructor(act: () => void, clock = monotonicMs) {
    this.#act = act
    this.#clock = clock
  }

  /** Milliseconds left; undefined without a deadline. */
  get leftMs(): number | undefined {
    if (this.#held !== undefined) return this.#held
    return this.#at === undefined ? undefined : Math.max(0, this.#at - this.#clock())
  }

  /** Sets the deadline relative to now; undefined removes it. */
  set(ms: number | undefined): void {
    if (this.#held !== undefined) this.#held = ms
    this.#at = ms === undefined ? undefined : this.#clock() + ms
    this.#arm()
  }

  /** Makes the deadline at least this far from now; never earlier than it was. Returns whether it changed. */
  extend(ms: number): boolean {
    const left = this.leftMs
    if (left === undefined || left >= ms) return false
    this.set(ms)
    return true
  }

  hold(): void {
    this.#held ??= this.leftMs
    clearTimeout(this.#timer)
  }

  release(): void {
    if (this.#held === undefined) return
    const left = this.#held
    this.#held = undefined
    this.set(left)
  }

  cancel(): void {
    this.#at = undefined
    this.#held = undefined
    clearTimeout(this.#timer)
  }

  #arm(): void {
    clearTimeout(this.#timer)
    if (this.#at === undefined || this.#held !== undefined) return
    const left = this.#at - this.#clock()
    if (left <= 0) this.#timer = setTimeout(this.#fire, 0)
    else this.#timer = setTimeout(left > STEP_MS ? () => this.#arm() : this.#fire, Math.min(left, STEP_MS))
    this.#timer.unref()
  }

  readonly #fire = (): void => {
    // A timer may fire slightly early.
    if (this.#at === undefined || this.#held !== undefined) return
    if (this.#at - this.#clock() > 0) this.#arm()
    else {
      this.#at = undefined
      this.#act()
    }
  }
}
