import { expect, it } from 'vitest'
import { HttpResponseReader } from './http-response.ts'

const WHOLE = Buffer.concat([
  Buffer.from('HTTP/1.1 302 Found\r\nLocation: /next\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n'),
  Buffer.from('HTTP/2 200 \r\ncontent-type: image/png\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\n'),
  Buffer.from([0x89, 0x50, 0xff, 0xfe, 0x0d, 0x0a, 0x0d, 0x0a, 0x00]),
])

it.each([1, 2, 3, 7, 50, 1000])('reads heads and a binary body split into pieces of %i bytes', (size) => {
  const reader = new HttpResponseReader(true, { maxBody: 100 })
  for (let at = 0; at < WHOLE.length; at += size) reader.push(WHOLE.subarray(at, at + size))
  expect(reader.head).toEqual({
    status: 200,
    headers: [
      { name: 'content-type', value: 'image/png' },
      { name: 'set-cookie', value: 'a=1' },
      { name: 'set-cookie', value: 'b=2' },
    ],
  })
  expect(reader.body).toEqual(WHOLE.subarray(-9))
})

it('a redirect that is not followed, or has no valid target, is returned as the response', () => {
  const stop = new HttpResponseReader(false, { maxBody: 100 })
  stop.push(Buffer.from('HTTP/1.1 302 Found\r\nLocation: /next\r\n\r\n'))
  expect(stop.head?.status).toBe(302)
  const nowhere = new HttpResponseReader(true, { maxBody: 100 })
  nowhere.push(Buffer.from('HTTP/1.1 302 Found\r\n\r\nbody'))
  expect(nowhere.head?.status).toBe(302)
})

it('a body above the limit and an endless head are not buffered', () => {
  const reader = new HttpResponseReader(true, { maxBody: 3 })
  reader.push(Buffer.from('HTTP/1.1 200 OK\r\n\r\nabcd'))
  expect([reader.isTooLarge, reader.body.length]).toEqual([true, 0])
  const endless = new HttpResponseReader(true, { maxBody: 3 })
  endless.push(Buffer.alloc(300 * 1024, 'a'))
  expect(endless.isTooLarge).toBe(true)
})

it('many small pieces and heads cost time in proportion to their size', () => {
  const before = process.cpuUsage()
  const reader = new HttpResponseReader(true, { maxBody: 3 })
  for (let at = 0; at < 20_000; at++) reader.push(Buffer.from('a'))
  expect([reader.isTooLarge, reader.head]).toEqual([false, undefined])
  const interim = new HttpResponseReader(true, { maxBody: 3 })
  interim.push(Buffer.from('HTTP/1.1 100 \n\n'.repeat(20_000)))
  expect([interim.isTooLarge, interim.head]).toEqual([false, undefined])
  const endless = new HttpResponseReader(true, { maxBody: 3 })
  for (let at = 0; at < 50; at++) endless.push(Buffer.alloc(300 * 1024, 'a'))
  expect(endless.isTooLarge).toBe(true)
  const { user, system } = process.cpuUsage(before)
  expect((user + system) / 1e6).toBeLessThan(1)
})
