import { appendFileSync, mkdirSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { startServer } from '../../src/compose/serve.ts'
import { ROUTES } from '../../src/server/app.ts'
import type { Route } from '../../src/server/route.ts'
import { type Answer, FULL, startTestServer, type TestServer } from './test-server.ts'

/** Two tenants on every route: neither reaches a sandbox of the other, and each reaches its own (the control). */

let home: TestServer
const tenants: {
  readonly key: string
  readonly sandbox: string
  readonly token: string
  readonly exec: string
  readonly changed: string
}[] = []
type Sampled = (typeof tenants)[number]

beforeAll(async () => {
  home = await startTestServer(
    '[policy]\nallow_interactive = true\n[server]\nrequests_per_second = 100000\nwrong_keys_per_second = 100000\n',
  )
  await grantWorkspaces()
  for (const tenant of ['red', 'blue']) {
    const key = await home.key(['create', 'exec', 'read'], tenant)
    const made = await home.call('POST', '/v1/sandboxes', {
      key,
      body: { agent_id: tenant, network: { mode: 'loopback' }, workspace: workspaceOf(tenant), review: true },
    })
    expect(made.status, made.text).toBe(201)
    const sandbox = made.json.id as string
    const ran = await home.call('POST', `/v1/sandboxes/${sandbox}/exec`, {
      key,
      body: { command: `echo ${tenant}`, background: true },
    })
    await home.call('PUT', `/v1/sandboxes/${sandbox}/files?path=/tmp/own`, { key, body: tenant })
    const changed = `${workspaceOf(tenant)}/changed`
    await home.call('PUT', `/v1/sandboxes/${sandbox}/files?path=${changed}`, { key, body: tenant })
    tenants.push({ key, sandbox, token: made.json.token, exec: ran.json.exec_id, changed })
  }
})
afterAll(() => home.close())

/** Each tenant may write its own directory of the host, and no other. */
async function grantWorkspaces(): Promise<void> {
  const tables = ['red', 'blue'].map(
    (name) => `[[tenant]]\nname = "${name}"\nhost_paths = [{ path = "${workspaceOf(name)}", mode = "rw" }]\n`,
  )
  appendFileSync(join(home.dir, 'ringfence.toml'), tables.join(''))
  expect((await home.call('POST', '/v1/reload', { body: {} })).status).toBe(200)
}

function workspaceOf(tenant: string): string {
  const dir = join(home.dir, tenant)
  mkdirSync(dir, { recursive: true })
  return dir
}

/** A request that succeeds for the owner. */
function sample(route: Route, own: Sampled): { path: string; body?: unknown } {
  const path = route.path
    .replace('/v1/sandboxes/:id', `/v1/sandboxes/${own.sandbox}`)
    .replace(':exec', own.exec)
    .replace(':port', '1')
    .replace('*', 'x')
  const filePath = /diff$/.test(path) ? own.changed : /list|watch/.test(path) ? '/tmp' : '/tmp/own'
  const query = /files|diff$/.test(path) ? `?path=${filePath}` : ''
  const bodies: Readonly<Record<string, unknown>> = {
    exec: { argv: ['true'] },
    stdin: { exec_id: own.exec, data: 'x' },
    resize: { exec_id: own.exec, terminal: { cols: 80, rows: 24 } },
    signal: { exec_id: own.exec },
    timeout: { timeout_ms: 60_000 },
    network: { allow_hosts: [] },
  }
  const last = path.split('/').at(-1) ?? ''
  const body = route.body ? (bodies[last] ?? {}) : route.method === 'PUT' ? 'text' : undefined
  return { path: `${path}${query}`, ...(body === undefined ? {} : { body }) }
}

const ofSandbox = ROUTES.filter(({ path }) => path.startsWith('/v1/sandboxes/:id'))
const methodOf = (route: Route): string => (route.method === 'ALL' ? 'GET' : route.method)

/** Streams never end by themselves; their head is enough. */
async function status(key: string, method: string, path: string, body?: unknown): Promise<number> {
  const stop = new AbortController()
  const raw = typeof body === 'string'
  const response = await fetch(`${home.server.url}${path}`, {
    method,
    headers: {
      'x-api-key': key,
      ...(body === undefined || raw ? {} : { 'content-type': 'application/json' }),
    },
    signal: stop.signal,
    ...(body === undefined ? {} : { body: raw ? body : JSON.stringify(body) }),
  })
  stop.abort()
  return response.status
}

describe('two tenants', () => {
  test.each(
    ofSandbox
      .filter(({ method }) => method !== 'DELETE')
      .map((route) => [methodOf(route), route.path, route] as const),
  )('%s %s: a sandbox of the other tenant does not exist', async (method, _, route) => {
    const [red, blue] = tenants as [(typeof tenants)[number], (typeof tenants)[number]]
    for (const [own, other] of [
      [red, blue],
      [blue, red],
    ] as const) {
      const { path, body } = sample(route, own)
      if (route.scope === 'admin') {
        // Admin routes: no tenant may use them, not even for its own sandboxes.
        for (const { key } of [own, other]) expect(await status(key, method, path, body)).toBe(403)
        for (const { token } of [own, other]) expect(await status(token, method, path, body)).toBe(401)
        expect(await status(home.admin, method, path, body)).not.toBe(403)
        continue
      }
      expect(await status(other.key, method, path, body)).toBe(404)
      expect(await status(other.token, method, path, body)).toBe(401)
      const mine = await status(own.key, method, path, body)
      expect(mine, `${method} ${path}`).not.toBe(404)
      expect([200, 201, 202, 204, 409, 501]).toContain(mine)
      if (route.sandboxToken) expect(await status(own.token, method, path, body)).toBe(mine)
      else expect(await status(own.token, method, path, body)).toBe(401)
    }
  })

  test('delete only their own sandboxes', async () => {
    const [red, blue] = tenants as [(typeof tenants)[number], (typeof tenants)[number]]
    const made = await home.call('POST', '/v1/sandboxes', { key: red.key, body: {} })
    const path = `/v1/sandboxes/${made.json.id}`
    expect((await home.call('DELETE', path, { key: blue.key })).status).toBe(404)
    expect((await home.call('GET', path, { key: red.key })).json.state).toBe('ready')
    expect((await home.call('DELETE', path, { key: red.key })).json.state).toBe('destroyed')
    expect((await home.call('DELETE', path, { key: blue.key })).status).toBe(404)
  })

  test('have separate lists, audit logs and idempotency keys', async () => {
    const [red, blue] = tenants as [(typeof tenants)[number], (typeof tenants)[number]]
    const list = await home.call('GET', '/v1/sandboxes', { key: red.key })
    expect(list.json.items.map(({ tenant }: { tenant: string }) => tenant)).not.toContain('blue')
    expect(list.json.items.length).toBeGreaterThan(0)
    for (const path of ['/v1/audit', '/api/audit']) {
      const { text } = await home.call('GET', `${path}?limit=1000`, { key: red.key })
      expect(text).toContain(red.sandbox)
      expect(text).not.toContain(blue.sandbox)
    }
    const headers = { 'idempotency-key': 'same' }
    const one = await home.call('POST', '/v1/sandboxes', { key: red.key, body: {}, headers })
    const two = await home.call('POST', '/v1/sandboxes', { key: blue.key, body: {}, headers })
    expect(one.json.id).not.toBe(two.json.id)
    expect(two.json.tenant).toBe('blue')
    for (const [key, made] of [
      [red.key, one],
      [blue.key, two],
    ] as const)
      await home.call('DELETE', `/v1/sandboxes/${made.json.id}`, { key })
  })

  test('have separate terminals and sockets', async () => {
    const [red, blue] = tenants as [(typeof tenants)[number], (typeof tenants)[number]]
    const opens = (key: string, id: string): Promise<boolean> =>
      new Promise((resolve) => {
        const url = `${home.server.url.replace('http', 'ws')}/v1/sandboxes/${id}/pty?command=true`
        const socket = new WebSocket(url, { headers: { authorization: `Bearer ${key}` } })
        socket.once('open', () => resolve(true)).once('error', () => resolve(false))
      })
    expect(await opens(red.key, red.sandbox)).toBe(true)
    expect(await opens(red.token, red.sandbox)).toBe(true)
    expect(await opens(blue.key, red.sandbox)).toBe(false)
    expect(await opens(blue.token, red.sandbox)).toBe(false)
  })
})

describe('API keys', () => {
  const admin = ROUTES.filter(({ scope }) => scope === 'admin')
  test('are required with the right scope on every route except the public ones', async () => {
    const scoped = {
      create: await home.key(['create'], 'green'),
      exec: await home.key(['exec'], 'green'),
      read: await home.key(['read'], 'green'),
    }
    const own = { key: '', sandbox: 'sb_none', token: '', exec: 'ex_none', changed: '/none' }
    for (const route of ROUTES.filter(({ scope }) => scope !== 'open')) {
      const { path, body } = sample(route, own)
      for (const key of ['', 'rf_', `rf_${'0'.repeat(40)}`, 'Bearer', 'rfs_x'])
        expect(await status(key, methodOf(route), path, body), `${route.path} ${key}`).toBe(401)
      for (const [scope, key] of Object.entries(scoped))
        if (scope !== route.scope)
          expect(await status(key, methodOf(route), path, body), `${route.path} ${scope}`).toBe(403)
    }
    expect(admin.length).toBeGreaterThan(4)
  })

  test('are rejected at once after they are revoked, and are not stored in plain text', async () => {
    const made = await home.call('POST', '/v1/keys', { body: { name: 'short', scopes: ['read'] } })
    const key = made.json.key as string
    expect((await home.call('GET', '/v1/sandboxes', { key })).status).toBe(200)
    await home.call('DELETE', `/v1/keys/${made.json.id}`)
    expect((await home.call('GET', '/v1/sandboxes', { key })).status).toBe(401)
    const rows = await home.server.store.read('SELECT * FROM keys')
    expect(JSON.stringify(rows)).not.toContain(key.slice(8))
    expect((await home.call('GET', '/v1/keys')).text).not.toContain(key.slice(8))
  })

  test('that are wrong are rate-limited', async () => {
    // So low that the limit is reached even if a busy machine spreads the requests over several seconds.
    const other = await startTestServer('[server]\nwrong_keys_per_second = 1\n')
    const answers = await Promise.all(
      Array.from({ length: 100 }, () => other.call('GET', '/v1/sandboxes', { key: `rf_${'1'.repeat(40)}` })),
    )
    expect(answers.map(({ status }) => status)).toContain(429)
    expect((await other.call('GET', '/v1/sandboxes')).status).toBe(200)
    await other.close()
  })

  /** The distinct answers of the server to many WebSockets with one key. */
  const saidToSockets = async ({ server }: TestServer, path: string, key: string): Promise<string[]> => {
    const url = `${server.url.replace('http', 'ws')}${path}`
    const refused = (): Promise<string> =>
      new Promise((resolve) => {
        const socket = new WebSocket(url, { headers: { authorization: `Bearer ${key}` } })
        socket.on('error', (error) => resolve(error.message.slice(-3)))
      })
    return [...new Set(await Promise.all(Array.from({ length: 100 }, refused)))].sort()
  }

  test.each([
    ['a terminal', '/v1/sandboxes/sb_0/pty'],
    ['a port', '/v1/sandboxes/sb_0/ports/80/'],
    ['exec-server', `/v1/exec-server/${'0'.repeat(48)}`],
  ])('that are wrong are rate-limited on WebSockets: %s', async (_, path) => {
    const other = await startTestServer('[server]\nwrong_keys_per_second = 1\n')
    expect(await saidToSockets(other, path, `rf_${'1'.repeat(40)}`)).toEqual(['401', '429'])
    await other.close()
  })

  test('count WebSockets towards their request rate', async () => {
    const other = await startTestServer('[server]\nrequests_per_second = 1\n')
    const path = '/v1/sandboxes/sb_0/ports/80/'
    expect(await saidToSockets(other, path, other.admin)).toEqual(['404', '429'])
    await other.close()
  })
})

describe('Host and Origin headers', () => {
  const raw = (text: string): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connect(home.server.port, '127.0.0.1', () => socket.write(text))
      let said = ''
      socket
        .on('data', (chunk) => (said += chunk))
        .on('close', () => resolve(said))
        .on('error', reject)
    })
  const get = (host: string, more = ''): Promise<string> =>
    raw(
      `GET /v1/sandboxes HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${home.admin}\r\nConnection: close\r\n${more}\r\n`,
    )

  test.each([
    ['localhost', 200],
    ['127.0.0.1:4200', 200],
    ['[::1]:4200', 200],
    ['49983-sb.localhost', 200],
    ['evil.example', 421],
    ['localhost.evil.example', 421],
    ['127.0.0.1.evil.example', 421],
    ['localhost@evil.example', 400],
  ])('Host %s → %i', async (host, code) => {
    expect(await get(host)).toMatch(new RegExp(`^HTTP/1.1 ${code} `))
  })

  test.each([
    ['http://evil.example', 403],
    ['null', 403],
    ['http://localhost.evil.example', 403],
    ['http://localhost', 200],
  ])('Origin %s → %i', async (origin, code) => {
    expect(await get('localhost', `Origin: ${origin}\r\n`)).toMatch(new RegExp(`^HTTP/1.1 ${code} `))
  })

  test('a WebSocket from another page is refused', async () => {
    const [red] = tenants
    const said = await raw(
      `GET /v1/sandboxes/${red?.sandbox}/pty HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\nAuthorization: Bearer ${red?.key}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n`,
    )
    expect(said).toMatch(/^HTTP\/1.1 403 /)
  })

  test('listening on all addresses without TLS is refused', async () => {
    await expect(
      startServer({ host: '0.0.0.0', port: 0, env: { HOME: home.dir, RINGFENCE_HOME: `${home.dir}/other` } }),
    ).rejects.toMatchObject({ code: 'invalid-config' })
  })
})

describe('invalid and oversized requests', () => {
  const post = (body: string | Uint8Array, headers: Record<string, string> = {}): Promise<Answer> =>
    home.call('POST', '/v1/sandboxes', { body, headers: { 'content-type': 'application/json', ...headers } })

  test.each<[string, () => Promise<Answer>, number]>([
    ['a large body', () => post(`{"agent_id":"${'x'.repeat(2 * 1024 * 1024)}"}`), 413],
    ['deeply nested JSON', () => post(`${'['.repeat(10_000)}${']'.repeat(10_000)}`), 400],
    ['deeply nested JSON that is not closed', () => post('{"a":'.repeat(100_000)), 400],
    ['not JSON', () => post('{'), 400],
    ['another content type', () => post('{}', { 'content-type': 'text/plain' }), 400],
    ['a __proto__ field', () => post('{"__proto__":{"admin":true}}'), 400],
    ['a constructor field', () => post('{"constructor":{}}'), 400],
    ['a number that overflows', () => post('{"limits":{"memoryMb":18014398509481984}}'), 400],
    ['an infinite number', () => post('{"limits":{"memoryMb":1e999}}'), 400],
    ['a NUL character', () => post('{"agent_id":"a\\u0000b"}'), 400],
    ['an unknown field', () => post('{"privileged":true}'), 400],
    ['a limit twice', () => post('{"limits":{"memoryMb":1,"memory_mb":2}}'), 400],
    ['a long id', () => home.call('GET', `/v1/sandboxes/${'x'.repeat(4000)}`), 404],
    ['an id with a path', () => home.call('GET', '/v1/sandboxes/..%2f..%2fkeys'), 404],
    ['a parameter twice', () => home.call('GET', '/v1/sandboxes?limit=1&limit=2'), 400],
    ['another method', () => home.call('PATCH', '/v1/sandboxes'), 405],
    ['an unknown route', () => home.call('GET', '/v2'), 404],
  ])('%s', async (_, ask, code) => {
    const { status, json } = await ask()
    expect(status, JSON.stringify(json)).toBe(code)
    expect(json).toMatchObject({ code: expect.stringMatching(/^[a-z-]+$/), request_id: expect.any(String) })
    expect(({} as Record<string, unknown>).admin).toBeUndefined()
  })

  test('headers that are too large are refused', async () => {
    await expect(
      home.call('GET', '/healthz', { headers: { 'x-long': 'y'.repeat(20_000) } }),
    ).resolves.toMatchObject({ status: 431 })
  })

  test('slow sockets do not block other clients', async () => {
    const count = FULL ? 2000 : 100
    const sockets: Socket[] = []
    for (let at = 0; at < count; at++) {
      const socket = connect(home.server.port, '127.0.0.1')
      socket.on('error', () => {})
      socket.write(
        at % 2
          ? 'GET /v1/sandboxes HTTP/1.1\r\nHost: lo'
          : 'POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{',
      )
      sockets.push(socket)
    }
    const drip = setInterval(() => {
      for (const socket of sockets) socket.write('x')
    }, 1000)
    const times: number[] = []
    for (let at = 0; at < (FULL ? 1000 : 50); at++) {
      const start = performance.now()
      expect((await home.call('GET', '/v1/sandboxes?limit=1')).status).toBe(200)
      times.push(performance.now() - start)
    }
    clearInterval(drip)
    for (const socket of sockets) socket.destroy()
    times.sort((a, b) => a - b)
    const p99 = times[Math.floor(times.length * 0.99)] as number
    console.log(`${count} slow sockets: healthy p99 ${p99.toFixed(1)} ms`)
    if (FULL) expect(p99).toBeLessThan(100)
  })
})
