import { connect } from 'node:net'
import { Duplex, PassThrough } from 'node:stream'
import { connect as connectTls } from 'node:tls'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Hello, HelloReader } from './client-hello.ts'
import { EgressProxy } from './proxy.ts'
import { socksRequest, talk, talking, World } from './testkit/world.ts'

const readHello = (bytes: Buffer): Hello => new HelloReader().read(bytes)
const full = Boolean(process.env.RINGFENCE_FULL)
let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

const SPELLINGS = [
  '127.0.0.1',
  '127.1',
  '0177.0.0.1',
  '0x7f.0.0.1',
  '0x7f000001',
  '2130706433',
  '127.0.0.1.',
  '0.0.0.0',
  '[::1]',
  '[::]',
  '[::ffff:127.0.0.1]',
  '[::ffff:7f00:1]',
  '[64:ff9b::7f00:1]',
  '[2002:7f00:1::]',
  '10.0.0.1',
  '192.168.1.1',
  '172.16.0.1',
  '100.64.0.1',
  '169.254.169.254',
  '2852039166',
  '0xa9fea9fe',
  '[::ffff:169.254.169.254]',
  '[fd00:ec2::254]',
  '100.100.100.200',
  '168.63.129.16',
  'localhost',
  'foo.localhost',
  'metadata.google.internal',
  'metadata.google.internal.',
  'metadata',
  'router.local',
  '%31%32%37.0.0.1',
  '①②⑦.⓪.⓪.①',
  '127。0。0。1',
]

describe('no spelling of a blocked address is reached', () => {
  const everything = {
    allowHosts: ['*', ...['127.0.0.1', '169.254.169.254', 'localhost', 'metadata.google.internal']],
    allowPrivate: [],
    resolve: () => ['127.0.0.1'],
  }

  it.each(SPELLINGS)('%s', async (host) => {
    const { port } = await world.proxy(everything)
    const bytes = Buffer.from(host, 'utf8').toString('latin1')
    for (const place of [bytes, `${bytes}:80`]) {
      const absolute = await talk(
        port,
        `GET http://${place}/ HTTP/1.1\r\nHost: ${place}\r\nConnection: close\r\n\r\n`,
      )
      expect(absolute).toMatch(/^HTTP\/1\.1 40[03] /)
    }
    const tunnel = await talk(port, `CONNECT ${bytes}:443 HTTP/1.1\r\n\r\n`)
    expect(tunnel).toMatch(/^HTTP\/1\.1 40[03] /)
    const named = await talk(port, socksRequest(bytes, 443))
    expect(named).toMatch(/^\x05\x00\x05\x02/)
    expect(world.events.every(({ verdict }) => verdict === 'deny')).toBe(true)
    expect(world.events.length).toBeGreaterThan(0)
  })

  it.each([
    ['127.0.0.1', [127, 0, 0, 1]],
    ['169.254.169.254', [169, 254, 169, 254]],
    ['::1', [...Array(15).fill(0), 1]],
    ['::ffff:127.0.0.1', [...Array(10).fill(0), 255, 255, 127, 0, 0, 1]],
    ['::127.0.0.1', [...Array(12).fill(0), 127, 0, 0, 1]],
    ['fd00:ec2::254', [0xfd, 0, 0x0e, 0xc2, ...Array(10).fill(0), 2, 0x54]],
  ])('SOCKS with the bytes of %s', async (_, bytes) => {
    const { port } = await world.proxy(everything)
    expect(await talk(port, socksRequest(Buffer.from(bytes), 80))).toMatch(/^\x05\x00\x05\x02/)
  })
})

describe('names with misleading addresses', () => {
  it('an allowed name that resolves to a private address is refused by all three protocols', async () => {
    let connected = 0
    const server = await world.tcp(() => connected++)
    const { port } = await world.proxy({ allowPrivate: [] })
    const at = `a.example:${server}`
    expect(await talk(port, `GET http://${at}/ HTTP/1.1\r\nHost: ${at}\r\n\r\n`, /\n$/)).toMatch(
      /403 [\s\S]*loopback/,
    )
    expect(await talk(port, `CONNECT ${at} HTTP/1.1\r\n\r\n`)).toMatch(/403 [\s\S]*loopback/)
    expect(await talk(port, socksRequest('a.example', server))).toMatch(/^\x05\x00\x05\x02/)
    expect(connected).toBe(0)
  })

  it('one private address among public ones is enough to refuse', async () => {
    const { port } = await world.proxy({ allowPrivate: [], resolve: () => ['93.184.215.14', '10.0.0.1'] })
    expect(await talk(port, 'CONNECT a.example:443 HTTP/1.1\r\n\r\n')).toMatch(/403 [\s\S]*private/)
  })

  it('a name that changes its address is connected to the checked address, or not at all', async () => {
    let hidden = 0
    const open = await world.http()
    await world.tcp(() => hidden++, '127.0.0.2')
    let turn = 0
    const resolve = (): string[] => [turn++ % 2 === 0 ? '127.0.0.1' : '127.0.0.2']
    for (let round = 0; round < 6; round++) {
      const { port } = await world.proxy({ resolve })
      const heard = await talk(
        port,
        `GET http://a.example:${open}/ HTTP/1.1\r\nHost: a.example:${open}\r\nConnection: close\r\n\r\n`,
      )
      expect(heard).toMatch(round % 2 === 0 ? /200 OK/ : /403 [\s\S]*loopback/)
    }
    expect([turn, hidden]).toEqual([6, 0])
  })

  it('the proxy resolves every name itself, once per connection', async () => {
    const { port } = await world.proxy({ resolve: () => Promise.reject(new Error('SERVFAIL')) })
    expect(await talk(port, 'CONNECT a.example:443 HTTP/1.1\r\n\r\n')).toMatch(/403 [\s\S]*does not resolve/)
  })
})

describe('requests that two parsers parse differently', () => {
  const host = 'a.example'
  const attempts = (at: string): readonly (readonly [string, string])[] => {
    const get = `GET http://${at}/ HTTP/1.1\r\nHost: ${at}\r\n`
    const post = `POST http://${at}/ HTTP/1.1\r\nHost: ${at}\r\n`
    return [
      ['another host', `GET http://${at}/ HTTP/1.1\r\nHost: evil.test\r\n\r\n`],
      ['another port', `GET http://${at}/ HTTP/1.1\r\nHost: ${host}:1\r\n\r\n`],
      ['two hosts', `${get}Host: ${at}\r\n\r\n`],
      ['no host', `GET http://${at}/ HTTP/1.1\r\n\r\n`],
      ['user info', `GET http://u:p@${at}/ HTTP/1.1\r\nHost: ${at}\r\n\r\n`],
      ['user info that looks like a host', `GET http://${host}@evil.test/ HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
      ['a backslash', `GET http://evil.test\\@${at}/ HTTP/1.1\r\nHost: ${at}\r\n\r\n`],
      ['a fragment', `GET http://${at}/#@evil.test HTTP/1.1\r\nHost: ${at}\r\n\r\n`],
      ['length and chunks', `${post}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
      ['two lengths', `${post}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde`],
      ['the same length twice', `${post}Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd`],
      ['a length with a sign', `${post}Content-Length: +4\r\n\r\nabcd`],
      ['a list of lengths', `${post}Content-Length: 4, 4\r\n\r\nabcd`],
      ['an unknown coding', `${post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n`],
      ['a coding with a blank', `${post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n`],
      ['a coding in disguise', `${post}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n`],
      ['chunks in HTTP/1.0', `${post.replace('1.1', '1.0')}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n`],
      ['a bare LF', `${get.replaceAll('\r\n', '\n')}\r\n\r\n`],
      ['a bare LF in a header', `${get}X: a\nTransfer-Encoding: chunked\r\n\r\n`],
      ['a bare CR in a header', `${get}X: a\rY: b\r\n\r\n`],
      ['a NUL', `${get}X: a\0b\r\n\r\n`],
      ['a folded header', `${get}X: a\r\n b\r\n\r\n`],
      ['a header without a colon', `${get}X\r\n\r\n`],
      ['a header without a name', `${get}: x\r\n\r\n`],
      ['two blanks', `GET  http://${at}/ HTTP/1.1\r\nHost: ${at}\r\n\r\n`],
      ['a tab', `GET\thttp://${at}/ HTTP/1.1\r\nHost: ${at}\r\n\r\n`],
      ['HTTP/2', `GET http://${at}/ HTTP/2.0\r\nHost: ${at}\r\n\r\n`],
      ['the start of HTTP/2', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'],
      [
        'h2c',
        `${get}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n`,
      ],
      ['a WebSocket', `${get}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n`],
      ['TRACE', `TRACE http://${at}/ HTTP/1.1\r\nHost: ${at}\r\n\r\n`],
      ['origin form', `GET / HTTP/1.1\r\nHost: ${at}\r\n\r\n`],
      ['https without a tunnel', `GET https://${host}/ HTTP/1.1\r\nHost: ${host}\r\n\r\n`],
      ['another scheme', `GET gopher://${at}/ HTTP/1.1\r\nHost: ${at}\r\n\r\n`],
      ['CONNECT with a body', `CONNECT ${at} HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc`],
      ['CONNECT with another host', `CONNECT ${at} HTTP/1.1\r\nHost: evil.test:443\r\n\r\n`],
      ['CONNECT with a path', `CONNECT ${at}/ HTTP/1.1\r\n\r\n`],
      ['CONNECT with user info', `CONNECT u@${at} HTTP/1.1\r\n\r\n`],
      ['CONNECT with a name and a CRLF', `CONNECT ${host}%0d%0a:80 HTTP/1.1\r\n\r\n`],
    ]
  }

  it('are all refused, and none reaches a server', async () => {
    const server = await world.http()
    const { port } = await world.proxy()
    for (const [name, bytes] of attempts(`${host}:${server}`)) {
      const heard = await talk(port, bytes, /ringfence: .*\n$/)
      expect(heard, name).toMatch(/^HTTP\/1\.1 (400|403|501) [\s\S]*\r\n\r\nringfence: /)
    }
    expect(world.requests).toEqual([])
  })

  it.each([
    ['an extension', '3;x=y\r\nabc\r\n0\r\n\r\n'],
    ['a size with 0x', '0x3\r\nabc\r\n0\r\n\r\n'],
    ['a negative size', '-3\r\nabc\r\n0\r\n\r\n'],
    ['a huge size', 'ffffffffffffffff\r\nabc\r\n0\r\n\r\n'],
    ['a bare LF', '3\nabc\n0\n\n'],
    ['a chunk that is too long', '3\r\nabcGET /evil HTTP/1.1\r\n\r\n'],
    ['trailers', '3\r\nabc\r\n0\r\nHost: evil.test\r\n\r\n'],
  ])('chunks with %s break the request off', async (_, body) => {
    const seen: string[] = []
    const server = await world.http((request, response) => {
      request.on('end', () => {
        seen.push(request.url ?? '')
        response.end('complete')
      })
      request.resume()
    })
    const { port } = await world.proxy()
    const at = `a.example:${server}`
    const heard = await talk(
      port,
      `POST http://${at}/p HTTP/1.1\r\nHost: ${at}\r\nTransfer-Encoding: chunked\r\n\r\n${body}`,
    )
    expect(heard).not.toMatch(/complete/)
    expect(seen).toEqual([])
  })

  it('header names and values cannot smuggle a second request', async () => {
    const server = await world.http()
    const { port } = await world.proxy()
    const at = `a.example:${server}`
    for (const bytes of [
      `GET http://${at}/%0d%0aGET%20/evil HTTP/1.1\r\nHost: ${at}\r\nConnection: close\r\n\r\n`,
      `GET http://${at}/ HTTP/1.1\r\nHost: ${at}\r\nX: %0d%0aHost: evil\r\nConnection: close\r\n\r\n`,
    ])
      await talk(port, bytes)
    expect(world.requests.map(({ url }) => url)).toEqual(['/%0d%0aGET%20/evil', '/'])
  })
})

describe('inside a tunnel', () => {
  it('port 80 carries only HTTP to the named host', async () => {
    const { port } = await world.proxy({ limits: { connectMs: 200 } })
    const heard = await talk(
      port,
      'CONNECT a.example:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n',
    )
    expect(heard).toMatch(/^HTTP\/1\.1 200 [\s\S]*403 [\s\S]*names another host/)
    expect(await talk(port, 'CONNECT a.example:80 HTTP/1.1\r\n\r\nSSH-2.0-x\r\n\r\n')).toMatch(
      /^HTTP\/1\.1 200 [\s\S]*400/,
    )
  })

  it('TLS is recognised by its first bytes', async () => {
    expect(readHello(Buffer.from('GET / HTTP/1.1'))).toEqual({ kind: 'not-tls' })
    expect(readHello(await helloOf('b.example'))).toEqual({ kind: 'hello', name: 'b.example' })
    expect(readHello(await helloOf(''))).toEqual({ kind: 'hello' })
  })

  it('a ClientHello that is split or malformed is parsed the same or refused', async () => {
    const hello = await helloOf('a.example')
    for (let size = 1; size < hello.length; size++)
      expect(readHello(hello.subarray(0, size)).kind).toBe('more')
    const body = hello.subarray(5)
    for (const size of [1, 3, 50, 100]) {
      const records = []
      for (let at = 0; at < body.length; at += size) {
        const part = body.subarray(at, at + size)
        records.push(Buffer.from([22, 3, 1, 0, part.length]), part)
      }
      const wanted = size < 50 ? { kind: 'bad' } : { kind: 'hello', name: 'a.example' }
      expect(readHello(Buffer.concat(records))).toEqual(wanted)
    }
    for (let at = 5; at < hello.length; at++) {
      const bent = Buffer.from(hello)
      bent[at] = (bent[at] as number) ^ 0xff
      const read = readHello(bent)
      expect(['bad', 'more', 'hello', 'not-tls']).toContain(read.kind)
    }
  })
})

/** The first bytes of a real TLS client. */
async function helloOf(servername: string): Promise<Buffer> {
  let heard: (bytes: Buffer) => void = () => undefined
  const hello = new Promise<Buffer>((resolve) => {
    heard = resolve
  })
  const port = await world.tcp((socket) => void socket.once('data', (chunk) => heard(Buffer.from(chunk))))
  const secure = connectTls({ host: '127.0.0.1', port, servername })
  secure.on('error', () => undefined)
  const bytes = await hello
  secure.destroy()
  return bytes
}

describe('clients that try to exhaust the proxy', () => {
  it('get one deadline for a whole header', async () => {
    const { port, proxy } = await world.proxy({ limits: { headerMs: 150 } })
    const slow = await talking(port)
    const drip = setInterval(() => slow.socket.write('X'), 20)
    slow.socket.write('GET http://a.example/ HTTP/1.1\r\nX: ')
    const mute = await talking(port)
    const socks = await talking(port)
    socks.socket.write(Buffer.from([5]))
    await Promise.all([slow.closed, mute.closed, socks.closed])
    clearInterval(drip)
    await expect.poll(() => proxy.size).toBe(0)
  })

  it('are limited to the size of a header', async () => {
    const { port } = await world.proxy()
    const heard = await talk(port, `GET http://a.example/ HTTP/1.1\r\nX: ${'a'.repeat(1 << 20)}`)
    expect(heard === '' || /400 [\s\S]*larger than/.test(heard)).toBe(true)
    expect(await talk(port, `GET http://a.example/ HTTP/1.1\r\n${'X: y\r\n'.repeat(500)}\r\n`)).toMatch(/400/)
  })

  it('cannot make the proxy buffer unread data', async () => {
    let sent = 0
    const block = Buffer.alloc(1 << 20)
    const server = await world.tcp((socket) => {
      const more = (): void => {
        while (sent < 1 << 30 && socket.write(block)) sent += block.length
        sent += block.length
      }
      socket.on('drain', more)
      more()
    })
    const { port } = await world.proxy()
    const before = process.memoryUsage().rss
    const socket = connect(port, '127.0.0.1')
    socket.write(`CONNECT a.example:${server} HTTP/1.1\r\n\r\n`)
    socket.pause()
    await new Promise((resolve) => setTimeout(resolve, 500))
    expect(sent).toBeLessThan(64 << 20)
    expect(process.memoryUsage().rss - before).toBeLessThan(128 << 20)
    socket.destroy()
  })

  it('cannot break it or get through with random bytes', async () => {
    const looked: string[] = []
    const proxy = new EgressProxy({
      allowHosts: ['a.example'],
      // Every name resolves to a private address, so that no connection can be legitimate.
      resolve: (host) => {
        looked.push(host)
        return ['10.0.0.1']
      },
      limits: { headerMs: 50, keepAliveMs: 50, lingerMs: 20, connections: 10_000 },
      onConnection: ({ verdict }) => expect(verdict).toBe('deny'),
    })
    const seeds = [
      Buffer.from('GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n'),
      Buffer.from('POST http://a.example/x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc'),
      Buffer.from(
        'POST http://a.example/x HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n',
      ),
      Buffer.concat([Buffer.from('CONNECT a.example:443 HTTP/1.1\r\n\r\n'), await helloOf('a.example')]),
      Buffer.concat([
        Buffer.from('CONNECT a.example:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n'),
      ]),
      socksRequest('a.example', 443),
      socksRequest(Buffer.from([127, 0, 0, 1]), 80),
      socksRequest(Buffer.alloc(16), 80),
    ]
    let state = 20_261_115
    const random = (below: number): number => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
      return Math.floor((state / 2 ** 32) * below)
    }
    const rounds = full ? 50_000 : 3000
    for (let done = 0; done < rounds; done += 200)
      await Promise.all(
        Array.from({ length: 200 }, () =>
          serveBytes(proxy, mutated(seeds[random(seeds.length)] as Buffer, random), random),
        ),
      )
    expect(proxy.size).toBe(0)
    expect(looked.length).toBeGreaterThan(0)
    await proxy.close()
  })
})

function mutated(seed: Buffer, random: (below: number) => number): Buffer {
  let bytes = Buffer.from(seed)
  for (let times = random(6); times > 0; times--) {
    const at = random(bytes.length || 1)
    const kind = random(5)
    if (kind === 0 && bytes.length > 0) bytes[at] = random(256)
    else if (kind === 1)
      bytes = Buffer.concat([bytes.subarray(0, at), Buffer.from([random(256)]), bytes.subarray(at)])
    else if (kind === 2) bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1 + random(4))])
    else if (kind === 3) bytes = Buffer.concat([bytes, seed.subarray(random(seed.length))])
    else bytes = Buffer.concat([bytes.subarray(0, at), Buffer.from('\r\n'), bytes.subarray(at)])
  }
  return bytes
}

/** One client without a socket, like the guest's tunnel. */
function serveBytes(proxy: EgressProxy, bytes: Buffer, random: (below: number) => number): Promise<void> {
  const [toProxy, fromProxy] = [new PassThrough(), new PassThrough()]
  const stream = Duplex.from({ readable: toProxy, writable: fromProxy })
  fromProxy.resume()
  const cut = random(bytes.length || 1)
  toProxy.write(bytes.subarray(0, cut))
  toProxy.write(bytes.subarray(cut))
  if (random(2) === 0) toProxy.end()
  return new Promise((resolve) => {
    stream.once('close', () => resolve())
    void proxy.handle(stream)
  })
}
