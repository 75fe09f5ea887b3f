import { type IncomingHttpHeaders, type IncomingMessage, request } from 'node:http'
import type { Socket } from 'node:net'
import { SandboxError } from '../model/errors.ts'

/** What is sent at one hop of a fetch. */
export type Sent = {
  readonly method: string
  readonly headers: Readonly<Record<string, string>>
  readonly body?: Uint8Array | undefined
}

// Ours to set: they say where a request goes and where its body ends.
const OURS =
  /^(host|connection|keep-alive|proxy-connection|content-length|transfer-encoding|te|trailer|upgrade|expect)$/

/** Headers that prove who the caller is; another origin has no business with them. */
const CREDENTIAL = /auth|cookie|token|secret|passw|credential|session|signature|(^|-)api-?key|-key$/

/** The caller's headers in lower case without those that are ours; a header that breaks the request is refused. */
export function callerHeaders(given: Readonly<Record<string, string>>): Record<string, string> {
  const headers: Record<string, string> = {}
  for (const [name, value] of Object.entries(given)) {
    if (!/^[a-z0-9!#$%&'*+.^_`|~-]+$/i.test(name) || /[^\t\u0020-\u007e\u0080-\u00ff]/.test(value))
      throw new SandboxError('invalid-input', `header \`${JSON.stringify(name).slice(1, -1)}\` is not valid`)
    if (!OURS.test(name.toLowerCase())) headers[name.toLowerCase()] = value
  }
  return headers
}

/** What is sent to the place a redirect names, as browsers do it; credentials stay at their origin. */
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

/** Asks for the URL over an open socket and waits for the head of the answer. */
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
    // An answer that changes the protocol hands over the raw socket; nobody asked for that.
    message.on('upgrade', () => reject(new Error('the answer changes the protocol')))
    message.end(sent.body)
  })
}

function headersFor(url: URL, { headers, body }: Sent): Record<string, string> {
  const length = body === undefined ? {} : { 'content-length': String(body.byteLength) }
  // Packed answers would let a few bytes become many.
  return { 'accept-encoding': 'identity', ...headers, host: url.host, connection: 'close', ...length }
}

/** Reads a body to its end, or refuses once it is larger than the cap. */
export async function readBody(answer: IncomingMessage, maxBytes: number): Promise<Uint8Array> {
  const tooLarge = (): SandboxError =>
    new SandboxError('resource-exhausted', `the answer is larger than ${maxBytes} bytes`)
  if (Number(answer.headers['content-length'] ?? 0) > maxBytes) throw tooLarge()
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of answer as AsyncIterable<Buffer>) {
    size += chunk.byteLength
    if (size > maxBytes) throw tooLarge()
    chunks.push(chunk)
  }
  return Buffer.concat(chunks, size)
}

/** The answer's headers with one text each. */
export const flatHeaders = (headers: IncomingHttpHeaders): Record<string, string> =>
  Object.fromEntries(
    Object.entries(headers).flatMap(([name, value]) =>
      value === undefined ? [] : [[name, Array.isArray(value) ? value.join(', ') : value]],
    ),
  )
