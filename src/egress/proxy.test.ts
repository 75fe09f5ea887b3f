import { createHash, randomBytes } from 'node:crypto'
import { get } from 'node:http'
import { request as requestTls } from 'node:https'
import { connect, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { SandboxError } from '../model/errors.ts'
import { Descriptors } from './descriptors.ts'
import { socksRequest, talk, talking, World } from './testkit/world.ts'

let world: World
beforeEach(() => {
  world = new World()
})
afterEach(() => world.end())

const full = Boolean(process.env.RINGFENCE_FULL)
const getThrough = (port: number, host: string, serverPort: number, path = '/'): Promise<string> =>
  talk(
    port,
    `GET http://${host}:${serverPort}${path} HTTP/1.1\r\nHost: ${host}:${serverPort}\r\nConnection: close\r\n\r\n`,
  )
const connectLine = (target: string): string => `CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`

/** A tunnel through CONNECT, as a socket. */
function tunnelTo(port: number, target: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const request = get({
      host: '127.0.0.1',
      port,
      method: 'CONNECT',
      path: target,
      headers: { host: target },
    })
    request.on('connect', (response, socket, head) => {
      socket.unshift(head)
      if (response.statusCode === 200) resolve(socket)
      else {
        socket.destroy()
        reject(new Error(String(response.headers['x-ringfence-reason'])))
      }
    })
    request.on('response', (response) => reject(new Error(String(response.headers['x-ringfence-reason']))))
    request.on('error', reject)
  })
}

/** A TLS request inside a tunnel; `servername` may differ from the host. */
async function fetchTls(port: number, target: string, servername: string): Promise<string> {
  const socket = await tunnelTo(port, target)
  return new Promise((resolve, reject) => {
    const secure = connectTls({ socket, servername, ca: world.authority.certificate })
    secure.on('error', reject).on('close', () => reject(new Error('closed')))
    const request = requestTls(
      { createConnection: () => secure, host: servername, path: '/' },
      (response) => {
        let body = ''
        response.on('data', (chunk) => {
          body += chunk
        })
        response.on('end', () => resolve(body))
      },
    )
    request.on('error', reject)
    request.end()
  })
}

describe('absolute-form', () => {
  it('fetches from an allowed host, with its address pinned', async () => {
    const server = await world.http()
    const { port } = await world.proxy()
    const heard = await getThrough(port, 'a.example', server, '/x/../y?q=%41')
    expect(heard).toMatch(/^HTTP\/1\.1 200 OK\r\n[\s\S]*hello$/)
    expect(world.requests[0]).toMatchObject({
      url: '/x/../y?q=%41',
      headers: { host: `a.example:${server}` },
    })
    await expect
      .poll(() => world.events)
      .toMatchObject([
        { host: 'a.example', port: server, address: '127.0.0.1', protocol: 'http', verdict: 'allow' },
      ])
    expect(world.events[0]?.bytesIn).toBeGreaterThan(5)
  })

  it('refuses with a reason for people and a code for programs', async () => {
    const { port } = await world.proxy()
    const heard = await getThrough(port, 'b.test', 80)
    expect(heard).toMatch(/^HTTP\/1\.1 403 /)
    expect(heard).toContain('\r\nx-ringfence-reason: ssrf-blocked: `b.test` is not an allowed host\r\n')
    expect(heard).toMatch(/\r\n\r\nringfence: ssrf-blocked: `b.test` is not an allowed host\n$/)
    expect(world.events).toMatchObject([{ host: 'b.test', verdict: 'deny', bytesIn: 0 }])
    expect(world.lookups).toEqual([])
  })

  it('judges each request of a connection', async () => {
    const server = await world.http()
    const { port } = await world.proxy()
    const line = (host: string): string =>
      `GET http://${host}:${server}/ HTTP/1.1\r\nHost: ${host}:${server}\r\n\r\n`
    const wire = await talking(port)
    wire.socket.write(line('a.example'))
    await wire.until(/hello$/)
    wire.socket.write(line('b.test'))
    await wire.until(/403 [\s\S]*allowed host\n$/)
    wire.socket.write(line('a.example') + line('c.example'))
    await wire.until(/403 [\s\S]*hello[\s\S]*hello$/)
    wire.socket.destroy()
    expect(world.requests).toHaveLength(3)
  })

  it('forwards bodies of known and unknown length, both ways', async () => {
    const server = await world.http((request, response) => void request.pipe(response))
    const { port } = await world.proxy()
    const head = `POST http://a.example:${server}/ HTTP/1.1\r\nHost: a.example:${server}\r\n`
    const wire = await talking(port)
    wire.socket.write(`${head}Content-Length: 5\r\n\r\nabcde`)
    await wire.until(/abcde/)
    wire.socket.write(`${head}Transfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n`)
    wire.socket.write('0\r\n\r\n')
    expect(await wire.until(/xyz\r\n0\r\n\r\n$/)).toMatch(/transfer-encoding: chunked/)
    wire.socket.destroy()
  })

  it('sends 100 Continue if it is expected', async () => {
    const server = await world.http((request, response) => void request.pipe(response))
    const { port } = await world.proxy()
    const wire = await talking(port)
    wire.socket.write(
      `POST http://a.example:${server}/ HTTP/1.1\r\nHost: a.example:${server}\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n`,
    )
    await wire.until(/^HTTP\/1\.1 100 Continue\r\n\r\n/)
    wire.socket.write('ok')
    await wire.until(/200 OK[\s\S]*ok/)
    wire.socket.destroy()
  })

  it('drops hop-by-hop headers and adds none of its own', async () => {
    const server = await world.http()
    const { port } = await world.proxy()
    await talk(
      port,
      `GET http://a.example:${server}/ HTTP/1.1\r\nHost: a.example:${server}\r\nProxy-Authorization: Basic eA==\r\nConnection: x-secret, close\r\nX-Secret: 1\r\nX-Other: 2\r\nKeep-Alive: 5\r\nTE: trailers\r\n\r\n`,
    )
    const names = Object.keys(world.requests[0]?.headers ?? {}).sort()
    expect(names).toEqual(['connection', 'host', 'x-other'])
  })

  it('answers 502 if nothing listens, or the server does not speak HTTP', async () => {
    const server = await world.tcp((socket) => socket.end('SSH-2.0-x\r\n\r\n'))
    const { port } = await world.proxy()
    expect(await getThrough(port, 'a.example', 9)).toMatch(/^HTTP\/1\.1 403/)
    expect(await getThrough(port, 'a.example', 50_999)).toMatch(/^HTTP\/1\.1 502 [\s\S]*fetch-failed/)
    expect(await getThrough(port, 'a.example', server)).toMatch(/^HTTP\/1\.1 502 [\s\S]*not valid HTTP/)
  })

  it('reuses an idle connection, only for the same host', async () => {
    const peers = new Set<number | undefined>()
    const server = await world.http((request, response) => {
      peers.add(request.socket.remotePort)
      response.end('hello')
    })
    const { port } = await world.proxy()
    for (let i = 0; i < 5; i++) expect(await getThrough(port, 'a.example', server)).toMatch(/hello$/)
    expect(peers.size).toBe(1)
    expect(await getThrough(port, 'b.example', server)).toMatch(/hello$/)
    expect(peers.size).toBe(2)
  })

  it('retries if the idle connection was closed meanwhile', async () => {
    const server = await world.tcp((socket) => {
      let served = 0
      socket.on('data', () => {
        // Answers once and closes the connection at the second request.
        if (served++ > 0) socket.destroy()
        else socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
      })
    })
    const { port } = await world.proxy()
    expect(await getThrough(port, 'a.example', server)).toMatch(/ok$/)
    expect(await getThrough(port, 'a.example', server)).toMatch(/200 OK[\s\S]*ok$/)
  })

  it('never uses unsolicited bytes as the answer to the next request', async () => {
    const server = await world.tcp((socket) => {
      socket.on('data', () => {
        socket.write(
          'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil',
        )
      })
    })
    const { port } = await world.proxy()
    for (let i = 0; i < 3; i++) expect(await getThrough(port, 'a.example', server)).not.toMatch(/evil/)
  })
})

describe('tunnels', () => {
  it('transfer all bytes, whichever side ends first', async () => {
    const size = full ? 256 << 20 : 8 << 20
    const block = randomBytes(1 << 20)
    const server = await world.tcp((socket) => {
      const hash = createHash('sha256')
      socket.on('data', (chunk) => hash.update(chunk))
      socket.on('end', () => socket.end(hash.digest('hex')))
    })
    const { port } = await world.proxy()
    const socket = await tunnelTo(port, `a.example:${server}`)
    const sent = createHash('sha256')
    let heard = ''
    socket.on('data', (chunk) => {
      heard += chunk
    })
    for (let done = 0; done < size; done += block.length) {
      sent.update(block)
      if (!socket.write(block)) await new Promise((resolve) => socket.once('drain', resolve))
    }
    socket.end()
    await new Promise((resolve) => socket.once('end', resolve))
    expect(heard).toBe(sent.digest('hex'))
    await expect
      .poll(() => world.events[0])
      .toMatchObject({ protocol: 'connect', bytesOut: size, bytesIn: 64 })
  })

  it('transfer large downloads unchanged to a slow reader', async () => {
    const size = 8 << 20
    const bytes = randomBytes(size)
    const server = await world.tcp((socket) => socket.end(bytes))
    const { port } = await world.proxy()
    const socket = await tunnelTo(port, `a.example:${server}`)
    const hash = createHash('sha256')
    for await (const chunk of socket) {
      hash.update(chunk as Buffer)
      if (Math.random() < 0.05) await new Promise((resolve) => setTimeout(resolve, 2))
    }
    expect(hash.digest('hex')).toBe(createHash('sha256').update(bytes).digest('hex'))
  })

  it.each([
    ['a name', (port: number) => socksRequest('a.example', port)],
    ['an opened address', (port: number) => socksRequest(Buffer.from([127, 0, 0, 1]), port)],
  ])('work over SOCKS5 with %s', async (_, request) => {
    const server = await world.tcp((socket) => socket.pipe(socket))
    const { port } = await world.proxy({ allowHosts: ['*.example', '127.0.0.1'] })
    const wire = await talking(port)
    wire.socket.write(request(server))
    await wire.until(/^\x05\x00\x05\x00\x00\x01\0{6}$/)
    wire.socket.write('ping')
    await wire.until(/ping$/)
    wire.socket.end()
    await wire.closed
    await expect
      .poll(() => world.events)
      .toMatchObject([{ protocol: 'socks5', verdict: 'allow', bytesOut: 4 }])
  })

  it('support servers that speak first', async () => {
    const server = await world.tcp((socket) => void socket.write('SSH-2.0-x\r\n'))
    const { port } = await world.proxy()
    expect(await talk(port, connectLine(`a.example:${server}`), /SSH/)).toMatch(/200 [\s\S]*SSH-2\.0-x/)
  })

  it('require the TLS server name to match the requested host', async () => {
    const server = await world.https()
    const { port } = await world.proxy()
    const at = `a.example:${server}`
    expect(await fetchTls(port, at, 'a.example')).toBe('hello')
    await expect(fetchTls(port, at, 'b.example')).rejects.toThrow()
    await expect
      .poll(() => world.events.filter(({ verdict }) => verdict === 'deny'))
      .toMatchObject([{ host: 'a.example', reason: 'TLS names `b.example` in a connection to `a.example`' }])
    expect(world.requests).toHaveLength(1)
  })

  it('end when their host is no longer allowed, and only those', async () => {
    const server = await world.tcp((socket) => socket.pipe(socket))
    const { port, proxy } = await world.proxy()
    const [a, b] = [await tunnelTo(port, `a.example:${server}`), await tunnelTo(port, `b.example:${server}`)]
    const closed = new Promise((resolve) => a.once('close', resolve))
    a.on('error', () => undefined).resume()
    proxy.setAllowHosts(['b.example'])
    await closed
    expect(world.events).toMatchObject([{ host: 'a.example', verdict: 'deny' }])
    const answer = new Promise((resolve) => b.once('data', (chunk) => resolve(String(chunk))))
    b.write('still here')
    expect(await answer).toBe('still here')
    b.destroy()
    await expect(tunnelTo(port, `a.example:${server}`)).rejects.toThrow('not an allowed host')
  })

  it('end when idle, and when one half stays open', async () => {
    const silent = await world.tcp(() => undefined)
    const { port } = await world.proxy({ limits: { idleMs: 100 } })
    const idle = await tunnelTo(port, `a.example:${silent}`)
    await new Promise((resolve) =>
      idle
        .on('error', () => undefined)
        .once('close', resolve)
        .resume(),
    )
    const half = await world.proxy({ limits: { halfOpenMs: 100 } })
    const socket = await tunnelTo(half.port, `a.example:${silent}`)
    socket.end()
    await new Promise((resolve) =>
      socket
        .on('error', () => undefined)
        .once('close', resolve)
        .resume(),
    )
    await expect
      .poll(() => world.events.map(({ reason }) => reason))
      .toEqual(['nothing moved for 100 ms', 'one side has ended and the other does not'])
  })

  it('all end with the proxy', async () => {
    const server = await world.tcp((socket) => socket.pipe(socket))
    const { port, proxy } = await world.proxy()
    const socket = await tunnelTo(port, `a.example:${server}`)
    const closed = new Promise((resolve) =>
      socket
        .on('error', () => undefined)
        .once('close', resolve)
        .resume(),
    )
    await proxy.close()
    await closed
    expect(proxy.size).toBe(0)
  })
})

describe('the owner', () => {
  it('is notified before the connection is made, and can refuse it', async () => {
    const order: string[] = []
    const server = await world.http((_, response) => {
      order.push('server')
      response.end()
    })
    const admit = async ({ host }: { host: string }): Promise<void> => {
      await new Promise((resolve) => setTimeout(resolve, 20))
      order.push(`admit ${host}`)
      if (host === 'b.example') throw new SandboxError('trail-unwritable', 'the trail is full')
      if (host === 'c.example') throw new Error('token=hunter2')
    }
    const { port } = await world.proxy({ admit })
    await getThrough(port, 'a.example', server)
    expect(await getThrough(port, 'b.example', server)).toMatch(
      /503 [\s\S]*trail-unwritable: the trail is full/,
    )
    expect(await getThrough(port, 'c.example', server)).toMatch(/403 [\s\S]*not admitted/)
    expect(order).toEqual(['admit a.example', 'server', 'admit b.example', 'admit c.example'])
    expect(JSON.stringify(world.events)).not.toContain('hunter2')
  })

  it('can only add to the built-in checks', async () => {
    const server = await world.http()
    const { port } = await world.proxy({
      policy: ({ host }) => ({ verdict: host.startsWith('a') ? 'allow' : 'block', reason: 'no' }),
    })
    expect(await getThrough(port, 'a.example', server)).toMatch(/200/)
    expect(await getThrough(port, 'b.example', server)).toMatch(/403/)
    expect(await getThrough(port, 'a.test', server)).toMatch(/403/)
  })

  it('can require credentials', async () => {
    const server = await world.http()
    const { port } = await world.proxy({ credentials: { user: 'me', password: 'pass' } })
    const ask = (header: string): Promise<string> =>
      talk(
        port,
        `GET http://a.example:${server}/ HTTP/1.1\r\nHost: a.example:${server}\r\n${header}Connection: close\r\n\r\n`,
      )
    const basic = (text: string): string =>
      `Proxy-Authorization: Basic ${Buffer.from(text).toString('base64')}\r\n`
    expect(await ask('')).toMatch(/^HTTP\/1\.1 407 /)
    expect(await ask(basic('me:wrong'))).toMatch(/^HTTP\/1\.1 407 /)
    expect(await ask(basic('me:pass'))).toMatch(/^HTTP\/1\.1 200 /)
    expect(await talk(port, socksRequest('a.example', server))).toBe('\x05\xff')
    const auth = Buffer.concat([
      Buffer.from([5, 1, 2, 1, 2]),
      Buffer.from('me'),
      Buffer.from([4]),
      Buffer.from('pass'),
    ])
    const reply = await talk(
      port,
      Buffer.concat([auth, socksRequest('a.example', server).subarray(3)]),
      /\0{6}$/,
    )
    expect(reply).toBe('\x05\x02\x01\x00\x05\x00\x00\x01\0\0\0\0\0\0')
  })

  it('cannot make it listen for others', async () => {
    const { proxy } = await world.proxy()
    await expect(proxy.listen({ host: '0.0.0.0' })).rejects.toMatchObject({ code: 'invalid-input' })
  })
})

describe('many at once', () => {
  it('serves concurrent clients, and refuses those above the limit', async () => {
    const count = full ? 4000 : 300
    const server = await world.http()
    // Those of this process may not be enough for so many.
    const descriptors = new Descriptors(32 * count)
    const { port, proxy } = await world.proxy({ limits: { connections: count }, descriptors })
    const answers = await Promise.all(
      Array.from({ length: count }, () => getThrough(port, 'a.example', server)),
    )
    const wrong = answers.filter((answer) => !answer.endsWith('hello')).map((answer) => answer.slice(0, 200))
    expect([...new Set(wrong)]).toEqual([])
    const idle = Array.from({ length: count }, () => connect(port, '127.0.0.1').on('error', () => undefined))
    await expect.poll(() => proxy.size, { timeout: 30_000 }).toBe(count)
    expect(await getThrough(port, 'a.example', server)).toMatch(/503 [\s\S]*too many connections/)
    for (const socket of idle) socket.destroy()
    await expect.poll(() => proxy.size, { timeout: 30_000 }).toBe(0)
  })
})

describe('a list that changes while a question is pending', () => {
  it('is evaluated when the connection is made', async () => {
    let connected = 0
    const server = await world.tcp(() => connected++)
    const made: Awaited<ReturnType<World['proxy']>> = await world.proxy({
      admit: () => made.proxy.setAllowHosts(['b.example']),
    })
    await expect(tunnelTo(made.port, `a.example:${server}`)).rejects.toThrow('not an allowed host')
    expect(connected).toBe(0)
    expect(world.events).toMatchObject([{ host: 'a.example', verdict: 'deny' }])
  })
})
