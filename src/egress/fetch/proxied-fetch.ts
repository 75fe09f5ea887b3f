import { type ClientRequest, request as httpRequest, type IncomingMessage } from 'node:http'
import { type Duplex, duplexPair, Readable } from 'node:stream'
import { connect as tlsConnect } from 'node:tls'
import { SandboxError } from '../../model/errors.ts'

/** Requests of this process that go through an egress proxy, so that its checks, records and secrets apply to them. */

/** How requests reach the proxy, and what bounds them. */
export type ProxiedFetchOptions = {
  /** Gives the proxy one client connection. */
  readonly handle: (stream: Duplex) => void
  /** The certificates to trust: the system's, and the proxy's own where it ends TLS. PEM. */
  readonly certificates: string | undefined
  /** The most bytes of one response body. */
  readonly maxBytes: number
}

const MAX_HEAD = 16_384

/** A `fetch` for one origin that follows no redirects. */
export const proxiedFetch =
  (options: ProxiedFetchOptions) =>
  async (input: string | URL, init: RequestInit = {}): Promise<Response> => {
    const url = new URL(input)
    const signal = init.signal ?? undefined
    signal?.throwIfAborted()
    const socket = await tunnelTo(url, options, signal)
    return exchanged(socket, url, init, options.maxBytes)
  }

/** A connection through the proxy to the URL's host, with TLS if the URL says so. */
async function tunnelTo(
  url: URL,
  { handle, certificates }: ProxiedFetchOptions,
  signal: AbortSignal | undefined,
): Promise<Duplex> {
  const [ours, proxys] = duplexPair()
  handle(proxys)
  signal?.addEventListener('abort', () => ours.destroy(), { once: true })
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  const authority = `${url.hostname}:${port}`
  ours.write(`CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n\r\n`)
  const head = await headOf(ours)
  if (!/^HTTP\/1\.1 200 /.test(head))
    throw new SandboxError('ssrf-blocked', `the proxy refused \`${authority}\`: ${head.split('\r\n')[0]}`)
  if (url.protocol !== 'https:') return ours
  const servername = /^[\d.]+$|:/.test(url.hostname) ? undefined : url.hostname
  const secure = tlsConnect({
    socket: ours,
    ALPNProtocols: ['http/1.1'],
    ...(servername === undefined ? {} : { servername }),
    ...(certificates === undefined ? {} : { ca: certificates }),
  })
  return new Promise((resolve, reject) => {
    secure.once('secureConnect', () => resolve(secure))
    secure.once('error', (cause) =>
      reject(new SandboxError('fetch-failed', `no TLS connection to \`${authority}\``, { cause })),
    )
    ours.once('close', () =>
      reject(new SandboxError('fetch-failed', `\`${authority}\` closed the connection`)),
    )
  })
}

async function headOf(stream: Duplex): Promise<string> {
  let head = Buffer.alloc(0)
  for (;;) {
    const chunk = (stream.read() as Buffer | null) ?? (await readable(stream))
    if (chunk === null) continue
    head = Buffer.concat([head, chunk])
    const end = head.indexOf('\r\n\r\n')
    if (end >= 0) {
      if (head.length > end + 4) stream.unshift(head.subarray(end + 4))
      return head.subarray(0, end).toString('latin1')
    }
    if (head.length > MAX_HEAD) throw new SandboxError('fetch-failed', 'the answer of the proxy has no end')
  }
}

const readable = (stream: Duplex): Promise<null> =>
  new Promise((resolve, reject) => {
    const over = (): void => reject(new SandboxError('fetch-failed', 'the proxy closed the connection'))
    if (stream.destroyed || stream.readableEnded) return over()
    stream.once('readable', () => {
      stream.off('close', over)
      resolve(null)
    })
    stream.once('close', over)
  })

function exchanged(socket: Duplex, url: URL, init: RequestInit, maxBytes: number): Promise<Response> {
  return new Promise((resolve, reject) => {
    const failed = (cause: unknown): void => {
      socket.destroy()
      reject(new SandboxError('fetch-failed', `no answer from \`${url.host}\``, { cause }))
    }
    const sent: ClientRequest = httpRequest({
      createConnection: () => socket as never,
      method: init.method ?? 'GET',
      path: `${url.pathname}${url.search}`,
      headers: { ...Object.fromEntries(new Headers(init.headers)), host: url.host, connection: 'close' },
    })
    sent.once('error', failed)
    sent.once('response', (answer) => {
      try {
        resolve(responseOf(answer, socket, maxBytes))
      } catch (error) {
        failed(error)
      }
    })
    init.signal?.addEventListener('abort', () => socket.destroy(), { once: true })
    sent.end(typeof init.body === 'string' ? init.body : undefined)
  })
}

const NO_BODY = [101, 204, 205, 304]

function responseOf(answer: IncomingMessage, socket: Duplex, maxBytes: number): Response {
  const status = answer.statusCode ?? 0
  const headers = new Headers()
  for (const [name, value] of Object.entries(answer.headers))
    if (value !== undefined) headers.append(name, Array.isArray(value) ? value.join(', ') : value)
  if (NO_BODY.includes(status)) socket.destroy()
  const body = NO_BODY.includes(status)
    ? null
    : (Readable.toWeb(bounded(answer, socket, maxBytes)) as ReadableStream)
  return new Response(body, { status, headers })
}

function bounded(answer: IncomingMessage, socket: Duplex, maxBytes: number): Readable {
  async function* limited(): AsyncGenerator<Buffer> {
    let bytes = 0
    try {
      for await (const chunk of answer as AsyncIterable<Buffer>) {
        bytes += chunk.length
        if (bytes > maxBytes)
          throw new SandboxError('too-large', `the answer has more than ${maxBytes} bytes`)
        yield chunk
      }
    } finally {
      socket.destroy()
    }
  }
  return Readable.from(limited(), { objectMode: false })
}
