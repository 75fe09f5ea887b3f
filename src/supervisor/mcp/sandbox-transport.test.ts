import { type JSONRPCMessage, ReadBuffer } from '@modelcontextprotocol/client'
import { expect, test } from 'vitest'
import type { RunningExec } from '../sandbox.ts'
import { SandboxTransport } from './sandbox-transport.ts'

const MOST = 2 * 1024 * 1024
const message = (text: string): string =>
  `${JSON.stringify({ jsonrpc: '2.0', method: 'note', params: { text } })}\n`

/** What a program prints, and what arrives. */
async function connected() {
  let appended = 0
  const buffer = new (class extends ReadBuffer {
    override append(chunk: Buffer): void {
      appended++
      super.append(chunk)
    }
  })({ maxBufferSize: MOST })
  let print: (text: string | Uint8Array) => void = () => {}
  const transport = new SandboxTransport(
    async (output) => {
      print = (text) => output('stdout', Buffer.from(text))
      return {
        result: new Promise(() => {}),
        write: async () => {},
        signal: () => {},
      } as unknown as RunningExec
    },
    buffer,
    MOST,
  )
  const texts: unknown[] = []
  transport.onmessage = (one: JSONRPCMessage) =>
    void texts.push((one as { params?: { text?: unknown } }).params?.text)
  await transport.start()
  return { transport, texts, print: (text: string | Uint8Array) => print(text), appended: () => appended }
}

test('a message in single bytes is searched once', async () => {
  const { texts, print, appended } = await connected()
  const bytes = Buffer.from(message('é'.repeat(1000)))
  for (const byte of bytes) print(Uint8Array.of(byte))
  expect(texts).toEqual(['é'.repeat(1000)])
  expect(appended()).toBe(1)
})

test('messages arrive wherever their bytes are divided', async () => {
  const { texts, print } = await connected()
  const all = Buffer.from(['one', 'two', 'three'].map(message).join(''))
  for (let size = 1; size < all.length; size += 7)
    for (let at = 0; at < all.length; at += size) print(all.subarray(at, at + size))
  expect(texts.length % 3).toBe(0)
  expect(texts.slice(0, 3)).toEqual(['one', 'two', 'three'])
})

test('a message that is too long ends the connection before its end has come', async () => {
  const { transport, print, appended } = await connected()
  for (let sent = 0; sent <= MOST; sent += 64 * 1024) print('x'.repeat(64 * 1024))
  expect(transport.reason).toBe('the program sent a message that is too long')
  expect(appended()).toBe(0)
})
