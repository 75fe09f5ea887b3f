import { GrowingBuffer } from './source.ts'

/** What the first bytes of a TLS client say about where it wants to go. */
export type Hello =
  | { readonly kind: 'more' }
  | { readonly kind: 'not-tls' }
  /** Begins like TLS and cannot be read as it. */
  | { readonly kind: 'bad' }
  /** `name` is absent when the client names no server. */
  | { readonly kind: 'hello'; readonly name?: string }

const HANDSHAKE = 22
const CLIENT_HELLO = 1
const SERVER_NAME = 0
const MAX_HELLO = 64 * 1024
const MAX_RECORDS = 64
const MAX_RECORD = 16_384
/** No name in the DNS is longer. */
const MAX_NAME = 255

const NOT_TLS: Hello = { kind: 'not-tls' }
const BAD: Hello = { kind: 'bad' }
const MORE: Hello = { kind: 'more' }

/** Reads a ClientHello, also one that is spread over several records. Each byte is looked at once, however slowly they arrive. */
export class HelloReader {
  /** The handshake message, put together from its records. */
  readonly #message = new GrowingBuffer()
  /** How much of the client's bytes is in the message or was a header. */
  #at = 0
  #records = 0
  /** Bytes of the current record that are not in the message yet. */
  #left = 0

  /** `bytes` is everything that the client has sent; ask again with more of it on `more`. */
  read(bytes: Buffer): Hello {
    if (bytes[0] !== HANDSHAKE || (bytes.length > 1 && bytes[1] !== 3)) return NOT_TLS
    if (bytes.length > MAX_HELLO + 8192) return BAD
    while (this.#at < bytes.length) {
      const unread = this.#left === 0 ? this.#beginRecord(bytes) : undefined
      if (unread !== undefined) return unread
      const part = bytes.subarray(this.#at, this.#at + this.#left)
      this.#at += part.length
      this.#left -= part.length
      const hello = part.length > 0 ? helloIn(this.#message.add(part)) : MORE
      if (hello !== MORE) return hello
    }
    return MORE
  }

  #beginRecord(bytes: Buffer): Hello | undefined {
    const at = this.#at
    if (bytes[at] !== HANDSHAKE || (at + 1 < bytes.length && bytes[at + 1] !== 3)) return BAD
    if (at + 5 > bytes.length) return MORE
    this.#left = bytes.readUInt16BE(at + 3)
    this.#at += 5
    const isValid = this.#left > 0 && this.#left <= MAX_RECORD && ++this.#records <= MAX_RECORDS
    return isValid ? undefined : BAD
  }
}

/** What a handshake message says, of which this is the beginning or all. */
function helloIn(message: Buffer): Hello {
  if (message[0] !== CLIENT_HELLO) return BAD
  if (message.length < 4) return MORE
  const end = 4 + message.readUIntBE(1, 3)
  if (end > 4 + MAX_HELLO) return BAD
  if (message.length < end) return MORE
  try {
    const name = serverNameOf(message.subarray(4, end))
    return name === undefined ? { kind: 'hello' } : { kind: 'hello', name }
  } catch {
    // A read beyond the end: lengths that lie.
    return BAD
  }
}

function serverNameOf(hello: Buffer): string | undefined {
  let at = 2 + 32
  at += 1 + hello.readUInt8(at)
  at += 2 + hello.readUInt16BE(at)
  at += 1 + hello.readUInt8(at)
  if (at === hello.length) return undefined
  const end = at + 2 + hello.readUInt16BE(at)
  if (end !== hello.length) throw new RangeError('extensions')
  let found: string | undefined
  for (at += 2; at < end; ) {
    const [type, size] = [hello.readUInt16BE(at), hello.readUInt16BE(at + 2)]
    if (at + 4 + size > end) throw new RangeError('extension')
    if (type === SERVER_NAME) {
      // SECURITY: two names are two readings.
      if (found !== undefined) throw new RangeError('two names')
      found = oneName(hello.subarray(at + 4, at + 4 + size))
    }
    at += 4 + size
  }
  return found
}

function oneName(list: Buffer): string {
  const size = list.readUInt16BE(3)
  if (list.readUInt16BE(0) !== list.length - 2 || list.readUInt8(2) !== 0 || size !== list.length - 5)
    throw new RangeError('name list')
  if (size > MAX_NAME) throw new RangeError('long name')
  const name = list.toString('latin1', 5)
  if (!/^[A-Za-z0-9._-]+$/.test(name)) throw new RangeError('name')
  return name.toLowerCase().replace(/\.$/, '')
}
