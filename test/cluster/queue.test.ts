import { afterAll, beforeAll, expect, test } from 'vitest'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import type { Answer } from '../server/test-server.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** Two nodes with room for two sandboxes each. */

let postgres: Postgres
let fleet: Fleet
beforeAll(async () => {
  postgres = await startPostgres()
  const cluster =
    'cpus = 0.2\novercommit = { cpu = 1 }\nreserve = { cpus = 0.1 }\nwait_secs = 2\nmax_waiting = 1\n'
  fleet = await startFleet(postgres.url, [{ cluster }, { cluster: `${cluster}labels = { disk = "fast" }\n` }])
})
afterAll(async () => {
  await fleet?.close()
  await postgres?.stop()
})

const create = (at: number, body: object = {}, key = fleet.admin): Promise<Answer> =>
  (fleet.nodes[at % 2] as Fleet['nodes'][number]).call('POST', '/v1/sandboxes', { key, body })

test('creates fill every node, wait for capacity, and are refused with the reason', async () => {
  const made = await Promise.all([0, 1, 2, 3].map((at) => create(at)))
  expect(made.map(({ status, text }) => (status === 201 ? 201 : text))).toEqual([201, 201, 201, 201])
  expect(fleet.nodes.map(({ server }) => server.parts.supervisor.live)).toEqual([2, 2])
  const waiting = create(0)
  await fleet.nodes[1]?.call('DELETE', `/v1/sandboxes/${made[0]?.json.id}`, { key: fleet.admin })
  expect((await waiting).status, (await waiting).text).toBe(201)
  const refused = await create(1)
  expect(refused.status).toBe(429)
  expect(refused.json.message).toBe('no node takes this sandbox: 2 without enough processors')
  expect(refused.headers.get('retry-after')).toBe('5')
})

test('a create that no node can ever take is refused at once', async () => {
  const labels = await create(0, { placement: { labels: { disk: 'slow' } } })
  expect(labels.status).toBe(501)
  expect(labels.json.message).toContain('without the labels')
  const unknown = await create(0, {}, 'rf_0000000000000000000000000000000000000000')
  expect(unknown.status).toBe(401)
})
