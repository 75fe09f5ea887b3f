import { afterAll, beforeAll, expect, test } from 'vitest'
import { MIGRATIONS, migrate } from '../../src/store/migrations.ts'
import { openStore } from '../../src/store/open.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** Two versions side by side: a node of this version beside one of the next, whose schema has more. */

let postgres: Postgres
let fleet: Fleet
beforeAll(async () => {
  postgres = await startPostgres()
  fleet = await startFleet(postgres.fresh('versions'), [
    { leaseSecs: 30 },
    { leaseSecs: 30, version: '9.0.0' },
  ])
})
afterAll(async () => {
  await fleet?.close()
  await postgres?.stop()
})

const NEXT = [
  'ALTER TABLE sandboxes ADD COLUMN later TEXT',
  'ALTER TABLE nodes ADD COLUMN later BIGINT NOT NULL DEFAULT 0',
  'CREATE TABLE later (id TEXT PRIMARY KEY)',
]
const ask = (at: number, method: string, path: string, body?: object) =>
  (fleet.nodes[at] as Fleet['nodes'][number]).call(method, path, { key: fleet.admin, ...(body && { body }) })

test('nodes of an older version keep working, and can restart, after an additive schema migration', async () => {
  const made = await ask(0, 'POST', '/v1/sandboxes', { placement: { node: 'n2' } })
  expect(made.status, made.text).toBe(201)
  const store = await openStore({ stateDir: fleet.nodes[0]?.dir ?? '', databaseUrl: fleet.databaseUrl })
  await migrate(store, [...MIGRATIONS, NEXT])
  await store.close()
  const [first] = fleet.nodes as [Fleet['nodes'][number]]
  await first.server.close()
  await fleet.add({ name: 'n1', dir: first.dir, leaseSecs: 30 })
  for (const { server } of fleet.nodes.slice(1)) await server.parts.cluster?.node.refresh()
  for (const [through, node] of [
    [1, 'n1'],
    [2, 'n2'],
  ] as const) {
    const other = await ask(through, 'POST', '/v1/sandboxes', { placement: { node } })
    expect(other.status, other.text).toBe(201)
    const run = await ask(through, 'POST', `/v1/sandboxes/${other.json.id}/exec`, { command: 'echo both' })
    expect(run.json.stdout, run.text).toBe('both\n')
  }
  const nodes = (await ask(1, 'GET', '/v1/nodes')).json.items as { version: string }[]
  expect(nodes.map(({ version }) => version).sort()).toEqual(['0.1.0', '9.0.0'])
})

test('a schema that this version cannot use is refused', async () => {
  const databaseUrl = postgres.fresh('breaking')
  const store = await openStore({ stateDir: '/tmp', databaseUrl })
  await migrate(store, [...MIGRATIONS, NEXT])
  await store.write((tx) => tx.run('UPDATE migrations SET oldest = ?', [MIGRATIONS.length + 1]))
  await store.close()
  await expect(openStore({ stateDir: '/tmp', databaseUrl })).rejects.toThrow('newer version')
})

test('migrations only add tables, columns and indexes', () => {
  const statements = MIGRATIONS.slice(8).flatMap((steps) =>
    steps.flatMap((step) =>
      typeof step === 'string' ? [step] : typeof step === 'function' ? [] : Object.values(step).flat(),
    ),
  )
  for (const sql of statements) {
    expect(sql).toMatch(/^(CREATE (TABLE|(UNIQUE )?INDEX)|ALTER TABLE \w+ ADD COLUMN) /)
    // A column without a default is unknown to the inserts of an older version.
    if (sql.startsWith('ALTER') && sql.includes('NOT NULL')) expect(sql).toContain('DEFAULT')
  }
})
