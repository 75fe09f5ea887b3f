import { connect } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { get } from '../e2b/kit.ts'
import { type Answer, startTestServer, type TestServer } from './test-server.ts'

/** Who can reach a port of a sandbox, and what the program receives about the caller. */

let home: TestServer
let red: string
let blue: string
beforeAll(async () => {
  home = await startTestServer(
    '[server]\nrequests_per_second = 100000\nwrong_keys_per_second = 100000\n[[tenant]]\nname = "closed"\npublic_ports = false\n',
  )
  red = await home.key(['create', 'exec', 'read'], 'red')
  blue = await home.key(['create', 'exec', 'read'], 'blue')
})
afterAll(() => home.close())

/**
 * A program that answers whatever it is asked with 200 and goes on listening on the same connection, as one that waits for
 * the next request of a proxy would; on /ws it agrees to a WebSocket. It keeps every byte that it got.
 */
const PROGRAM = `import socket, threading
def talk(c):
  got = b''
  while b'\\r\\n\\r\\n' not in got:
    more = c.recv(65536)
    if not more: return
    got += more
  open('/tmp/got', 'ab').write(got)
  if got.startswith(b'GET /ws'):
    c.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSet-Cookie: a=b\\r\\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\\r\\n\\r\\nraw')
  else:
    c.sendall(b'HTTP/1.1 200 OK\\r\\nSet-Cookie: a=b\\r\\nConnection: keep-alive\\r\\nContent-Length: 2\\r\\n\\r\\nok')
  while True:
    more = c.recv(65536)
    if not more: return
    open('/tmp/got', 'ab').write(more)
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', 8079)); s.listen()
while True: threading.Thread(target=talk, args=(s.accept()[0],), daemon=True).start()`

type Made = { readonly id: string; readonly host: string }

async function serving(key: string, more: Record<string, unknown> = {}): Promise<Made> {
  const body = { network: { mode: 'loopback' }, ...more }
  const made = await home.call('POST', '/v1/sandboxes', { key, body })
  expect(made.status, made.text).toBe(201)
  return serve(key, made.json.id)
}

async function serve(key: string, id: string): Promise<Made> {
  const at = `/v1/sandboxes/${id}`
  await home.call('PUT', `${at}/files?path=/tmp/serve.py`, { key, body: PROGRAM })
  const exec = { argv: ['python3', '/tmp/serve.py'], background: true }
  await home.call('POST', `${at}/exec`, { key, body: exec })
  await expect.poll(async () => (await home.call('GET', `${at}/ports/8079/`, { key })).status).toBe(200)
  return { id, host: `8079-${id.replace('_', '')}.localhost` }
}

const got = async (key: string, id: string): Promise<string> =>
  (await home.call('GET', `/v1/sandboxes/${id}/files?path=/tmp/got`, { key })).text
const byHost = (made: Made, headers: Record<string, string> = {}) => get(home.server.url, made.host, headers)
const byHeader = (made: Made, headers: Record<string, string> = {}): Promise<Answer> =>
  home.call('GET', '/', {
    key: '',
    headers: { 'e2b-sandbox-id': made.id.replace('_', ''), 'e2b-sandbox-port': '8079', ...headers },
  })

/** Sends raw bytes and returns everything received until the connection is closed. */
function raw(text: string, then = ''): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(home.server.port, '127.0.0.1', () => socket.write(text))
    let said = ''
    socket.on('data', (chunk) => {
      said += chunk
      if (then) socket.write(then)
      then = ''
    })
    socket.on('close', () => resolve(said)).on('error', reject)
    setTimeout(() => socket.end(), 1500).unref()
  })
}

describe('a port of a /v1 sandbox', () => {
  test('requires a key of its tenant, by host name and by header', async () => {
    const made = await serving(red)
    for (const ask of [byHost, byHeader]) {
      expect((await ask(made)).status).toBe(401)
      expect((await ask(made, { authorization: `Bearer ${blue}` })).status).not.toBe(200)
      expect((await ask(made, { authorization: `Bearer ${red}` })).status).toBe(200)
    }
    for (const headers of [{}, { authorization: `Bearer ${blue}` }]) {
      const socket = new WebSocket(`${home.server.url.replace('http', 'ws')}/ws`, {
        headers: { host: made.host, ...headers },
      })
      expect(await new Promise((resolve) => socket.once('error', () => resolve('refused')))).toBe('refused')
    }
    await home.call('DELETE', `/v1/sandboxes/${made.id}`, { key: red })
  })

  test('is public if the sandbox was created with public_ports, unless the operator forbids it', async () => {
    const made = await serving(red, { public_ports: true })
    for (const ask of [byHost, byHeader]) expect((await ask(made)).status).toBe(200)
    await home.call('DELETE', `/v1/sandboxes/${made.id}`, { key: red })
    const closed = await home.key(['create', 'exec', 'read'], 'closed')
    const refused = await home.call('POST', '/v1/sandboxes', { key: closed, body: { public_ports: true } })
    expect(refused, refused.text).toMatchObject({ status: 403 })
    expect(refused.json.hint).toContain('public_ports')
  })
})

test('a request body to a port cannot smuggle a second request', async () => {
  const { id } = await serving(red)
  const inner = 'GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n'
  const chunked = `${inner.length.toString(16)}\r\n${inner}\r\n0\r\n\r\n`
  const head = `Host: localhost\r\nAuthorization: Bearer ${red}\r\nConnection: close\r\nTransfer-Encoding: chunked`
  for (const method of ['GET', 'DELETE', 'POST'])
    await raw(`${method} /v1/sandboxes/${id}/ports/8079/first HTTP/1.1\r\n${head}\r\n\r\n${chunked}`)
  await expect.poll(async () => (await got(red, id)).split('GET /second').length).toBe(4)
  const framed = (await got(red, id)).split(`${inner.length.toString(16)}\r\nGET /second`)
  expect(framed.length).toBe(4)
  await home.call('DELETE', `/v1/sandboxes/${id}`, { key: red })
})

describe('the E2B API', () => {
  const create = async (key: string, body: Record<string, unknown> = {}): Promise<Answer> =>
    home.call('POST', '/sandboxes', {
      key: '',
      headers: { 'x-api-key': key },
      body: { templateID: 'base', ...body },
    })
  const ours = (made: Answer): string => made.json.sandboxID.replace(/^sb/, 'sb_')

  test('opens ports by default as E2B does, unless the operator closes the ports of the tenant', async () => {
    const open = await serve(red, ours(await create(red)))
    expect((await byHost(open)).status).toBe(200)
    const closed = await home.key(['create', 'exec', 'read'], 'closed')
    const shut = await serve(closed, ours(await create(closed)))
    expect((await byHost(shut)).status).toBe(403)
    const asked = await create(closed, { network: { allowPublicTraffic: true } })
    expect(asked.status, asked.text).toBe(403)
    for (const { id } of [open, shut]) await home.call('DELETE', `/v1/sandboxes/${id}`)
  })

  test('shows access tokens only to keys that have the same rights as the token', async () => {
    const made = await create(red)
    const detail = (key: string) =>
      home.call('GET', `/sandboxes/${made.json.sandboxID}`, { key: '', headers: { 'x-api-key': key } })
    expect((await detail(red)).json.envdAccessToken).toBe(made.json.envdAccessToken)
    for (const scopes of [['read'], ['read', 'exec'], ['read', 'create']] as const) {
      const { status, text } = await detail(await home.key(scopes, 'red'))
      expect(status).toBe(200)
      expect(text).not.toContain(made.json.envdAccessToken)
      expect(text).not.toContain(made.json.trafficAccessToken)
    }
    await home.call('DELETE', `/v1/sandboxes/${ours(made)}`)
  })

  test('a sandbox token has no more rights than the key that created the sandbox', async () => {
    const made = await home.call('POST', '/v1/sandboxes', {
      key: await home.key(['create'], 'red'),
      body: {},
    })
    const at = `/v1/sandboxes/${made.json.id}`
    const exec = { key: made.json.token, body: { argv: ['true'] } }
    expect((await home.call('POST', `${at}/exec`, exec)).status).toBe(403)
    await home.call('DELETE', at)
  })

  test('the traffic token opens ports and runs no code', async () => {
    const made = await create(red)
    const headers = {
      'e2b-sandbox-id': made.json.sandboxID,
      'e2b-sandbox-port': '49999',
      'e2b-traffic-access-token': made.json.trafficAccessToken,
    }
    const run = (more: Record<string, string>) =>
      home.call('POST', '/execute', { key: '', headers: { ...headers, ...more }, body: { code: '1' } })
    expect((await run({})).status).toBe(401)
    expect((await run({ 'x-access-token': made.json.envdAccessToken })).status).toBe(200)
    const exec = { key: made.json.trafficAccessToken, body: { argv: ['true'] } }
    expect((await home.call('POST', `/v1/sandboxes/${ours(made)}/exec`, exec)).status).toBe(401)
    await home.call('DELETE', `/v1/sandboxes/${ours(made)}`)
  })

  test('requests with a traffic token count for the rate of its key, wrong ones for the rate of the address', async () => {
    const slow = await startTestServer('[server]\nrequests_per_second = 20\nwrong_keys_per_second = 5\n')
    const made = await slow.call('POST', '/sandboxes', {
      key: '',
      headers: { 'x-api-key': slow.admin },
      body: { templateID: 'base', network: { allowPublicTraffic: false } },
    })
    expect(made.status, made.text).toBe(201)
    const ask = async (token: string): Promise<number> =>
      (
        await slow.call('GET', '/', {
          key: '',
          headers: {
            'e2b-sandbox-id': made.json.sandboxID,
            'e2b-sandbox-port': '8080',
            'e2b-traffic-access-token': token,
          },
        })
      ).status
    const many = (token: string): Promise<number[]> =>
      Promise.all(Array.from({ length: 100 }, () => ask(token)))
    expect(await many(made.json.trafficAccessToken)).toContain(429)
    expect(await many('wrong')).toContain(429)
    await slow.close()
  })

  test('revoking a key revokes its sandbox tokens, traffic tokens and upload URLs', async () => {
    const { key, id } = (
      await home.call('POST', '/v1/keys', { body: { scopes: ['create', 'exec', 'read'], tenant: 'red' } })
    ).json
    const made = await create(key, { network: { allowPublicTraffic: false } })
    const own = await serve(key, ours(made))
    const token = made.json.envdAccessToken as string
    const hash = 'a'.repeat(64)
    const link = await home.call('GET', `/templates/tpl/files/${hash}`, {
      key: '',
      headers: { 'x-api-key': key },
    })
    const put = (url: string) => fetch(url, { method: 'PUT', body: 'x' }).then(({ status }) => status)
    const uses = (): Promise<number[]> =>
      Promise.all([
        home
          .call('POST', `/v1/sandboxes/${own.id}/exec`, { key: token, body: { argv: ['true'] } })
          .then(({ status }) => status),
        byHost(own, { 'e2b-traffic-access-token': made.json.trafficAccessToken }).then(
          ({ status }) => status,
        ),
        put(link.json.url),
      ])
    expect(await uses()).toEqual([200, 200, 200])
    await home.call('DELETE', `/v1/keys/${id}`)
    expect(await uses()).toEqual([401, 401, 401])
    await home.call('DELETE', `/v1/sandboxes/${own.id}`)
  })

  test('an upload URL expires and gives access only to its own file', async () => {
    const hash = 'b'.repeat(64)
    const link = await home.call('GET', `/templates/tpl/files/${hash}`, {
      key: '',
      headers: { 'x-api-key': red },
    })
    const put = async (change: (url: URL) => void): Promise<number> => {
      const url = new URL(link.json.url)
      change(url)
      return (await fetch(url, { method: 'PUT', body: 'x' })).status
    }
    expect(await put((url) => url.searchParams.set('expires', '9999999999'))).toBe(401)
    expect(await put((url) => url.searchParams.set('expires', '1'))).toBe(401)
    expect(await put((url) => url.searchParams.delete('expires'))).toBe(401)
    expect(await put((url) => url.searchParams.set('tenant', 'blue'))).toBe(401)
    expect(await put((url) => (url.pathname = url.pathname.replace(hash, 'c'.repeat(64))))).toBe(401)
    expect(await put(() => {})).toBe(200)
  })
})

describe('an Upgrade request to a port', () => {
  const head = (id: string, path: string, more = ''): string =>
    `GET /v1/sandboxes/${id}/ports/8079${path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${red}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n${more}\r\n`
  const NEXT = 'GET /v1/keys HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer of-somebody-else\r\n\r\n'

  test('that the program does not accept ends as a normal response; the program gets no raw connection', async () => {
    const { id } = await serving(red)
    const said = await raw(head(id, '/plain'), NEXT)
    expect(said).toMatch(/^HTTP\/1\.1 200 /)
    expect(said).toMatch(/connection: close/i)
    expect(said).toMatch(/content-security-policy: sandbox/i)
    expect(said).not.toMatch(/set-cookie/i)
    expect(await got(red, id)).not.toContain('of-somebody-else')
    // Control: after an accepted upgrade, later bytes do reach the program.
    const joined = await raw(
      head(id, '/ws', 'Sec-WebSocket-Protocol: ringfence, bearer.abc, console.abc, mine\r\n'),
      'later bytes',
    )
    expect(joined).toMatch(/^HTTP\/1\.1 101 [\s\S]*\r\n\r\nraw$/)
    expect(joined).not.toMatch(/set-cookie/i)
    await expect.poll(() => got(red, id)).toContain('later bytes')
    const all = await got(red, id)
    expect(all).toMatch(/sec-websocket-protocol: mine\r\n/i)
    expect(all).not.toMatch(/ringfence|bearer|console/i)
    await home.call('DELETE', `/v1/sandboxes/${id}`, { key: red })
  })
})

describe('a host name with an invalid port', () => {
  test.each(['0', '00', '65536', '99999'])('%s reaches no route of the server', async (port) => {
    const { id } = await home.call('POST', '/v1/sandboxes', { key: red, body: {} }).then(({ json }) => json)
    const host = `${port}-${id.replace('_', '')}.localhost`
    for (const path of ['/console/', '/healthz', '/v1/sandboxes', `/v1/sandboxes/${id}/ports/8079/`]) {
      const { status, text } = await get(home.server.url + path, host, { authorization: `Bearer ${red}` })
      expect([status, text], path).toEqual([502, expect.stringContaining('The sandbox was not found')])
    }
  })
})

test('on the host name of a port, paths of the server API go to the program', async () => {
  const { id, host } = await serving(red, { public_ports: true })
  const { port } = new URL(home.server.url)
  const socket = new WebSocket(`ws://127.0.0.1:${port}/v1/sandboxes/${id}/pty`, {
    headers: { host, authorization: `Bearer ${red}` },
  })
  const status = await new Promise<number>((resolve) => {
    socket.on('unexpected-response', (_, { statusCode = 0 }) => resolve(statusCode))
    socket.on('error', () => {})
    socket.on('open', () => resolve(101))
  })
  // The program's own answer; the server's would be that terminals are switched off.
  expect(status).toBe(200)
})
