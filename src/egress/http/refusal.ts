import { SandboxError } from '../../model/errors.ts'
import type { Source } from '../source.ts'
import { headBytes } from './message.ts'

/** The HTTP status for an error. */
function statusOf({ code, family }: SandboxError): number {
  if (code === 'timeout') return 504
  if (code === 'fetch-failed') return 502
  if (code === 'resource-exhausted') return 503
  if (code === 'unsupported') return 501
  return code === 'invalid-input' ? 400 : family === 'failed' ? 503 : 403
}

const PHRASES: Readonly<Record<number, string>> = {
  400: 'Bad Request',
  403: 'Forbidden',
  407: 'Proxy Authentication Required',
  501: 'Not Implemented',
  502: 'Bad Gateway',
  503: 'Service Unavailable',
  504: 'Gateway Timeout',
}

/** An error response: one line as body, and the same in a header. An unknown error reveals no details. */
export function refusal(error: unknown, status?: number, keep = false): Buffer {
  const known = error instanceof SandboxError ? error : new SandboxError('internal', 'the proxy failed')
  const code = status ?? statusOf(known)
  const reason = `${known.code}: ${known.message}`.replace(/[^\x20-\x7e]/g, '?')
  const body = `ringfence: ${reason}\n`
  const head = headBytes(`HTTP/1.1 ${code} ${PHRASES[code]}`, [
    ['content-type', 'text/plain; charset=utf-8'],
    ['content-length', String(body.length)],
    ['x-ringfence-reason', reason],
    ...(code === 407 ? [['proxy-authenticate', 'Basic realm="ringfence"'] as const] : []),
    ['connection', keep ? 'keep-alive' : 'close'],
  ])
  return Buffer.concat([head, Buffer.from(body)])
}

/** Sends a final response and discards further input, otherwise the client might never read the response. */
export function sendAndClose(client: Source, bytes: Buffer): void {
  const { stream } = client
  if (stream.destroyed) return
  stream.end(bytes)
  client.flow(
    (_, release) => release?.(),
    () => stream.destroy(),
  )
}
