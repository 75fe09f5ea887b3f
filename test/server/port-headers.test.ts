import { connect } from 'node:net'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { until } from '../e2b/kit.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** A program in a sandbox cannot set headers that apply to the server's own origin. */

const ORIGIN_WIDE = {
  'Strict-Transport-Security': 'max-age=31536000; includeSubDomains',
  'Public-Key-Pins': 'pin-sha256="x"; max-age=9',
  'Alt-Svc': 'h2="evil.example:443"; ma=9',
  'Report-To': '{"group":"g","max_age":9,"endpoints":[{"url":"https://evil.example"}]}',
  'Reporting-Endpoints': 'g="https://evil.example"',
  NEL: '{"report_to":"g","max_age":9}',
  'Service-Worker-Allowed': '/',
  'Accept-CH': 'Sec-CH-UA-Model',
  'Use-As-Dictionary': 'match="/*"',
  'WWW-Authenticate': 'Basic realm="your password"',
}
const ALWAYS = {
  'X-Accel-Redirect': '/internal/secret',
  'X-Sendfile': '/etc/passwd',
  'Surrogate-Control': 'max-age=999',
  'Set-Cookie': 'a=b; Domain=localhost',
  'Clear-Site-Data': '"*"',
}
const OWN = { 'X-Mine': 'kept', ETag: '"kept"', 'Access-Control-Allow-Origin': '*' }

const lines = Object.entries({ ...ORIGIN_WIDE, ...ALWAYS, ...OWN })
  .map(([name, value]) => `${name}: ${value}`)
  .join('\r\n')
const PROGRAM = `import socket, threading
HEAD = ${JSON.stringify(lines)}
def talk(c):
  got = c.recv(65536).decode('latin1')
  if got.startswith('GET /ws'):
    c.sendall(('HTTP/1.1 101 Switching\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n' + HEAD + '\\r\\n\\r\\n').encode())
  else:
    c.sendall(('HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n' + HEAD + '\\r\\n\\r\\nok').encode())
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', 8079)); s.listen()
while True: threading.Thread(target=talk, args=(s.accept()[0],), daemon=True).start()`

let home: TestServer
let id: string
beforeAll(async () => {
  home = await startTestServer()
  const made = await home.call('POST', '/v1/sandboxes', { body: { network: { mode: 'loopback' } } })
  id = made.json.id
  const at = `/v1/sandboxes/${id}`
  await home.call('PUT', `${at}/files?path=/tmp/serve.py`, { body: PROGRAM })
  await home.call('POST', `${at}/exec`, { body: { argv: ['python3', '/tmp/serve.py'], background: true } })
  await until(async () => (await home.call('GET', `${at}/ports/8079/`)).status === 200, 'the program')
})
afterAll(() => home.close())

const UPGRADE =
  'Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='
/** The head of the answer, lower case. */
function head(path: string, host: string, more: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(home.server.port, '127.0.0.1')
    socket.write(
      `GET ${path} HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer ${home.admin}\r\n${more}\r\n\r\n`,
    )
    let said = ''
    socket.on('data', (chunk) => {
      said += chunk
      if (said.includes('\r\n\r\n')) socket.destroy()
    })
    socket.on('close', () => resolve(said.toLowerCase())).on('error', reject)
  })
}

const byPath = (path: string, more: string) =>
  head(`/v1/sandboxes/${id}/ports/8079${path}`, 'localhost', more)
const byName = (path: string, more: string) => head(path, `8079-${id.replace('_', '')}.localhost`, more)
const byHeaders = (path: string, more: string) =>
  head(path, 'localhost', `E2b-Sandbox-Id: ${id.replace('_', '')}\r\nE2b-Sandbox-Port: 8079\r\n${more}`)

const KINDS = {
  'a response': ['/', 'Connection: close', 200],
  'a refused upgrade': ['/', `Connection: Upgrade\r\n${UPGRADE}`, 200],
  'an upgrade': ['/ws', `Connection: Upgrade\r\n${UPGRADE}`, 101],
} as const

describe.each(Object.entries(KINDS))('headers of %s', (_, [path, more, status]) => {
  test.each([
    ['a path of the server', byPath],
    ['headers on the server’s name', byHeaders],
  ])('to %s cannot change the server’s origin', async (_where, ask) => {
    const said = await ask(path, more)
    expect(said).toContain(`http/1.1 ${status} `)
    for (const name of Object.keys({ ...ORIGIN_WIDE, ...ALWAYS }))
      expect(said, name).not.toContain(`\n${name.toLowerCase()}:`)
    for (const name of Object.keys(OWN)) expect(said, name).toContain(`\n${name.toLowerCase()}:`)
  })

  test('to the port’s own host name apply to that host name, never to its parent domain', async () => {
    const said = await byName(path, more)
    expect(said).toContain(`http/1.1 ${status} `)
    for (const name of Object.keys(ALWAYS)) expect(said, name).not.toContain(`\n${name.toLowerCase()}:`)
    for (const name of Object.keys({ ...ORIGIN_WIDE, ...OWN }))
      expect(said, name).toContain(`\n${name.toLowerCase()}:`)
  })
})

describe('a page served through a port', () => {
  const policyOf = (said: string): string => /\ncontent-security-policy: (.*)\r/.exec(said)?.[1] ?? ''

  test.each([
    ['a path of the server', byPath],
    ['headers on the server’s name', byHeaders],
  ])('at %s has an opaque origin', async (_where, ask) => {
    const policy = policyOf(await ask('/', 'Connection: close'))
    expect(policy).toMatch(/^sandbox /)
    expect(policy).not.toContain('allow-same-origin')
  })

  test('at the port’s own host name has that name as its origin', async () =>
    expect(policyOf(await byName('/', 'Connection: close'))).toContain('allow-same-origin'))
})
