/** The frames between the broker and the native front; guest/front/front.h lists them. */

/** Type → letter. */
const LETTERS = {
  request: 'R',
  attach: 'T',
  input: 'I',
  signal: 'S',
  started: 'P',
  failed: 'F',
  exited: 'X',
  accepted: 'A',
  declined: 'N',
  stdout: 'O',
  stderr: 'E',
  launch: 'L',
  kill: 'K',
  result: 'Q',
} as const
type Kind = keyof typeof LETTERS

/** One frame. */
export type FrontFrame = { readonly kind: Kind; readonly payload: Buffer }

const KINDS = new Map(
  Object.entries(LETTERS).map(([kind, letter]) => [letter.charCodeAt(0), kind as Kind] as const),
)
const HEADER = 5
/** Arguments and variables of a process are at most a few megabytes. */
const MAX_PAYLOAD = 64 * 1024 * 1024
/** Output is sent in frames of this size, because a result may be larger than any frame. */
const OUTPUT_PAYLOAD = 1024 * 1024

/** A frame as bytes. */
export function frontFrame(kind: Kind, payload: Uint8Array | string = ''): Buffer {
  const body = typeof payload === 'string' ? Buffer.from(payload) : payload
  const head = Buffer.alloc(HEADER)
  head.write(LETTERS[kind], 0, 'latin1')
  head.writeUInt32BE(body.length, 1)
  return Buffer.concat([head, body])
}

/** Output of any size as frames; none for no bytes. */
export function* outputFrames(kind: 'stdout' | 'stderr', bytes: string | Uint8Array): Generator<Buffer> {
  const body = typeof bytes === 'string' ? Buffer.from(bytes) : bytes
  for (let at = 0; at < body.length; at += OUTPUT_PAYLOAD)
    yield frontFrame(kind, body.subarray(at, at + OUTPUT_PAYLOAD))
}

/** A frame whose payload is one number. */
export function frontNumber(kind: Kind, number: number): Buffer {
  const payload = Buffer.alloc(4)
  payload.writeUInt32BE(number >>> 0)
  return frontFrame(kind, payload)
}

/** The number of a payload. */
export const numberIn = ({ payload }: FrontFrame): number =>
  payload.length === 4 ? payload.readUInt32BE(0) : 0

/** Splits the bytes of a connection into frames; throws if they are none. */
export class FrontReader {
  #bytes: Buffer = Buffer.alloc(0)

  add(chunk: Uint8Array): void {
    this.#bytes = this.#bytes.length === 0 ? Buffer.from(chunk) : Buffer.concat([this.#bytes, chunk])
  }

  next(): FrontFrame | undefined {
    if (this.#bytes.length < HEADER) return undefined
    const kind = KINDS.get(this.#bytes[0] as number)
    const length = this.#bytes.readUInt32BE(1)
    if (kind === undefined || length > MAX_PAYLOAD) throw new Error('not a frame of the front')
    if (this.#bytes.length < HEADER + length) return undefined
    const payload = this.#bytes.subarray(HEADER, HEADER + length)
    this.#bytes = this.#bytes.subarray(HEADER + length)
    return { kind, payload }
  }

  /** The bytes that no frame has taken. */
  rest(): Buffer {
    return this.#bytes
  }
}

/** Texts as NUL-terminated strings. */
export const strings = (texts: readonly string[]): Buffer =>
  Buffer.from(texts.map((text) => `${text}\0`).join(''))

/** A list as its length and its items. */
export const counted = (texts: readonly string[]): string[] => [String(texts.length), ...texts]

/** Reads NUL-terminated strings one after another; throws at the end. */
export class StringReader {
  readonly #texts: string[]
  #at = 0

  constructor(payload: Buffer) {
    this.#texts = payload.toString('utf8').split('\0')
    this.#texts.pop()
  }

  next(): string {
    const text = this.#texts[this.#at++]
    if (text === undefined) throw new Error('the request is truncated')
    return text
  }

  list(): string[] {
    return Array.from({ length: Number(this.next()) }, () => this.next())
  }
}
