/** Server-sent events. */

export type SseEvent = {
  readonly event: string
  readonly data: unknown
  readonly id?: number | undefined
}

const BEAT_MS = 15_000
const encoder = new TextEncoder()

const textOf = ({ event, data, id }: SseEvent): string =>
  `${id === undefined ? '' : `id: ${id}\n`}event: ${event}\ndata: ${JSON.stringify(data)}\n\n`

/** Streams events as they come. The source is told through its `return` when the reader goes away. */
export function sse(source: AsyncGenerator<SseEvent, void>, headers: Record<string, string> = {}): Response {
  let beat: NodeJS.Timeout | undefined
  const stream = new ReadableStream<Uint8Array>({
    start(controller) {
      // Proxies and clients close what is silent for too long.
      beat = setInterval(() => {
        if ((controller.desiredSize ?? 0) > 0) controller.enqueue(encoder.encode(': still here\n\n'))
      }, BEAT_MS)
      beat.unref()
    },
    async pull(controller) {
      try {
        const { done, value } = await source.next()
        if (!done) return controller.enqueue(encoder.encode(textOf(value)))
      } catch {
        // The reader sees the end; what went wrong was sent as an event by the source.
      }
      clearInterval(beat)
      controller.close()
    },
    async cancel() {
      clearInterval(beat)
      await source.return()
    },
  })
  return new Response(stream, {
    headers: {
      'content-type': 'text/event-stream',
      'cache-control': 'no-store',
      'x-accel-buffering': 'no',
      ...headers,
    },
  })
}

/** Where a reader left off: the header that browsers send, or the query. */
export function lastEventId(request: Request, query?: string): number | undefined {
  const text = request.headers.get('last-event-id') ?? query
  return text !== undefined && text !== null && /^\d{1,15}$/.test(text) ? Number(text) : undefined
}
