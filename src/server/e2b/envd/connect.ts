import { SandboxError } from '../../../model/errors.ts'
import { CollectedBytes } from '../../../model/files/collected-bytes.ts'
import type { StreamEnd } from '../../../model/stream-end.ts'
import { bytesOf, parseJson, textBody, utf8 } from '../../body.ts'
import { connectAnswer, connectProblem, type Log, streamEndError } from '../errors.ts'

/** The Connect protocol in its JSON form: one answer, or a stream of envelopes `flags | length | JSON`. */

const UNARY_BYTES = 8 * 1024 * 1024
const FIRST_BYTES = 4 * 1024 * 1024
const HEAD = 5
const END_OF_STREAM = 2

function envelope(message: unknown, flags = 0): Uint8Array {
  const body = Buffer.from(JSON.stringify(message))
  const out = Buffer.allocUnsafe(HEAD + body.length)
  out.writeUInt8(flags, 0)
  out.writeUInt32BE(body.length, 1)
  body.copy(out, HEAD)
  return out
}

/** Answers a Connect request that has one answer. */
export async function unary(
  request: Request,
  handle: (message: unknown) => Promise<unknown>,
  log: Log,
): Promise<Response> {
  try {
    if (!/^application\/json\b/i.test(request.headers.get('content-type') ?? ''))
      throw new SandboxError('invalid-input', 'only the JSON form of this protocol is spoken here')
    return Response.json(await handle(parseJson(await textBody(request, UNARY_BYTES))))
  } catch (error) {
    return connectAnswer(connectProblem(error, log))
  }
}

/** What a stream's source gets to know: that nobody listens any more. */
export type Stream = AsyncGenerator<unknown, void>
/** Produces the messages of a stream. */
export type StreamHandler = (gone: AbortSignal) => Stream

/** How a stream is kept alive, logged and ended. */
export type StreamOptions = {
  /** Sent when the line was silent for so long. */
  readonly keepalive?: unknown
  readonly log: Log
  /** Hands out what ends the stream from outside, until what it returns is called. */
  readonly onEnd: (say: (end: StreamEnd) => void) => () => void
}

/** INVARIANT: whatever goes wrong is in the last envelope; the status is always 200. */
export function streaming(request: Request, handle: StreamHandler, options: StreamOptions): Response {
  const gone = new AbortController()
  const source = handle(gone.signal)
  let beat: NodeJS.Timeout | undefined
  let forget: () => void = () => {}
  const over = (): void => {
    clearInterval(beat)
    forget()
    gone.abort()
  }
  const last = (controller: Controller, end: unknown): void => {
    if (gone.signal.aborted) return
    over()
    controller.enqueue(envelope(end, END_OF_STREAM))
    controller.close()
  }
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      forget = options.onEnd((end) => {
        last(controller, { error: connectProblem(streamEndError(end), options.log) })
        source.return(undefined).catch(() => {})
      })
    },
    async pull(controller) {
      const keepAlive = (): void => {
        if ((controller.desiredSize ?? 0) > 0) controller.enqueue(envelope(options.keepalive))
      }
      try {
        const { done, value } = await source.next()
        if (done) last(controller, {})
        else if (!gone.signal.aborted) {
          controller.enqueue(envelope(value))
          // Clients take the first message for the begin, so nothing else may come before it.
          beat ??= setInterval(keepAlive, beatOf(request)).unref()
        }
      } catch (error) {
        last(controller, { error: connectProblem(error, options.log) })
      }
    },
    async cancel() {
      over()
      await source.return(undefined)
    },
  })
  return new Response(body, {
    headers: { 'content-type': 'application/connect+json', 'cache-control': 'no-store' },
  })
}
type Controller = ReadableStreamDefaultController<Uint8Array>

/** The one message of a client that then only listens; the rest of the body is read and not looked at. */
export async function onlyMessage(request: Request): Promise<unknown> {
  const all: unknown[] = []
  for await (const message of messages(request)) if (all.length === 0) all.push(message)
  if (all.length === 0) throw new SandboxError('invalid-input', 'the stream has no message')
  return all[0]
}

/** How often the client wants to hear that we are still here, in seconds. */
function beatOf(request: Request): number {
  const asked = Number(request.headers.get('keepalive-ping-interval') ?? 50)
  return Math.min(Math.max(Number.isFinite(asked) ? asked : 50, 1), 600) * 1000
}

/** The messages of a client, one by one. */
export async function* messages(request: Request): Stream {
  if (!/^application\/connect\+json\b/i.test(request.headers.get('content-type') ?? ''))
    throw new SandboxError('invalid-input', 'only the JSON form of this protocol is spoken here')
  for await (const { flags, text } of envelopes(bytesOf(request.body))) {
    if (flags & END_OF_STREAM) return
    if (flags !== 0) throw new SandboxError('invalid-input', 'compressed messages are not read here')
    yield parseJson(text)
  }
}

type Envelope = { readonly flags: number; readonly text: string }

/** The complete envelopes of a body. Every byte is copied once, and memory grows with what arrived, not with what was announced. */
async function* envelopes(body: AsyncIterable<Uint8Array>): AsyncGenerator<Envelope, void> {
  let held = new CollectedBytes(HEAD)
  let head: Announced | undefined
  for await (const chunk of body) {
    for (let at = 0; at < chunk.length; ) {
      const part = chunk.subarray(at, at + (head?.length ?? HEAD) - held.size)
      held.add(part)
      at += part.length
      if (!head && held.size === HEAD) {
        head = announced(held.all())
        held = new CollectedBytes(head.length)
      }
      if (!head || held.size < head.length) continue
      yield { flags: head.flags, text: utf8(held.all()) }
      held = new CollectedBytes(HEAD)
      head = undefined
    }
  }
}

type Announced = { readonly flags: number; readonly length: number }

function announced(head: Uint8Array): Announced {
  const length = new DataView(head.buffer, head.byteOffset).getUint32(1)
  if (length > FIRST_BYTES) throw new SandboxError('too-large', 'a message is too large')
  return { flags: head[0] as number, length }
}
