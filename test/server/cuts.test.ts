import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { RingfenceClient } from '../../src/client/client.ts'
import type { SandboxError } from '../../src/model/errors.ts'
import { streamEndOf } from '../../src/model/stream-end.ts'
import { closeFrame, FrameTrack } from '../../src/server/streams/stream-end.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** The reason that a client gets when the server ends its connection: sockets of programs, the client library, a shutdown. */

let home: TestServer
const CONFIG = '[policy]\nallow_interactive = true\n[server]\nrequests_per_second = 100000\n'
beforeAll(async () => {
  home = await startTestServer(CONFIG)
})
afterAll(() => home.close())

/** A WebSocket server of a few lines: says `hello`, then nothing; on /half it stays in the middle of a frame. */
const INSIDE = `import socket, hashlib, base64, threading, time
def talk(c):
  head = b''
  while b'\\r\\n\\r\\n' not in head: head += c.recv(4096)
  key = [l.split(b': ',1)[1] for l in head.split(b'\\r\\n') if l.lower().startswith(b'sec-websocket-key')]
  if not key: return c.close()
  accept = base64.b64encode(hashlib.sha1(key[0]+b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest())
  c.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: '+accept+b'\\r\\n\\r\\n')
  c.sendall(b'\\x81\\x05hello')
  if b'GET /half' in head: c.sendall(b'\\x81\\x05hal')
  if b'GET /short' in head: c.sendall(b'\\x88\\x02\\x0f\\xa1'); return c.close()
  while c.recv(4096): pass
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', 8078)); s.listen()
while True: threading.Thread(target=talk, args=(s.accept()[0],), daemon=True).start()`

type Socket = { readonly closed: Promise<string> }
function socket(at: TestServer, key: string, path: string): Promise<Socket> {
  const address = `${at.server.url.replace('http', 'ws')}${path}`
  return new Promise((resolve, reject) => {
    const one = new WebSocket(address, { headers: { authorization: `Bearer ${key}` } })
    one.on('error', reject)
    const closed = new Promise<string>((done) => one.on('close', (code, why) => done(`${code} ${why}`)))
    // Both have sent something by then.
    one.on('message', () => resolve({ closed }))
  })
}

async function withServer(at: TestServer, key: string): Promise<string> {
  const made = await at.call('POST', '/v1/sandboxes', { key, body: { network: { mode: 'loopback' } } })
  const id = made.json.id as string
  await at.call('PUT', `/v1/sandboxes/${id}/files?path=/tmp/serve.py`, { key, body: INSIDE })
  const serve = { argv: ['python3', '/tmp/serve.py'], background: true }
  await at.call('POST', `/v1/sandboxes/${id}/exec`, { key, body: serve })
  await expect.poll(() => listens(at, key, id)).toBe(true)
  return id
}
const listens = async (at: TestServer, key: string, id: string): Promise<boolean> => {
  const { text } = await at.call('GET', `/v1/sandboxes/${id}/files?path=/proc/net/tcp`, { key })
  return text.includes(':1F8E')
}

const newKey = async (at: TestServer): Promise<{ readonly id: string; readonly key: string }> =>
  (await at.call('POST', '/v1/keys', { body: { scopes: ['create', 'exec', 'read'], tenant: 'red' } })).json

describe('a WebSocket to a program in a sandbox', () => {
  const port = (id: string, path = '/'): string => `/v1/sandboxes/${id}/ports/8078${path}`

  test('is closed with the reason when the key is revoked, and never in the middle of a frame', async () => {
    const { id: keyId, key } = await newKey(home)
    const id = await withServer(home, key)
    const whole = await socket(home, key, port(id))
    const half = await socket(home, key, port(id, '/half'))
    await new Promise((resolve) => setTimeout(resolve, 50))
    await home.call('DELETE', `/v1/keys/${keyId}`)
    expect(await whole.closed).toBe('1008 the key was revoked')
    expect(await half.closed).toBe('1006 ')
    await home.call('DELETE', `/v1/sandboxes/${id}`)
  })

  test('is closed when the sandbox ends; a close frame of the program is passed on unchanged', async () => {
    const { key } = await newKey(home)
    const id = await withServer(home, key)
    const open = await socket(home, key, port(id))
    expect(await (await socket(home, key, port(id, '/short'))).closed).toBe('4001 ')
    await home.call('DELETE', `/v1/sandboxes/${id}`)
    expect(await open.closed).toBe('1000 the sandbox has ended (killed)')
  })

  test('tracks frame boundaries however the bytes are split', () => {
    const long = Buffer.concat([Buffer.from([0x82, 126, 1, 0]), Buffer.alloc(256)])
    const longer = Buffer.concat([Buffer.from([0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]), Buffer.alloc(65_536)])
    const short = Buffer.from([0x81, 2, 1, 2])
    const all = Buffer.concat([short, long, longer, short])
    const ends = [short, long, longer, short].map((_, at, list) =>
      list.slice(0, at + 1).reduce((sum, { length }) => sum + length, 0),
    )
    for (const step of [3, 7, 1000, all.length]) {
      const track = new FrameTrack()
      for (let at = 0; at < all.length; at += step) {
        const until = Math.min(at + step, all.length)
        track.see(all.subarray(at, until))
        expect(track.isBetween, `${step} ${until}`).toBe(ends.includes(until))
      }
      track.see(closeFrame(streamEndOf('revoked')))
      expect(track.isBetween).toBe(false)
    }
  })
})

async function failure(work: AsyncGenerator<unknown, void>): Promise<unknown> {
  try {
    for await (const _ of work);
  } catch (error) {
    const { code, message } = error as SandboxError
    return { code, message }
  }
  return undefined
}
/** Waits for the first event. */
async function begun<T>(work: AsyncGenerator<T, void>): Promise<AsyncGenerator<T, void>> {
  await work.next()
  return work
}

describe('the client library', () => {
  test('throws the reason and does not reconnect when the key is revoked', async () => {
    const { id: keyId, key } = await newKey(home)
    const client = new RingfenceClient({ url: home.server.url, apiKey: key })
    const sandbox = await client.create()
    const work = [
      await begun(sandbox.stream('sleep 60')),
      await begun(client.events({ after: 0 })),
      sandbox.files.watch('/tmp'),
    ]
    const ends = work.map(failure)
    await new Promise((resolve) => setTimeout(resolve, 200))
    await home.call('DELETE', `/v1/keys/${keyId}`)
    const out = { code: 'unauthenticated', message: 'the key was revoked' }
    expect(await Promise.all(ends)).toEqual([out, out, out])
    await home.call('DELETE', `/v1/sandboxes/${sandbox.id}`)
  })

  test('reports `cut` for a command only if the sandbox ended during the command', async () => {
    const client = new RingfenceClient({ url: home.server.url, apiKey: home.admin })
    const sandbox = await client.create()
    expect((await sandbox.exec('true')).cut).toBeUndefined()
    const stream = await begun(sandbox.stream('sleep 60'))
    const answer = sandbox.exec('sleep 60')
    await expect.poll(async () => (await sandbox.refresh()).state).toBe('executing')
    await new Promise((resolve) => setTimeout(resolve, 200))
    void sandbox.close()
    const cut = { reason: 'sandbox-ended', message: 'the sandbox has ended (killed)' }
    expect((await answer).cut).toEqual(cut)
    const { value } = await stream.next()
    expect(value).toMatchObject({ type: 'end', result: { cut } })
  })
})

test('a server that shuts down closes every stream with that reason', async () => {
  const other = await startTestServer(CONFIG)
  const id = await withServer(other, other.admin)
  const client = new RingfenceClient({ url: other.server.url, apiKey: other.admin })
  const headers = { authorization: `Bearer ${other.admin}` }
  const console = await fetch(`${other.server.url}/v1/console/events`, { headers })
  const events = failure(await begun(client.events({ after: 0 })))
  const terminal = await socket(
    other,
    other.admin,
    `/v1/sandboxes/${id}/pty?command=${encodeURIComponent('echo; cat')}`,
  )
  const port = await socket(other, other.admin, `/v1/sandboxes/${id}/ports/8078/`)
  const said = console.text()
  await other.close()
  expect(await terminal.closed).toBe('1001 the server is shutting down')
  expect(await port.closed).toBe('1001 the server is shutting down')
  expect((await said).trimEnd().split('\n\n').at(-1)).toBe(
    'event: cut\ndata: {"reason":"shutdown","message":"the server is shutting down"}',
  )
  expect(await events).toEqual({ code: 'draining', message: 'the server is shutting down' })
})
