import { monotonicMs } from '../host/clock.ts'

/**
 * A lease as its holder sees it. The database counts from the moment at which it handles a renewal, the holder from the moment
 * at which it asked, and less a margin: so the holder always stops first, whatever the clocks of the machines say.
 */
export class Lease {
  readonly leaseMs: number
  readonly #marginMs: number
  readonly #clock: () => number
  #askedAt = Number.NEGATIVE_INFINITY

  constructor(leaseMs: number, clock: () => number = monotonicMs) {
    this.leaseMs = leaseMs
    this.#marginMs = leaseMs / 6
    this.#clock = clock
  }

  /** The lease was renewed by a request that was sent at this time. */
  renewed(askedAt: number): void {
    this.#askedAt = Math.max(this.#askedAt, askedAt)
  }

  /** It ends now, whatever the database says. */
  drop(): void {
    this.#askedAt = Number.NEGATIVE_INFINITY
  }

  /** How long the holder may go on. */
  get leftMs(): number {
    return Math.max(0, this.#askedAt + this.leaseMs - this.#marginMs - this.#clock())
  }

  get isHeld(): boolean {
    return this.leftMs > 0
  }

  /** Whether it is time to renew it. */
  get isDue(): boolean {
    return this.#clock() - this.#askedAt >= this.leaseMs / 3
  }

  /** Milliseconds since the last renewal. */
  get ageMs(): number {
    return this.#clock() - this.#askedAt
  }
}
