import type { Call } from '../route.ts'

/** Server-sent events. */

export type SseEvent = {
  readonly event: string
  readonly data: unknown
  readonly id?: number | undefined
}

const BEAT_MS = 15_000
const encoder = new TextEncoder()

const bytesOf = ({ event, data, id }: SseEvent): Uint8Array =>
  encoder.encode(`${id === undefined ? '' : `id: ${id}\n`}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`)

/**
 * Streams events as they come. The source is told through the signal and its `return` when the reader goes away. When the
 * server ends the stream, the last event is `cut` with the reason.
 */
export function sse(
  { request, parts, env }: Pick<Call, 'request' | 'parts' | 'env'>,
  open: (signal: AbortSignal) => AsyncGenerator<SseEvent, void>,
): Response {
  const stop = new AbortController()
  const gone = (): void => stop.abort()
  request.signal.addEventListener('abort', gone, { once: true })
  const source = open(stop.signal)
  let beat: NodeJS.Timeout | undefined
  let over = false
  const end = (): void => {
    over = true
    clearInterval(beat)
    // PLATFORM: a request's signal lives for as long as somebody listens to it, and with it all that the listener holds.
    request.signal.removeEventListener('abort', gone)
    stop.abort()
  }
  const stream = new ReadableStream<Uint8Array>({
    start(controller) {
      // Proxies and clients close what is silent for too long.
      beat = setInterval(() => {
        if ((controller.desiredSize ?? 0) > 0) controller.enqueue(encoder.encode(': still here\n\n'))
      }, BEAT_MS)
      beat.unref()
      parts.streams.onEnd(env?.outgoing, (reason) => {
        if (over) return
        end()
        controller.enqueue(bytesOf({ event: 'cut', data: reason }))
        controller.close()
      })
    },
    async pull(controller) {
      const next = await nextOf(source)
      if (over) return
      if (next) return controller.enqueue(bytesOf(next))
      end()
      controller.close()
    },
    async cancel() {
      end()
      await source.return()
    },
  })
  return new Response(stream, {
    headers: {
      'content-type': 'text/event-stream',
      'cache-control': 'no-store',
      'x-accel-buffering': 'no',
    },
  })
}

async function nextOf(source: AsyncGenerator<SseEvent, void>): Promise<SseEvent | undefined> {
  try {
    const { done, value } = await source.next()
    return done ? undefined : value
  } catch {
    // The reader sees the end; what went wrong was sent as an event by the source.
    return undefined
  }
}

/** Where a reader left off: the header that browsers send, or the query. */
export function lastEventId(request: Request, query?: string): number | undefined {
  const text = request.headers.get('last-event-id') ?? query
  return text !== undefined && text !== null && /^\d{1,15}$/.test(text) ? Number(text) : undefined
}
