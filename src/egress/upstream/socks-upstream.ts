import { isIP, isIPv6, type Socket } from 'node:net'
import { SandboxError } from '../../model/errors.ts'

/** A SOCKS5 proxy of the operator, through which a sandbox's connections leave. */
export type SocksUpstream = {
  readonly host: string
  readonly port: number
  readonly username?: string | undefined
  readonly password?: string | undefined
}

const VERSION = 5
const NO_AUTH = 0
const PASSWORD = 2
const CONNECT = 1

const failed = (why: string): SandboxError =>
  new SandboxError('fetch-failed', `the upstream proxy refused the connection: ${why}`)

/** `host:port`, or `[address]:port`. */
export function parseUpstream(address: string): Pick<SocksUpstream, 'host' | 'port'> | undefined {
  const [, bracketed, plain, digits] =
    /^(?:\[([0-9a-fA-F:.]+)\]|([^\s:/@[\]]{1,253})):(\d{1,5})$/.exec(address) ?? []
  const host = bracketed ?? plain
  const port = Number(digits)
  return host === undefined || port < 1 || port > 65_535 ? undefined : { host, port }
}

/** Reads exactly so many bytes and leaves the rest in the socket. */
function bytes(socket: Socket, count: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const done = (work: () => void): void => {
      socket.off('readable', look).off('close', ended).off('error', ended)
      work()
    }
    const ended = (): void => done(() => reject(failed('it closed the connection')))
    const look = (): void => {
      const found = socket.read(count) as Buffer | null
      if (found?.length === count) done(() => resolve(found))
      else if (socket.readableEnded || socket.destroyed) ended()
    }
    socket.on('readable', look).on('close', ended).on('error', ended)
    look()
  })
}

function addressBytes(address: string): Buffer {
  if (isIPv6(address)) {
    const [head = '', tail = ''] = address.split('::')
    const parts = (text: string): readonly string[] => (text === '' ? [] : text.split(':'))
    const missing = 8 - parts(head).length - parts(tail).length
    const all = [...parts(head), ...Array(address.includes('::') ? missing : 0).fill('0'), ...parts(tail)]
    const out = Buffer.alloc(17)
    out[0] = 4
    for (const [index, part] of all.entries()) out.writeUInt16BE(Number.parseInt(part, 16), 1 + 2 * index)
    return out
  }
  if (isIP(address) !== 4) throw failed('it gets addresses only')
  return Buffer.from([1, ...address.split('.').map(Number)])
}

async function authenticate(socket: Socket, { username, password = '' }: SocksUpstream): Promise<void> {
  const method = username === undefined ? NO_AUTH : PASSWORD
  socket.write(Buffer.from([VERSION, 1, method]))
  const [version, chosen] = await bytes(socket, 2)
  if (version !== VERSION || chosen !== method) throw failed('it wants other credentials')
  if (username === undefined) return
  const words = [username, password].map((word) => Buffer.from(word))
  socket.write(
    Buffer.concat([Buffer.from([1]), ...words.flatMap((word) => [Buffer.from([word.length]), word])]),
  )
  const [, status] = await bytes(socket, 2)
  if (status !== 0) throw failed('wrong credentials')
}

/**
 * Asks for a connection to an address. SECURITY: the address that was checked here, never a name, which the proxy could resolve to
 * another one.
 */
export async function connectThrough(
  socket: Socket,
  upstream: SocksUpstream,
  target: { readonly address: string; readonly port: number },
): Promise<void> {
  await authenticate(socket, upstream)
  const port = Buffer.from([target.port >> 8, target.port & 255])
  socket.write(Buffer.concat([Buffer.from([VERSION, CONNECT, 0]), addressBytes(target.address), port]))
  const [version, reply, , kind] = await bytes(socket, 4)
  if (version !== VERSION || reply !== 0) throw failed(`code ${reply}`)
  const length = kind === 1 ? 4 : kind === 4 ? 16 : ((await bytes(socket, 1))[0] as number)
  await bytes(socket, length + 2)
}
