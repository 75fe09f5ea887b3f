import { afterEach, beforeEach, expect, it } from 'vitest'
import type { Connection } from '../connection.ts'
import { talk, World } from '../testkit/world.ts'

let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

it.each(['close', 'close, x-scope', 'close, X-Scope, x-mine', 'x-scope'])(
  'headers that the operator sets reach the server whatever `Connection: %s` names',
  async (named) => {
    const server = await world.http()
    const transforms = [{ host: 'a.example', headers: { 'X-Scope': 'readonly' } }]
    const { port } = await world.proxy({ transforms })
    const at = `a.example:${server}`
    await talk(
      port,
      `GET http://${at}/ HTTP/1.1\r\nHost: ${at}\r\nX-Scope: admin\r\nX-Mine: 1\r\nConnection: ${named}\r\n\r\n`,
      /hello/,
    )
    const [request] = world.requests
    expect(request?.headers['x-scope']).toBe('readonly')
    expect(request?.headers['x-mine']).toBe(named.includes('x-mine') ? undefined : '1')
  },
)

it('the owner admits a connection to the addresses that were checked, in one order', async () => {
  const server = await world.http()
  const admitted: Connection[] = []
  const answers = [
    ['127.0.0.1', '127.0.0.3', '127.0.0.2', '127.0.0.5', '127.0.0.4'],
    ['127.0.0.3', '127.0.0.1', '127.0.0.5', '127.0.0.2', '127.0.0.4'],
  ]
  for (const addresses of answers) {
    const { port } = await world.proxy({
      allowPrivate: ['127.0.0.0/8'],
      resolve: () => addresses,
      admit: (connection) => void admitted.push(connection),
    })
    const at = `a.example:${server}`
    await talk(port, `GET http://${at}/ HTTP/1.1\r\nHost: ${at}\r\nConnection: close\r\n\r\n`)
  }
  const tried = '127.0.0.1, 127.0.0.2, 127.0.0.3, 127.0.0.5'
  expect(admitted.map(({ address }) => address)).toEqual([tried, tried])
  expect(world.events.map(({ address }) => address)).toEqual(['127.0.0.1', '127.0.0.1'])
})
