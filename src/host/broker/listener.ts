import type { Socket } from 'node:net'
import { startListenerProcess } from '../process/spawn.ts'
import { type FrontFrame, FrontReader, StringReader } from './frames.ts'
import { type Attachments, FrontConnection, type FrontRequest, parseRequest } from './front-connection.ts'

/** A front that asks nothing for so long is not ours. */
const FIRST_FRAME_MS = 5000

/** Called for each request. */
export type OnRequest = (request: FrontRequest, connection: FrontConnection) => void

/** The broker's listening socket. */
export type BrokerListener = {
  /** What a front must have read from the listener's process. */
  readonly secret: string
  /** Resolves when no further request can arrive. */
  readonly ended: Promise<void>
  /** Stops to listen; connections that are waiting are still taken. */
  stop(): void
}

/** Starts the process that listens in the state directory and hands over the connections of equal processes. */
export function listenForFronts(
  front: string,
  stateDir: string,
  onRequest: OnRequest,
): Promise<BrokerListener> {
  const attachments: Attachments = new Map()
  const child = startListenerProcess(front, stateDir)
  let isStopping = false
  const stop = (): void => {
    if (!isStopping && child.connected) child.send('stop', () => {})
    isStopping = true
  }
  const ended = new Promise<void>((resolve) => {
    child.once('exit', () => resolve())
    child.once('error', () => resolve())
  })
  return new Promise((resolve, reject) => {
    void ended.then(() => reject(new Error('the listener of the broker has ended')))
    child.on('message', (message: { secret?: string; sameCgroup?: boolean }, socket) => {
      if (socket) hear(socket as Socket, message.sameCgroup === true, attachments, onRequest)
      else if (message.secret) resolve({ secret: message.secret, ended, stop })
    })
  })
}

/** Reads the first frame, which tells what the connection is for. */
function hear(socket: Socket, sameCgroup: boolean, attachments: Attachments, onRequest: OnRequest): void {
  const reader = new FrontReader()
  const timer = setTimeout(() => socket.destroy(), FIRST_FRAME_MS)
  socket.on('error', () => {})
  socket.once('close', () => clearTimeout(timer))
  const onData = (chunk: Uint8Array): void => {
    try {
      reader.add(chunk)
      const frame = reader.next()
      if (!frame) return
      clearTimeout(timer)
      socket.off('data', onData)
      begin(socket, frame)
    } catch {
      socket.destroy()
    }
  }
  const begin = (stream: Socket, frame: FrontFrame): void => {
    if (frame.kind === 'attach') attach(stream, frame, reader.rest(), attachments)
    else if (frame.kind === 'request') {
      const request = parseRequest(frame.payload)
      onRequest(request, new FrontConnection(stream, reader, request, { sameCgroup, attachments }))
    } else stream.destroy()
  }
  socket.on('data', onData)
}

/** SECURITY: only the front that was told to launch knows the token, and each stream is connected once. */
function attach(socket: Socket, { payload }: FrontFrame, first: Buffer, attachments: Attachments): void {
  const from = new StringReader(payload)
  const [token, index] = [from.next(), Number(from.next())]
  const streams = attachments.get(token)
  const stream = streams?.[index]
  if (!streams || !stream) return void socket.destroy()
  const left = streams.map((one, at) => (at === index ? null : one))
  if (left.some((one) => one !== null)) attachments.set(token, left)
  else attachments.delete(token)
  stream.attach(socket, first)
}
