import { createHash, timingSafeEqual } from 'node:crypto'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Duplex } from 'node:stream'
import { type WebSocket, WebSocketServer } from 'ws'
import { checkHost, checkOrigin } from './guard.ts'

/** A WebSocket server on loopback for one program of the same user, which knows the secret path. */

const MAX_MESSAGE = 96 * 1024 * 1024
const PING_MS = 20_000

/** A connection: text in, text out. */
type TextSocket = { readonly send: (text: string) => void; readonly close: () => void }

/** What happens with a connection. */
export type TextHandler = (socket: TextSocket) => {
  readonly message: (text: string) => void
  readonly closed: () => void
}

/** Where a listener can be reached, and its end. */
export type WebSocketListener = { readonly port: number; readonly close: () => Promise<void> }

/** SECURITY: every user of this machine can reach the port, and so can web pages; only the secret path is accepted. */
export async function listenOnLoopback(
  port: number,
  secret: string,
  handler: TextHandler,
): Promise<WebSocketListener> {
  const sockets = textSockets()
  const server = createServer((_, response) => response.writeHead(426).end('WebSocket only\n'))
  server.on('upgrade', (request, socket, head) => {
    socket.on('error', () => socket.destroy())
    if (!isAccepted(request, secret))
      return socket.end('HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n')
    sockets.accept(request, socket, head, handler)
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, '127.0.0.1', resolve)
  })
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      sockets.close()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

/** Turns upgrade requests into connections of text messages; the caller has authenticated them. */
export type TextSockets = {
  readonly accept: (request: IncomingMessage, socket: Duplex, head: Buffer, handler: TextHandler) => void
  readonly close: () => void
}

/** Accepts WebSockets for text messages. */
export function textSockets(): TextSockets {
  const sockets = new WebSocketServer({ noServer: true, maxPayload: MAX_MESSAGE })
  return {
    accept: (request, socket, head, handler) =>
      sockets.handleUpgrade(request, socket, head, (accepted) => serve(accepted, handler)),
    close: () => {
      for (const socket of sockets.clients) socket.terminate()
    },
  }
}

function isAccepted(request: IncomingMessage, secret: string): boolean {
  try {
    const host = request.headers.host ?? ''
    checkHost(host, [])
    checkOrigin(request.headers.origin, host, [])
  } catch {
    return false
  }
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest()
  return timingSafeEqual(digest(request.url ?? ''), digest(`/${secret}`))
}

function serve(socket: WebSocket, handler: TextHandler): void {
  const { message, closed } = handler({
    send: (text) => {
      if (socket.readyState === socket.OPEN) socket.send(text)
    },
    close: () => socket.close(),
  })
  const ping = setInterval(() => socket.ping(), PING_MS)
  socket.on('message', (data, isBinary) => {
    if (isBinary) socket.close(1003, 'text only')
    else message(String(data))
  })
  socket.on('error', () => socket.terminate())
  socket.on('close', () => {
    clearInterval(ping)
    closed()
  })
}
