import { type AddressInfo, connect, createServer, type Server } from 'node:net'
import type { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import { readText } from '../system.ts'

/** Opens a TCP connection to a port on this machine's loopback. */
export function connectLoopback(port: number): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host: '127.0.0.1', port })
    socket.once('connect', () => resolve(socket))
    socket.once('error', () => reject(new SandboxError('wrong-state', `nothing listens on port ${port}`)))
  })
}

/** How many descriptors this process may have open. */
export function descriptorLimit(): number {
  const [, ours] = /^Max open files +(\d+)/m.exec(readText('/proc/self/limits') ?? '') ?? []
  return Number(ours ?? Number.POSITIVE_INFINITY)
}

/** SECURITY: each connection costs two of our descriptors, of the client and of its server; one sandbox must not use all of them. */
export const maxConnections = (): number => Math.min(MAX_CONNECTIONS, Math.floor(descriptorLimit() / 16))
const MAX_CONNECTIONS = 1024

/** A port that listens on the loopback interface. */
export type LoopbackPort = { readonly port: number; readonly close: () => void }

/** Listens on a free port of this machine's loopback and passes each connection on. */
export function listenLoopback(onStream: (stream: Duplex) => void): Promise<LoopbackPort> {
  return new Promise((resolve, reject) => {
    const { server, close } = handingOver(onStream)
    server.once('error', () => reject(new SandboxError('launch-failed', 'cannot listen on loopback')))
    server.listen(0, '127.0.0.1', () => resolve({ port: (server.address() as AddressInfo).port, close }))
  })
}

/** Accepts connections on a listening socket that another process created. Returns a function that stops it. */
export function serveSocket(socket: object, onStream: (stream: Duplex) => void): () => void {
  const { server, close } = handingOver(onStream)
  server.on('error', close)
  server.listen(socket)
  return close
}

function handingOver(onStream: (stream: Duplex) => void): {
  readonly server: Server
  readonly close: () => void
} {
  const open = new Set<Duplex>()
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    open.add(socket)
    socket.on('error', () => {})
    socket.on('close', () => open.delete(socket))
    onStream(socket)
  })
  server.maxConnections = maxConnections()
  const close = (): void => {
    server.close()
    for (const socket of open) socket.destroy()
  }
  return { server, close }
}

/** Whether a host name always resolves to this machine. */
export const isLoopbackName = (hostname: string): boolean =>
  /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/.test(hostname)
