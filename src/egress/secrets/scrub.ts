import type { Rewrite } from '../http/body.ts'
import type { Scrub } from '../http/exchange.ts'
import type { Forms, SoughtValue } from './forms.ts'
import { Pattern, type Reading } from './pattern.ts'

/** Where a value ended, and what replaces it. */
type Found = { readonly end: number; readonly instead: Buffer }

/** Reads bytes as a form from a fixed start. */
class Attempt {
  readonly #pattern: Pattern
  #readings: readonly Reading[] | undefined
  #read = 0
  found: Found | undefined

  constructor(pattern: Pattern) {
    this.#pattern = pattern
  }

  /** Reads on in `bytes`, where the form may begin at `start`. True if more bytes could make a value, or a longer one. */
  goesOn(bytes: Buffer, start: number): boolean {
    while (start + this.#read < bytes.length) {
      const byte = bytes[start + this.#read++] as number
      const { readings, complete } = this.#pattern.step(this.#readings, byte)
      if (complete) this.found = { end: this.#read, instead: complete.instead }
      if (readings.length === 0) return false
      this.#readings = readings
    }
    return true
  }
}

const NOTHING = Buffer.alloc(0)

/**
 * Replaces values in a stream, also across chunk boundaries. Holds back only bytes that may be the start of a value, so
 * that slow responses are still streamed.
 */
export class Scrubber implements Rewrite {
  readonly #current: () => Pattern
  #pattern: Pattern | undefined
  /** Begins with the start of the attempt. */
  #held = NOTHING
  #attempt: Attempt | undefined

  /** `current` is asked for each chunk, because a value can be replaced while a response arrives. */
  constructor(current: () => Pattern) {
    this.#current = current
  }

  push(bytes: Buffer): Buffer {
    return this.#replaced(bytes, false)
  }

  /** The bytes held back at the end of the stream. */
  end(): Buffer {
    return this.#replaced(NOTHING, true)
  }

  #replaced(bytes: Buffer, ended: boolean): Buffer {
    const pattern = this.#current()
    let attempt = pattern === this.#pattern ? this.#attempt : undefined
    const all = this.#held.length === 0 ? bytes : Buffer.concat([this.#held, bytes])
    const out: Buffer[] = []
    let [sent, at] = [0, attempt === undefined ? pattern.candidate(all, 0) : 0]
    for (; at < all.length; at = pattern.candidate(all, at)) {
      attempt ??= new Attempt(pattern)
      if (attempt.goesOn(all, at) && !ended) break
      const { found } = attempt
      attempt = undefined
      if (found !== undefined) out.push(all.subarray(sent, at), found.instead)
      at += found?.end ?? 1
      if (found !== undefined) sent = at
    }
    out.push(all.subarray(sent, at))
    this.#hold(all.subarray(at), pattern, attempt)
    return Buffer.concat(out)
  }

  #hold(bytes: Buffer, pattern: Pattern, attempt: Attempt | undefined): void {
    this.#held.fill(0)
    this.#held = bytes.length === 0 ? NOTHING : Buffer.from(bytes)
    this.#pattern = pattern
    this.#attempt = attempt
  }
}

/** Searches responses for values; prepared again when one of them was replaced. */
export class Search implements Scrub {
  readonly #sought: readonly SoughtValue[]
  #forms: readonly Forms[] = []
  #values = new Pattern([])
  #names = new Pattern([])

  constructor(sought: readonly SoughtValue[]) {
    this.#sought = sought
  }

  text(value: string): string {
    return once(() => this.#prepared()[0], value)
  }

  name(name: string): string {
    return once(() => this.#prepared()[1], name)
  }

  body(): Scrubber {
    return new Scrubber(() => this.#prepared()[0])
  }

  #prepared(): readonly [values: Pattern, names: Pattern] {
    const forms = this.#sought.map((one) => one.forms)
    if (forms.length !== this.#forms.length || forms.some((one, index) => one !== this.#forms[index])) {
      this.#forms = forms
      this.#values = new Pattern(forms.flatMap(({ inText }) => inText))
      this.#names = new Pattern(
        forms.flatMap(({ inNames }) => inNames),
        true,
      )
    }
    return [this.#values, this.#names]
  }
}

function once(pattern: () => Pattern, text: string): string {
  const scrubber = new Scrubber(pattern)
  return Buffer.concat([scrubber.push(Buffer.from(text, 'latin1')), scrubber.end()]).toString('latin1')
}
