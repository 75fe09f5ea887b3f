import type { RequestListener } from 'node:http'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Secret } from '../../host/secrets/secret.ts'
import { talk, World } from '../testkit/world.ts'
import { brokerSecret } from './broker.ts'
import { Transforms } from './transforms.ts'

/** Headers that the proxy sets, overriding the sandbox's. */

let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

const echo: RequestListener = (request, response) => response.end(JSON.stringify(request.headers))

describe('headers of requests', () => {
  it('are set only for their host, replacing those of the client', async () => {
    const at = await world.http(echo)
    const transforms = [
      { host: 'api.example', headers: { 'X-Token': 'from outside', authorization: 'Bearer 1' } },
    ]
    const { port } = await world.proxy({ transforms })
    const ask = async (host: string): Promise<Record<string, string>> => {
      const said = await talk(
        port,
        `GET http://${host}:${at}/ HTTP/1.1\r\nhost: ${host}:${at}\r\nx-token: mine\r\nX-TOKEN: again\r\nx-other: o\r\nconnection: close\r\n\r\n`,
      )
      return JSON.parse(
        said.slice(said.indexOf('\r\n\r\n') + 4).replace(/^[0-9a-f]+\r\n|\r\n0\r\n\r\n$/g, ''),
      )
    }
    expect(await ask('api.example')).toMatchObject({
      'x-token': 'from outside',
      authorization: 'Bearer 1',
      'x-other': 'o',
    })
    const other = await ask('other.example')
    expect([other['x-token'], other.authorization]).toEqual(['mine, again', undefined])
  })

  it('may contain a secret, which only its own host receives', async () => {
    const at = await world.http(echo)
    const value = new Secret('sk-0123456789')
    const secret = brokerSecret({ name: 'TOKEN', host: 'api.example', port: at, scheme: 'http' }, value)
    const bearer = (host: string) => ({ host, headers: { authorization: `Bearer ${secret.placeholder}` } })
    const { port } = await world.proxy({
      secrets: [secret],
      transforms: ['api.example', 'other.example'].map(bearer),
    })
    const ask = (host: string): Promise<string> =>
      talk(port, `GET http://${host}:${at}/ HTTP/1.1\r\nhost: ${host}:${at}\r\nconnection: close\r\n\r\n`)
    const said = await ask('api.example')
    expect([said.includes('Bearer'), said.includes('sk-0123456789')]).toEqual([true, false])
    expect(await ask('other.example')).toContain('403')
  })

  it('reject values that would change the destination or split the request', () => {
    for (const [name, value] of [
      ['host', 'evil.example'],
      ['Content-Length', '5'],
      ['transfer-encoding', 'chunked'],
      ['x', 'a\r\nhost: evil'],
      ['bad name', 'x'],
      ['', 'x'],
    ] as const)
      expect(() => new Transforms([{ host: 'a.example', headers: { [name]: value } }])).toThrow(
        /cannot be set/,
      )
    expect(() => new Transforms([{ host: 'not a host', headers: {} }])).toThrow(/is not a host/)
  })
})
