import { createServer, type IncomingMessage, type RequestListener } from 'node:http'
import { createServer as createSecureServer } from 'node:https'
import {
  type AddressInfo,
  connect,
  createServer as createTcpServer,
  type Server,
  type Socket,
} from 'node:net'
import type { SecureContext } from 'node:tls'
import type { Connection } from '../connection.ts'
import { EgressProxy, type EgressProxyOptions } from '../proxy.ts'
import { Authority } from '../secrets/authority.ts'

/**
 * Real servers on 127.0.0.1, opened on purpose, under names that end in `.example`; every other address of this machine
 * stays closed.
 */
export class World {
  readonly events: Connection[] = []
  readonly lookups: string[] = []
  readonly requests: IncomingMessage[] = []
  readonly authority = new Authority()
  readonly #ends: (() => unknown)[] = []

  /** A proxy on loopback. */
  async proxy(
    options: Partial<EgressProxyOptions> = {},
  ): Promise<{ readonly proxy: EgressProxy; readonly port: number }> {
    const proxy = new EgressProxy({
      allowHosts: ['*.example'],
      allowPrivate: ['127.0.0.1/32'],
      resolve: (host) => {
        this.lookups.push(host)
        return host.endsWith('.example') ? ['127.0.0.1'] : []
      },
      onConnection: (connection) => void this.events.push(connection),
      ...options,
    })
    this.#ends.push(() => proxy.close())
    return { proxy, port: (await proxy.listen()).port }
  }

  async http(
    answer: RequestListener = (_, response) => void response.end('hello'),
    host = '127.0.0.1',
  ): Promise<number> {
    const server = createServer((request, response) => {
      this.requests.push(request)
      answer(request, response)
    })
    return this.#listen(server, host, () => server.closeAllConnections())
  }

  /** HTTPS under every name that is asked for, with certificates of `authority`. */
  async https(
    answer: RequestListener = (_, response) => void response.end('hello'),
    host = '127.0.0.1',
  ): Promise<number> {
    const SNICallback = (name: string, done: (error: Error | null, context?: SecureContext) => void): void =>
      done(null, this.authority.contextFor(name))
    const server = createSecureServer({ SNICallback }, (request, response) => {
      this.requests.push(request)
      answer(request, response)
    })
    return this.#listen(server, host, () => server.closeAllConnections())
  }

  async tcp(serve: (socket: Socket) => void, host = '127.0.0.1'): Promise<number> {
    const sockets = new Set<Socket>()
    const server = createTcpServer({ allowHalfOpen: true }, (socket) => {
      sockets.add(socket)
      socket.on('error', () => undefined).on('close', () => sockets.delete(socket))
      serve(socket)
    })
    return this.#listen(server, host, () => {
      for (const socket of sockets) socket.destroy()
    })
  }

  async end(): Promise<void> {
    for (const end of this.#ends.splice(0).reverse()) await end()
  }

  async #listen(server: Server, host: string, drop: () => void): Promise<number> {
    await new Promise<void>((resolve) => server.listen({ port: 0, host, backlog: 4096 }, resolve))
    this.#ends.push(() => {
      drop()
      return new Promise((resolve) => server.close(resolve))
    })
    return (server.address() as AddressInfo).port
  }
}

/** Sends bytes and collects everything until the other side ends, or until `enough`. */
export function talk(port: number, bytes: string | Buffer, enough?: RegExp): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    let heard = ''
    const done = (): void => {
      socket.destroy()
      resolve(heard)
    }
    socket.on('data', (chunk) => {
      heard += chunk.toString('latin1')
      if (enough?.test(heard)) done()
    })
    socket.on('end', done).on('error', done).on('close', done)
    socket.write(typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes)
  })
}

/** An open connection to talk over in turns. */
export async function talking(port: number): Promise<{
  readonly socket: Socket
  heard(): string
  until(pattern: RegExp): Promise<string>
  closed: Promise<void>
}> {
  const socket = connect(port, '127.0.0.1')
  let heard = ''
  const waiting = new Set<() => void>()
  socket.on('data', (chunk) => {
    heard += chunk.toString('latin1')
    for (const check of [...waiting]) check()
  })
  const closed = new Promise<void>((resolve) => socket.on('close', () => resolve()))
  socket.on('error', () => undefined)
  await new Promise<void>((resolve) => socket.on('connect', resolve))
  const until = (pattern: RegExp): Promise<string> =>
    new Promise((resolve) => {
      const check = (): void => {
        if (!pattern.test(heard)) return
        waiting.delete(check)
        resolve(heard)
      }
      waiting.add(check)
      check()
    })
  return { socket, heard: () => heard, until, closed }
}

/** The bytes of a SOCKS5 client that asks for a name, an IPv4 or an IPv6 address. */
export function socksRequest(host: string | Buffer, port: number, command = 1): Buffer {
  const address =
    typeof host === 'string'
      ? Buffer.concat([Buffer.from([3, host.length]), Buffer.from(host, 'latin1')])
      : Buffer.concat([Buffer.from([host.length === 4 ? 1 : 4]), host])
  const tail = Buffer.from([port >> 8, port & 255])
  return Buffer.concat([Buffer.from([5, 1, 0]), Buffer.from([5, command, 0]), address, tail])
}
