import { type IncomingHttpHeaders, type IncomingMessage, request } from 'node:http'
import type { Socket } from 'node:net'
import { SandboxError } from '../../model/errors.ts'
import { CollectedBytes } from '../../model/files/collected-bytes.ts'

/** The request of one hop of a fetch. */
export type Sent = {
  readonly method: string
  readonly headers: Readonly<Record<string, string>>
  readonly body?: Uint8Array | undefined
}

// Set by us: they determine the destination and the end of the body.
const OURS =
  /^(host|connection|keep-alive|proxy-connection|content-length|transfer-encoding|te|trailer|upgrade|expect)$/

/** Headers with credentials, which must not be sent to another origin. */
const CREDENTIAL = /auth|cookie|token|secret|passw|credential|session|signature|(^|-)api-?key|-key$/

/** The caller's headers in lower case without those we set; an invalid header is rejected. */
export function callerHeaders(given: Readonly<Record<string, string>>): Record<string, string> {
  const headers: Record<string, string> = {}
  for (const [name, value] of Object.entries(given)) {
    if (!/^[a-z0-9!#$%&'*+.^_`|~-]+$/i.test(name) || /[^\t\u0020-\u007e\u0080-\u00ff]/.test(value))
      throw new SandboxError('invalid-input', `header \`${JSON.stringify(name).slice(1, -1)}\` is not valid`)
    if (!OURS.test(name.toLowerCase())) headers[name.toLowerCase()] = value
  }
  return headers
}

/** The request for a redirect, as browsers send it; credentials are sent only to their origin. */
export function redirected(sent: Sent, status: number, from: URL, to: URL): Sent {
  const asGet =
    (status === 303 && sent.method !== 'HEAD') ||
    ((status === 301 || status === 302) && sent.method === 'POST')
  const kept = Object.entries(sent.headers).filter(
    ([name]) =>
      !(asGet && name.startsWith('content-')) && !(from.origin !== to.origin && CREDENTIAL.test(name)),
  )
  const headers = Object.fromEntries(kept)
  return asGet ? { method: 'GET', headers } : { ...sent, headers }
}

/** Sends the request over an open socket and waits for the head of the response. */
export function ask(socket: Socket, url: URL, sent: Sent, signal: AbortSignal): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const message = request({
      createConnection: () => socket,
      method: sent.method,
      path: url.pathname + url.search,
      headers: headersFor(url, sent),
      signal,
    })
    message.on('response', resolve).on('error', reject)
    // A protocol upgrade would hand over the raw socket; it was not requested.
    message.on('upgrade', () => reject(new Error('the answer changes the protocol')))
    message.end(sent.body)
  })
}

function headersFor(url: URL, { headers, body }: Sent): Record<string, string> {
  const length = body === undefined ? {} : { 'content-length': String(body.byteLength) }
  // Compressed responses could expand from a few bytes to many.
  return { 'accept-encoding': 'identity', ...headers, host: url.host, connection: 'close', ...length }
}

/** Reads a body to its end; rejects once it exceeds the limit. */
export async function readBody(answer: IncomingMessage, maxBytes: number): Promise<Uint8Array> {
  const tooLarge = (): SandboxError =>
    new SandboxError('resource-exhausted', `the answer is larger than ${maxBytes} bytes`)
  if (Number(answer.headers['content-length'] ?? 0) > maxBytes) throw tooLarge()
  const body = new CollectedBytes(maxBytes)
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    if (body.size + chunk.byteLength > maxBytes) throw tooLarge()
    body.add(chunk)
  }
  // A copy, because others pass on the memory that a result lies in.
  return Buffer.from(body.all())
}

/** The response's headers, one string each. */
export const flatHeaders = (headers: IncomingHttpHeaders): Record<string, string> =>
  Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) =>
      value === undefined ? [] : [[name, Array.isArray(value) ? value.join(', ') : value]],
    ),
  )
