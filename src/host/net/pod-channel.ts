import { connect, type TLSSocket } from 'node:tls'
import { SandboxError } from '../../model/errors.ts'

/** The control plane's end of the channel to a Pod (guest/channel is the other). */

const MAGIC = Buffer.from('rfchan1\n')
const ACCEPTED = 0x4b
const KEEPALIVE_MS = 10_000

/** A certificate with its key, and who signed it (PEM). */
export type ChannelIdentity = {
  readonly certificate: string
  readonly key: string
  readonly authority: string
}

/** Which Pod to connect to, and as whom. */
export type ChannelTarget = {
  readonly pod: string
  /** The name in the Pod's certificate. */
  readonly host: string
  readonly address: string
  readonly port: number
  /** Greater than that of every earlier connection to this Pod. */
  readonly epoch: bigint
  readonly identity: ChannelIdentity
  readonly timeoutMs: number
}

/**
 * Opens the channel. Both ends show a certificate of the namespace's authority. Rejects with `conflict` if the Pod already has a
 * connection with this epoch or a later one.
 */
export function openChannel(target: ChannelTarget): Promise<TLSSocket> {
  const { certificate, key, authority } = target.identity
  const socket = connect({
    host: target.address,
    port: target.port,
    servername: target.host,
    ca: authority,
    cert: certificate,
    key,
    minVersion: 'TLSv1.2',
    rejectUnauthorized: true,
  })
  socket.setNoDelay(true)
  socket.setKeepAlive(true, KEEPALIVE_MS)
  return new Promise((resolve, reject) => {
    const fail = (error: SandboxError): void => {
      clearTimeout(timer)
      socket.removeAllListeners()
      socket.on('error', () => {})
      socket.destroy()
      reject(error)
    }
    const timer = setTimeout(() => fail(unreached(target, 'no answer')), target.timeoutMs)
    socket.once('error', (error) => fail(unreached(target, error.message)))
    socket.once('close', () => fail(unreached(target, 'it closed the connection')))
    socket.once('secureConnect', () => socket.write(hello(target.epoch)))
    const onReadable = (): void => {
      const answer = socket.read(1) as Buffer | null
      // Also reported when there is nothing to read yet.
      if (answer === null) return
      socket.off('readable', onReadable)
      if (answer[0] !== ACCEPTED) return void fail(replaced(target))
      clearTimeout(timer)
      socket.removeAllListeners('error').removeAllListeners('close')
      socket.on('error', () => {})
      resolve(socket)
    }
    socket.on('readable', onReadable)
  })
}

function hello(epoch: bigint): Buffer {
  const bytes = Buffer.alloc(8)
  bytes.writeBigUInt64LE(epoch)
  return Buffer.concat([MAGIC, bytes])
}

const unreached = ({ pod, address, port }: ChannelTarget, why: string): SandboxError =>
  new SandboxError('unreachable', `the Pod ${pod} cannot be reached at ${address}:${port}: ${why}`, {
    hint: 'this server must reach the addresses of Pods: run it in the cluster, or give it a route',
  })

const replaced = ({ pod }: ChannelTarget): SandboxError =>
  new SandboxError('conflict', `another server has the Pod ${pod}`)

const FILL = 0x46
const FILLED = 0x44
const START = 0x47
const MAX_PIECE = 1 << 20
const MAX_DIRECTORIES = 256

/** Sends the directories that the sandbox may only read, each as a tar stream; then the channel is the agent's. */
export async function fillMounts(
  socket: TLSSocket,
  archives: readonly Iterable<Uint8Array>[],
): Promise<void> {
  // SECURITY: the number of a directory is one byte; a larger one would fill a directory of another mount.
  if (archives.length > MAX_DIRECTORIES)
    throw new SandboxError('invalid-input', `more than ${MAX_DIRECTORIES} directories to copy into a Pod`, {
      hint: 'name fewer directories, or one that contains them',
    })
  for (const [index, archive] of archives.entries()) {
    socket.write(Uint8Array.of(FILL, index))
    for (const chunk of archive)
      for (let at = 0; at < chunk.length; at += MAX_PIECE)
        await send(socket, chunk.subarray(at, at + MAX_PIECE))
    socket.write(lengthOf(0))
    if ((await oneByte(socket)) !== FILLED)
      throw new SandboxError('launch-failed', 'a directory could not be copied into the Pod')
  }
  socket.write(Uint8Array.of(START))
}

function lengthOf(length: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32LE(length)
  return bytes
}

async function send(socket: TLSSocket, piece: Uint8Array): Promise<void> {
  socket.write(lengthOf(piece.length))
  if (socket.write(piece) || socket.destroyed) return
  await new Promise<void>((resolve) => {
    const done = (): void => {
      socket.off('drain', done).off('close', done)
      resolve()
    }
    socket.on('drain', done).on('close', done)
  })
}

function oneByte(socket: TLSSocket): Promise<number | undefined> {
  return new Promise((resolve) => {
    const look = (): void => {
      const byte = socket.read(1) as Buffer | null
      if (byte === null && !socket.destroyed) return
      socket.off('readable', look).off('close', look)
      resolve(byte?.[0])
    }
    socket.on('readable', look).on('close', look)
    look()
  })
}
