import { connect, type Socket } from 'node:net'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { talk, World } from '../testkit/world.ts'

let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

const LONG_MS = 30_000
const REQUESTS = 40_000
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

/** A client that sends everything at once and does not read, and the proxy's side of its connection. */
async function pipelined(bytes: string): Promise<{ readonly client: Socket; readonly served: Socket }> {
  const { proxy } = await world.proxy()
  let accept: (socket: Socket) => void = () => undefined
  const accepted = new Promise<Socket>((resolve) => {
    accept = resolve
  })
  const port = await world.tcp((socket) => {
    accept(socket)
    void proxy.handle(socket)
  })
  const client = connect(port, '127.0.0.1').pause()
  client.on('error', () => undefined)
  client.write(bytes)
  return { client, served: await accepted }
}

/** Resolves when nothing more happens: `count` has not changed for a while. */
async function standstill(count: () => number): Promise<void> {
  for (let last = -1; last !== count(); await pause(300)) last = count()
}

/** Reads until this many answers with the status have arrived. */
async function readAll(client: Socket, expected: number, status: number): Promise<void> {
  const begin = `HTTP/1.1 ${status} `
  let [seen, rest] = [0, '']
  client.on('data', (chunk) => {
    const pieces = `${rest}${chunk.toString('latin1')}`.split(begin)
    seen += pieces.length - 1
    rest = (pieces.at(-1) as string).slice(1 - begin.length)
  })
  client.resume()
  while (seen < expected) await pause(10)
}

it(
  'refusals wait for a client that does not read, and all arrive when it does',
  async () => {
    const request = 'GET http://a.invalid/ HTTP/1.1\r\nHost: a.invalid\r\n\r\n'
    const { client, served } = await pipelined(request.repeat(REQUESTS))
    await standstill(() => world.events.length)
    expect(served.writableLength).toBeLessThan(served.writableHighWaterMark * 2)
    expect(world.events.length).toBeLessThan(REQUESTS)
    await readAll(client, REQUESTS, 403)
    expect(world.events).toHaveLength(REQUESTS)
    client.destroy()
  },
  LONG_MS,
)

it('other work gets a turn after each refusal', async () => {
  const count = 2000
  const { port } = await world.proxy()
  let turns = 0
  let isOver = false
  const next = (): void => {
    turns++
    if (!isOver) setImmediate(next)
  }
  next()
  const request = 'GET http://a.invalid/ HTTP/1.1\r\nHost: a.invalid\r\n\r\n'
  const last = request.replace('\r\n\r\n', '\r\nConnection: close\r\n\r\n')
  await talk(port, request.repeat(count) + last)
  isOver = true
  expect(world.events).toHaveLength(count + 1)
  expect(turns).toBeGreaterThan(count)
})

it(
  'small answers of a server wait for a client that does not read',
  async () => {
    const count = 4000
    const body = 'x'.repeat(4000)
    const server = await world.http((_, response) => void response.end(body))
    const request = `GET http://a.example:${server}/ HTTP/1.1\r\nHost: a.example:${server}\r\n\r\n`
    const { client, served } = await pipelined(request.repeat(count))
    await standstill(() => world.requests.length)
    expect(served.writableLength).toBeLessThan(served.writableHighWaterMark * 2)
    expect(world.requests.length).toBeLessThan(count)
    await readAll(client, count, 200)
    client.destroy()
  },
  LONG_MS,
)

it('a server that sends only interim answers is given up', async () => {
  let sent = 0
  const server = await world.tcp((socket) => {
    const more = (): void => {
      while (!socket.destroyed && sent++ < 1_000_000)
        if (!socket.write('HTTP/1.1 100 Continue\r\n\r\n')) return void socket.once('drain', more)
    }
    socket.once('data', more)
  })
  const { port } = await world.proxy()
  const at = `a.example:${server}`
  const heard = await talk(port, `GET http://${at}/ HTTP/1.1\r\nHost: ${at}\r\nConnection: close\r\n\r\n`)
  expect(heard).toMatch(/HTTP\/1\.1 502 [\s\S]*interim/)
  expect(heard.match(/ 100 Continue/g)?.length).toBeLessThanOrEqual(101)
})

it(
  'a server that answers without reading gets a new connection before requests accumulate',
  async () => {
    const sockets: Socket[] = []
    const server = await world.tcp((socket) => void sockets.push(socket.pause()))
    const { port } = await world.proxy({
      // Each request is answered before it was read.
      admit: () =>
        void setTimeout(() => sockets.at(-1)?.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'), 5),
    })
    const at = `a.example:${server}`
    const request = `GET http://${at}/ HTTP/1.1\r\nHost: ${at}\r\nX-Fill: ${'x'.repeat(30_000)}\r\n\r\n`
    const client = connect(port, '127.0.0.1')
    let heard = ''
    client.on('data', (chunk) => {
      heard += chunk.toString('latin1')
    })
    for (let sent = 1; sent <= 500; sent++) {
      client.write(request)
      while ((heard.match(/HTTP/g)?.length ?? 0) < sent) await pause(1)
    }
    expect(heard).not.toMatch(/HTTP\/1\.1 [^2]/)
    expect(sockets.length).toBeGreaterThan(1)
    client.destroy()
  },
  LONG_MS,
)
