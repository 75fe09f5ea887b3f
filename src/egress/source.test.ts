import { connect, type Socket } from 'node:net'
import { PassThrough } from 'node:stream'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterEach, describe, expect, it } from 'vitest'
import { ReadBuffers, Source, write } from './source.ts'
import { World } from './testkit/world.ts'

const KB = 1024
const world = new World()
const clients: Socket[] = []
afterEach(async () => {
  for (const client of clients.splice(0)) client.destroy()
  await world.end()
})

setFlagsFromString('--expose-gc')
const collect = runInNewContext('gc') as () => void

const pause = (ms: number): Promise<void> => new Promise((next) => setTimeout(next, ms))

/** Bytes outside of the heap, once nothing moves any more. */
async function heldWhenStill(moved: () => number): Promise<number> {
  for (let before = -1; before !== moved(); await pause(200)) before = moved()
  collect()
  await pause(10)
  return process.memoryUsage().arrayBuffers
}

describe('a connection whose client does not read', () => {
  it('holds little memory', async () => {
    const piece = Buffer.alloc(KB * KB)
    let sent = 0
    const server = await world.tcp((socket) => {
      const send = (): void => {
        do sent += piece.length
        while (socket.write(piece))
      }
      socket.on('drain', send)
      send()
    })
    const { port } = await world.proxy()
    const stall = (count: number): void => {
      for (let at = 0; at < count; at++) {
        const client = connect(port, '127.0.0.1').pause()
        clients.push(client.on('error', () => undefined))
        client.write(`CONNECT a.example:${server} HTTP/1.1\r\nHost: a.example:${server}\r\n\r\nx`)
      }
    }
    stall(20)
    const few = await heldWhenStill(() => sent)
    stall(40)
    const many = await heldWhenStill(() => sent)
    expect((many - few) / 40 / KB).toBeLessThan(110)
  })
})

it('a few bytes that wait do not keep a read buffer each', async () => {
  const server = await world.tcp((socket) => void socket.pause())
  const to = connect(server, '127.0.0.1').on('error', () => undefined)
  clients.push(to)
  const from = new Source(new PassThrough())
  const full = Buffer.allocUnsafeSlow(256 * KB)
  let waiting = 0
  const lend = (chunk: Buffer): void => {
    waiting++
    write(from, to, chunk, () => void waiting--)
  }
  while (to.writableLength === 0 || waiting === 0) lend(full)
  const [before, pieces] = [waiting, 100]
  for (let at = 0; at < pieces; at++) lend(Buffer.allocUnsafeSlow(8 * KB).subarray(0, 100))
  expect(waiting).toBe(before)
  // One that is full is not copied.
  lend(Buffer.allocUnsafeSlow(8 * KB))
  expect(waiting).toBe(before + 1)
})

describe('read buffers', () => {
  const takeAll = (buffers: ReadBuffers, arrived: number, isStalled = false): Buffer[] =>
    Array.from({ length: 20 }, () => buffers.take(arrived, isStalled))
  const sizesOf = (all: readonly Buffer[]): number[] => all.map(({ length }) => length / KB)

  it('are as large as what arrives', () => {
    const buffers = new ReadBuffers()
    expect(sizesOf([0, 8 * KB - 1, 8 * KB, 64 * KB].map((arrived) => buffers.take(arrived, false)))).toEqual([
      8, 8, 64, 256,
    ])
    expect(sizesOf([0, 8 * KB].map((arrived) => buffers.take(arrived, true)))).toEqual([8, 8])
  })

  it('are large for a few connections of a sandbox only, until these give them back', () => {
    const buffers = new ReadBuffers()
    const first = takeAll(buffers, 64 * KB)
    expect(sizesOf(first)).toEqual([...Array(8).fill(256), ...Array(12).fill(64)])
    expect(sizesOf(takeAll(buffers, 64 * KB, true))).toEqual(Array(20).fill(8))
    for (const buffer of first) buffers.give(buffer)
    expect(sizesOf(takeAll(buffers, 64 * KB))).toEqual(sizesOf(first))
    expect(sizesOf(takeAll(new ReadBuffers(), 64 * KB))).toEqual(sizesOf(first))
  })

  it('are not used for two at once', () => {
    const buffers = new ReadBuffers()
    const first = takeAll(buffers, 64 * KB)
    for (const buffer of first) buffers.give(buffer)
    const again = takeAll(buffers, 64 * KB)
    expect(new Set(again.map(({ buffer }) => buffer)).size).toBe(again.length)
  })
})
