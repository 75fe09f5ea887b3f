import { connect } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { startServer } from '../../src/compose/serve.ts'
import { type Answer, callAt, startTestServer, type TestServer } from '../server/test-server.ts'

/** Signing in, and what a cookie alone, another origin or another tenant must not get. */

let home: TestServer
beforeAll(async () => {
  home = await startTestServer(
    '[policy]\nallow_interactive = true\n[server]\nwrong_keys_per_second = 100000\nrequests_per_second = 100000\n',
  )
})
afterAll(() => home.close())

const HEADER = 'x-ringfence-console'
const own = (): Record<string, string> => ({ origin: home.server.url })
const post = (body: unknown, headers: Record<string, string> = own()): Promise<Answer> =>
  callAt(home.server.url, 'POST', '/v1/console/session', { body, headers })

async function link(keyId?: string): Promise<string> {
  const { keys, sessions } = home.server.parts
  return sessions.newLink(keyId ?? (await keys.consoleKey()))
}

type Halves = { readonly cookie: string; readonly page: string }
function halves(answer: Answer): Halves {
  const cookie = (answer.headers.get('set-cookie') ?? '').split(';')[0] as string
  return { cookie, page: answer.json.page as string }
}
const signedIn = async (): Promise<Halves> => halves(await post({ link: await link() }))

const get = (path: string, headers: Record<string, string>): Promise<Answer> =>
  callAt(home.server.url, 'GET', path, { headers })

describe('a sign-in link', () => {
  test('works once, and sets an HttpOnly cookie', async () => {
    const secret = await link()
    const first = await post({ link: secret })
    expect(first.status, first.text).toBe(201)
    const cookie = first.headers.get('set-cookie') ?? ''
    expect(cookie).toMatch(/^ringfence_session=[\w-]{43}; Path=\/; HttpOnly; SameSite=Strict$/)
    expect(first.json).toMatchObject({ operator: true })
    expect((await post({ link: secret })).status).toBe(401)
  })

  test('signs in only one of several concurrent requests', async () => {
    const secret = await link()
    const answers = await Promise.all(Array.from({ length: 6 }, () => post({ link: secret })))
    const statuses = answers.map(({ status }) => status).filter((status) => status !== 429)
    expect(statuses.filter((status) => status === 201)).toHaveLength(1)
  })

  test('that is wrong, empty or malformed is rejected', async () => {
    for (const body of [
      { link: 'x'.repeat(43) },
      { link: '' },
      {},
      { link: 'a', key: 'b' },
      { key: 'rf_no' },
    ])
      expect([400, 401, 429]).toContain((await post(body)).status)
  })

  test('is stored as a hash, and so is the session', async () => {
    const secret = await link()
    const { cookie, page } = await signedIn()
    const rows = JSON.stringify([
      await home.server.store.read('SELECT * FROM console_links'),
      await home.server.store.read('SELECT * FROM console_sessions'),
    ])
    for (const one of [secret, cookie.split('=')[1] as string, page]) expect(rows).not.toContain(one)
  })

  test('cannot be used from another origin', async () => {
    const secret = await link()
    for (const headers of [
      { origin: 'http://evil.example' },
      { origin: home.server.url, 'sec-fetch-site': 'cross-site' },
      {},
    ])
      expect((await post({ link: secret }, headers as Record<string, string>)).status).toBe(403)
    expect((await post({ link: secret })).status).toBe(201)
  })
})

describe('a session', () => {
  test('needs both the cookie and the header', async () => {
    const { cookie, page } = await signedIn()
    expect((await get('/v1/console/session', { cookie, [HEADER]: page })).status).toBe(200)
    expect((await get('/v1/console/session', { cookie })).status).toBe(401)
    expect((await get('/v1/console/session', { [HEADER]: page })).status).toBe(401)
    const other = await signedIn()
    expect((await get('/v1/console/session', { cookie, [HEADER]: other.page })).status).toBe(401)
  })

  test('rejects changes from another origin', async () => {
    const { cookie, page } = await signedIn()
    const make = (headers: Record<string, string>): Promise<Answer> =>
      callAt(home.server.url, 'POST', '/v1/keys', { body: { name: 'x' }, headers: { cookie, ...headers } })
    expect((await make({ [HEADER]: page })).status).toBe(403)
    expect((await make({ [HEADER]: page, origin: 'http://evil.example' })).status).toBe(403)
    expect((await make({ [HEADER]: page, origin: 'null' })).status).toBe(403)
    expect((await make({ [HEADER]: page, ...own(), 'sec-fetch-site': 'same-site' })).status).toBe(403)
    expect((await make(own())).status).toBe(401)
    expect((await make({ [HEADER]: page, ...own() })).status).toBe(201)
  })

  test('is not valid for the E2B API or MCP', async () => {
    const { cookie, page } = await signedIn()
    const headers = { cookie, [HEADER]: page, ...own() }
    expect((await get('/sandboxes', headers)).status).toBe(401)
    expect((await callAt(home.server.url, 'POST', '/mcp', { body: {}, headers })).status).toBe(401)
  })

  test('ends with sign-out, and when its key is revoked', async () => {
    const first = await signedIn()
    const headers = { cookie: first.cookie, [HEADER]: first.page, ...own() }
    const out = await callAt(home.server.url, 'DELETE', '/v1/console/session', { headers })
    expect(out.headers.get('set-cookie')).toContain('Max-Age=0')
    expect((await get('/v1/console/session', headers)).status).toBe(401)
    const { key } = await home.server.parts.keys.create({ scopes: ['read'], tenant: 'red' })
    const reader = halves(await post({ link: await link(key.id) }))
    const asReader = { cookie: reader.cookie, [HEADER]: reader.page }
    expect((await get('/v1/console/session', asReader)).json).toMatchObject({
      tenant: 'red',
      operator: false,
    })
    await home.server.parts.keys.revoke(key.id)
    expect((await get('/v1/console/session', asReader)).status).toBe(401)
    expect((await post({ link: 'x' })).status).not.toBe(201)
  })

  test('closes its event stream when the key is revoked', async () => {
    const { key } = await home.server.parts.keys.create({ scopes: ['read'], tenant: 'red' })
    const { cookie, page } = halves(await post({ link: await link(key.id) }))
    const stream = await fetch(`${home.server.url}/v1/console/events`, {
      headers: { cookie, [HEADER]: page },
    })
    expect(stream.status).toBe(200)
    await home.server.parts.keys.revoke(key.id)
    // The stream ends, possibly with an error.
    let said = ''
    const read = async (): Promise<void> => {
      for await (const chunk of stream.body as unknown as AsyncIterable<Uint8Array>)
        said += Buffer.from(chunk).toString()
    }
    await read().catch(() => {})
    expect(said).toContain('event: hello')
  })

  test('has exactly the permissions of its key', async () => {
    const { key } = await home.server.parts.keys.create({ scopes: ['read'], tenant: 'red' })
    const { cookie, page } = halves(await post({ link: await link(key.id) }))
    const headers = { cookie, [HEADER]: page, ...own() }
    const made = await home.call('POST', '/v1/sandboxes', { body: { agent_id: 'blue' } })
    expect((await get(`/v1/sandboxes/${made.json.id}`, headers)).status).toBe(404)
    expect((await get(`/v1/sandboxes/${made.json.id}/wall`, headers)).status).toBe(404)
    for (const path of ['/v1/keys', '/v1/doctor', '/v1/skills', '/v1/audit/lines', '/v1/policy/suggestions'])
      expect((await get(path, headers)).status, path).toBe(403)
    const policy = await get('/v1/policy', headers)
    expect(policy.json.description.default_action).toBe('sandbox')
    expect(policy.json.text).toBeUndefined()
    const head = await get('/v1/audit/head', headers)
    expect((await get(`/v1/audit/proof/${head.json.head.seq}`, headers)).status).toBe(404)
    await home.call('DELETE', `/v1/sandboxes/${made.json.id}`)
  })

  test('survives a restart of its server, and is unknown to others', async () => {
    const start = (state: string) =>
      startServer({
        port: 0,
        env: { PATH: process.env.PATH, HOME: home.dir, RINGFENCE_HOME: `${home.dir}/${state}` },
      })
    const first = await start('restarted')
    const secret = await first.parts.sessions.newLink(await first.parts.keys.consoleKey())
    const { cookie, page } = halves(
      await callAt(first.url, 'POST', '/v1/console/session', {
        body: { link: secret },
        headers: { origin: first.url },
      }),
    )
    await first.close()
    const second = await start('restarted')
    const other = await start('other')
    const at = async (url: string): Promise<number> =>
      (await callAt(url, 'GET', '/v1/console/session', { headers: { cookie, [HEADER]: page } })).status
    expect(await at(second.url)).toBe(200)
    expect(await at(other.url)).toBe(401)
    await Promise.all([second.close(), other.close()])
  })

  test('opens a terminal only from the console page', async () => {
    const { cookie, page } = await signedIn()
    const made = await home.call('POST', '/v1/sandboxes', { body: {} })
    const address = `${home.server.url.replace('http', 'ws')}/v1/sandboxes/${made.json.id}/pty`
    const open = (origin: string | undefined, protocols: readonly string[]): Promise<number> =>
      new Promise((resolve) => {
        const socket = new WebSocket(address, [...protocols], {
          headers: { cookie, ...(origin === undefined ? {} : { origin }) },
        })
        socket.on('open', () => {
          resolve(101)
          socket.terminate()
        })
        socket.on('unexpected-response', (_, answer) => resolve(answer.statusCode ?? 0))
        socket.on('error', () => {})
      })
    expect(await open('http://evil.example', ['ringfence', `console.${page}`])).toBe(403)
    expect(await open(undefined, ['ringfence', `console.${page}`])).toBe(403)
    expect(await open(home.server.url, ['ringfence'])).toBe(401)
    expect(await open(home.server.url, ['ringfence', `console.${page}`])).toBe(101)
    await home.call('DELETE', `/v1/sandboxes/${made.json.id}`)
  })

  test('is not forwarded to a port of a sandbox', async () => {
    const { cookie, page } = await signedIn()
    const made = await home.call('POST', '/v1/sandboxes', { body: { network: { mode: 'loopback' } } })
    const id = made.json.id as string
    const echo = `import http.server as s
class H(s.BaseHTTPRequestHandler):
  def do_GET(self):
    self.send_response(200); self.send_header('content-type','text/html'); self.end_headers(); self.wfile.write(str(self.headers).encode())
s.HTTPServer(('127.0.0.1',8099),H).serve_forever()`
    await home.call('PUT', `/v1/sandboxes/${id}/files?path=/tmp/echo.py`, { body: echo })
    await home.call('POST', `/v1/sandboxes/${id}/exec`, {
      body: { argv: ['python3', '/tmp/echo.py'], background: true },
    })
    let answer: Answer | undefined
    for (let turn = 0; turn < 50 && answer?.status !== 200; turn++) {
      await new Promise((resolve) => setTimeout(resolve, 100))
      answer = await get(`/v1/sandboxes/${id}/ports/8099/`, { cookie, [HEADER]: page, 'x-seen': 'yes' })
    }
    expect(answer?.text).toMatch(/x-seen: yes/i)
    expect(answer?.text).not.toContain(page)
    expect(answer?.text).not.toContain(cookie.split('=')[1])
    expect(answer?.headers.get('content-security-policy')).toContain('sandbox')
    await home.call('DELETE', `/v1/sandboxes/${id}`)
  })
})

describe('the page', () => {
  test('has a strict Content-Security-Policy and immutable assets', async () => {
    const page = await get('/console/', { 'accept-encoding': 'br' })
    expect(page.status).toBe(200)
    const policy = page.headers.get('content-security-policy') ?? ''
    expect(policy).toContain("default-src 'none'")
    expect(policy).toContain("script-src 'self'")
    expect(policy).toContain("frame-ancestors 'none'")
    expect(policy).not.toContain('unsafe')
    expect(page.headers.get('x-content-type-options')).toBe('nosniff')
    expect(page.headers.get('cache-control')).toBe('no-cache')
    expect(page.text).not.toMatch(/<script(?![^>]*\bsrc=)|<style|\son\w+=|https?:/)
    const script = /src="([^"]+\.js)"/.exec(page.text)?.[1] as string
    const part = await get(script, { 'accept-encoding': 'gzip' })
    expect(part.headers.get('cache-control')).toContain('immutable')
    expect(part.headers.get('content-security-policy')).toBe(policy)
    expect((await get('/console/any/deep/path', {})).text).toBe(page.text)
    expect((await get('/console/assets/nothing.js', {})).status).toBe(404)
    expect((await get('/console/../../package.json', {})).status).not.toBe(200)
  })

  test('serves nothing outside its own directory', async () => {
    const { port } = home.server
    const raw = (path: string): Promise<string> =>
      new Promise((resolve) => {
        const socket = connect(port, '127.0.0.1', () =>
          socket.write(`GET ${path} HTTP/1.1\r\nhost: 127.0.0.1:${port}\r\nconnection: close\r\n\r\n`),
        )
        let text = ''
        socket.on('data', (chunk) => (text += chunk))
        socket.on('close', () => resolve(text))
      })
    for (const path of [
      '/console/../package.json',
      '/console/..%2f..%2fpackage.json',
      '/console//etc/passwd',
    ])
      expect(await raw(path)).not.toMatch(/"devDependencies"|root:x:/)
  })

  test('the first page stays below 250 kB compressed', async () => {
    const page = await get('/console/', {})
    const names = [...page.text.matchAll(/(?:src|href)="([^"]+\.(?:js|css))"/g)].map(
      ([, name]) => name as string,
    )
    const sizes = await Promise.all(
      names.map(async (name) => {
        const answer = await fetch(`${home.server.url}${name}`, {
          headers: { 'accept-encoding': 'gzip' },
          method: 'HEAD',
        })
        expect(answer.headers.get('content-encoding')).toBe('gzip')
        return Number(answer.headers.get('content-length'))
      }),
    )
    expect(names.length).toBeGreaterThan(1)
    expect(sizes.reduce((sum, size) => sum + size, 0)).toBeLessThan(250_000)
  })
})
