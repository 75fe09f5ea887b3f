import { request } from 'node:https'
import { tmpdir } from 'node:os'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  authorityOf,
  ClusterKey,
  createJoinToken,
  initCluster,
  issueNodeCertificate,
  type NodeCertificate,
  nodeHost,
  redeemJoinToken,
} from '../../src/cluster/identity.ts'
import { fenceNode, listNodes, registerNode, renewLease } from '../../src/store/nodes.ts'
import { openStore } from '../../src/store/open.ts'
import type { Store } from '../../src/store/sql.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** Strangers, former nodes and clients that pretend to be nodes. */

let postgres: Postgres
let fleet: Fleet
let store: Store
beforeAll(async () => {
  postgres = await startPostgres()
  fleet = await startFleet(postgres.url, [{ rest: '[server]\nwrong_keys_per_second = 1\n' }, {}])
  store = await openStore({ stateDir: tmpdir(), databaseUrl: postgres.url })
})
afterAll(async () => {
  await store?.close()
  await fleet?.close()
  await postgres?.stop()
})

const nodeRow = async (name: string) => {
  const found = (await listNodes(store)).find((node) => node.name === name)
  if (!found) throw new Error(`no node ${name}`)
  return found
}

/** A request to the address for nodes; resolves to its status, or to why there was no answer. */
async function knock(
  name: string,
  path: string,
  own: Partial<NodeCertificate> = {},
  headers: Record<string, string> = {},
): Promise<number | string> {
  const { id, url } = await nodeRow(name)
  const { hostname, port } = new URL(url)
  return new Promise((resolve) => {
    const options = {
      host: hostname,
      port,
      path,
      headers,
      servername: nodeHost(id),
      cert: own.certificate,
      key: own.privateKey,
      rejectUnauthorized: false,
      agent: false as const,
    }
    request(options, (answer) => resolve(answer.resume().statusCode ?? 0))
      .on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message))
      .end()
  })
}

describe('the node-to-node address', () => {
  test('refuses a peer without a certificate, or with one of another authority', async () => {
    expect(await knock('n1', '/healthz')).not.toBe(200)
    expect(typeof (await knock('n1', '/healthz'))).toBe('string')
    const other = postgres.fresh('stranger')
    const theirs = await openStore({ stateDir: tmpdir(), databaseUrl: other })
    const key = ClusterKey.create()
    await initCluster(theirs, key)
    const certificate = issueNodeCertificate(await authorityOf(theirs, key), (await nodeRow('n2')).id)
    expect(typeof (await knock('n1', '/healthz', certificate))).toBe('string')
    await theirs.close()
  })

  test('refuses a valid certificate that belongs to no running node', async () => {
    const authority = await authorityOf(store, fleet.clusterKey)
    const unknown = issueNodeCertificate(authority, 'ffffffffffffffff')
    expect(await knock('n1', '/healthz', unknown)).toBe(403)
    // The right name, and the key of another run: as of a machine that was copied, or of an older epoch.
    const former = issueNodeCertificate(authority, (await nodeRow('n2')).id)
    expect(await knock('n1', '/healthz', former)).toBe(403)
  })

  test('answers a node only about its own sandboxes, and authenticates the client itself', async () => {
    const authority = await authorityOf(store, fleet.clusterKey)
    const peer = issueNodeCertificate(authority, 'eeeeeeeeeeeeeeee')
    const self = { ...(await nodeRow('n2')), id: 'eeeeeeeeeeeeeeee', name: 'n3', role: 'api' as const }
    const epoch = await store.write((tx) => registerNode(tx, { ...self, ...peer }))
    expect(await knock('n1', '/healthz', peer)).toBe(200)
    const made = await fleet.nodes[0]?.call('POST', '/v1/sandboxes', {
      key: fleet.admin,
      body: { placement: { node: 'n1' } },
    })
    const path = `/v1/sandboxes/${made?.json.id}`
    const as = { authorization: `Bearer ${fleet.admin}` }
    expect(await knock('n1', path, peer, as)).toBe(200)
    // Not forwarded a second time.
    expect(await knock('n2', path, peer, as)).toBe(421)
    expect(await knock('n1', path, peer)).toBe(401)
    expect(
      await knock('n1', path, peer, { 'ringfence-forwarded-by': 'x', 'ringfence-principal': 'admin' }),
    ).toBe(401)
    // Its next run has another certificate: the old one is refused on new connections.
    const next = issueNodeCertificate(authority, self.id)
    await store.write((tx) => registerNode(tx, { ...self, ...next }))
    await fleet.nodes[1]?.server.parts.cluster?.node.refresh()
    expect(await knock('n2', '/healthz', peer)).toBe(403)
    expect(await store.write((tx) => renewLease(tx, { id: self.id, epoch }, self.facts))).toBeUndefined()
  })
})

test('a client cannot forge its address to avoid the limit on wrong keys', async () => {
  const id = (
    await fleet.nodes[0]?.call('POST', '/v1/sandboxes', {
      key: fleet.admin,
      body: { placement: { node: 'n1' } },
    })
  )?.json.id
  const statuses: number[] = []
  for (let at = 0; at < 12; at++) {
    const headers = { 'ringfence-client-address': `10.0.0.${at}` }
    const answer = await fleet.nodes[1]?.call('GET', `/v1/sandboxes/${id}/metrics`, {
      key: 'rf_wrong',
      headers,
    })
    statuses.push(answer?.status ?? 0)
  }
  expect(statuses).toContain(429)
})

describe('a join token', () => {
  test('works once, also if two machines use it at the same moment', async () => {
    const token = await createJoinToken(store, fleet.clusterKey, 60_000)
    const tries = await Promise.allSettled([redeemJoinToken(store, token), redeemJoinToken(store, token)])
    expect(tries.map(({ status }) => status).sort()).toEqual(['fulfilled', 'rejected'])
    const key = tries.find((one) => one.status === 'fulfilled')?.value as ClusterKey
    expect((await authorityOf(store, key)).certificate).toContain('BEGIN CERTIFICATE')
    await expect(redeemJoinToken(store, token)).rejects.toThrow('not valid')
  })

  test('expires, cannot be guessed, and is invalid in another database', async () => {
    const token = await createJoinToken(store, fleet.clusterKey, -1)
    await expect(redeemJoinToken(store, token)).rejects.toThrow('not valid')
    await expect(redeemJoinToken(store, `rfj_${'0'.repeat(48)}`)).rejects.toThrow('not valid')
    await expect(authorityOf(store, ClusterKey.create())).rejects.toThrow('does not fit')
    await expect(initCluster(store, ClusterKey.create())).rejects.toThrow('already belongs')
  })
})

test('a node that hangs in a transaction does not block fencing', async () => {
  const node = await nodeRow('n3')
  const options = { stateDir: tmpdir(), databaseUrl: postgres.url }
  const stopped = await openStore({ ...options, idleMs: 300 })
  let isOver = false
  const writing = stopped.write(async (tx) => {
    await tx.run('SELECT id FROM nodes WHERE id = ? FOR KEY SHARE', [node.id])
    await new Promise((resolve) => setTimeout(resolve, 2000))
    isOver = true
  })
  writing.catch(() => {})
  await new Promise((resolve) => setTimeout(resolve, 100))
  await store.write((tx) => tx.run('SELECT id FROM nodes WHERE id = ? FOR UPDATE', [node.id]))
  expect(isOver).toBe(false)
  await expect(writing).rejects.toThrow()
  await stopped.close()
})

test('a node is fenced only after its lease expired, and only once', async () => {
  const node = await nodeRow('n1')
  expect(await store.write((tx) => fenceNode(tx, node, 'me'))).toBe(false)
  const own = await nodeRow('n3')
  await store.write((tx) => tx.run('UPDATE nodes SET lease_until = 0 WHERE id = ?', [own.id]))
  const tries = await Promise.all([
    store.write((tx) => fenceNode(tx, own, 'me')),
    store.write((tx) => fenceNode(tx, own, 'you')),
  ])
  // A running node may have been faster than both.
  expect(tries.filter(Boolean).length).toBeLessThanOrEqual(1)
  expect((await nodeRow('n3')).state).toBe('lost')
})
