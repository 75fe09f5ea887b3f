import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import type { Answer, CallOptions } from '../server/test-server.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** Two servers on one PostgreSQL: every request works on either of them. */

let postgres: Postgres
let fleet: Fleet
beforeAll(async () => {
  postgres = await startPostgres()
  fleet = await startFleet(postgres.url, [{}, {}])
})
afterAll(async () => {
  await fleet?.close()
  await postgres?.stop()
})

const ask = (at: number, method: string, path: string, options: CallOptions = {}): Promise<Answer> =>
  (fleet.nodes[at] as Fleet['nodes'][number]).call(method, path, { key: fleet.admin, ...options })

/** A sandbox of the first node. */
async function ofFirst(body: object = {}): Promise<string> {
  const made = await ask(1, 'POST', '/v1/sandboxes', { body: { ...body, placement: { node: 'n1' } } })
  expect(made.status, made.text).toBe(201)
  expect(fleet.nodes[0]?.server.parts.supervisor.has(made.json.id)).toBe(true)
  return made.json.id
}

describe('a request for a sandbox of the other node', () => {
  test('commands, files, pause, snapshot and end', async () => {
    const id = await ofFirst()
    const run = await ask(1, 'POST', `/v1/sandboxes/${id}/exec`, { body: { command: 'echo far' } })
    expect(run.json).toMatchObject({ stdout: 'far\n' })
    expect((await ask(1, 'PUT', `/v1/sandboxes/${id}/files?path=/tmp/a`, { body: 'text' })).status).toBe(200)
    expect((await ask(1, 'GET', `/v1/sandboxes/${id}/files?path=/tmp/a`)).text).toBe('text')
    expect((await ask(1, 'POST', `/v1/sandboxes/${id}/pause`, { body: {} })).json.state).toBe('paused')
    const woken = await ask(1, 'POST', `/v1/sandboxes/${id}/resume`, { body: {} })
    expect(woken.json.state, woken.text).toBe('ready')
    expect((await ask(1, 'DELETE', `/v1/sandboxes/${id}`)).json.state).toBe('destroyed')
    expect(fleet.nodes[0]?.server.parts.supervisor.has(id)).toBe(false)
  })
})

test('the nodes: listed, cordoned, not removed while they run', async () => {
  const { items } = (await ask(0, 'GET', '/v1/nodes')).json
  expect(items).toMatchObject([
    { name: 'n1', state: 'up', schedule: 'open', epoch: 1, self: true },
    { name: 'n2', state: 'up', self: false },
  ])
  expect((await ask(0, 'POST', '/v1/nodes/n2/cordon', { body: {} })).json.schedule).toBe('cordoned')
  await fleet.nodes[0]?.server.parts.cluster?.node.refresh()
  const refused = await ask(0, 'POST', '/v1/sandboxes', { body: { placement: { node: 'n2' } } })
  expect(refused.status, refused.text).toBe(501)
  expect((await ask(0, 'POST', '/v1/nodes/n2/drain', { body: {} })).json.schedule).toBe('draining')
  expect((await ask(0, 'POST', '/v1/nodes/n2/uncordon', { body: {} })).json.schedule).toBe('open')
  expect((await ask(1, 'DELETE', '/v1/nodes/n1')).status).toBe(409)
  expect((await ask(1, 'GET', '/v1/nodes', { key: await fleet.key(['read']) })).status).toBe(403)
  await fleet.nodes[0]?.server.parts.cluster?.node.refresh()
})
