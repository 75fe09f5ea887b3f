import { inspect } from 'node:util'

const REDACTED = '<redacted>'

/**
 * A value that must not be seen. Its bytes lie in memory of their own, are handed out only inside `use`, and are
 * zeroed on dispose and on replace; however the object is printed, it says `<redacted>`.
 */
export class Secret {
  // SECURITY: a private field: not enumerable, not in spreads, clones or inspection.
  #bytes: Buffer | undefined

  /** Copies the value; a Buffer that is given stays the caller's to zero. */
  constructor(value: string | Uint8Array) {
    this.#bytes = ownBytes(value)
  }

  /** Hands the bytes to `work`, which must not keep them. */
  use<T>(work: (bytes: Buffer) => T): T {
    if (this.#bytes === undefined) throw new Error('the secret is disposed')
    return work(this.#bytes)
  }

  get disposed(): boolean {
    return this.#bytes === undefined
  }

  /** Puts a new value in the place of the old one, which is zeroed. */
  replace(value: string | Uint8Array): void {
    const fresh = ownBytes(value)
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

/** Never from Node's shared pool, where the bytes would lie beside other people's and stay after use. */
function ownBytes(value: string | Uint8Array): Buffer {
  const size = typeof value === 'string' ? Buffer.byteLength(value) : value.byteLength
  const bytes = Buffer.allocUnsafeSlow(size)
  if (typeof value === 'string') bytes.write(value)
  else bytes.set(value)
  return bytes
}
