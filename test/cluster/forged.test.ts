import type { IncomingMessage, ServerResponse } from 'node:http'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { Duplex, Readable } from 'node:stream'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { authorityOf, issueNodeCertificate } from '../../src/cluster/identity.ts'
import { askPeer, forwardUpgrade } from '../../src/server/cluster/forward.ts'
import { listenForPeers, PeerConnections } from '../../src/server/cluster/peers.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { FULL } from '../server/test-server.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** Clients that use the way between nodes: to be taken for a node, to reach what is not theirs, to stop it for others. */

const SECRET = 'the secret of the victim'

let postgres: Postgres
let fleet: Fleet
let victim: string
/** Runs on the second node; clients ask the first. */
let sandbox: string
let archive: string
beforeAll(async () => {
  postgres = await startPostgres()
  const node = { leaseSecs: 30, rest: '[server]\ndatabase_timeout_secs = 1\n' }
  fleet = await startFleet(postgres.url, [node, node])
  victim = await fleet.key(['create', 'exec', 'read'], 'victim')
  sandbox = await created(victim)
  const path = `/v1/sandboxes/${sandbox}`
  await ask(0, 'POST', `${path}/exec`, { command: `echo ${SECRET} > /tmp/secret` })
  archive = `${(await ask(0, 'POST', `${path}/snapshot`, {})).json.id}-0.tar`
}, 60_000)
afterAll(async () => {
  await fleet?.close()
  await postgres?.stop()
})

const nodeAt = (at: number) => fleet.nodes[at] as Fleet['nodes'][number]
const ask = (at: number, method: string, path: string, body?: unknown, key = victim) =>
  nodeAt(at).call(method, path, { key, body })
const created = async (key: string): Promise<string> =>
  (await ask(0, 'POST', '/v1/sandboxes', { placement: { node: 'n2' } }, key)).json.id

/** A connection to the first node, as of a client without a key. */
function opened(text: string): Promise<Socket> {
  const { port } = new URL(nodeAt(0).server.url)
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), '127.0.0.1', () => socket.write(text, () => resolve(socket)))
    socket.once('error', reject)
  })
}

/** Everything that the first node answers until it closes the connection. */
async function answerTo(text: string): Promise<string> {
  const socket = await opened(text)
  let said = ''
  socket.on('data', (data) => {
    said += data.toString('latin1')
  })
  await new Promise((resolve) => socket.once('close', resolve))
  return said
}

const portName = (): string => `8080-${sandbox.replace('_', '')}.localhost`
const request = (line: string, headers: readonly string[], body = ''): string =>
  [`${line} HTTP/1.1`, ...headers, '', body].join('\r\n')

describe('a client that sends requests to node-to-node routes', () => {
  test('gets no archive, by any route to the other node', async () => {
    for (const header of [
      `host: ${portName()}`,
      `host: localhost\r\ne2b-sandbox-id: ${sandbox}\r\ne2b-sandbox-port: 8080`,
      `host: localhost\r\ne2b-sandbox-id: ${sandbox}`,
      `host: ${portName()}\r\nringfence-forwarded-by;: x\r\nconnection: ringfence-forwarded-by`,
    ]) {
      const said = await answerTo(request(`GET /peer/archives/${archive}`, [header, 'connection: close']))
      expect(said.slice(0, 300), header).not.toMatch(/^HTTP\/1.1 200/)
      expect(said).not.toContain(SECRET)
    }
  })

  test('cannot make a node take over or copy a sandbox', async () => {
    const own = JSON.stringify({ instance: nodeAt(1).id, epoch: 1, reason: 'x', tenant: 'victim' })
    for (const path of [`/peer/sandboxes/${sandbox}/take`, `/peer/copies/${archive.split('-')[0]}`]) {
      const headers = [`host: ${portName()}`, `content-length: ${own.length}`, 'connection: close']
      // 204 and 409 are the answers to an order.
      expect(await answerTo(request(`POST ${path}`, headers, own))).not.toMatch(/^HTTP\/1.1 (204|409)/)
    }
  })

  test.each(['GET', 'DELETE', 'HEAD', 'OPTIONS'])(
    'cannot smuggle a second request in the body of a %s',
    async (method) => {
      const doomed = await created(victim)
      const inner = request(`DELETE /v1/sandboxes/${doomed}`, [
        'host: localhost',
        `authorization: Bearer ${victim}`,
        '',
      ])
      const chunk = `${inner.length.toString(16)}\r\n${inner}\r\n0\r\n\r\n`
      const headers = ['host: localhost', 'transfer-encoding: chunked', 'connection: close']
      await answerTo(request(`${method} /v1/sandboxes/${doomed}/nothing`, headers, chunk))
      // The same connection between the nodes: what is before it was read.
      expect((await ask(0, 'GET', `/v1/sandboxes/${doomed}`)).json.state).toBe('ready')
      await ask(0, 'DELETE', `/v1/sandboxes/${doomed}`)
    },
  )
})

test('a create without a key is refused before its body is read', async () => {
  const headers = ['host: localhost', 'content-type: application/json', 'content-length: 900000']
  const socket = await opened(request('POST /v1/sandboxes', headers))
  const said = await new Promise<string>((resolve) => socket.once('data', (data) => resolve(String(data))))
  expect(said).toMatch(/^HTTP\/1.1 401/)
  socket.destroy()
})

test('a create with too many volumes is refused before any look-up', async () => {
  const volumes = Array.from({ length: 20_000 }, (_, at) => ({ name: `vol_${at}`, path: `/v${at}` }))
  const answer = await ask(0, 'POST', '/v1/sandboxes', { volumes })
  expect([answer.status, answer.json.code]).toEqual([400, 'invalid-input'])
})

test('a revoked key is rejected on every node', { timeout: 30_000 }, async () => {
  const { secret, key } = await nodeAt(0).server.parts.keys.create({ tenant: 'leaving' })
  const own = await created(secret)
  const answer = await fetch(`${nodeAt(0).server.url}/v1/events?sandbox_id=${own}`, {
    headers: { authorization: `Bearer ${secret}`, accept: 'text/event-stream' },
  })
  expect(answer.status).toBe(200)
  await nodeAt(0).server.parts.keys.revoke(key.id)
  expect((await ask(1, 'GET', `/v1/sandboxes/${own}`, undefined, secret)).status).toBe(401)
  expect((await ask(0, 'POST', `/v1/sandboxes/${own}/exec`, { command: 'true' }, secret)).status).toBe(401)
  // Ends by itself, or the test times out.
  await answer.text().catch(() => {})
})

test('a node whose database fails still answers another node', { timeout: 30_000 }, async () => {
  const gone = await created(victim)
  await ask(0, 'POST', `/v1/sandboxes/${gone}/exec`, { command: 'true' })
  await ask(1, 'DELETE', `/v1/sandboxes/${gone}`)
  postgres.freeze()
  try {
    const answer = await ask(0, 'POST', `/v1/sandboxes/${gone}/exec`, { command: 'true' })
    expect(answer.status, answer.text).toBe(503)
  } finally {
    postgres.thaw()
  }
})

/** A request as the server hands it on. */
const askedFor = (url: string, headers: object): IncomingMessage =>
  Object.assign(Readable.from([]), {
    headers: { host: 'x', ...headers },
    complete: true,
    socket: {},
    url,
    method: 'GET',
  }) as unknown as IncomingMessage

/** Passes connections on to a port until it is cut: then they stay open, and nothing arrives. */
async function cuttableWire(port: number) {
  const ends: Socket[] = []
  let isCut = false
  const server = createServer((one) => {
    ends.push(one)
    one.on('error', () => {})
    if (isCut) return
    const other = connect(port, '127.0.0.1')
    ends.push(other)
    other.on('error', () => {})
    one.pipe(other)
    other.pipe(one)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    port: (server.address() as AddressInfo).port,
    cut: () => {
      isCut = true
      for (const end of ends) end.unpipe().pause()
    },
    close: () => {
      for (const end of ends) end.destroy()
      server.close()
    },
  }
}

describe('attempts to block node-to-node connections', () => {
  test('connections without a certificate are closed, and nodes can still connect', async () => {
    const { url } = nodeAt(1).server.parts.cluster?.node.peer(nodeAt(1).id) ?? { url: '' }
    const sockets = await Promise.all(
      Array.from(
        { length: 300 },
        () =>
          new Promise<Socket>((resolve) => {
            const socket = connect(Number(new URL(url).port), '127.0.0.1', () => resolve(socket))
            socket.on('error', () => {})
          }),
      ),
    )
    await expect.poll(() => sockets.filter((one) => one.resume().closed).length).toBeGreaterThanOrEqual(44)
    const path = `/v1/sandboxes/${sandbox}/exec`
    expect((await ask(0, 'POST', path, { command: 'true' })).status).toBe(200)
    for (const socket of sockets) socket.destroy()
  })

  test('an upgrade to a node that does not answer is refused', { timeout: 20_000 }, async () => {
    const silent = createServer(() => {})
    await new Promise<void>((resolve) => silent.listen(0, '127.0.0.1', resolve))
    const authority = await authorityOf(nodeAt(0).server.store, fleet.clusterKey)
    const peers = new PeerConnections(issueNodeCertificate(authority, 'ffffffffffffffff'))
    const row = nodeAt(0).server.parts.cluster?.node.peer(nodeAt(1).id)
    if (!row) throw new Error('no node')
    const node = { ...row, url: `https://127.0.0.1:${(silent.address() as AddressInfo).port}` }
    const asked = { headers: { upgrade: 'websocket' }, socket: {}, url: '/', method: 'GET' }
    const client = new Duplex({ read() {}, write: (_chunk, _encoding, done) => done() })
    const forwarded = forwardUpgrade(asked as unknown as IncomingMessage, client, Buffer.alloc(0), {
      self: 'x',
      peers,
      node,
    })
    await expect(forwarded).rejects.toMatchObject({ code: 'unreachable' })
    peers.close()
    silent.close()
  })

  test('a burst of requests to a node is answered, however many connections it needs', {
    timeout: 60_000,
  }, async () => {
    const authority = await authorityOf(nodeAt(0).server.store, fleet.clusterKey)
    const theirs = issueNodeCertificate(authority, 'eeeeeeeeeeeeeeee')
    const listener = await listenForPeers(theirs, { host: '127.0.0.1', port: 0 })
    const waiting: ServerResponse[] = []
    listener.serve({
      request: (_, answer) => void waiting.push(answer),
      upgrade: (_, socket) => void socket.destroy(),
      admits: async () => true,
    })
    const row = nodeAt(0).server.parts.cluster?.node.peer(nodeAt(1).id)
    if (!row) throw new Error('no node')
    const node = { ...row, id: 'eeeeeeeeeeeeeeee', fingerprint: theirs.fingerprint, url: listener.url }
    const peers = new PeerConnections(issueNodeCertificate(authority, 'ffffffffffffffff'))
    const asked = Array.from({ length: 400 }, () =>
      askPeer(askedFor('/x', {}), { self: 'x', peers, node, body: Buffer.alloc(0) }),
    )
    const failed: unknown[] = []
    for (const one of asked) one.catch((error: unknown) => void failed.push(error))
    await expect.poll(() => waiting.length + failed.length, { timeout: 50_000 }).toBe(400)
    for (const answer of waiting) answer.end()
    expect(failed).toEqual([])
    await Promise.all(asked.map(async (one) => void (await one).resume()))
    peers.close()
    await listener.close()
  })

  test('streams and requests to a node are ended when the node becomes unreachable', {
    timeout: 60_000,
  }, async () => {
    const authority = await authorityOf(nodeAt(0).server.store, fleet.clusterKey)
    const theirs = issueNodeCertificate(authority, 'eeeeeeeeeeeeeeee')
    let pings = 0
    const listener = await listenForPeers(theirs, { host: '127.0.0.1', port: 0 })
    listener.serve({
      request: (asked, answer) => {
        if (asked.url === '/healthz') pings++
        if (asked.url === '/stream') answer.write('begun')
        else if (asked.url !== '/silent') answer.end()
      },
      upgrade: (_, socket) =>
        void socket.write('HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n'),
      admits: async () => true,
    })
    const wire = await cuttableWire(Number(new URL(listener.url).port))
    const row = nodeAt(0).server.parts.cluster?.node.peer(nodeAt(1).id)
    if (!row) throw new Error('no node')
    const { fingerprint } = theirs
    const node = { ...row, id: 'eeeeeeeeeeeeeeee', fingerprint, url: `https://127.0.0.1:${wire.port}` }
    const peers = new PeerConnections(issueNodeCertificate(authority, 'ffffffffffffffff'), 500)
    const parts = { self: 'x', peers, node }
    const stream = await askPeer(askedFor('/stream', {}), { ...parts, body: Buffer.alloc(0) })
    const client = new Duplex({ read() {}, write: (_chunk, _encoding, done) => done() })
    await forwardUpgrade(askedFor('/', { upgrade: 'x' }), client, Buffer.alloc(0), parts)
    const silent = askPeer(askedFor('/silent', {}), { ...parts, body: Buffer.alloc(0) })
    silent.catch(() => {})
    // A node that answers others is not given up, however long an answer takes.
    await expect.poll(() => pings, { timeout: 10_000 }).toBeGreaterThan(0)
    expect([stream.destroyed, client.destroyed]).toEqual([false, false])
    wire.cut()
    await expect(silent).rejects.toMatchObject({ code: 'unreachable' })
    await expect.poll(() => [stream.destroyed, client.destroyed], { timeout: 10_000 }).toEqual([true, true])
    peers.close()
    await listener.close()
    wire.close()
  })

  test.runIf(FULL)(
    '600 streams of one tenant to another node do not block other requests',
    { timeout: 300_000 },
    async () => {
      const attacker = await fleet.key(['create', 'exec', 'read'], 'attacker')
      const own = await created(attacker)
      const headers = ['host: localhost', `authorization: Bearer ${attacker}`]
      const sockets: Socket[] = []
      for (let at = 0; at < 600; at++)
        sockets.push(await opened(request(`GET /v1/events?sandbox_id=${own}`, [...headers, ''])))
      const path = `/v1/sandboxes/${sandbox}/exec`
      expect((await ask(0, 'POST', path, { command: 'true' })).status).toBe(200)
      for (const socket of sockets) socket.destroy()
    },
  )
})
