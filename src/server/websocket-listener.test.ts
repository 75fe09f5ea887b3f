import { afterEach, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { listenOnLoopback, type TextHandler, type WebSocketListener } from './websocket-listener.ts'

let listener: WebSocketListener | undefined
afterEach(() => listener?.close())

/** A client of a server with this handler. */
async function connected(handler: TextHandler, limits = {}, options = {}): Promise<WebSocket> {
  listener = await listenOnLoopback(0, 'secret', handler, limits)
  const client = new WebSocket(`ws://127.0.0.1:${listener.port}/secret`, options)
  await new Promise((resolve, reject) => client.once('open', resolve).once('error', reject))
  return client
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
const PIECE = 'x'.repeat(256 * 1024)
const nothing = { message: () => {}, closed: () => {} }

describe('a client that does not read', () => {
  test('holds the sender until it reads again, or the connection ends', async () => {
    const sent = { count: 0, all: false }
    const handler: TextHandler = ({ send }) => {
      void (async () => {
        for (; sent.count < 200; sent.count++) await send(PIECE)
        sent.all = true
      })()
      return nothing
    }
    const client = await connected(handler)
    client.pause()
    await pause(300)
    const held = sent.count
    expect(held).toBeLessThan(100)
    await pause(100)
    expect(sent.count).toBe(held)
    client.resume()
    await expect.poll(() => sent.all).toBe(true)
    client.pause()
    sent.all = false
    sent.count = 0
    const again = new WebSocket(client.url)
    await new Promise((resolve) => again.once('open', resolve))
    again.pause()
    await pause(300)
    again.terminate()
    await expect.poll(() => sent.all).toBe(true)
    client.terminate()
  })

  test('is not read either', async () => {
    let heard = 0
    const handler: TextHandler = ({ send }) => ({
      message() {
        heard++
        void send(PIECE)
      },
      closed: () => {},
    })
    const client = await connected(handler)
    let answers = 0
    client.on('message', () => answers++)
    client.pause()
    // Large enough that they do not all arrive in one chunk.
    for (let at = 0; at < 1000; at++) client.send('y'.repeat(16 * 1024))
    await pause(500)
    expect(heard).toBeLessThan(200)
    client.resume()
    await expect.poll(() => answers, { timeout: 20_000 }).toBe(1000)
    client.terminate()
  })
})

test('a connection without answers to pings ends, and one with them stays', async () => {
  const closed: string[] = []
  const handler: TextHandler = () => ({ message: () => {}, closed: () => void closed.push('closed') })
  const alive = await connected(handler, { pingMs: 10 })
  await pause(400)
  expect([alive.readyState, closed]).toEqual([WebSocket.OPEN, []])
  alive.terminate()
  await expect.poll(() => closed).toEqual(['closed'])
  await listener?.close()
  const dead = await connected(handler, { pingMs: 10 }, { autoPong: false })
  await expect.poll(() => closed, { timeout: 5000 }).toEqual(['closed', 'closed'])
  dead.terminate()
})

test('a message above the limit ends the connection', async () => {
  const client = await connected(() => nothing, { maxMessage: 1000 })
  const code = new Promise((resolve) => client.once('close', resolve))
  client.send('x'.repeat(1001))
  expect(await code).toBe(1009)
})
