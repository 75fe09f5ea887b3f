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

const NOT_TLS: Hello = { kind: 'not-tls' }
const BAD: Hello = { kind: 'bad' }
const MORE: Hello = { kind: 'more' }

/** Reads a ClientHello, also one that is spread over several records. Pure; ask again with more bytes on `more`. */
export function readHello(bytes: Buffer): Hello {
  if (bytes[0] !== HANDSHAKE || (bytes.length > 1 && bytes[1] !== 3)) return NOT_TLS
  const message = bytes.length > MAX_HELLO + 8192 ? BAD : handshakeOf(bytes)
  if (!Buffer.isBuffer(message)) return message
  try {
    const name = serverNameOf(message)
    return name === undefined ? { kind: 'hello' } : { kind: 'hello', name }
  } catch {
    // A read beyond the end: lengths that lie.
    return BAD
  }
}

/** The body of the handshake message, put together from its records. */
function handshakeOf(bytes: Buffer): Buffer | Hello {
  const parts: Buffer[] = []
  let have = 0
  for (let at = 0; at < bytes.length; ) {
    if (bytes[at] !== HANDSHAKE || (at + 1 < bytes.length && bytes[at + 1] !== 3)) return BAD
    if (at + 5 > bytes.length) return MORE
    const size = bytes.readUInt16BE(at + 3)
    if (size === 0 || size > 16_384) return BAD
    const part = bytes.subarray(at + 5, at + 5 + size)
    parts.push(part)
    if (parts.length > MAX_RECORDS) return BAD
    have += part.length
    at += 5 + size
    const head = parts.length === 1 ? part : Buffer.concat(parts)
    if (have >= 1 && head[0] !== CLIENT_HELLO) return BAD
    if (have < 4) continue
    const length = head.readUIntBE(1, 3)
    if (length > MAX_HELLO) return BAD
    if (have >= 4 + length) return head.subarray(4, 4 + length)
  }
  return MORE
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
  const name = list.toString('latin1', 5)
  if (!/^[A-Za-z0-9._-]+$/.test(name)) throw new RangeError('name')
  return name.toLowerCase().replace(/\.$/, '')
}
