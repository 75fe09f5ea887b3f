import { afterEach, beforeEach, expect, it } from 'vitest'
import { talking, World } from './testkit/world.ts'

let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve))

const record = (body: Buffer): Buffer =>
  Buffer.concat([Buffer.from([22, 3, 1, body.length >> 8, body.length & 255]), body])

/** The start of a ClientHello of 65,000 bytes in records of this size, and the header of one more record. */
function longHello(records: number, size: number): Buffer {
  const bodies = Array.from({ length: records }, () => Buffer.alloc(size))
  bodies[0]?.writeUInt32BE(0x01_00_00_00 + 65_000, 0)
  return Buffer.concat([...bodies.map(record), Buffer.from([22, 3, 1, 0x20, 0])])
}

/** A tunnel to a port other than 443. */
async function tunnelWith(limits = {}) {
  const server = await world.tcp(() => undefined)
  const { port } = await world.proxy({ limits })
  const client = await talking(port)
  client.socket.setNoDelay(true).write(`CONNECT a.example:${server} HTTP/1.1\r\n\r\n`)
  await client.until(/200 Connection established/)
  return client
}

/** CPU time in microseconds for single bytes that follow the start of a ClientHello. */
async function costOfBytes(start: Buffer): Promise<number> {
  const { socket } = await tunnelWith()
  socket.write(start)
  for (let i = 0; i < 20; i++) await turn()
  const before = process.cpuUsage()
  for (let i = 0; i < 1500; i++) {
    socket.write('x')
    await turn()
  }
  const { user, system } = process.cpuUsage(before)
  socket.destroy()
  return user + system
}

it('single bytes of a ClientHello cost the same after many records as after few', async () => {
  await costOfBytes(longHello(1, 1000))
  const few = await costOfBytes(longHello(4, 14_250))
  const many = await costOfBytes(longHello(57, 1000))
  expect(many).toBeLessThan(few * 3)
})

it('a client that begins with TLS on any port has one deadline for its whole first message', async () => {
  const { socket, closed } = await tunnelWith({ headerMs: 150 })
  socket.write(longHello(1, 1000))
  const drip = setInterval(() => socket.write('x'), 20)
  await closed
  clearInterval(drip)
  expect(world.events.at(-1)).toMatchObject({ verdict: 'deny', reason: 'the client does not begin' })
})

it('a name longer than any in the DNS is refused, and not repeated in the reason', async () => {
  const { socket, closed } = await tunnelWith()
  const name = Buffer.from('a'.repeat(300))
  const list = Buffer.concat([Buffer.from([1, 47, 0, 1, 44]), name])
  const extension = Buffer.concat([Buffer.from([0, 0, list.length >> 8, list.length & 255]), list])
  const tail = Buffer.from([0, 0, 2, 0x13, 1, 1, 0, extension.length >> 8, extension.length & 255])
  const hello = Buffer.concat([Buffer.from([3, 3]), Buffer.alloc(32), tail, extension])
  socket.write(record(Buffer.concat([Buffer.from([1, 0, hello.length >> 8, hello.length & 255]), hello])))
  await closed
  expect(world.events.at(-1)).toMatchObject({ reason: 'the start of TLS cannot be read' })
})
