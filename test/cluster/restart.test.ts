import { afterAll, beforeAll, expect, test } from 'vitest'
import { openStore } from '../../src/store/open.ts'
import type { Store } from '../../src/store/sql.ts'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** `restart: true`: a sandbox of a lost node comes back on another node, from its last snapshot. */

type Node = Fleet['nodes'][number]

let postgres: Postgres
let fleet: Fleet
let store: Store
let guest: string
beforeAll(async () => {
  postgres = await startPostgres()
  fleet = await startFleet(postgres.fresh('restart'), [{ leaseSecs: 30 }, { leaseSecs: 30 }])
  guest = await fleet.key(['create', 'exec', 'read'], 'guests')
  store = await openStore({ stateDir: fleet.nodes[0]?.dir ?? '', databaseUrl: fleet.databaseUrl })
})
afterAll(async () => {
  await store?.close()
  await fleet?.close()
  await postgres?.stop()
})

const nodeOf = (name: string): Node => {
  const found = fleet.nodes.findLast((node) => node.name === name)
  if (!found) throw new Error(`no node ${name}`)
  return found
}
const ask = (name: string, method: string, path: string, body?: object) =>
  nodeOf(name).call(method, path, { key: fleet.admin, ...(body && { body }) })

const run = async (name: string, id: string, command: string): Promise<string> => {
  const done = await ask(name, 'POST', `/v1/sandboxes/${id}/exec`, { command })
  expect(done.status, done.text).toBe(200)
  return done.json.stdout
}

const created = async (body: object): Promise<string> => {
  const made = await ask('n2', 'POST', '/v1/sandboxes', { placement: { node: 'n1' }, ...body })
  expect(made.status, made.text).toBe(201)
  return made.json.id
}

/** Fences a node as if its lease had ended; it does not know yet. */
async function lose({ id }: Node): Promise<void> {
  await store.write((tx) => tx.run("UPDATE nodes SET state = 'lost', settled = 0 WHERE id = ?", [id]))
}

const view = async (id: string) => (await ask('n2', 'GET', `/v1/sandboxes/${id}`)).json

async function restarted(id: string, state: string): Promise<void> {
  const isBack = async (): Promise<boolean> => {
    const seen = await view(id)
    return seen.generation === 2 && seen.state === state
  }
  expect(await until(isBack), JSON.stringify(await view(id))).toBe(true)
}

test('`restart` is refused for sandboxes that are bound to their node', async () => {
  for (const body of [{ workspace: '/tmp' }, { review: true }, { volumes: [{ name: 'v', target: '/v' }] }]) {
    const refused = await ask('n1', 'POST', '/v1/sandboxes', { restart: true, ...body })
    expect(refused.status, refused.text).toBe(400)
    expect(refused.json.detail ?? refused.text).toContain('restart')
  }
})

test('after the loss of a node, sandboxes with `restart` start on another node, and the lost node can return', async () => {
  const kept = await created({ restart: true, metadata: { a: 'b' } })
  await run('n2', kept, 'echo before > /tmp/file')
  const snapshot = await ask('n2', 'POST', `/v1/sandboxes/${kept}/snapshot`, {})
  expect(snapshot.status, snapshot.text).toBe(201)
  await run('n2', kept, 'echo after > /tmp/file')
  const fresh = await created({ restart: true })
  const paused = await created({ restart: true })
  await run('n2', paused, 'echo asleep > /tmp/file')
  await ask('n2', 'POST', `/v1/sandboxes/${paused}/snapshot`, {})
  await ask('n2', 'POST', `/v1/sandboxes/${paused}/pause`, {})
  const plain = await created({})
  const one = nodeOf('n1')
  await lose(one)

  await restarted(kept, 'ready')
  expect(await view(kept)).toMatchObject({ generation: 2, restart: true, metadata: { a: 'b' } })
  expect(await run('n2', kept, 'cat /tmp/file')).toBe('before\n')
  await restarted(fresh, 'ready')
  expect(await run('n2', fresh, 'ls /tmp')).toBe('')
  await restarted(paused, 'paused')
  const woken = await ask('n2', 'POST', `/v1/sandboxes/${paused}/resume`, {})
  expect(woken.status, woken.text).toBe(200)
  expect(await run('n2', paused, 'cat /tmp/file')).toBe('asleep\n')
  expect(await view(plain)).toMatchObject({ state: 'failed', generation: 1 })

  const logs = (await ask('n2', 'GET', `/v1/sandboxes/${kept}/logs`)).json.items as { generation?: number }[]
  expect(logs.find(({ generation }) => generation === 2)).toMatchObject({ state: 'provisioning' })

  // It starts again in a later epoch and finds nothing of its own.
  await one.server.close()
  await fleet.add({ name: 'n1', dir: one.dir, leaseSecs: 30 })
  expect(await run('n1', kept, 'cat /tmp/file')).toBe('before\n')
  expect(await view(kept)).toMatchObject({ generation: 2 })
})

test('a restart checks the policy again for the key that created the sandbox', async () => {
  const made = await nodeOf('n1').call('POST', '/v1/sandboxes', {
    key: guest,
    body: { restart: true, placement: { node: 'n1' } },
  })
  expect(made.status, made.text).toBe(201)
  const two = nodeOf('n2')
  const kept = await created({ restart: true, placement: { node: 'n2' } })
  const row = (await store.read('SELECT spec FROM sandboxes WHERE id = ?', [made.json.id]))[0]
  const spec = { ...JSON.parse(String(row?.spec)), secrets: ['T=PATH@api.example.com'] }
  await store.write((tx) =>
    tx.run('UPDATE sandboxes SET spec = ? WHERE id = ?', [JSON.stringify(spec), made.json.id]),
  )
  await lose(nodeOf('n1'))
  expect(await until(async () => (await view(made.json.id)).state === 'failed')).toBe(true)
  expect((await view(made.json.id)).reason).toContain('could not be started again')
  expect(two.server.parts.supervisor.has(kept)).toBe(true)
})
