import { connect } from 'node:net'
import fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { ROUTES } from '../../src/server/app.ts'
import { FULL, startTestServer, type TestServer } from './test-server.ts'

/** Random requests with an admin key: every answer is 2xx, 4xx or 501, and the server keeps running. */

const COUNT = FULL ? 100_000 : 1500
let home: TestServer
let sandbox = ''
beforeAll(async () => {
  home = await startTestServer(
    [
      ...[
        '[server]',
        'requests_per_second = 1000000',
        'wrong_keys_per_second = 1000000',
        'max_sandboxes = 4',
      ],
      // A random command can be one that needs approval: nobody answers, and its request waits for the expiry.
      'approval_timeout_secs = 1',
    ].join('\n'),
  )
  sandbox = (await home.call('POST', '/v1/sandboxes', { body: { backend: 'mock' } })).json.id
})
afterAll(() => home.close())

const nasty = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.constantFrom(
    '',
    '..',
    '../..',
    '%2e%2e%2f',
    '\0',
    '__proto__',
    'constructor',
    'NaN',
    '-1',
    '1e400',
    '9'.repeat(40),
    '/etc/shadow',
    "'; DROP TABLE sandboxes; --",
  ),
)
const json = fc.oneof(
  fc.jsonValue({ maxDepth: 4 }),
  fc.dictionary(
    fc.constantFrom(
      'backend',
      'limits',
      'mounts',
      'env',
      'network',
      'argv',
      'command',
      'stdin',
      'timeout_ms',
      'exec_id',
      'signal',
      'approve',
      'url',
      '__proto__',
      'metadata',
      'agent_id',
    ),
    fc.oneof(nasty, fc.jsonValue(), fc.double(), fc.bigInt().map(String)),
  ),
)
const body = fc.oneof(
  { weight: 5, arbitrary: json.map((value) => JSON.stringify(value) ?? 'null') },
  { weight: 1, arbitrary: fc.string({ unit: 'binary', maxLength: 2000 }) },
  {
    weight: 1,
    arbitrary: fc.constantFrom(
      '[[[[',
      '{"a":',
      '"',
      '{"a":1,"a":2}',
      `${'['.repeat(5000)}`,
      'null',
      '1e9999',
    ),
  },
)
const request = fc.record({
  route: fc.constantFrom(...ROUTES.filter(({ path }) => !/watch|events|reload/.test(path))),
  id: fc.oneof({ weight: 3, arbitrary: fc.constant('own') }, { weight: 1, arbitrary: nasty }),
  other: nasty,
  query: fc.dictionary(
    fc.constantFrom('path', 'limit', 'cursor', 'state', 'after', 'depth', 'offset', 'since', 'x'),
    nasty,
    { maxKeys: 3 },
  ),
  body,
  type: fc.constantFrom(
    'application/json',
    'application/json; charset=utf-8',
    'text/plain',
    'multipart/form-data',
    '',
  ),
})
const ALLOWED = (status: number): boolean => (status >= 200 && status < 500) || status === 501

test(`${COUNT} random requests cause no server error`, async () => {
  let left = COUNT
  const samples = (count: number) => fc.sample(request, count)
  const worker = async (): Promise<void> => {
    while (left > 0) {
      const batch = samples(Math.min(200, left))
      left -= batch.length
      for (const one of batch) await send(one)
    }
  }
  await Promise.all(Array.from({ length: 8 }, worker))
  expect((await home.call('GET', '/healthz')).status).toBe(200)
  expect(({} as Record<string, unknown>).polluted).toBeUndefined()
}, 3_600_000)

type Sample = typeof request extends fc.Arbitrary<infer T> ? T : never

async function send({ route, id, other, query, body, type }: Sample): Promise<void> {
  const path = route.path
    .replace(':id', id === 'own' ? sandbox : encodeURIComponent(id))
    .replace(/:\w+/g, encodeURIComponent(other))
    .replace('*', encodeURIComponent(other))
  const method = route.method === 'ALL' ? 'GET' : route.method
  // The other requests need this sandbox.
  if (method === 'DELETE' && id === 'own' && route.path === '/v1/sandboxes/:id') return
  const text = new URLSearchParams(query).toString()
  const response = await fetch(`${home.server.url}${path}${text && `?${text}`}`, {
    method,
    headers: { authorization: `Bearer ${home.admin}`, ...(type ? { 'content-type': type } : {}) },
    ...(method === 'GET' ? {} : { body }),
    signal: AbortSignal.timeout(30_000),
  }).catch((error: unknown) => {
    throw new Error(`no answer to ${method} ${path} ${text} ${body.slice(0, 500)}`, { cause: error })
  })
  await response.arrayBuffer()
  expect(
    ALLOWED(response.status),
    `${method} ${path} ${text} ${body.slice(0, 200)}: ${response.status}`,
  ).toBe(true)
}

const RAW = [
  'GET / HTTP/9.9\r\n\r\n',
  'GET /v1/sandboxes HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n',
  'POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
  'POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n',
  'POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n',
  'POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n',
  'GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n',
  'CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n',
  'GET /\u0000 HTTP/1.1\r\nHost: localhost\r\n\r\n',
  'GET /v1/sandboxes/%zz HTTP/1.1\r\nHost: localhost\r\n\r\n',
  'GET //v1//sandboxes HTTP/1.1\r\nHost: localhost\r\n\r\n',
  'GET /v1/sandboxes HTTP/1.1\r\n\r\n',
  `GET / HTTP/1.1\r\nHost: localhost\r\n${'a: b\r\n'.repeat(3000)}\r\n`,
  'GET /v1/sandboxes/x/pty HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n',
  'GET //[ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n',
  'GET /v1/sandboxes/x/pty HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n',
  '\x16\x03\x01\x02\x00\x01\x00',
]
test.each(RAW.map((text) => [JSON.stringify(text.slice(0, 60)), text] as const))(
  'raw %s causes no server error',
  async (_, text) => {
    const said = await new Promise<string>((resolve) => {
      const socket = connect(home.server.port, '127.0.0.1', () => socket.end(text))
      let all = ''
      socket
        .on('data', (chunk) => (all += chunk))
        .on('close', () => resolve(all))
        .on('error', () => resolve(all))
    })
    expect(said).not.toMatch(/^HTTP\/1.1 5/)
    expect((await home.call('GET', '/healthz')).status).toBe(200)
  },
)
