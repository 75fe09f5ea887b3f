import { SandboxError } from '../model/errors.ts'
import { type Credentials, isSameText } from './credentials.ts'
import type { Source } from './source.ts'

const VERSION = 5
const NO_AUTH = 0
const PASSWORD = 2
const NONE = 255

/** Reads exactly as many bytes as asked for. */
class Bytes {
  readonly #source: Source
  constructor(source: Source) {
    this.#source = source
  }
  async take(count: number): Promise<Buffer> {
    let held = Buffer.alloc(0)
    while (held.length < count) {
      const chunk = await this.#source.next()
      if (chunk === undefined) throw new SandboxError('invalid-input', 'the SOCKS request ends too early')
      held = held.length === 0 ? Buffer.from(chunk) : Buffer.concat([held, chunk])
    }
    this.#source.unshift(held.subarray(count))
    return held.subarray(0, count)
  }
}

/** Replies of RFC 1928. */
export const SOCKS_REPLY = {
  ok: 0,
  failed: 1,
  denied: 2,
  unreachable: 4,
  late: 6,
  command: 7,
  address: 8,
} as const

/** A reply; the bound address is always zero. */
export const socksReply = (code: number): Buffer => Buffer.from([VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0])

/** The reply code for an error. */
export function socksReplyOf(error: unknown): Buffer {
  if (error instanceof SocksError) return socksReply(error.reply)
  if (!(error instanceof SandboxError)) return socksReply(SOCKS_REPLY.failed)
  if (error.code === 'timeout') return socksReply(SOCKS_REPLY.late)
  return socksReply(error.code === 'fetch-failed' ? SOCKS_REPLY.unreachable : SOCKS_REPLY.denied)
}

class SocksError extends SandboxError {
  readonly reply: number
  constructor(reply: number, message: string) {
    super('unsupported', message)
    this.reply = reply
  }
}

/** Performs the SOCKS5 handshake and returns the requested `host:port`; `undefined` if the client was rejected. */
export async function readSocks(
  source: Source,
  credentials: Credentials | undefined,
): Promise<string | undefined> {
  const bytes = new Bytes(source)
  const [version, count = 0] = await bytes.take(2)
  const methods = await bytes.take(count)
  const wanted = credentials === undefined ? NO_AUTH : PASSWORD
  if (version !== VERSION || !methods.includes(wanted)) {
    source.stream.end(Buffer.from([VERSION, NONE]))
    return undefined
  }
  source.stream.write(Buffer.from([VERSION, wanted]))
  if (credentials !== undefined && !(await showsCredentials(bytes, credentials))) {
    source.stream.end(Buffer.from([1, 1]))
    return undefined
  }
  if (credentials !== undefined) source.stream.write(Buffer.from([1, 0]))
  return readRequest(bytes)
}

async function showsCredentials(bytes: Bytes, { user, password }: Credentials): Promise<boolean> {
  const [version, userSize = 0] = await bytes.take(2)
  const shownUser = (await bytes.take(userSize)).toString('latin1')
  const [passwordSize = 0] = await bytes.take(1)
  const shownPassword = (await bytes.take(passwordSize)).toString('latin1')
  return version === 1 && isSameText(`${shownUser}\0${shownPassword}`, `${user}\0${password}`)
}

async function readRequest(bytes: Bytes): Promise<string> {
  const [version, command, , kind] = await bytes.take(4)
  if (version !== VERSION) throw new SocksError(SOCKS_REPLY.failed, 'the SOCKS version is not 5')
  const host = await readHost(bytes, kind)
  const port = (await bytes.take(2)).readUInt16BE(0)
  // BIND and UDP would bypass the policy check.
  if (command !== 1) throw new SocksError(SOCKS_REPLY.command, 'only CONNECT is served')
  return `${host}:${port}`
}

async function readHost(bytes: Bytes, kind: number | undefined): Promise<string> {
  if (kind === 1) return (await bytes.take(4)).join('.')
  if (kind === 4) return `[${(await bytes.take(16)).toString('hex').replace(/.{4}(?!$)/g, '$&:')}]`
  if (kind !== 3) throw new SocksError(SOCKS_REPLY.address, 'the kind of address is unknown')
  const [size = 0] = await bytes.take(1)
  return (await bytes.take(size)).toString('latin1')
}
