import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { Keys } from '../../src/supervisor/access/keys.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** A revoked key closes the streams that it opened; the streams of other keys stay open. */

let home: TestServer
beforeAll(async () => {
  home = await startTestServer('[policy]\nallow_interactive = true\n[server]\nrequests_per_second = 100000\n')
})
afterAll(() => home.close())

type Watched = { readonly name: string; readonly ended: Promise<string>; said: string; over: boolean }

/** A stream over HTTP, open and read. */
async function stream(
  name: string,
  path: string,
  headers: Record<string, string>,
  body?: unknown,
): Promise<Watched> {
  const response = await fetch(`${home.server.url}${path}`, {
    method: body === undefined ? 'GET' : 'POST',
    headers: { accept: 'text/event-stream', 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: Buffer.isBuffer(body) ? body : JSON.stringify(body) }),
  })
  expect(response.status, name).toBe(200)
  return watched(name, async (say) => {
    for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>)
      say(Buffer.from(chunk).toString())
  })
}

function watched(name: string, read: (say: (text: string) => void) => Promise<void>): Watched {
  const one = { name, said: '', over: false, ended: Promise.resolve('') }
  one.ended = read((text) => (one.said += text))
    .catch(() => {})
    .then(() => {
      one.over = true
      return name
    })
  return one
}

async function terminal(key: string, id: string): Promise<Watched> {
  const url = `${home.server.url.replace('http', 'ws')}/v1/sandboxes/${id}/pty?command=cat`
  const socket = new WebSocket(url, { headers: { authorization: `Bearer ${key}` } })
  await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject))
  return watched(
    'terminal',
    (say) =>
      new Promise((resolve) =>
        socket.once('close', (code, reason) => {
          say(`${code} ${reason}`)
          resolve()
        }),
      ),
  )
}

/** A program in the sandbox with an endless response. */
const SERVER = `import http.server as s, time
class H(s.BaseHTTPRequestHandler):
  def do_GET(self):
    self.send_response(200); self.end_headers()
    while True:
      self.wfile.write(b'.'); self.wfile.flush()
      if self.path == '/short': return
      time.sleep(0.1)
s.ThreadingHTTPServer(('127.0.0.1',8077),H).serve_forever()`

/** A command that E2B's client would start. */
function e2bStream(key: string, id: string): Promise<Watched> {
  const body = Buffer.from(JSON.stringify({ process: { cmd: '/bin/sleep', args: ['60'], cwd: '/tmp' } }))
  const head = Buffer.alloc(5)
  head.writeUInt32BE(body.length, 1)
  const headers = { 'x-api-key': key, 'e2b-sandbox-id': id, 'content-type': 'application/connect+json' }
  return stream('e2b', '/process.Process/Start', headers, Buffer.concat([head, body]))
}

/** Everything that can be open at once with one key. */
async function everything(key: string): Promise<{ readonly id: string; readonly open: Watched[] }> {
  const made = await home.call('POST', '/v1/sandboxes', { key, body: { network: { mode: 'loopback' } } })
  const id = made.json.id as string
  const headers = { authorization: `Bearer ${key}` }
  await home.call('PUT', `/v1/sandboxes/${id}/files?path=/tmp/serve.py`, { key, body: SERVER })
  const serve = { argv: ['python3', '/tmp/serve.py'], background: true }
  await home.call('POST', `/v1/sandboxes/${id}/exec`, { key, body: serve })
  await expect
    .poll(async () => (await home.call('GET', `/v1/sandboxes/${id}/ports/8077/short`, { key })).status)
    .toBe(200)
  const open = [
    await stream('events', '/v1/events', headers),
    await stream('events of one', `/v1/events?sandbox_id=${id}`, headers),
    await stream('console', '/v1/console/events', headers),
    await stream('exec', `/v1/sandboxes/${id}/exec`, headers, { command: 'sleep 60' }),
    await stream('watch', `/v1/sandboxes/${id}/files/watch?path=/tmp`, headers),
    await stream('port', `/v1/sandboxes/${id}/ports/8077/long`, headers),
    await e2bStream(key, id),
    await terminal(key, id),
  ]
  return { id, open }
}

/** The final event of every stream that has one. */
const lastWords = (open: readonly Watched[]): Readonly<Record<string, string>> =>
  Object.fromEntries(
    open
      .filter(({ name }) => name !== 'port')
      // E2B streams have a prefix of five bytes before each message.
      .map(({ name, said }) => [
        name,
        said
          .trimEnd()
          .split(name === 'e2b' ? /\x02.{4}/s : '\n\n')
          .at(-1) ?? '',
      ]),
  )
const e2bCut = (code: string, message: string): string => JSON.stringify({ error: { code, message } })
const cut = (reason: string, message: string): string =>
  `event: cut\ndata: ${JSON.stringify({ reason, message })}`

const keyOf = async (tenant: string): Promise<{ readonly id: string; readonly key: string }> => {
  const scopes = ['create', 'exec', 'read']
  const { json } = await home.call('POST', '/v1/keys', { body: { scopes, tenant } })
  return json
}

/** Checks that the streams still receive new events. */
async function stillHears({ open, id }: Awaited<ReturnType<typeof everything>>, key: string): Promise<void> {
  expect(open.filter(({ over }) => over).map(({ name, said }) => [name, said])).toEqual([])
  const before = open[0]?.said.length ?? 0
  await home.call('POST', `/v1/sandboxes/${id}/exec`, { key, body: { command: 'true' } })
  await expect.poll(() => open[0]?.said.length ?? 0).toBeGreaterThan(before)
}

describe('revoking a key', () => {
  test('closes every stream of that key at once; streams of another key stay open', async () => {
    const [red, blue] = [await keyOf('red'), await keyOf('blue')]
    const [hers, his] = [await everything(red.key), await everything(blue.key)]
    await home.call('DELETE', `/v1/keys/${red.id}`)
    const names = await Promise.all(hers.open.map(({ ended }) => ended))
    expect(names).toHaveLength(8)
    const revoked = cut('revoked', 'the key was revoked')
    expect(lastWords(hers.open)).toEqual({
      events: revoked,
      'events of one': revoked,
      console: revoked,
      exec: revoked,
      watch: revoked,
      e2b: e2bCut('unauthenticated', 'the key was revoked'),
      terminal: '1008 the key was revoked',
    })
    await stillHears(his, blue.key)
    await home.call('DELETE', `/v1/sandboxes/${his.id}`)
    await home.call('DELETE', `/v1/sandboxes/${hers.id}`)
  })

  test('closes the streams also when another process revokes the key', async () => {
    const red = await keyOf('red')
    const hers = await everything(red.key)
    await new Keys(home.server.store, () => '').revoke(red.id)
    await Promise.all(hers.open.map(({ ended }) => ended))
    await home.call('DELETE', `/v1/sandboxes/${hers.id}`)
  })

  test('with that same key is answered before the key stops working', async () => {
    const { json } = await home.call('POST', '/v1/keys', { body: { scopes: ['read', 'admin'] } })
    expect((await home.call('DELETE', `/v1/keys/${json.id}`, { key: json.key })).status).toBe(204)
    expect((await home.call('GET', '/v1/sandboxes', { key: json.key })).status).toBe(401)
  })
})

test('signing out closes the streams of that console session only', async () => {
  const { keys, sessions } = home.server.parts
  const enter = async () => {
    const { cookie, page } = await sessions.byLink(await sessions.newLink(await keys.consoleKey()))
    return { cookie: `ringfence_session=${cookie}`, 'x-ringfence-console': page }
  }
  const [mine, other] = [await enter(), await enter()]
  const open = await stream('mine', '/v1/console/events', mine)
  const stays = await stream('other', '/v1/console/events', other)
  const out = await fetch(`${home.server.url}/v1/console/session`, {
    method: 'DELETE',
    headers: { ...mine, origin: home.server.url },
  })
  expect(out.status).toBe(204)
  await open.ended
  expect(lastWords([open]).mine).toBe(cut('signed-out', 'signed out elsewhere'))
  await sleep(300)
  expect(stays.over).toBe(false)
})

test('the end of a sandbox closes its streams with a final event; streams of other sandboxes stay open', async () => {
  const [red, blue] = [await keyOf('red'), await keyOf('blue')]
  const [hers, his] = [await everything(red.key), await everything(blue.key)]
  await home.call('DELETE', `/v1/sandboxes/${hers.id}`)
  const own = hers.open.filter(({ name }) => name !== 'events' && name !== 'console')
  expect(await Promise.all(own.map(({ ended }) => ended))).toEqual([
    'events of one',
    'exec',
    'watch',
    'port',
    'e2b',
    'terminal',
  ])
  expect(own[0]?.said).toContain('"state":"destroyed"')
  expect(own[1]?.said).toContain('event: end')
  const ended = { reason: 'sandbox-ended', message: 'the sandbox has ended (killed)' }
  expect(own[1]?.said).toContain(`"cut":${JSON.stringify(ended)}`)
  expect(lastWords(own)).toMatchObject({
    'events of one': cut(ended.reason, ended.message),
    watch: cut(ended.reason, ended.message),
    // E2B's clients search for this text.
    e2b: e2bCut('unavailable', `${ended.message}: the sandbox was killed or reached its end of life`),
    terminal: `1000 ${ended.message}`,
  })
  expect(hers.open.filter(({ over }) => !over).map(({ name }) => name)).toEqual(['events', 'console'])
  // A stream opened afterwards returns the records and ends.
  const after = await stream('after', `/v1/events?after=0&sandbox_id=${hers.id}`, {
    authorization: `Bearer ${red.key}`,
  })
  await after.ended
  expect(after.said).toContain('"state":"destroyed"')
  await stillHears(his, blue.key)
})

/** Answers at once and never ends. */
const ENDLESS = `import socket, threading, time
def talk(c):
  c.recv(65536)
  c.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n')
  while True:
    c.sendall(b'y' * 9000)
    time.sleep(0.1)
s = socket.socket()
s.bind(('127.0.0.1', 8079)); s.listen()
while True: threading.Thread(target=talk, args=(s.accept()[0],), daemon=True).start()`

test('revoking a key closes its streams also if the request had a second credential', async () => {
  const body = { scopes: ['create', 'exec', 'read'], tenant: 'red' }
  const [stays, goes] = [
    (await home.call('POST', '/v1/keys', { body })).json,
    (await home.call('POST', '/v1/keys', { body })).json,
  ]
  const made = await home.call('POST', '/sandboxes', {
    key: stays.key,
    body: { templateID: 'base', timeout: 120, network: { allowPublicTraffic: false } },
  })
  const at = `/v1/sandboxes/${made.json.sandboxID.replace(/^sb/, 'sb_')}`
  await home.call('PUT', `${at}/files?path=/tmp/serve.py`, { key: stays.key, body: ENDLESS })
  await home.call('POST', `${at}/exec`, {
    key: stays.key,
    body: { argv: ['python3', '/tmp/serve.py'], background: true },
  })
  const bearer = { authorization: `Bearer ${goes.key}` }
  const headers = {
    ...bearer,
    'e2b-sandbox-id': made.json.sandboxID,
    'e2b-sandbox-port': '8079',
    'e2b-traffic-access-token': made.json.trafficAccessToken,
  }
  const abort = new AbortController()
  const held = (): Promise<Response> => fetch(`${home.server.url}/`, { headers, signal: abort.signal })
  await expect.poll(async () => (await held()).status).toBe(200)
  const command = { argv: ['sleep', '60'] }
  const open = await stream('exec', `${at}/exec`, bearer, command)
  await home.call('DELETE', `/v1/keys/${goes.id}`)
  await expect.poll(() => open.over).toBe(true)
  expect(open.said).toContain('revoked')
  abort.abort()
  await home.call('DELETE', at)
})
