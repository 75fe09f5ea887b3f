const GROWTH = 4
const FIRST_BYTES = 1024

/**
 * Joins bytes that arrive in chunks. Each chunk is copied into memory that grows with what has arrived: kept chunks would
 * cost a hundred times their size if they are single bytes, and joining many of them at the end would block the event loop.
 */
export class CollectedBytes {
  readonly #most: number
  #memory: Uint8Array<ArrayBuffer> = new Uint8Array(0)
  #size = 0

  /** `most` is the largest possible size, if known. */
  constructor(most = Number.POSITIVE_INFINITY) {
    this.#most = most
  }

  get size(): number {
    return this.#size
  }

  add(piece: Uint8Array): void {
    const size = this.#size + piece.length
    if (size > this.#memory.length) {
      // Memory that has not been written to costs nothing.
      const larger = new Uint8Array(
        Math.max(size, Math.min(Math.max(size * GROWTH, FIRST_BYTES), this.#most)),
      )
      larger.set(this.all())
      this.#memory = larger
    }
    this.#memory.set(piece, this.#size)
    this.#size = size
  }

  /** All bytes so far; they are not copied. */
  all(): Uint8Array<ArrayBuffer> {
    return this.#memory.subarray(0, this.#size)
  }
}
