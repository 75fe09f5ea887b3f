import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { claimVolume, openForWriting, volumeById } from '../../src/store/volumes.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { type Fleet, startFleet } from './fleet.ts'
import { type S3Server, startS3 } from './s3.ts'

/** Volumes of a cluster: one node at a time has a volume, and it is never used in an old state. */

let postgres: Postgres
let s3: S3Server
let fleet: Fleet
let shared: Fleet
beforeAll(async () => {
  postgres = await startPostgres()
  s3 = await startS3()
  const node = { leaseSecs: 3, cluster: 'wait_secs = 1' }
  const small = { ...node, cluster: 'wait_secs = 1\nmemory_mb = 100' }
  fleet = await startFleet(postgres.fresh('volumes'), [small, node])
  const stored = { ...node, rest: s3.config('encrypt = true'), env: s3.env }
  shared = await startFleet(postgres.fresh('stored'), [stored, stored])
})
afterAll(async () => {
  await fleet?.close()
  await shared?.close()
  await s3?.close()
  await postgres?.stop()
})

type Node = Fleet['nodes'][number]
const nodeAt = (of: Fleet, at: number): Node => of.nodes[at] as Node
const ask = (of: Fleet, at: number, method: string, path: string, body?: object | string) =>
  nodeAt(of, at).call(method, path, { key: of.admin, ...(body !== undefined && { body }) })
const operator = { keyId: 'k', tenant: 'default', scopes: ['admin'] as const }
const mounting = (name: string, mode?: 'ro') => ({
  volumes: [{ name, target: '/data', ...(mode && { mode }) }],
})

/** A volume on a given node, as the rendezvous of some key would place it. */
const volumeOn = (of: Fleet, at: number, name: string) =>
  nodeAt(of, at).server.parts.volumes.create(operator, { name })
/** Other nodes learn a moment later that an earlier test left memory free, or its node open again. */
async function create(of: Fleet, body: object): ReturnType<typeof ask> {
  let made = await ask(of, 1, 'POST', '/v1/sandboxes', body)
  await until(async () => {
    if (made.status !== 201) made = await ask(of, 1, 'POST', '/v1/sandboxes', body)
    return made.status === 201
  })
  expect(made.status, made.text).toBe(201)
  return made
}
async function write(of: Fleet, name: string, text: string): Promise<void> {
  const made = await create(of, mounting(name))
  const done = await ask(of, 1, 'POST', `/v1/sandboxes/${made.json.id}/exec`, {
    command: `printf ${text} > /data/file; ln -s file /data/link; chmod 750 /data/file`,
  })
  expect(done.json.outcome, done.text).toEqual({ kind: 'exited', code: 0 })
  await ask(of, 1, 'DELETE', `/v1/sandboxes/${made.json.id}`)
}
const read = async (of: Fleet, at: number, name: string): Promise<string> =>
  (await ask(of, at, 'GET', `/v1/volumes/${name}/files?path=/file`)).text
const nodeOf = async (of: Fleet, at: number, name: string): Promise<string | null> =>
  (await ask(of, at, 'GET', '/v1/volumes')).json.items.find((one: { name: string }) => one.name === name)
    ?.node
const directories = (of: Fleet, at: number): readonly string[] =>
  readdirSync(join(nodeAt(of, at).dir, 'state', 'volumes'))

test('a create says that the node of its volume is full, or that placement asks for another one', async () => {
  await volumeOn(fleet, 0, 'busy')
  const first = await ask(fleet, 1, 'POST', '/v1/sandboxes', mounting('busy'))
  expect(first.status, first.text).toBe(201)
  const full = await ask(fleet, 1, 'POST', '/v1/sandboxes', mounting('busy'))
  expect(full.status, full.text).toBe(429)
  expect(full.text).toContain('volume `busy` is on node n1: 1 without enough memory')
  const elsewhere = await ask(fleet, 1, 'POST', '/v1/sandboxes', {
    ...mounting('busy'),
    placement: { node: 'n2' },
  })
  expect(elsewhere.status, elsewhere.text).toBe(400)
  expect((await ask(fleet, 1, 'GET', '/v1/volumes')).json.items).toMatchObject([
    { name: 'busy', node: 'n1', used_bytes: null, sandboxes: [first.json.id] },
  ])
  await ask(fleet, 1, 'DELETE', `/v1/sandboxes/${first.json.id}`)
})

test('a drained node gives its volumes away; one that is mounted stays, and the drain says why', async () => {
  const { id } = await volumeOn(fleet, 0, 'moving')
  await write(fleet, 'moving', 'one')
  const user = await create(fleet, mounting('busy', 'ro'))
  expect(user.status, user.text).toBe(201)
  await ask(fleet, 1, 'POST', '/v1/nodes/n1/drain', {})
  expect(await until(async () => (await nodeOf(fleet, 1, 'moving')) === 'n2')).toBe(true)
  expect(await read(fleet, 0, 'moving')).toBe('one')
  expect(await until(() => !directories(fleet, 0).includes(id))).toBe(true)
  const staying = async () =>
    (await ask(fleet, 1, 'GET', '/v1/nodes')).json.items.find((one: { name: string }) => one.name === 'n1')
      .staying
  expect(await until(async () => (await staying()).length === 2)).toBe(true)
  expect((await ask(fleet, 1, 'GET', '/v1/nodes')).json.items).toMatchObject([{ volumes: 1 }, { volumes: 1 }])
  expect(JSON.stringify(await staying())).toContain('it mounts volume `busy`')
  expect(JSON.stringify(await staying())).toContain(`it is mounted in ${user.json.id}`)
  // The former node does not mount what it gave away, also if a request reaches it directly.
  const stale = { ...(await nodeAt(fleet, 0).server.parts.volumes.get('default', id)) }
  await expect(
    nodeAt(fleet, 0).server.parts.volumes.mount(stale, 'sb_0', { target: '/data' }),
  ).rejects.toThrow('another node')
  await ask(fleet, 1, 'DELETE', `/v1/sandboxes/${user.json.id}`)
  expect(await until(async () => (await nodeOf(fleet, 1, 'busy')) === 'n2')).toBe(true)
  await ask(fleet, 1, 'POST', '/v1/nodes/n1/uncordon', {})
})

test('a volume with a file that cannot be read stays, and the drain says why', async () => {
  // The node may have been drained a moment ago.
  const isOpen = async () =>
    (await ask(fleet, 1, 'GET', '/v1/nodes')).json.items.every(
      ({ schedule }: { schedule: string }) => schedule === 'open',
    )
  expect(await until(isOpen)).toBe(true)
  await volumeOn(fleet, 0, 'hidden')
  const { id } = (await create(fleet, mounting('hidden'))).json
  const command = 'echo kept > /data/file; chmod 0 /data/file'
  await ask(fleet, 1, 'POST', `/v1/sandboxes/${id}/exec`, { command })
  await ask(fleet, 1, 'DELETE', `/v1/sandboxes/${id}`)
  await ask(fleet, 1, 'POST', '/v1/nodes/n1/drain', {})
  const staying = async () => (await ask(fleet, 1, 'GET', '/v1/nodes')).text
  const isSaid = await until(async () => (await staying()).includes('files that cannot be read'))
  expect(isSaid, await staying()).toBe(true)
  expect(await nodeOf(fleet, 1, 'hidden')).toBe('n1')
  await ask(fleet, 1, 'POST', '/v1/nodes/n1/uncordon', {})
  expect((await ask(fleet, 1, 'DELETE', '/v1/volumes/hidden')).status).toBe(204)
})

test('a volume that was opened after it was offered does not move', async () => {
  const row = await volumeOn(fleet, 1, 'raced')
  const { store } = nodeAt(fleet, 0).server
  const fresh = await volumeById(store, row.id)
  if (!fresh) throw new Error('no volume')
  const epoch = nodeAt(fleet, 1).server.parts.cluster?.node.epoch
  const archived = { ...fresh, archive: 'snp_0', archived: 0 }
  await store.write((tx) =>
    tx.run("UPDATE volumes SET archive = 'snp_0', archived = 0 WHERE id = ?", [row.id]),
  )
  const to = nodeAt(fleet, 0).id
  const claim = (more: object) =>
    store.write((tx) => claimVolume(tx, archived, { to, keepsArchive: true, ...more }))
  // Its node runs and did not offer it, or offered it in another run.
  expect(await claim({})).toBe(false)
  expect(await claim({ epoch: (epoch ?? 0) + 1 })).toBe(false)
  const other = nodeAt(fleet, 1).server.store
  expect(await other.write((tx) => openForWriting(tx, row.id, nodeAt(fleet, 1).id))).toBe(true)
  expect(await claim({ epoch })).toBe(false)
  expect(await volumeById(store, row.id)).toMatchObject({ instance: nodeAt(fleet, 1).id, version: 1 })
})

test('a volume outlives its node when its copy is complete, and waits for its node when it is not', {
  timeout: 60_000,
}, async () => {
  const complete = await volumeOn(shared, 0, 'complete')
  await write(shared, 'complete', 'whole')
  await volumeOn(shared, 0, 'open')
  await write(shared, 'open', 'old')
  const { store } = nodeAt(shared, 1).server
  const isCopied = async (name: string) => {
    const row = (await nodeAt(shared, 1).server.parts.volumes.list('default')).find(
      (one) => one.name === name,
    )
    return row !== undefined && row.archived === row.version
  }
  expect(await until(async () => (await isCopied('complete')) && (await isCopied('open')))).toBe(true)
  // A sandbox writes to the second one when its node is lost.
  const writer = await ask(shared, 0, 'POST', '/v1/sandboxes', mounting('open'))
  expect(writer.status, writer.text).toBe(201)
  await store.write((tx) => tx.run("UPDATE nodes SET state = 'lost', settled = 1 WHERE name = 'n1'"))
  expect(await until(() => nodeAt(shared, 0).isFenced())).toBe(true)
  await nodeAt(shared, 1).server.parts.cluster?.node.refresh()

  const refused = await ask(shared, 1, 'POST', '/v1/sandboxes', mounting('open'))
  expect(refused.status, refused.text).toBe(502)
  expect(refused.text).toContain(
    'volume `open` is on node n1, which does not run, and it was opened for writing',
  )
  expect((await ask(shared, 1, 'GET', '/v1/volumes/open/files?path=/file')).status).toBe(502)

  const { volumes } = nodeAt(shared, 1).server.parts
  const stale = await volumes.get('default', complete.id)
  const made = await ask(shared, 1, 'POST', '/v1/sandboxes', mounting('complete'))
  expect(made.status, made.text).toBe(201)
  const seen = await ask(shared, 1, 'POST', `/v1/sandboxes/${made.json.id}/exec`, {
    command: 'cat /data/link; stat -c %a /data/file; printf newer > /data/file',
  })
  expect(seen.json.stdout).toBe('whole750\n')
  expect(await nodeOf(shared, 1, 'complete')).toBe('n2')
  // A request that looked the volume up before it came here finds it here, and does not bring the copy again.
  expect(await volumes.here(stale)).toMatchObject({ instance: nodeAt(shared, 1).id })
  expect(await read(shared, 1, 'complete')).toBe('newer')
  // The former node has an old directory; it comes back, and does not use it.
  const old = join(nodeAt(shared, 0).dir, 'state', 'volumes', complete.id)
  expect(existsSync(old)).toBe(true)
  await nodeAt(shared, 0).server.close()
  const again = await shared.add({
    name: 'n1',
    dir: nodeAt(shared, 0).dir,
    leaseSecs: 3,
    rest: s3.config('encrypt = true'),
    env: s3.env,
  })
  expect(await until(() => !existsSync(old))).toBe(true)
  expect((await again.call('GET', '/v1/volumes/complete/files?path=/file', { key: shared.admin })).text).toBe(
    'newer',
  )
  expect((await again.call('GET', '/v1/volumes/open/files?path=/file', { key: shared.admin })).text).toBe(
    'old',
  )
})

test('a removed node: its volumes with a copy live on, the others can be removed', {
  timeout: 60_000,
}, async () => {
  await volumeOn(fleet, 0, 'gone')
  await write(fleet, 'gone', 'x')
  await nodeAt(fleet, 0).server.close()
  const away = await ask(fleet, 1, 'DELETE', '/v1/volumes/gone')
  expect(away.status, away.text).toBe(502)
  const removed = await ask(fleet, 1, 'DELETE', '/v1/nodes/n1')
  expect(removed.status, removed.text).toBe(200)
  const refused = await ask(fleet, 1, 'POST', '/v1/sandboxes', mounting('gone'))
  expect(refused.status, refused.text).toBe(502)
  expect((await ask(fleet, 1, 'DELETE', '/v1/volumes/gone')).status).toBe(204)
})
