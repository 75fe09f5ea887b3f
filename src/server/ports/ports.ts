import {
  type ClientRequest,
  request as httpRequest,
  type IncomingMessage,
  type OutgoingHttpHeaders,
} from 'node:http'
import type { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import type { LiveSandbox } from '../../supervisor/lifecycle/live-sandbox.ts'
import { isPortHost } from '../e2b/ids.ts'
import { innerRequestHeaders, passedHeaders } from './port-headers.ts'

/** What a program in the sandbox serves, for callers outside. */

/** Parses a port number. */
export function portOf(text: string | undefined): number {
  const port = Number(text)
  if (!/^\d{1,5}$/.test(text ?? '') || port < 1 || port > 65_535)
    throw new SandboxError('invalid-input', `\`${(text ?? '').slice(0, 16)}\` is not a port`)
  return port
}

/** The path as the program inside sees it. */
export const innerPath = (url: string): string =>
  url.replace(/^\/v1\/sandboxes\/[^/?]+\/ports\/[^/?]+/, '').replace(/^(?!\/)/, '/')

/** The headers that a program in the sandbox receives. */
export function innerHeaders(
  headers: IncomingMessage['headers'],
  port: number,
  host = `localhost:${port}`,
): OutgoingHttpHeaders {
  const { host: _, ...kept } = innerRequestHeaders(headers)
  // In the usual spelling, for programs that show or compare it.
  return { ...kept, Host: host }
}

/**
 * SECURITY: PLATFORM: Node writes the body of a GET without a length as it is, and the receiver would take it for the next
 * request, with headers that we never saw. For every request that is passed on with its body.
 */
export const framing = ({ headers }: IncomingMessage): OutgoingHttpHeaders =>
  headers['transfer-encoding'] === undefined ? {} : { 'transfer-encoding': 'chunked' }

/** Hands a request to a program inside and its answer back. `host`: its `Host` header, if not the usual one. */
export async function passOn(
  entry: LiveSandbox,
  incoming: IncomingMessage,
  port: number,
  host?: string,
): Promise<Response> {
  const inside = await entry.ready().connect(port)
  const end = entry.begin()
  inside.once('close', end)
  try {
    const answer = await exchange(incoming, inside, innerHeaders(incoming.headers, port, host))
    return toResponse(answer, inside, incoming.headers.host)
  } catch (cause) {
    inside.destroy()
    end()
    throw new SandboxError('not-found', `nothing answers on port ${port} in this sandbox`, { cause })
  }
}

function exchange(
  incoming: IncomingMessage,
  inside: Duplex,
  headers: OutgoingHttpHeaders,
): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const outgoing: ClientRequest = httpRequest({
      method: incoming.method ?? 'GET',
      path: innerPath(incoming.url ?? '/'),
      headers: { ...headers, ...framing(incoming) },
      createConnection: () => inside,
    })
    outgoing.on('response', resolve)
    outgoing.on('error', reject)
    outgoing.on('close', () => reject(new Error('closed')))
    incoming.on('error', () => outgoing.destroy())
    incoming.pipe(outgoing)
  })
}

/**
 * SECURITY: a page from a sandbox is a stranger here: below `…/ports/{port}/` it gets an origin that nothing shares, so that it
 * cannot act as our console. A port's own name is an origin of its own already, and pages with modules, storage or workers need it.
 */
const pagePolicy = (host: string | undefined): string =>
  `sandbox allow-scripts allow-forms allow-popups${
    isPortHost(host ?? '') ? ' allow-same-origin allow-modals allow-downloads' : ''
  }`

/** A program's answer as ours: without what would act on our origin, and in an origin of its own. */
export function toResponse(answer: IncomingMessage, inside: Duplex, host: string | undefined): Response {
  const headers = new Headers()
  for (const [name, value] of passedHeaders(answer, host)) headers.append(name, value)
  headers.set('content-security-policy', pagePolicy(host))
  const status = answer.statusCode ?? 502
  if (status === 204 || status === 304) {
    inside.destroy()
    return new Response(null, { status, headers })
  }
  const source = answer[Symbol.asyncIterator]() as AsyncIterator<Uint8Array>
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const { done, value } = await source.next()
        if (done) controller.close()
        else controller.enqueue(value)
      } catch (error) {
        controller.error(error)
      }
    },
    cancel() {
      inside.destroy()
    },
  })
  return new Response(body, { status: status < 200 || status > 599 ? 502 : status, headers })
}
