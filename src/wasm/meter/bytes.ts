import { SandboxError } from '../../model/errors.ts'

/** Reads and writes the numbers of the binary format. The input bytes have been validated before. */

/** A cursor over a module's bytes. */
export class ByteReader {
  readonly bytes: Uint8Array
  at: number

  constructor(bytes: Uint8Array, at = 0) {
    this.bytes = bytes
    this.at = at
  }

  u8(): number {
    return this.bytes[this.at++] as number
  }

  u32(): number {
    let value = 0
    let shift = 0
    let byte: number
    do {
      byte = this.bytes[this.at++] as number
      value |= (byte & 0x7f) << shift
      shift += 7
    } while ((byte & 0x80) !== 0 && shift < 35)
    return value >>> 0
  }

  /** The length of a list. Every entry has at least one byte, so a longer list than what is left is damaged. */
  count(): number {
    const value = this.u32()
    if (value > this.bytes.length - this.at) throw new SandboxError('invalid-input', 'the module is cut off')
    return value
  }

  /** A 64-bit count as a double: exact below 2^53; larger values are only compared with limits. */
  u64(): number {
    let value = 0
    let scale = 1
    let byte: number
    do {
      byte = this.bytes[this.at++] as number
      value += (byte & 0x7f) * scale
      scale *= 128
    } while ((byte & 0x80) !== 0)
    return value
  }

  /** Skips one LEB128 number of any width. */
  skipNumber(): void {
    while (((this.bytes[this.at++] as number) & 0x80) !== 0);
  }

  text(): string {
    const length = this.u32()
    const start = this.at
    this.at += length
    return new TextDecoder().decode(this.bytes.subarray(start, this.at))
  }
}

// For the short spans between two charges, copying byte by byte is faster than calling `set`.
const SHORT_SPAN = 48

/** A growing byte buffer. */
export class ByteWriter {
  bytes: Uint8Array
  length = 0

  constructor(size = 4096) {
    this.bytes = new Uint8Array(size)
  }

  reset(): void {
    this.length = 0
  }

  #reserve(count: number): void {
    const needed = this.length + count
    if (needed <= this.bytes.length) return
    const larger = new Uint8Array(Math.max(this.bytes.length * 2, needed))
    larger.set(this.bytes.subarray(0, this.length))
    this.bytes = larger
  }

  u8(value: number): void {
    if (this.length >= this.bytes.length) this.#reserve(1)
    this.bytes[this.length++] = value
  }

  u32(value: number): void {
    let rest = value >>> 0
    while (rest >= 0x80) {
      this.u8((rest & 0x7f) | 0x80)
      rest >>>= 7
    }
    this.u8(rest)
  }

  /** A signed LEB128 number; any integer that a double holds exactly. */
  signed(value: number): void {
    let rest = value
    for (;;) {
      const high = Math.floor(rest / 128)
      const low = rest - high * 128
      rest = high
      if ((rest === 0 && low < 0x40) || (rest === -1 && low >= 0x40)) {
        this.u8(low)
        return
      }
      this.u8(low | 0x80)
    }
  }

  signed64(value: bigint): void {
    let rest = value
    for (;;) {
      const low = Number(rest & 0x7fn)
      rest >>= 7n
      if ((rest === 0n && low < 0x40) || (rest === -1n && low >= 0x40)) {
        this.u8(low)
        return
      }
      this.u8(low | 0x80)
    }
  }

  span(source: Uint8Array, start: number, end: number): void {
    const count = end - start
    if (count <= 0) return
    this.#reserve(count)
    if (count < SHORT_SPAN) {
      let to = this.length
      for (let from = start; from < end; from++) this.bytes[to++] = source[from] as number
    } else {
      this.bytes.set(source.subarray(start, end), this.length)
    }
    this.length += count
  }

  all(values: ArrayLike<number>): void {
    this.#reserve(values.length)
    this.bytes.set(values, this.length)
    this.length += values.length
  }

  append(other: ByteWriter): void {
    this.span(other.bytes, 0, other.length)
  }

  text(value: string): void {
    const encoded = new TextEncoder().encode(value)
    this.u32(encoded.length)
    this.all(encoded)
  }

  done(): Uint8Array {
    return this.bytes.slice(0, this.length)
  }
}
