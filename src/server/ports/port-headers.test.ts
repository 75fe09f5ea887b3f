import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { innerRequestHeaders } from './port-headers.ts'

const KEY = `rf_${'0123456789'.repeat(4)}`
const SESSION = 'kq3J9xWm-2Lr8vTzYpQ0aBcD'

/** Every header that the server reads from a request, found in its source. */
function headersRead(): ReadonlySet<string> {
  const read =
    /(?:headers\.get|header|req\.header|getCookie)\(\s*'([\w-]+)'|headers\['([\w-]+)'\]|headers\.(host|origin|upgrade|cookie|authorization)\b/g
  const files = ['src/server', 'src/adapters/mcp'].flatMap((dir) =>
    readdirSync(dir, { recursive: true, encoding: 'utf8' })
      .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
      .map((file) => join(dir, file)),
  )
  const names = [...files, 'src/agents.ts'].flatMap((file) =>
    [...readFileSync(file, 'utf8').matchAll(read)].map(([, a, b, c]) => (a ?? b ?? c ?? '').toLowerCase()),
  )
  return new Set(names)
}

/** Headers that the server reads and that do not identify the caller. */
const HARMLESS = [
  ...['accept', 'accept-encoding', 'content-encoding', 'content-length', 'content-type', 'host', 'origin'],
  ...['last-event-id', 'idempotency-key', 'x-request-id', 'mcp-session-id', 'connect-timeout-ms', 'range'],
  ...['keepalive-ping-interval', 'sec-fetch-site', 'x-forwarded-proto', 'transfer-encoding', 'upgrade'],
  'traceparent',
]

describe('headers of a request to a port of a sandbox', () => {
  test('every header that the server reads is harmless or not passed on', () => {
    const names = [...headersRead()].filter((name) => !HARMLESS.includes(name))
    expect(names).toEqual(expect.arrayContaining(['authorization', 'x-api-key', 'x-access-token', 'cookie']))
    const given = Object.fromEntries(names.map((name) => [name, 'x']))
    expect(innerRequestHeaders(given)).toEqual({})
  })

  test.each([
    'ringfence-client-address',
    'ringfence-forwarded-by',
    'x-ringfence-console',
    'e2b-sandbox-id',
    'cf-access-jwt-assertion',
    'x-goog-iap-jwt-assertion',
    'x-amzn-oidc-data',
    'x-auth-request-access-token',
    'x-forwarded-access-token',
    'x-ms-token-aad-id-token',
    'proxy-authorization',
  ])('%s is not passed on', (name) => {
    expect(innerRequestHeaders({ [name]: 'x', 'x-own': 'y' })).toEqual({ 'x-own': 'y' })
  })

  test.each([
    ['the form of a key', { apikey: KEY }],
    ['the form of a token', { 'x-trace': `a=rfs_${'0'.repeat(20)}_${'0'.repeat(48)}` }],
    ['a repeated bearer', { authorization: `Bearer ${SESSION}`, 'x-token': SESSION }],
    ['a repeated cookie', { cookie: `session=${SESSION}; a=b`, referer: `https://h/?s=${SESSION}` }],
    ['a repeated subprotocol', { 'sec-websocket-protocol': `ringfence, bearer.${SESSION}`, 'x-a': SESSION }],
  ])('a credential in another header is recognised by %s', (_, headers) => {
    expect(innerRequestHeaders({ ...headers, 'x-own': 'y' })).toEqual({ 'x-own': 'y' })
  })

  test('headers for the program are passed on', () => {
    const own = {
      accept: 'text/html',
      'content-type': 'application/json',
      'x-hub-signature-256': 'sha256=00',
      'x-csrf-token': 'abc',
      'mcp-session-id': '1',
      range: 'bytes=0-1',
      origin: 'http://8080-sb0123456789abcdef0123.localhost',
    }
    expect(
      innerRequestHeaders({ ...own, authorization: 'Basic abc', 'e2b-sandbox-id': 'sb0123456789abcdef0123' }),
    ).toEqual(own)
  })
})
