import type { RequestListener } from 'node:http'
import { connect as connectTls } from 'node:tls'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Secret } from '../../host/secrets/secret.ts'
import type { EgressProxyOptions } from '../proxy.ts'
import { socksRequest, talk, talking, World } from '../testkit/world.ts'
import { type BrokeredSecret, brokerSecret } from './broker.ts'

/** Connections to the server of a host with a secret that do not name the host. */

const VALUE = 'SuperSecret-0123456789'
const APART = '127.0.0.2'
const ADDRESSES: Readonly<Record<string, readonly string[]>> = {
  'api.example': ['127.0.0.1'],
  'alias.example': ['127.0.0.1'],
  'both.example': [APART, '127.0.0.1'],
  'apart.example': [APART],
}
/** What the server once got, under whatever name it is asked. */
const showing: RequestListener = (_, response) => response.end(`kept: ${VALUE}`)

let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

type Setup = { readonly secret: BrokeredSecret; readonly port: number; readonly at: number }

async function setup(options: Partial<EgressProxyOptions> = {}): Promise<Setup> {
  const at = await world.https(showing)
  const grant = { name: 'TOKEN', host: 'api.example', port: at, scheme: 'https' } as const
  const secret = brokerSecret(grant, new Secret(VALUE))
  const { port } = await world.proxy({
    allowHosts: ['*'],
    allowPrivate: ['127.0.0.1', '::ffff:127.0.0.1', APART],
    secrets: [secret],
    resolve: (host) => {
      world.lookups.push(host)
      return ADDRESSES[host] ?? []
    },
    upstreamCa: world.authority.certificate,
    ...options,
  })
  return { secret, port, at }
}

const request = (host: string): string => `GET / HTTP/1.1\r\nHost: ${host}\r\nConnection: close\r\n\r\n`
const connectTo = (target: string): string => `CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`

/** What TLS inside a tunnel says, without checking whose it is. */
async function throughTls(port: number, target: string, servername: string): Promise<string> {
  const { socket, until } = await talking(port)
  socket.write(connectTo(target))
  const answer = await until(/\r\n\r\n/)
  if (!answer.includes(' 200 ')) return answer
  socket.removeAllListeners('data')
  const secure = connectTls({ socket, servername, rejectUnauthorized: false })
  secure.write(request(target))
  let heard = ''
  for await (const chunk of secure) heard += String(chunk)
  return heard
}

describe('the address of a host with a secret', () => {
  it('is not reached as such, with or without TLS, by any protocol', async () => {
    const { port, at } = await setup()
    const plain = await world.http(showing)
    const said = [
      await throughTls(port, `127.0.0.1:${at}`, ''),
      await talk(port, `${connectTo(`127.0.0.1:${plain}`)}${request('api.example')}`),
      await talk(port, `${connectTo(`[::ffff:127.0.0.1]:${plain}`)}${request('api.example')}`),
      await talk(
        port,
        `GET http://127.0.0.1:${plain}/ HTTP/1.1\r\nHost: 127.0.0.1:${plain}\r\n\r\n`,
        /\r\n\r\n/,
      ),
    ]
    for (const answer of said)
      expect(answer).toMatch(/403 [\s\S]*which has a secret and is reached by its name/)
    const socks = await talk(port, Buffer.concat([socksRequest(Buffer.from([127, 0, 0, 1]), plain)]))
    expect(Buffer.from(socks, 'latin1').subarray(2, 4).toString('hex')).toBe('0502')
    expect(world.requests).toEqual([])
    expect(world.events.map(({ verdict }) => verdict)).toEqual(Array(5).fill('deny'))
  })

  it('does not close other addresses, unless the host has no known address', async () => {
    const plain = await world.http(undefined, APART)
    const line = `GET http://${APART}:${plain}/ HTTP/1.1\r\nHost: ${APART}:${plain}\r\nConnection: close\r\n\r\n`
    expect(await talk((await setup()).port, line)).toContain('hello')
    const unknown = await setup({ resolve: () => Promise.reject(new Error('no answer')) })
    expect(await talk(unknown.port, line)).toContain('may lead to `api.example`')
  })

  it('stays closed after the name has moved on', async () => {
    let addresses = ['127.0.0.1']
    const { port, at } = await setup({ resolve: () => addresses })
    await throughTls(port, `api.example:${at}`, 'api.example')
    addresses = [APART]
    expect(await throughTls(port, `127.0.0.1:${at}`, '')).toContain('is reached by its name alone')
  })
})

describe('another name of its server', () => {
  it.each(['alias.example', 'both.example'])('%s is read like the host', async (name) => {
    const { secret, port, at } = await setup()
    const plain = await world.http(showing)
    const answers = [
      await throughTls(port, `${name}:${at}`, name),
      await talk(port, `${connectTo(`${name}:${plain}`)}${request(`${name}:${plain}`)}`),
      await talk(port, request(`${name}:${plain}`).replace('GET /', `GET http://${name}:${plain}/`)),
    ]
    for (const answer of answers) expect(answer).toContain(`kept: ${secret.placeholder}`)
    expect(answers.join()).not.toContain(VALUE)
  })

  it('is not used for other protocols, and a Host header inside does not lead to the host', async () => {
    const { port } = await setup()
    const raw = await world.tcp((socket) => void socket.write(`220 ${VALUE}\r\n`))
    expect(await talk(port, `${connectTo(`alias.example:${raw}`)}EHLO me\r\n\r\n`)).not.toContain(VALUE)
    const plain = await world.http(showing)
    const inside = await talk(
      port,
      `${connectTo(`alias.example:${plain}`)}${request(`api.example:${plain}`)}`,
    )
    expect(inside).toContain('the Host header names another host')
  })

  it('leaves names at other addresses as they are, also if the host cannot be looked up', async () => {
    const raw = await world.tcp((socket) => void socket.end('220 hello\r\n'), APART)
    expect(await talk((await setup()).port, connectTo(`apart.example:${raw}`))).toContain('220 hello')
    const resolve = (host: string): readonly string[] => (host === 'api.example' ? [] : [APART])
    expect(await talk((await setup({ resolve })).port, connectTo(`apart.example:${raw}`))).toContain(
      '220 hello',
    )
  })

  it('costs a sandbox without secrets no lookup', async () => {
    const { port } = await setup({ secrets: [] })
    const raw = await world.tcp((socket) => void socket.end('220 hello\r\n'), APART)
    await talk(port, connectTo(`apart.example:${raw}`))
    expect(world.lookups).toEqual(['apart.example'])
  })
})
