import { type AddressInfo, connect, createServer, type Server } from 'node:net'
import type { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import { readText } from '../system.ts'

/** A TCP stream to a port on this machine's own loopback. */
export function connectLoopback(port: number): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host: '127.0.0.1', port })
    socket.once('connect', () => resolve(socket))
    socket.once('error', () => reject(new SandboxError('wrong-state', `nothing listens on port ${port}`)))
  })
}

/** SECURITY: each connection costs a descriptor of ours; one sandbox must not have all of them. */
export function maxConnections(): number {
  const [, ours] = /^Max open files +(\d+)/m.exec(readText('/proc/self/limits') ?? '') ?? []
  return Math.min(MAX_CONNECTIONS, Math.floor(Number(ours ?? Number.POSITIVE_INFINITY) / 8))
}
const MAX_CONNECTIONS = 1024

export type LoopbackPort = { readonly port: number; readonly close: () => void }

/** A port of its own on this machine's loopback; each connection is handed over. */
export function listenLoopback(onStream: (stream: Duplex) => void): Promise<LoopbackPort> {
  return new Promise((resolve, reject) => {
    const { server, close } = handingOver(onStream)
    server.once('error', () => reject(new SandboxError('launch-failed', 'cannot listen on loopback')))
    server.listen(0, '127.0.0.1', () => resolve({ port: (server.address() as AddressInfo).port, close }))
  })
}

/** Serves a socket that somebody else made and listens on already. Returns the end of it. */
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

/** A host's name in an address that leads nowhere but here. */
export const isLoopbackName = (hostname: string): boolean =>
  /^(localhost|127(\.\d{1,3}){3}|\[::1\])$/.test(hostname)
