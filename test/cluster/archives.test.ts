import { createHash } from 'node:crypto'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { createGzip } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ArchiveStore } from '../../src/supervisor/archives/archive-store.ts'
import { openS3 } from '../../src/supervisor/archives/s3.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { type Fleet, startFleet } from './fleet.ts'
import { S3_SERVERS, type S3Server } from './s3.ts'

/** Snapshots in an S3-compatible store: complete, encrypted, shared where equal, removed when nothing needs them. */

describe.each(S3_SERVERS)('archives in %s', (_, start) => {
  let postgres: Postgres
  let s3: S3Server
  let fleet: Fleet
  beforeAll(async () => {
    postgres = await startPostgres()
    s3 = await start()
    const node = { leaseSecs: 30, rest: s3.config('encrypt = true'), env: s3.env }
    fleet = await startFleet(postgres.fresh('archives'), [node, node])
  })
  afterAll(async () => {
    await fleet?.close()
    await s3?.close()
    await postgres?.stop()
  })

  const ask = (at: number, method: string, path: string, body?: object) =>
    (fleet.nodes[at] as Fleet['nodes'][number]).call(method, path, {
      key: fleet.admin,
      ...(body && { body }),
    })

  async function run(at: number, id: string, command: string): Promise<string> {
    const done = await ask(at, 'POST', `/v1/sandboxes/${id}/exec`, { command })
    expect(done.status, done.text).toBe(200)
    return done.json.stdout
  }
  const created = (at: number, body: object = {}) =>
    ask(at, 'POST', '/v1/sandboxes', { placement: { node: `n${at + 1}` }, ...body })

  const snapshot = async (id: string): Promise<string> => {
    const kept = await ask(0, 'POST', `/v1/sandboxes/${id}/snapshot`, {})
    expect(kept.status, kept.text).toBe(201)
    return kept.json.id
  }
  /** The archives that a node has in its state directory. */
  const cached = (at: number): readonly string[] =>
    readdirSync(join(fleet.nodes[at]?.dir ?? '', 'state', 'templates')).filter(
      (name) => !name.endsWith('.tmp'),
    )

  const FILL = 'yes readable | head -c 9000000 > /tmp/large; head -c 9000000 /dev/urandom > /tmp/random'
  const HASH = 'cat /tmp/large /tmp/random | sha256sum'

  test('a snapshot can be restored after its node is gone, and damaged chunks are refused', {
    timeout: 60_000,
  }, async () => {
    const { json: made } = await created(0)
    await run(0, made.id, FILL)
    const hash = await run(0, made.id, HASH)
    const first = await snapshot(made.id)
    const objects = s3.objects()
    expect(objects.length).toBeGreaterThanOrEqual(3)
    for (const path of objects) expect(readFileSync(path).includes('readable\nreadable')).toBe(false)
    // One file changed in place: equal chunks are stored once.
    await run(0, made.id, 'printf x | dd of=/tmp/large conv=notrunc status=none')
    const second = await snapshot(made.id)
    expect(s3.objects().length - objects.length).toBeLessThan(objects.length)
    await ask(0, 'DELETE', `/v1/sandboxes/${made.id}`)
    await fleet.nodes[0]?.server.close()
    const again = await created(1, { template: first })
    expect(again.status, again.text).toBe(201)
    expect(await run(1, again.json.id, HASH)).toBe(hash)

    const here = cached(1)
    const fresh = s3.objects().filter((path) => !objects.includes(path))
    for (const path of fresh) writeFileSync(path, readFileSync(path).fill(1, 100, 200))
    const broken = await created(1, { template: second })
    expect(broken.status, broken.text).toBeGreaterThanOrEqual(400)
    expect(cached(1)).toEqual(here)

    await ask(1, 'DELETE', `/v1/snapshots/${second}`)
    const archives = await storeOf()
    expect(await archives.collect(Date.now() - 60_000)).toBe(0)
    expect(await archives.collect(Date.now() + 1)).toBe(fresh.length)
    expect(new Set(s3.objects())).toEqual(new Set(objects))
    await ask(1, 'DELETE', `/v1/snapshots/${first}`)
    await archives.collect(Date.now() + 1)
    expect(s3.objects()).toEqual([])
  })

  /** The same store from outside. */
  async function storeOf(key?: Buffer): Promise<ArchiveStore> {
    const { RINGFENCE_STORAGE_KEY_ID: keyId = '', RINGFENCE_STORAGE_SECRET: secret = '' } = s3.env
    const settings = { url: s3.url, region: 'us-east-1', keyId, secret }
    const objects = await openS3(settings, () => import('aws4fetch'))
    const { store } = fleet.nodes[1]?.server ?? {}
    if (!store) throw new Error('no node')
    return new ArchiveStore({ objects, store, key })
  }

  async function all(chunks: AsyncIterable<Uint8Array>): Promise<Uint8Array[]> {
    const read: Uint8Array[] = []
    for await (const chunk of chunks) read.push(chunk)
    return read
  }

  test('tenants share no chunks, and a chunk being deleted is not reused', {
    timeout: 30_000,
  }, async () => {
    const archives = await storeOf(Buffer.alloc(32, 7))
    const path = join(fleet.nodes[1]?.dir ?? '', 'file')
    writeFileSync(path, 'content')
    const hash = createHash('sha256').update('content').digest('hex')
    expect(await archives.upload('a', path)).toEqual([hash])
    expect(await archives.upload('b', path)).toEqual([hash])
    expect(s3.objects().length).toBe(2)
    const { store } = fleet.nodes[1]?.server ?? {}
    await store?.write((tx) => tx.run("UPDATE chunks SET state = 'deleting'"))
    const late = archives.upload('a', path)
    await archives.collect(0)
    expect(await late).toEqual([hash])
    expect(s3.objects().length).toBe(1)
    const [chunk] = await all(archives.download('a', [hash]))
    expect(Buffer.from(chunk ?? []).toString()).toBe('content')
    const other = await storeOf(Buffer.alloc(32, 8))
    await expect(all(other.download('a', [hash]))).rejects.toThrow('no object')
  })

  /** A store that answers whatever it wants. */
  async function hostileStore(
    answer: (response: ServerResponse) => void,
  ): Promise<{ url: string; server: Server }> {
    const server = createServer((_request, response) => answer(response))
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/bucket` }
  }

  test.each([
    ['endless', 'too large', (response: ServerResponse) => void Readable.from(endless()).pipe(response)],
    [
      'endless after decompression',
      'too large',
      (response: ServerResponse) => {
        response.writeHead(200, { 'content-encoding': 'gzip' })
        Readable.from(endless()).pipe(createGzip()).pipe(response)
      },
    ],
    ['another one', 'another content', (response: ServerResponse) => void response.end('swapped')],
    ['empty', 'another content', (response: ServerResponse) => void response.end()],
  ])('a chunk that is %s is refused, and does not fill the memory', async (_, why, answer) => {
    const { server, url } = await hostileStore(answer)
    const settings = { url, region: 'us-east-1', keyId: 'x', secret: 'x' }
    const objects = await openS3(settings, () => import('aws4fetch'))
    const { store } = (fleet.nodes[1] as Fleet['nodes'][number]).server
    const archives = new ArchiveStore({ objects, store })
    await expect(all(archives.download('a', ['0'.repeat(64)]))).rejects.toThrow(why)
    server.closeAllConnections()
    server.close()
  })

  function* endless(): Generator<Buffer, void> {
    // More than a chunk may have, and not so much that a failing test takes the machine with it.
    for (let at = 0; at < 64; at++) yield Buffer.alloc(1024 * 1024)
  }

  test('a wrong secret opens nothing', async ({ skip }) => {
    if (!s3.checksSignatures) skip()
    const { RINGFENCE_STORAGE_KEY_ID: keyId = '' } = s3.env
    const settings = { url: s3.url, region: 'us-east-1', keyId, secret: 'wrong' }
    const objects = await openS3(settings, () => import('aws4fetch'))
    const before = s3.objects()
    await expect(objects.put('chunks/aa/forged', Buffer.from('forged'))).rejects.toThrow()
    expect(s3.objects()).toEqual(before)
  })

  test('a store that is away: no record of a snapshot that is not complete', {
    timeout: 60_000,
  }, async () => {
    const { json: made } = await created(1)
    await s3.close()
    const refused = await ask(1, 'POST', `/v1/sandboxes/${made.id}/snapshot`, {})
    expect(refused.status, refused.text).toBe(502)
    expect((await ask(1, 'GET', '/v1/snapshots')).json.items).toEqual([])
  })
})
