import { connect } from 'node:net'
import type { Duplex } from 'node:stream'
import { SandboxError } from '../model/errors.ts'

/** A TCP stream to a port on this machine's own loopback. */
export function connectLoopback(port: number): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    const socket = connect({ host: '127.0.0.1', port })
    socket.once('connect', () => resolve(socket))
    socket.once('error', () => reject(new SandboxError('wrong-state', `nothing listens on port ${port}`)))
  })
}
