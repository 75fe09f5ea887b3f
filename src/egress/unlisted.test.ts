import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { SandboxError } from '../model/errors.ts'
import { Core, LIMITS, type UnlistedTarget } from './core.ts'
import { Transforms } from './secrets/transforms.ts'
import { socksRequest, talk, World } from './testkit/world.ts'

/** A proxy that asks about unlisted hosts. */

let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

const getThrough = (port: number, host: string, serverPort: number): Promise<string> =>
  talk(
    port,
    `GET http://${host}:${serverPort}/ HTTP/1.1\r\nHost: ${host}:${serverPort}\r\nConnection: close\r\n\r\n`,
  )
const connectTo = (port: number, target: string): Promise<string> =>
  talk(port, `CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`, /\r\n\r\n/)

type Answer = (target: UnlistedTarget) => Promise<void>
const asking = async (answer: Answer, allowHosts: readonly string[] = []) => {
  const asked: string[] = []
  const unlisted: Answer = (target) => {
    asked.push(`${target.host}:${target.port} ${target.protocol}`)
    return answer(target)
  }
  return { asked, ...(await world.proxy({ allowHosts, unlisted })) }
}

describe('a host that is not on the allow list', () => {
  it.each([
    ['http', (port: number, server: number) => getThrough(port, 'a.example', server)],
    ['connect', (port: number, server: number) => connectTo(port, `a.example:${server}`)],
    [
      'socks5',
      (port: number, server: number) => talk(port, socksRequest('a.example', server), /^..\x05[\s\S]/),
    ],
  ])('waits for the answer over %s, and no name is looked up before', async (protocol, send) => {
    const server = await world.http()
    const lookups: number[] = []
    const { asked, port } = await asking(async () => void lookups.push(world.lookups.length))
    const heard = await send(port, server)
    expect(asked).toEqual([`a.example:${server} ${protocol}`])
    expect(lookups).toEqual([0])
    expect(world.lookups).toEqual(['a.example'])
    expect(heard).toMatch(/hello|200 Connection established|^\x05\x00\x05\x00/)
  })

  it('is refused without a DNS lookup if rejected', async () => {
    const server = await world.http()
    const { port } = await asking(async () => {
      throw new SandboxError('ssrf-blocked', 'not an allowed host (rejected)')
    })
    expect(await getThrough(port, 'a.example', server)).toMatch(/403[\s\S]*rejected/)
    expect(world.lookups).toEqual([])
    expect(world.requests).toHaveLength(0)
  })

  it('needs another approval after one for a single connection, and none after one for the list', async () => {
    const server = await world.http()
    const { asked, port, proxy } = await asking(async () => {})
    await getThrough(port, 'a.example', server)
    await getThrough(port, 'a.example', server)
    expect(asked).toHaveLength(2)
    proxy.allowAlso(`a.example:${server}`)
    expect(await getThrough(port, 'a.example', server)).toContain('hello')
    expect(asked).toHaveLength(2)
    await getThrough(port, 'a.example', server + 1)
    expect(asked).toHaveLength(3)
  })

  it.each([
    '169.254.169.254:80',
    'metadata.google.internal:80',
    '127.0.0.1:8080',
    '10.0.0.1:443',
    '[::1]:443',
    '[fd00::1]:443',
    'localhost:80',
    'printer.local:80',
    'a.example:22',
    'a.example:6379',
    'bare:443',
  ])('is never asked about when it is %s', async (target) => {
    const { asked, port } = await asking(async () => {})
    expect(await connectTo(port, target)).toMatch(/^HTTP\/1\.1 403/)
    expect(asked).toEqual([])
    expect(world.lookups).toEqual([])
  })

  it('is never asked about if the list denies it', async () => {
    const { asked, port } = await asking(async () => {}, ['!a.example'])
    expect(await connectTo(port, 'a.example:443')).toMatch(/^HTTP\/1\.1 403/)
    expect(asked).toEqual([])
  })

  it('stays blocked after an approval if its addresses are private', async () => {
    const server = await world.http()
    const { port } = await world.proxy({ allowHosts: [], allowPrivate: [], unlisted: async () => {} })
    expect(await getThrough(port, 'a.example', server)).toMatch(/403[\s\S]*loopback address/)
    expect(world.requests).toHaveLength(0)
  })

  it('is not asked about inside an approved tunnel', async () => {
    const { asked, port } = await asking(async () => {})
    const heard = await talk(
      port,
      'CONNECT a.example:80 HTTP/1.1\r\nHost: a.example:80\r\n\r\nGET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n',
      /200 [\s\S]*HTTP\/1\.1 /,
    )
    expect(heard).toContain('200 Connection established')
    expect(asked).toHaveLength(1)
  })
})

it('a connection that was approved once ends when the operator replaces the list', async () => {
  const server = await world.tcp((socket) => void socket.write('open'))
  const { port, proxy } = await asking(async () => {})
  const heard = talk(port, `CONNECT a.example:${server} HTTP/1.1\r\nHost: a.example:${server}\r\n\r\n`)
  while (!world.events.length && world.lookups.length === 0) await new Promise((next) => setTimeout(next, 5))
  await new Promise((next) => setTimeout(next, 50))
  proxy.setAllowHosts(['b.example'])
  expect(await heard).toContain('200')
  expect(world.events.at(-1)).toMatchObject({ host: 'a.example', verdict: 'deny' })
})

it('a request inside a tunnel that was cut is refused', async () => {
  const core = new Core({
    allowHosts: [],
    allowPrivate: [],
    resolve: async () => ['1.1.1.1'],
    limits: LIMITS,
    hooks: { unlisted: async () => {} },
    broker: undefined,
    transforms: new Transforms([]),
    upstreamCa: undefined,
    via: undefined,
  })
  const wanted = { raw: 'a.example:443', kind: 'proxy-target', protocol: 'connect' } as const
  const tunnel = await core.enter(wanted)
  ;(await core.enter(wanted, tunnel)).close()
  core.setAllowHosts([])
  await expect(core.enter(wanted, tunnel)).rejects.toThrow('not an allowed host')
})
