import { inspect } from 'node:util'

const REDACTED = '<redacted>'

/**
 * A secret value. Its bytes are in a buffer of their own, are available only inside `use`, and are zeroed on dispose and
 * on replace; every way to print the object shows `<redacted>`.
 */
export class Secret {
  // SECURITY: a private field is not enumerable and does not appear in spreads, clones or inspection.
  #bytes: Buffer | undefined
  #generation = 0

  /** Copies the value; the caller zeroes a Buffer that it passes. */
  constructor(value: string | Uint8Array) {
    this.#bytes = ownBytes(value)
  }

  /** Passes the bytes to `work`, which must not keep them. */
  use<T>(work: (bytes: Buffer) => T): T {
    if (this.#bytes === undefined) throw new Error('the secret has been disposed')
    return work(this.#bytes)
  }

  get disposed(): boolean {
    return this.#bytes === undefined
  }

  /** Changes with each replacement. */
  get generation(): number {
    return this.#generation
  }

  /** Replaces the value and zeroes the old one. */
  replace(value: string | Uint8Array): void {
    const fresh = ownBytes(value)
    this.#generation++
    this.#bytes?.fill(0)
    this.#bytes = fresh
  }

  /** Zeroes the value; further use is an error. */
  dispose(): void {
    this.#bytes?.fill(0)
    this.#bytes = undefined
  }

  [Symbol.dispose](): void {
    this.dispose()
  }

  toString(): string {
    return REDACTED
  }

  toJSON(): string {
    return REDACTED
  }

  [Symbol.toPrimitive](): string {
    return REDACTED
  }

  [inspect.custom](): string {
    return REDACTED
  }
}

/** Never from Node's shared pool, where the bytes would be next to unrelated data and stay after use. */
function ownBytes(value: string | Uint8Array): Buffer {
  const size = typeof value === 'string' ? Buffer.byteLength(value) : value.byteLength
  const bytes = Buffer.allocUnsafeSlow(size)
  if (typeof value === 'string') bytes.write(value)
  else bytes.set(value)
  return bytes
}
