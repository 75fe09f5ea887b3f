import { afterAll, beforeAll, expect, test } from 'vitest'
import { registerNode } from '../../src/store/nodes.ts'
import { openStore } from '../../src/store/open.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { type Fleet, startFleet } from './fleet.ts'
import { startWitness, type Witness } from './witness.ts'

/** The lease of a node ends: because the database is away, or because another run took over. */

let postgres: Postgres
let witness: Witness
let count = 0
const fleets: Fleet[] = []
beforeAll(async () => {
  postgres = await startPostgres()
  witness = await startWitness()
})
afterAll(async () => {
  for (const fleet of fleets) await fleet.close()
  await witness?.close()
  await postgres?.stop()
})

async function newFleet(nodes: number, leaseSecs: number): Promise<Fleet> {
  const url = postgres.fresh(`lease${count++}`)
  const config = { leaseSecs, rest: witness.config }
  const fleet = await startFleet(
    url,
    Array.from({ length: nodes }, () => config),
  )
  fleets.push(fleet)
  return fleet
}

/** A sandbox of a node that shows the witness that it lives. */
async function beating(fleet: Fleet, node: string, name: string): Promise<string> {
  const call = fleet.nodes[0]?.call as Fleet['nodes'][number]['call']
  const body = { network: { mode: 'fetch' }, placement: { node } }
  const made = await call('POST', '/v1/sandboxes', { key: fleet.admin, body })
  expect(made.status, made.text).toBe(201)
  const run = await call('POST', `/v1/sandboxes/${made.json.id}/exec`, {
    key: fleet.admin,
    body: { command: witness.command(name), background: true },
  })
  expect(run.status, run.text).toBeLessThan(300)
  expect(await until(() => witness.of(name).length > 3)).toBe(true)
  return made.json.id
}

test('losing the database for longer than the lease freezes the sandboxes; they continue afterwards', async () => {
  const fleet = await newFleet(2, 1)
  const [one, two] = fleet.nodes as [Fleet['nodes'][number], Fleet['nodes'][number]]
  const id = await beating(fleet, 'n1', 'outage')
  const again = await one.call('POST', '/v1/sandboxes', {
    key: fleet.admin,
    body: { restart: true, placement: { node: 'n1' } },
  })
  expect(again.status, again.text).toBe(201)
  postgres.freeze()
  const node = one.server.parts.cluster?.node
  expect(await until(() => node?.isHeld === false)).toBe(true)
  await new Promise((resolve) => setTimeout(resolve, 300))
  const frozen = witness.of('outage').length
  await new Promise((resolve) => setTimeout(resolve, 1500))
  expect(witness.of('outage').length).toBe(frozen)
  postgres.thaw()
  expect(await until(() => node?.isHeld === true)).toBe(true)
  expect(await until(() => witness.of('outage').length > frozen + 3)).toBe(true)
  const seen = await two.call('GET', `/v1/sandboxes/${id}`, { key: fleet.admin })
  expect(seen.json, seen.text).toMatchObject({ state: 'executing' })
  expect(one.isFenced() || two.isFenced()).toBe(false)
  // Another node could have started this one meanwhile, so it ended with the lease, and starts again.
  const restarted = await until(async () => {
    const { json } = await two.call('GET', `/v1/sandboxes/${again.json.id}`, { key: fleet.admin })
    return json.state === 'ready' && json.generation === 2
  })
  expect(restarted).toBe(true)
})

test('a node with an expired epoch ends its sandboxes, and its writes are rejected', async () => {
  const fleet = await newFleet(1, 3)
  const [one] = fleet.nodes as [Fleet['nodes'][number]]
  await beating(fleet, 'n1', 'fenced')
  const store = await openStore({ stateDir: one.dir, databaseUrl: fleet.databaseUrl })
  const row = one.server.parts.cluster?.node.nodes[0]
  if (!row) throw new Error('no node')
  await store.write((tx) => registerNode(tx, row))
  // At once, before it has noticed anything itself.
  await expect(one.server.parts.keys.create({})).rejects.toThrow('lease')
  expect(await until(() => one.isFenced())).toBe(true)
  const ended = witness.of('fenced').length
  await new Promise((resolve) => setTimeout(resolve, 500))
  expect(witness.of('fenced').length).toBe(ended)
  await expect(one.server.parts.keys.create({})).rejects.toThrow('taken over')
  const refused = await one.call('POST', '/v1/sandboxes', { key: fleet.admin, body: {} })
  expect(refused.status).toBe(503)
  await store.close()
})
