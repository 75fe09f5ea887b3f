import { afterEach, beforeEach, expect, it } from 'vitest'
import { Secret } from '../../host/secrets/secret.ts'
import { brokerSecret } from '../secrets/broker.ts'
import { talk, World } from '../testkit/world.ts'

let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

it('a body of single-byte chunks is searched and sent read by read, not byte by byte', async () => {
  const value = 'Aa1!Bb2@'
  const text = `${'x'.repeat(20_000)}${value}${'y'.repeat(20_000)}`
  const body = [...text].map((byte) => `1\r\n${byte}\r\n`).join('')
  const server = await world.tcp((socket) =>
    socket.once('data', () =>
      socket.end(`HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${body}0\r\n\r\n`),
    ),
  )
  const grant = { name: 'T', host: 'a.example', port: server, scheme: 'http' } as const
  const secret = brokerSecret(grant, new Secret(value))
  const { port } = await world.proxy({ secrets: [secret] })
  const at = `a.example:${server}`
  const heard = await talk(port, `GET http://${at}/ HTTP/1.1\r\nHost: ${at}\r\nConnection: close\r\n\r\n`)
  const chunked = heard.slice(heard.indexOf('\r\n\r\n') + 4)
  let content = ''
  let chunks = 0
  for (let at = 0, size = -1; size !== 0; chunks++) {
    size = Number.parseInt(chunked.slice(at), 16)
    const begin = chunked.indexOf('\r\n', at) + 2
    content += chunked.slice(begin, begin + size)
    at = begin + size + 2
  }
  expect(content).toBe(text.replace(value, secret.placeholder))
  // One for each read of the proxy, which takes up to 256 KiB at once.
  expect(chunks).toBeLessThan(text.length / 50)
})
