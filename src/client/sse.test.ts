import { describe, expect, test } from 'vitest'
import { errorOfStreamEnd, type Incoming, readEvents, streamEndIn } from './sse.ts'

/** A response whose body arrives in exactly these chunks. */
const responseOf = (chunks: readonly (string | Uint8Array)[]): Response =>
  new Response(
    new ReadableStream<Uint8Array>({
      start(controller) {
        for (const chunk of chunks)
          controller.enqueue(typeof chunk === 'string' ? new TextEncoder().encode(chunk) : chunk)
        controller.close()
      },
    }),
  )

async function eventsOf(chunks: readonly (string | Uint8Array)[]): Promise<Incoming[]> {
  const events: Incoming[] = []
  for await (const event of readEvents(responseOf(chunks))) events.push(event)
  return events
}

describe('server-sent events', () => {
  test('are parsed with their name, id and data', async () => {
    expect(await eventsOf(['event: exit\nid: 7\ndata: {"code":0}\n\n'])).toEqual([
      { event: 'exit', id: 7, data: '{"code":0}' },
    ])
  })

  test('are the same for every split of the bytes', async () => {
    const bytes = new TextEncoder().encode('id: 1\ndata: grüße\n\nevent: b\ndata: two\ndata: lines\n\n')
    const expected = await eventsOf([bytes])
    expect(expected).toEqual([
      { event: 'message', id: 1, data: 'grüße' },
      { event: 'b', id: undefined, data: 'two\nlines' },
    ])
    expect(await eventsOf([...bytes].map((byte) => Uint8Array.of(byte)))).toEqual(expected)
  })

  test('comments and blocks without data are skipped; an unfinished event is dropped', async () => {
    expect(await eventsOf([': still here\n\nevent: empty\n\ndata: a\n\ndata: cut off'])).toEqual([
      { event: 'message', id: undefined, data: 'a' },
    ])
  })

  test('no body means no events', async () => {
    const events: Incoming[] = []
    for await (const event of readEvents(new Response(null))) events.push(event)
    expect(events).toEqual([])
  })
})

describe('the end of a stream', () => {
  test('is read from a `cut` event and becomes an error', () => {
    const data = JSON.stringify({ reason: 'destroyed', message: 'the sandbox was destroyed' })
    const end = streamEndIn({ event: 'cut', data, id: undefined })
    expect(end).toMatchObject({ reason: 'destroyed' })
    expect(errorOfStreamEnd(end as NonNullable<typeof end>).message).toBe('the sandbox was destroyed')
    expect(streamEndIn({ event: 'exit', data: '{}', id: undefined })).toBeUndefined()
  })

  test('with a reason unknown to this client is passed on', () => {
    const end = { reason: 'new-reason', message: 'later' } as never
    expect(errorOfStreamEnd(end)).toMatchObject({ code: 'unreachable', message: 'later' })
  })
})
