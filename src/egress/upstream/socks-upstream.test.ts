import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Connection } from '../connection.ts'
import { talk, World } from '../testkit/world.ts'
import { parseUpstream } from './socks-upstream.ts'

/** A sandbox's connections through a SOCKS5 proxy of the operator; here that is another proxy of ours. */

let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

const CREDENTIALS = { user: 'operator', password: 'pass word' }

async function upstream() {
  const seen: Connection[] = []
  const { port } = await world.proxy({
    allowHosts: ['127.0.0.1'],
    credentials: CREDENTIALS,
    admit: (connection) => void seen.push(connection),
  })
  return { seen, port }
}

const get = (port: number, host: string, at: number): Promise<string> =>
  talk(port, `GET http://${host}:${at}/ HTTP/1.1\r\nhost: ${host}:${at}\r\nconnection: close\r\n\r\n`)

describe('an upstream proxy', () => {
  it('gets every connection with the checked address', async () => {
    const at = await world.http((_, response) => response.end('from the origin'))
    const { seen, port: outer } = await upstream()
    const via = { host: '127.0.0.1', port: outer, username: 'operator', password: 'pass word' }
    const { port } = await world.proxy({ via })
    expect(await get(port, 'one.example', at)).toContain('from the origin')
    const tunnel = `CONNECT two.example:${at} HTTP/1.1\r\nhost: two.example:${at}\r\n\r\nGET / HTTP/1.1\r\nhost: two.example\r\nconnection: close\r\n\r\n`
    expect(await talk(port, tunnel)).toContain('from the origin')
    expect(seen.map(({ host, port: to }) => [host, to])).toEqual([
      ['127.0.0.1', at],
      ['127.0.0.1', at],
    ])
  })

  it('gets no connection that the allow list refuses', async () => {
    const at = await world.http((_, response) => response.end('from the origin'))
    const { seen, port: outer } = await upstream()
    const { port } = await world.proxy({ via: { host: '127.0.0.1', port: outer } })
    expect(await get(port, 'other.test', at)).toMatch(/^HTTP\/1.1 40[03]/)
    expect(seen).toEqual([])
  })

  it('is required: without it, or with wrong credentials, no connection is made', async () => {
    const at = await world.http((_, response) => response.end('from the origin'))
    const { port: outer } = await upstream()
    for (const via of [
      { host: '127.0.0.1', port: outer },
      { host: '127.0.0.1', port: outer, username: 'operator', password: 'wrong' },
      { host: '127.0.0.1', port: 1 },
    ]) {
      const { port } = await world.proxy({ via })
      const said = await get(port, 'one.example', at)
      expect(said).toMatch(/^HTTP\/1.1 50/)
      expect(said).not.toContain('from the origin')
    }
  })
})

it.each([
  ['proxy.example:1080', { host: 'proxy.example', port: 1080 }],
  ['[::1]:1080', { host: '::1', port: 1080 }],
  ['proxy.example', undefined],
  ['user@proxy.example:1080', undefined],
  ['proxy.example:0', undefined],
])('the proxy address %s is parsed: %o', (text, found) => expect(parseUpstream(text)).toEqual(found))
