import type { Secret } from '../../host/secrets/secret.ts'
import type { Rewrite } from '../http/body.ts'

/** Bytes to find, and their replacement. */
export type Needle = { readonly bytes: Buffer; readonly instead: Buffer }

/** The forms in which a server may return a value: plain, escaped, hexadecimal, inside base64. */
export function needlesOf(value: Secret, placeholder: string): readonly Needle[] {
  const instead = Buffer.from(placeholder)
  return value.use((bytes) => {
    const text = bytes.toString('latin1')
    const forms = new Set([
      text,
      percentEncoded(bytes),
      percentEncoded(bytes, /[A-Za-z0-9._~!*'()-]/),
      JSON.stringify(text).slice(1, -1),
      bytes.toString('hex'),
      bytes.toString('hex').toUpperCase(),
      ...[0, 1, 2].flatMap((offset) => insideBase64(bytes, offset)),
    ])
    return [...forms].map((form) => ({ bytes: Buffer.from(form, 'latin1'), instead }))
  })
}

/** Percent-encodes every byte that is not safe in a query. */
export function percentEncoded(bytes: Buffer, plain = /[A-Za-z0-9._~-]/): string {
  let text = ''
  for (const byte of bytes) {
    const char = String.fromCharCode(byte)
    text += plain.test(char) ? char : `%${byte.toString(16).toUpperCase().padStart(2, '0')}`
  }
  return text
}

/** The base64 characters that depend only on the value when it starts `offset` bytes into a group of three. */
function insideBase64(bytes: Buffer, offset: number): readonly string[] {
  const packed = Buffer.concat([Buffer.alloc(offset), bytes]).toString('base64')
  const inside = packed.slice(Math.ceil((offset * 8) / 6), Math.floor(((offset + bytes.length) * 8) / 6))
  return [inside, inside.replaceAll('+', '-').replaceAll('/', '_')]
}

/** Removes the needles from a header name, case-insensitively. */
export function scrubName(needles: readonly Needle[], name: string): string {
  let scrubbed = name
  for (const { bytes, instead } of needles) {
    const form = bytes.toString('latin1').toLowerCase()
    const [placeholder, size] = [instead.toString('latin1'), form.length]
    for (
      let at = scrubbed.toLowerCase().indexOf(form);
      at >= 0;
      at = scrubbed.toLowerCase().indexOf(form, at + placeholder.length)
    )
      scrubbed = scrubbed.slice(0, at) + placeholder + scrubbed.slice(at + size)
    bytes.fill(0)
  }
  return scrubbed
}

const NOTHING = Buffer.alloc(0)

/**
 * Replaces needles in a stream, also across chunk boundaries. Holds back only bytes that may be the start of a
 * needle, so that slow responses are still streamed.
 */
export class Scrubber implements Rewrite {
  readonly #needles: readonly Needle[]
  #held = NOTHING

  constructor(needles: readonly Needle[]) {
    this.#needles = [...needles].sort((a, b) => b.bytes.length - a.bytes.length)
  }

  push(bytes: Buffer): Buffer {
    const all = this.#held.length === 0 ? bytes : Buffer.concat([this.#held, bytes])
    const out: Buffer[] = []
    let at = 0
    for (let hit = this.#find(all, at); hit !== undefined; hit = this.#find(all, at)) {
      out.push(all.subarray(at, hit.at), hit.needle.instead)
      at = hit.at + hit.needle.bytes.length
    }
    const end = this.#startOfNeedle(all, at)
    out.push(all.subarray(at, end))
    const held = Buffer.from(all.subarray(end))
    if (this.#held.length > 0) this.#held.fill(0)
    this.#held = held
    return Buffer.concat(out)
  }

  /** The bytes held back at the end of the stream. */
  end(): Buffer {
    const rest = this.#held
    this.#held = NOTHING
    for (const { bytes } of this.#needles) bytes.fill(0)
    return rest
  }

  #find(all: Buffer, from: number): { readonly at: number; readonly needle: Needle } | undefined {
    let best: { readonly at: number; readonly needle: Needle } | undefined
    for (const needle of this.#needles) {
      const at = all.indexOf(needle.bytes, from)
      if (at >= 0 && (best === undefined || at < best.at)) best = { at, needle }
    }
    return best
  }

  /** The start of the longest suffix that could still become a needle. */
  #startOfNeedle(all: Buffer, from: number): number {
    const longest = this.#needles[0]?.bytes.length ?? 0
    for (let at = Math.max(from, all.length - longest + 1); at < all.length; at++)
      if (this.#needles.some(({ bytes }) => startsWith(bytes, all, at))) return at
    return all.length
  }
}

function startsWith(needle: Buffer, all: Buffer, at: number): boolean {
  const size = all.length - at
  return size < needle.length && all[at] === needle[0] && all.compare(needle, 0, size, at) === 0
}
