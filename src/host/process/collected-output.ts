/** Output up to this size is kept in the chunks in which it arrived. */
const LITTLE = 64 * 1024
const GROWTH = 4

/**
 * Collects the output of a command. Chunks are copied as they arrive: joining many of them at the end would block the
 * event loop while the kernel allocates that much memory.
 */
export class CollectedOutput {
  readonly #most: number
  readonly #pieces: Uint8Array[] = []
  #memory: Buffer | undefined
  #size = 0

  /** `most` is the largest possible size, if known. */
  constructor(most = Number.POSITIVE_INFINITY) {
    this.#most = most
  }

  add(piece: Uint8Array): void {
    const size = this.#size + piece.length
    if (this.#memory === undefined && size <= LITTLE) this.#pieces.push(new Uint8Array(piece))
    else this.#roomFor(size).set(piece, this.#size)
    this.#size = size
  }

  /** All output so far. */
  all(): Buffer {
    return this.#memory?.subarray(0, this.#size) ?? Buffer.concat(this.#pieces)
  }

  #roomFor(size: number): Buffer {
    if (this.#memory !== undefined && size <= this.#memory.length) return this.#memory
    // Memory that has not been written to costs nothing.
    const larger = Buffer.allocUnsafeSlow(Math.max(size, Math.min(size * GROWTH, this.#most)))
    larger.set(this.all())
    this.#pieces.length = 0
    this.#memory = larger
    return larger
  }
}
