import { type Form, isBreak } from './forms.ts'
import { type Spelling, spellingsOf } from './spellings.ts'

/** A way to read the bytes so far: this form up to this character, and that one up to this place in its spellings. */
export type Reading = { readonly form: Form; readonly at: number; readonly spelling: Spelling }
/** The readings after some bytes, and the form that was complete there. */
type Step = { readonly readings: readonly Reading[]; readonly complete: Form | undefined }

const identity = Uint8Array.from({ length: 256 }, (_, byte) => byte)
const lower = identity.map((byte) => (byte >= 65 && byte <= 90 ? byte + 32 : byte))
/** INVARIANT: the shortest form has two bytes more: eight, as the shortest value. */
const AHEAD = 4
const BEGINS = 0x80

/**
 * Forms to search for, prepared. The search looks at a pair of bytes a few places ahead: nearly always no form has that
 * pair near its beginning, and all places up to there are skipped (Wu and Manber, 1994).
 */
export class Pattern {
  readonly #fold: Uint8Array
  readonly #starts: readonly Reading[]
  readonly #first: (Step | undefined)[] = []
  /** For each pair of bytes: how many places can be skipped if it is seen `AHEAD` places ahead, and `BEGINS`. */
  readonly #pairs = new Uint8Array(0x1_0000).fill(AHEAD + 1)

  /** `anyCase`: letters are compared without their case; the forms have small ones. */
  constructor(forms: readonly Form[], anyCase = false) {
    this.#fold = anyCase ? lower : identity
    this.#starts = forms.flatMap((form) => readingsFrom(form, 0))
    for (const one of this.#starts) markPairs(this.#pairs, one, anyCase ? inBothCases : (byte) => [byte])
  }

  /** The next place where a form can begin; the length if there is none. */
  candidate(bytes: Buffer, from: number): number {
    const pairs = this.#pairs
    const last = bytes.length - AHEAD - 2
    let at = from
    while (at <= last) {
      const skip = pairAt(pairs, bytes, at + AHEAD) & ~BEGINS
      if (skip === 0 && pairAt(pairs, bytes, at) >= BEGINS) return at
      at += skip || 1
    }
    return Math.min(at, bytes.length)
  }

  /** The readings after one more byte; absent `before`: after the first byte. */
  step(before: readonly Reading[] | undefined, byte: number): Step {
    const folded = this.#fold[byte] as number
    if (before !== undefined) return stepped(before, folded)
    const known = this.#first[folded] ?? stepped(this.#starts, folded)
    this.#first[folded] = known
    return known
  }
}

/** A form from this character on, and from later ones where characters may be absent. */
function readingsFrom(form: Form, at: number): Reading[] {
  const char = form.characters[at]
  if (char === undefined) return []
  const here = { form, at, spelling: spellingsOf(char) }
  return isBreak(char) ? [here, ...readingsFrom(form, at + 1)] : [here]
}

function stepped(before: readonly Reading[], byte: number): Step {
  const readings: Reading[] = []
  let complete: Form | undefined
  const add = (one: Reading): void => {
    if (!readings.some((other) => isSame(one, other))) readings.push(one)
  }
  for (const { form, at, spelling } of before) {
    const next = spelling.next.get(byte)
    if (next === undefined) continue
    if (next.next.size > 0) add({ form, at, spelling: next })
    if (!next.ends) continue
    if (at + 1 === form.characters.length) complete ??= form
    for (const one of readingsFrom(form, at + 1)) add(one)
  }
  return { readings, complete }
}

const isSame = (one: Reading, other: Reading): boolean =>
  one.form === other.form && one.at === other.at && one.spelling === other.spelling

const pairAt = (pairs: Uint8Array, bytes: Buffer, at: number): number =>
  pairs[((bytes[at] as number) << 8) | (bytes[at + 1] as number)] as number

function markPairs(pairs: Uint8Array, start: Reading, written: (byte: number) => readonly number[]): void {
  let readings: readonly Reading[] = [start]
  for (let skip = AHEAD; skip >= 0; skip--) {
    const begins = skip === AHEAD ? BEGINS : 0
    const next: Reading[] = []
    for (const one of bytesOf(readings)) {
      const after = stepped(readings, one).readings
      for (const two of bytesOf(after))
        for (const pair of pairsOf(written(one), written(two)))
          pairs[pair] = merged(pairs[pair] as number, skip | begins)
      next.push(...after)
    }
    readings = distinct(next)
  }
}

/** The shorter of two skips. */
const merged = (one: number, two: number): number =>
  Math.min(one & ~BEGINS, two & ~BEGINS) | ((one | two) & BEGINS)

function distinct(readings: readonly Reading[]): readonly Reading[] {
  const seen = new Map<number, Set<Spelling>>()
  return readings.filter(({ at, spelling }) => {
    const here = seen.get(at) ?? new Set()
    const isNew = !here.has(spelling)
    seen.set(at, here.add(spelling))
    return isNew
  })
}

const inBothCases = (byte: number): readonly number[] =>
  byte >= 97 && byte <= 122 ? [byte, byte - 32] : [byte]

const pairsOf = (ones: readonly number[], twos: readonly number[]): readonly number[] =>
  ones.flatMap((one) => twos.map((two) => (one << 8) | two))

const bytesOf = (readings: readonly Reading[]): ReadonlySet<number> =>
  new Set(readings.flatMap(({ spelling }) => [...spelling.next.keys()]))
