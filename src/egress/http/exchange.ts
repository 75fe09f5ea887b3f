import type { Duplex } from 'node:stream'
import { SandboxError } from '../../model/errors.ts'
import { dialJudged, type EgressConnection, type Upstream } from '../connection.ts'
import type { Core } from '../core.ts'
import type { Source } from '../source.ts'
import { forwardBody, type Rewrite } from './body.ts'
import {
  endToEnd,
  type Framing,
  headBytes,
  keepsAlive,
  parseResponse,
  type RequestHead,
  type ResponseHead,
  readHead,
  responseFraming,
  valuesOf,
} from './message.ts'

/** Removes secret values from a response. */
export type Scrub = {
  /** Replaces the value in a header or in the status text. */
  text(value: string): string
  /** Replaces the value in a header name, case-insensitively. */
  name(name: string): string
  body(): Rewrite
}

/** A checked request, ready to be sent. */
export type Outgoing = {
  readonly head: RequestHead
  readonly framing: Framing
  readonly scheme: 'http' | 'https'
  /** Builds the outgoing head; if it contains a secret, the bytes are zeroed after writing. */
  readonly bytes: () => Buffer
  readonly secret: boolean
  readonly scrub?: Scrub | undefined
}

/** How much of a failed exchange the client has received. */
export type Progress = { begun: boolean }

/** Forwards one request and its response. True if the client's connection can serve another request. */
export async function exchange(
  core: Core,
  client: Source,
  connection: EgressConnection,
  outgoing: Outgoing,
  progress: Progress,
): Promise<boolean> {
  // An idle connection may be closing, so it is used only for requests that can be retried.
  const repeatable = outgoing.framing.kind === 'none' && /^(GET|HEAD|OPTIONS)$/.test(outgoing.head.method)
  const waiting = repeatable ? core.pool.take(connection, outgoing.scheme) : undefined
  if (waiting !== undefined) {
    try {
      return await through(core, client, connection, outgoing, progress, waiting)
    } catch (error) {
      if (!(error instanceof StaleError)) throw error
    }
  }
  return through(core, client, connection, outgoing, progress, await dialFor(core, connection, outgoing))
}

/** The connection ended before the first byte of a response. */
class StaleError extends SandboxError {
  constructor() {
    super('fetch-failed', 'the server closed the connection without an answer')
  }
}

function dialFor(core: Core, connection: EgressConnection, { scheme }: Outgoing): Promise<Upstream> {
  const { target } = connection.judged
  const { connectMs } = core.limits
  if (scheme === 'http') return dialJudged(connection, { connectMs })
  const tls = { host: target.host, literal: target.literal !== undefined, ca: core.upstreamCa }
  return dialJudged(connection, { connectMs, tls })
}

async function through(
  core: Core,
  client: Source,
  connection: EgressConnection,
  outgoing: Outgoing,
  progress: Progress,
  upstream: Upstream,
): Promise<boolean> {
  const stop = (): void => void upstream.socket.destroy()
  client.stream.once('close', stop)
  const leave = connection.until.listen(stop)
  try {
    sendHead(upstream, connection, outgoing)
    const sent = { done: false, error: undefined as unknown }
    const sending = forwardBody(client, upstream.socket, {
      framing: outgoing.framing,
      onBytes: connection.countOut,
    })
      .then(() => {
        sent.done = true
      })
      .catch((error) => {
        sent.error = error
        // SECURITY: a truncated request must not look complete to the server.
        if (error instanceof SandboxError && error.code === 'invalid-input') stop()
      })
    if (outgoing.framing.kind === 'none') await sending
    const answer = await readAnswer(core, client.stream, connection, upstream).catch((error) => {
      throw connection.until.reason ?? sent.error ?? error
    })
    if (outgoing.scrub) assertReadable(answer)
    progress.begun = true
    const reusable = await sendAnswer(client.stream, connection, outgoing, upstream, answer, () => sent.done)
    const keep = sent.done && keepsAlive(outgoing.head) && reusable.client
    if (sent.done && reusable.upstream) core.pool.give(connection, outgoing.scheme, upstream)
    else stop()
    return keep
  } catch (error) {
    stop()
    throw error
  } finally {
    client.stream.off('close', stop)
    leave()
  }
}

function sendHead({ socket }: Upstream, connection: EgressConnection, { bytes, secret }: Outgoing): void {
  const head = bytes()
  connection.countOut(head.length)
  socket.write(head, () => secret && head.fill(0))
}

/** How many interim responses one request may have; a server that sends nothing else would be passed on forever. */
const MAX_INTERIM = 100

/** The head of the final response; interim responses are forwarded. */
async function readAnswer(
  core: Core,
  client: Duplex,
  connection: EgressConnection,
  { source }: Upstream,
): Promise<ResponseHead> {
  for (let interim = 0; interim <= MAX_INTERIM; interim++) {
    const text = await readHead(source, core.limits.headerBytes).catch((error) => {
      throw new SandboxError('fetch-failed', `the answer is not valid: ${(error as Error).message}`)
    })
    if (text === undefined) throw new StaleError()
    connection.countIn(text.length)
    const head = parseAnswer(text)
    if (head.status === 101) throw new SandboxError('fetch-failed', 'the answer changes the protocol')
    if (head.status >= 200) return head
    if (head.status === 100) client.write('HTTP/1.1 100 Continue\r\n\r\n')
  }
  throw new SandboxError('fetch-failed', `the answer does not begin after ${MAX_INTERIM} interim answers`)
}

function parseAnswer(text: string): ResponseHead {
  try {
    return parseResponse(text)
  } catch {
    throw new SandboxError('fetch-failed', 'the answer is not valid HTTP')
  }
}

/** SECURITY: a value in compressed content would not be found; the request forbade compression, so the response is rejected. */
function assertReadable({ headers }: ResponseHead): void {
  const packed = valuesOf(headers, 'content-encoding').some((coding) => !/^(identity)?$/i.test(coding))
  if (packed)
    throw new SandboxError('fetch-failed', 'the answer is packed and cannot be searched for secrets')
}

// Set by the proxy: they belong to this hop, or change when content is rewritten.
const OURS = /^(content-length|alt-svc)$/i

async function sendAnswer(
  client: Duplex,
  connection: EgressConnection,
  { head, scrub }: Outgoing,
  upstream: Upstream,
  answer: ResponseHead,
  isSent: () => boolean,
): Promise<{ readonly client: boolean; readonly upstream: boolean }> {
  const framing = responseFraming(answer, head.method)
  const body = framing.kind !== 'none'
  const rewrite = scrub && body ? scrub.body() : undefined
  // Rewritten content has another length; an old client then reads to the end of the connection.
  const chunks = head.version === '1.1' && (framing.kind === 'chunked' || (rewrite !== undefined && body))
  const plainChunked = framing.kind === 'chunked' && head.version === '1.0' && rewrite === undefined
  const undelimited = body && !chunks && (framing.kind !== 'length' || rewrite !== undefined)
  const alive = !undelimited && isSent() && keepsAlive(head)
  const fields = endToEnd(answer.headers, OURS).map(([name, value]): [string, string] => [
    scrub ? scrub.name(name) : name,
    scrub ? scrub.text(value) : value,
  ])
  if (chunks) fields.push(['transfer-encoding', 'chunked'])
  else if (!undelimited) fields.push(...lengthOf(answer, framing))
  fields.push(['connection', alive ? 'keep-alive' : 'close'])
  const reason = scrub ? scrub.text(answer.reason) : answer.reason
  client.write(headBytes(`HTTP/1.1 ${answer.status} ${reason}`, fields))
  await forwardBody(upstream.source, client, {
    framing,
    onBytes: connection.countIn,
    rewrite: rewrite ?? (plainChunked ? asIs() : undefined),
    chunks,
  })
  return { client: alive, upstream: framing.kind !== 'close' && keepsAlive(answer) && !upstream.source.over }
}

/** Content without its framing. */
const asIs = (): Rewrite => ({ push: (bytes) => Buffer.from(bytes), end: () => Buffer.alloc(0) })

/** A HEAD response or a 304 has a length but no body. */
function lengthOf({ headers, status }: ResponseHead, framing: Framing): [string, string][] {
  if (framing.kind === 'length') return [['content-length', String(framing.bytes)]]
  const told = headers.find(([name]) => name.toLowerCase() === 'content-length')
  return told !== undefined && status !== 204 ? [['content-length', told[1]]] : []
}
