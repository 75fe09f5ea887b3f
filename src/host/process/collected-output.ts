/** What is said in this many bytes or less is kept in the pieces it came in. */
const LITTLE = 64 * 1024
const GROWTH = 4

/**
 * What a command says until it ends, as one. Pieces are copied as they come: joined at the end, a lot of them would hold up
 * everybody else for as long as the kernel needs to find that much memory.
 */
export class CollectedOutput {
  readonly #most: number
  readonly #pieces: Uint8Array[] = []
  #memory: Buffer | undefined
  #size = 0

  /** `most` is how much can come, where that is known. */
  constructor(most = Number.POSITIVE_INFINITY) {
    this.#most = most
  }

  add(piece: Uint8Array): void {
    const size = this.#size + piece.length
    if (this.#memory === undefined && size <= LITTLE) this.#pieces.push(new Uint8Array(piece))
    else this.#roomFor(size).set(piece, this.#size)
    this.#size = size
  }

  /** Everything so far. */
  all(): Buffer {
    return this.#memory?.subarray(0, this.#size) ?? Buffer.concat(this.#pieces)
  }

  #roomFor(size: number): Buffer {
    if (this.#memory !== undefined && size <= this.#memory.length) return this.#memory
    // Memory that is not written to yet costs nothing.
    const larger = Buffer.allocUnsafeSlow(Math.max(size, Math.min(size * GROWTH, this.#most)))
    larger.set(this.all())
    this.#pieces.length = 0
    this.#memory = larger
    return larger
  }
}
