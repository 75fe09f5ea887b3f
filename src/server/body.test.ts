import { describe, expect, test } from 'vitest'
import { textBody } from './body.ts'
import { messages } from './e2b/envd/connect.ts'

/** A request whose body arrives in chunks of this size, all in the same memory. */
function arriving(body: Uint8Array, size: number, type: string): Request {
  const memory = new Uint8Array(size)
  let at = 0
  const stream = new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        if (at === body.length) return controller.close()
        const chunk = body.subarray(at, at + size)
        memory.set(chunk)
        at += chunk.length
        controller.enqueue(memory.subarray(0, chunk.length))
      },
    },
    { highWaterMark: 0 },
  )
  const headers = { 'content-type': type }
  return new Request('http://localhost/', { method: 'POST', body: stream, headers, duplex: 'half' })
}

/** Seconds of processor time, which other programs of the machine do not lengthen. */
async function seconds(work: () => Promise<void>): Promise<number> {
  const before = process.cpuUsage()
  await work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1e6
}

describe('a body in single bytes', () => {
  test.each([1, 2, 5, 1000])(
    'is read as a whole in chunks of %i bytes, and no chunk is kept',
    async (size) => {
      const text = 'grüße '.repeat(300)
      expect(await textBody(arriving(Buffer.from(text), size, 'text/plain'), 4096)).toBe(text)
      await expect(textBody(arriving(Buffer.alloc(4097), size, 'text/plain'), 4096)).rejects.toMatchObject({
        code: 'too-large',
      })
    },
  )

  const envelope = (text: string, flags = 0): Buffer => {
    const head = Buffer.alloc(5)
    head[0] = flags
    head.writeUInt32BE(Buffer.byteLength(text), 1)
    return Buffer.concat([head, Buffer.from(text)])
  }
  const read = async (body: Uint8Array, size: number): Promise<unknown[]> => {
    const found: unknown[] = []
    for await (const message of messages(arriving(body, size, 'application/connect+json')))
      found.push(message)
    return found
  }

  test.each([1, 2, 4, 5, 6, 7, 1000])('holds the same messages in chunks of %i bytes', async (size) => {
    const texts = ['{}', '', '{"a":"grüße"}', '{"b":[1,2,3]}']
    const body = Buffer.concat(texts.map((text) => envelope(text)))
    const wanted = [{}, {}, { a: 'grüße' }, { b: [1, 2, 3] }]
    expect(await read(body, size)).toEqual(wanted)
    expect(await read(Buffer.concat([body, envelope('{}', 2), body]), size)).toEqual(wanted)
    expect(await read(body.subarray(0, -1), size)).toEqual(wanted.slice(0, -1))
    await expect(read(Buffer.concat([body, envelope('{}', 1)]), size)).rejects.toThrow(/compressed/)
    await expect(read(Buffer.from([0, 255, 0, 0, 0]), size)).rejects.toMatchObject({ code: 'too-large' })
  })

  test('costs time in proportion to its size', async () => {
    const text = JSON.stringify('x'.repeat(512 * 1024))
    const spent = await seconds(async () => {
      expect(await read(envelope(text), 1)).toEqual([JSON.parse(text)])
    })
    expect(spent).toBeLessThan(10)
  })
})
