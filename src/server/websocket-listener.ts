import { createHash, timingSafeEqual } from 'node:crypto'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Duplex } from 'node:stream'
import { type WebSocket, WebSocketServer } from 'ws'
import { checkHost, checkOrigin } from './guard.ts'

/** A WebSocket server on loopback for one program of the same user, which knows the secret path. */

const MAX_MESSAGE = 96 * 1024 * 1024
const PING_MS = 20_000
/** Pings without an answer after which a connection is taken for dead: five minutes, for slow readers of large answers. */
const MAX_MISSED = 15
/** Bytes that wait to be sent, above which nothing more is read from the client. */
const MAX_WAITING = 1024 * 1024

/** A connection: text in, text out. */
type TextSocket = {
  /** Resolves when the text is on its way or the connection has ended: a slow reader holds the sender, and not our memory. */
  readonly send: (text: string) => Promise<void>
  readonly close: () => void
}

/** The largest message, and the time between two pings. */
type SocketLimits = { readonly maxMessage?: number; readonly pingMs?: number }

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
  limits: SocketLimits = {},
): Promise<WebSocketListener> {
  const sockets = textSockets(limits)
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
export function textSockets({ maxMessage = MAX_MESSAGE, pingMs = PING_MS }: SocketLimits = {}): TextSockets {
  const sockets = new WebSocketServer({ noServer: true, maxPayload: maxMessage })
  return {
    accept: (request, socket, head, handler) =>
      sockets.handleUpgrade(request, socket, head, (accepted) => {
        serve(accepted, handler)
        keepAlive(accepted, pingMs)
        holdBack(accepted, socket)
      }),
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
  const waiting = new Set<() => void>()
  const release = (): void => {
    for (const sent of [...waiting]) sent()
  }
  const { message, closed } = handler({
    send: (text) =>
      new Promise((resolve) => {
        if (socket.readyState !== socket.OPEN) return resolve()
        const sent = (): void => {
          waiting.delete(sent)
          resolve()
        }
        waiting.add(sent)
        socket.send(text, sent)
      }),
    close() {
      socket.close()
      release()
    },
  })
  socket.on('message', (data, isBinary) => {
    if (isBinary) socket.close(1003, 'text only')
    else message(String(data))
  })
  socket.on('error', () => socket.terminate())
  socket.on('close', () => {
    release()
    closed()
  })
}

/** Ends a connection whose client answers no ping. */
function keepAlive(socket: WebSocket, pingMs: number): void {
  let missed = 0
  const ping = setInterval(() => {
    if (missed++ < MAX_MISSED) socket.ping()
    else socket.terminate()
  }, pingMs)
  for (const sign of ['message', 'pong'])
    socket.on(sign, () => {
      missed = 0
    })
  socket.on('close', () => clearInterval(ping))
}

/** SECURITY: a client that does not read what it is sent is not read either, or the answers would fill our memory. */
function holdBack(socket: WebSocket, raw: Duplex): void {
  const hold = (): void => {
    if (socket.isPaused || socket.bufferedAmount <= MAX_WAITING) return
    socket.pause()
    raw.once('drain', () => socket.resume())
  }
  socket.on('message', hold)
  socket.on('ping', hold)
}
