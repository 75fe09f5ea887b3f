import { afterEach, describe, expect, it } from 'vitest'
import { Descriptors } from './descriptors.ts'
import { talk, talking, World } from './testkit/world.ts'

let world = new World()
afterEach(async () => {
  await world.end()
  world = new World()
})

/** 20 descriptors for the connections of sandboxes, so ten connections. */
const descriptors = (): Descriptors => new Descriptors(160)
const acme = { tenant: 'acme', keyId: '1' }

/** How many of these clients are admitted; they stay connected. */
async function admitted(port: number, server: number, count: number) {
  const clients: Awaited<ReturnType<typeof talking>>[] = []
  let open = 0
  for (let at = 0; at < count; at++) {
    const client = await talking(port)
    client.socket.write(`CONNECT a.example:${server} HTTP/1.1\r\nHost: a.example:${server}\r\n\r\n`)
    if ((await client.until(/^HTTP.*\r\n/)).startsWith('HTTP/1.1 200')) open++
    clients.push(client)
  }
  const close = async (): Promise<void> => {
    for (const { socket } of clients) socket.destroy()
    await Promise.all(clients.map(({ closed }) => closed))
  }
  return { open, close }
}

const until = async (isTrue: () => boolean): Promise<void> => {
  while (!isTrue()) await new Promise((next) => setTimeout(next, 5))
}

describe('descriptors', () => {
  it('are shared equally by tenants and by sandboxes of a tenant', async () => {
    const shared = descriptors()
    const server = await world.tcp((socket) => void socket.resume().on('end', () => socket.end()))
    const proxyOf = (tenant: string, keyId: string) =>
      world.proxy({ descriptors: shared, owner: { tenant, keyId } })
    const [one, two, other] = [
      await proxyOf('acme', '1'),
      await proxyOf('acme', '2'),
      await proxyOf('other', '1'),
    ]
    const first = await admitted(one.port, server, 14)
    expect(first.open).toBe(10)
    expect((await admitted(two.port, server, 8)).open).toBe(5)
    expect((await admitted(other.port, server, 8)).open).toBe(5)
    await first.close()
    await until(() => one.proxy.size === 0)
    expect((await admitted(one.port, server, 8)).open).toBe(3)
  })

  it('are never more than half of those of the process', () => {
    const shared = descriptors()
    let taken = 0
    for (let tenant = 0; tenant < 200; tenant++)
      for (let keyId = 0; keyId < 2; keyId++)
        while (shared.take({ tenant: String(tenant), keyId: String(keyId) }, 2)) taken += 2
    expect(taken).toBe(80)
  })

  it('count for idle connections to servers, which are closed if there are too many', async () => {
    const shared = descriptors()
    const sockets = new Set<unknown>()
    const server = await world.http((request, response) => {
      sockets.add(request.socket)
      response.end('hello')
    })
    const { port, proxy } = await world.proxy({ descriptors: shared, owner: acme })
    const ask = async (): Promise<void> => {
      const head = `GET http://a.example:${server}/ HTTP/1.1\r\nHost: a.example:${server}\r\nConnection: close\r\n\r\n`
      expect(await talk(port, head)).toContain('hello')
      await until(() => proxy.size === 0)
    }
    await ask()
    await ask()
    expect(sockets.size).toBe(1)
    // One is idle. With 18 others a client is still admitted, but its server is not kept.
    const leave = shared.take(acme, 18)
    await ask()
    await ask()
    expect(sockets.size).toBe(2)
    leave?.()
    await ask()
    await ask()
    expect(sockets.size).toBe(3)
  })

  it('are given back once', () => {
    const shared = descriptors()
    const leave = shared.take(acme, 20)
    expect(shared.take(acme, 2)).toBeUndefined()
    leave?.()
    leave?.()
    expect(shared.take(acme, 20)).toBeDefined()
    expect(shared.take(acme, 2)).toBeUndefined()
  })
})
