import type { Secret } from '../../host/secrets/secret.ts'
import { charactersOf } from './spellings.ts'

/** The characters of one form of a value, each to be found in any spelling, and what replaces the whole. */
export type Form = { readonly characters: Uint32Array; readonly instead: Buffer }

/** INVARIANT: no form contains these as characters of its own, so they may be absent: lines of base64 break anywhere. */
export const isBreak = (character: number | undefined): boolean => character === CR || character === LF
const [CR, LF] = [13, 10]

const FORMER_VALUES = 8
const MIN_BYTES = 8

/** Whether a value is valid in a header, and long enough to be told from other text. Others are never sent. */
export const isUsable = (value: Uint8Array): boolean =>
  value.length >= MIN_BYTES && value.every((byte) => byte >= 0x20 && byte !== 0x7f)

/** What is searched for in text, and in names, where case does not matter. */
export type Forms = { readonly inText: readonly Form[]; readonly inNames: readonly Form[] }

type Generation = Forms & { readonly value: Buffer }

const NONE: Forms = { inText: [], inNames: [] }

/**
 * What responses are searched for: the forms of a secret's value, and of the values that it had before while the sandbox
 * ran, because a server may return what it got earlier.
 */
export class SoughtValue {
  readonly #secret: Secret
  readonly #instead: Buffer
  #seen: number | undefined
  #generations: readonly Generation[] = []
  #forms: Forms = NONE

  constructor(secret: Secret, placeholder: string) {
    this.#secret = secret
    this.#instead = Buffer.from(placeholder)
    this.refresh()
  }

  /** The same object until the value is replaced. */
  get forms(): Forms {
    this.refresh()
    return this.#forms
  }

  /** SECURITY: called before each use of the value, so that no value is sent that is not searched for. */
  refresh(): void {
    const secret = this.#secret
    if (secret.disposed || secret.generation === this.#seen) return
    this.#seen = secret.generation
    const value = secret.use((bytes) => Buffer.from(bytes))
    if (!isUsable(value)) return void value.fill(0)
    const [same, others] = [true, false].map((wanted) =>
      this.#generations.filter((one) => one.value.equals(value) === wanted),
    ) as [Generation[], Generation[]]
    const latest = same[0] ?? generationOf(value, this.#instead)
    if (latest.value !== value) value.fill(0)
    others.splice(FORMER_VALUES).forEach(wipe)
    this.#generations = [latest, ...others]
    this.#forms = {
      inText: this.#generations.flatMap(({ inText }) => inText),
      inNames: this.#generations.flatMap(({ inNames }) => inNames),
    }
  }

  /** Zeroes all copies; nothing is found from then on. */
  wipe(): void {
    this.#generations.forEach(wipe)
    this.#generations = []
    this.#forms = NONE
  }
}

function wipe({ value, inText, inNames }: Generation): void {
  value.fill(0)
  for (const { characters } of [...inText, ...inNames]) characters.fill(0)
}

function generationOf(value: Buffer, instead: Buffer): Generation {
  const inText = formsOf(value, instead)
  return { value, inText, inNames: inText.map(inSmallLetters) }
}

const inSmallLetters = ({ characters, instead }: Form): Form => ({
  characters: characters.map((char) => (char >= 65 && char <= 90 ? char + 32 : char)),
  instead,
})

/** The forms in which a server may return a value: as text, hexadecimal, inside base64. */
function formsOf(value: Buffer, instead: Buffer): readonly Form[] {
  const hex = value.toString('hex')
  const forms = [
    charactersOf(value),
    // A server that reads headers as latin1 writes these characters.
    Uint32Array.from(value),
    ...[hex, hex.toUpperCase()].map((text) => Uint32Array.from(Buffer.from(text))),
    ...[0, 1, 2].flatMap((offset) => insideBase64(value, offset)),
  ]
  return forms
    .filter((form, index) => forms.findIndex((other) => isSame(form, other)) === index)
    .map((characters) => ({ characters, instead }))
}

const isSame = (one: Uint32Array, other: Uint32Array): boolean =>
  one.length === other.length && one.every((char, index) => char === other[index])

/** The base64 characters that depend only on the value when it starts `offset` bytes into a group of three. */
function insideBase64(bytes: Buffer, offset: number): readonly Uint32Array[] {
  const packed = Buffer.concat([Buffer.alloc(offset), bytes]).toString('base64')
  const inside = packed.slice(Math.ceil((offset * 8) / 6), Math.floor(((offset + bytes.length) * 8) / 6))
  return [inside, inside.replaceAll('+', '-').replaceAll('/', '_')].map(inLines)
}

/** Characters between which a line may end. */
function inLines(text: string): Uint32Array {
  const characters = new Uint32Array(3 * text.length - 2)
  for (let index = 0; index < text.length; index++) {
    characters[3 * index] = text.charCodeAt(index)
    if (index > 0) characters.set([CR, LF], 3 * index - 2)
  }
  return characters
}
