/** The subset of protobuf that a handful of small messages need. */

/** The value of a field to encode: text and bytes, numbers, messages, and lists of them. */
type Value = string | number | boolean | Uint8Array | Message | readonly Value[] | undefined
/** A message by field number. */
export type Message = { readonly [field: number]: Value }

const VARINT = 0
const BYTES = 2

/** Encodes a message. */
export function encode(message: Message): Buffer {
  return Buffer.concat(Object.entries(message).flatMap(([field, value]) => fieldOf(Number(field), value)))
}

function fieldOf(field: number, value: Value): Buffer[] {
  if (value === undefined) return []
  if (Array.isArray(value)) return value.flatMap((one: Value) => fieldOf(field, one))
  if (typeof value === 'number' || typeof value === 'boolean')
    return [varint(field * 8 + VARINT), varint(Number(value))]
  const bytes =
    typeof value === 'string'
      ? Buffer.from(value)
      : value instanceof Uint8Array
        ? Buffer.from(value)
        : encode(value as Message)
  return [varint(field * 8 + BYTES), varint(bytes.length), bytes]
}

/** Encodes a map as a list of pairs. */
export const mapOf = (entries: Readonly<Record<string, string>>): readonly Message[] =>
  Object.entries(entries).map(([key, value]) => ({ 1: key, 2: value }))

function varint(value: number): Buffer {
  const out: number[] = []
  for (let rest = BigInt(value); ; rest >>= 7n) {
    const low = Number(rest & 0x7fn)
    if (rest < 0x80n) return Buffer.from([...out, low])
    out.push(low | 0x80)
  }
}

/** Decoded numbers and bytes by field, in their order. */
export type Fields = ReadonlyMap<number, readonly (bigint | Buffer)[]>

/** SECURITY: throws on invalid input; nothing is read past the end. */
export function decode(bytes: Uint8Array): Fields {
  const reader = new Reader(Buffer.from(bytes))
  const fields = new Map<number, (bigint | Buffer)[]>()
  while (!reader.isDone) {
    const tag = Number(reader.varint())
    const value = reader.value(tag & 7)
    const field = Math.floor(tag / 8)
    fields.set(field, [...(fields.get(field) ?? []), value])
  }
  return fields
}

class Reader {
  readonly #bytes: Buffer
  #at = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }

  get isDone(): boolean {
    return this.#at >= this.#bytes.length
  }

  varint(): bigint {
    let value = 0n
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.take(1)[0] as number
      value |= BigInt(byte & 0x7f) << shift
      if (byte < 0x80) return value
    }
    throw new Error('a varint without an end')
  }

  value(type: number): bigint | Buffer {
    if (type === VARINT) return this.varint()
    if (type === BYTES) return this.take(Number(this.varint()))
    if (type === 1) return this.take(8)
    if (type === 5) return this.take(4)
    throw new Error(`a field of unknown type ${type}`)
  }

  take(length: number): Buffer {
    const end = this.#at + length
    if (end > this.#bytes.length) throw new Error('a truncated message')
    const part = this.#bytes.subarray(this.#at, end)
    this.#at = end
    return part
  }
}

const last = (fields: Fields, field: number): bigint | Buffer | undefined => fields.get(field)?.at(-1)

/** The text of a field; empty if absent. */
export function textOf(fields: Fields, field: number): string {
  const value = last(fields, field)
  return Buffer.isBuffer(value) ? value.toString('utf8') : ''
}

/** The bytes of a field. */
export function bytesOf(fields: Fields, field: number): Buffer | undefined {
  const value = last(fields, field)
  return Buffer.isBuffer(value) ? value : undefined
}

/** Signed, as `int32` is sent. */
export function numberOf(fields: Fields, field: number): number {
  const value = last(fields, field)
  return typeof value === 'bigint' ? Number(BigInt.asIntN(64, value)) : 0
}

/** The message in a field; empty if absent. */
export function messageOf(fields: Fields, field: number): Fields {
  return decode(bytesOf(fields, field) ?? Buffer.alloc(0))
}
