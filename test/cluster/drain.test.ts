import { afterAll, beforeAll, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** A node that is drained: what may move does, the rest stays until it ends. */

let postgres: Postgres
let fleet: Fleet
beforeAll(async () => {
  postgres = await startPostgres()
  const node = { leaseSecs: 3, rest: '[policy]\nallow_interactive = true\n' }
  fleet = await startFleet(postgres.fresh('drain'), [node, node, { ...node, role: 'api' }])
})
afterAll(async () => {
  await fleet?.close()
  await postgres?.stop()
})

const ask = (at: number, method: string, path: string, body?: object) =>
  (fleet.nodes[at] as Fleet['nodes'][number]).call(method, path, { key: fleet.admin, ...(body && { body }) })
const view = async (id: string) => (await ask(1, 'GET', `/v1/sandboxes/${id}`)).json
const nodeOf = (id: string): string | undefined =>
  fleet.nodes.find(({ server }) => server.parts.supervisor.has(id))?.name

const staying = async (): Promise<readonly { id: string; why: string }[]> =>
  (await ask(1, 'GET', '/v1/nodes')).json.items.find((one: { name: string }) => one.name === 'n1').staying

async function created(body: object): Promise<string> {
  const made = await ask(1, 'POST', '/v1/sandboxes', { placement: { node: 'n1' }, ...body })
  expect(made.status, made.text).toBe(201)
  return made.json.id
}
async function run(id: string, command: string): Promise<string> {
  const done = await ask(1, 'POST', `/v1/sandboxes/${id}/exec`, { command })
  expect(done.status, done.text).toBe(200)
  return done.json.stdout
}

/** Waits until a terminal opens on the third node, which runs no sandboxes. */
async function openTerminal(id: string): Promise<void> {
  const url = `${fleet.nodes[2]?.server.url.replace('http', 'ws')}/v1/sandboxes/${id}/pty?command=cat`
  const socket = new WebSocket(url, { headers: { authorization: `Bearer ${fleet.admin}` } })
  await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject))
  socket.terminate()
}

test('draining moves sandboxes with `restart` and paused ones, and leaves the others running', async () => {
  const agreed = await created({ restart: true })
  await run(agreed, 'echo agreed > /tmp/file')
  // Private directories are kept without the memory of a sandbox.
  const { supervisor } = (fleet.nodes[0] as Fleet['nodes'][number]).server.parts
  const operator = { keyId: 'k', tenant: 'default', scopes: ['admin'] as const }
  const made = await supervisor.create(operator, { spec: { private: ['/home/user'] } })
  const paused = made.row.id
  await run(paused, 'echo paused > /home/user/file')
  await supervisor.pause(operator, paused, false)
  const rest = await created({})
  const frozen = await created({})
  const agreedFrozen = await created({ restart: true })
  await run(agreedFrozen, 'echo frozen > /tmp/file')
  for (const id of [frozen, agreedFrozen]) await supervisor.pause(operator, id, true)
  await openTerminal(agreed)

  const drained = await ask(1, 'POST', '/v1/nodes/n1/drain', {})
  expect(drained.json, drained.text).toMatchObject({ schedule: 'draining' })
  expect(await until(() => nodeOf(agreed) === 'n2' && nodeOf(paused) === 'n2')).toBe(true)
  expect(await until(async () => (await view(agreed)).state === 'ready')).toBe(true)
  // The third node still takes it for a sandbox of the first.
  await openTerminal(agreed)
  expect(await run(agreed, 'cat /tmp/file')).toBe('agreed\n')
  expect(await view(agreed)).toMatchObject({ generation: 2, reason: expect.stringContaining('drained') })
  expect(nodeOf(rest)).toBe('n1')
  expect(await view(rest)).toMatchObject({ state: 'ready', generation: 1 })
  expect(await view(paused)).toMatchObject({ state: 'paused', generation: 2 })
  const woken = await ask(1, 'POST', `/v1/sandboxes/${paused}/resume`, {})
  expect(woken.status, woken.text).toBe(200)
  expect(await run(paused, 'cat /home/user/file')).toBe('paused\n')
  // With `restart: true` a sandbox agreed to lose its memory; without, it keeps it where it is.
  expect(await until(() => nodeOf(agreedFrozen) === 'n2')).toBe(true)
  expect((await ask(1, 'POST', `/v1/sandboxes/${agreedFrozen}/resume`, {})).status).toBe(200)
  expect(await run(agreedFrozen, 'cat /tmp/file')).toBe('frozen\n')
  expect(await until(async () => (await staying()).length === 2)).toBe(true)
  expect(await staying()).toEqual(
    expect.arrayContaining([
      { id: rest, why: 'it runs, and was created without `restart: true`' },
      { id: frozen, why: expect.stringContaining('paused with its memory, which cannot move') },
    ]),
  )
  expect((await ask(1, 'POST', `/v1/sandboxes/${frozen}/resume`, {})).status).toBe(200)
  expect(nodeOf(frozen)).toBe('n1')
  const refused = await ask(1, 'POST', '/v1/sandboxes', { placement: { node: 'n1' } })
  expect(refused.status, refused.text).toBe(501)
})

test('SIGTERM moves sandboxes with `restart` to another node', async () => {
  await ask(1, 'POST', '/v1/nodes/n1/uncordon', {})
  for (const { server } of fleet.nodes) await server.parts.cluster?.node.refresh()
  const id = await created({ restart: true })
  await run(id, 'echo stopped > /tmp/file')
  await fleet.nodes[0]?.server.drain()
  expect(await until(async () => (await view(id)).state === 'ready' && nodeOf(id) === 'n2')).toBe(true)
  expect(await run(id, 'cat /tmp/file')).toBe('stopped\n')
})
