import { request as httpRequest } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { createServer } from 'node:net'
import type { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'

/** The address of a forwarded port. */
export type PortForward = { readonly url: string; readonly close: () => void }

/** Forwards a port on the host's loopback to a sandbox, by default any free one. Every user of this host can connect to it. */
export function forwardPort(
  connect: () => Promise<Duplex>,
  { listen = 0, onError }: { readonly listen?: number; readonly onError?: (error: Error) => void } = {},
): Promise<PortForward> {
  const open = new Set<Duplex>()
  const server = createServer((outside) => {
    open.add(outside)
    outside.on('close', () => open.delete(outside))
    outside.on('error', () => outside.destroy())
    connect().then(
      (inside) => {
        inside.on('error', () => outside.destroy())
        inside.on('close', () => outside.destroy())
        outside.on('close', () => inside.destroy())
        outside.pipe(inside).pipe(outside)
      },
      (error: Error) => {
        onError?.(error)
        outside.destroy()
      },
    )
  })
  const close = (): void => {
    for (const socket of open) socket.destroy()
    server.close()
  }
  return new Promise((resolve, reject) => {
    server.once('error', (cause: NodeJS.ErrnoException) =>
      reject(
        new SandboxError('invalid-input', `cannot listen on 127.0.0.1:${listen}: ${cause.code}`, {
          hint: 'choose another port of this machine',
          cause,
        }),
      ),
    )
    server.listen(listen, '127.0.0.1', () => {
      const address = server.address()
      const port = typeof address === 'object' && address ? address.port : 0
      // An open port must not keep the process alive.
      server.unref()
      resolve({ url: `http://127.0.0.1:${port}`, close })
    })
  })
}

/** A plain connection through an HTTP server that agrees to `Upgrade: tcp`. */
export function tcpThrough(url: string, headers: Readonly<Record<string, string>>): Promise<Duplex> {
  const start = url.startsWith('https:') ? httpsRequest : httpRequest
  return new Promise((resolve, reject) => {
    const request = start(url, { headers: { ...headers, connection: 'Upgrade', upgrade: 'tcp' } })
    request.once('upgrade', (_response, socket, head) => {
      if (head.length > 0) socket.unshift(head)
      resolve(socket)
    })
    request.once('response', (response) => {
      response.resume()
      reject(new Error(`the server refused the connection (${response.statusCode})`))
    })
    request.once('error', reject)
    request.end()
  })
}
