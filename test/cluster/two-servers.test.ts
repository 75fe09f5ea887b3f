import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Postgres, startPostgres } from '../server/postgres.ts'
import { until } from '../server/process.ts'
import type { Answer, CallOptions } from '../server/test-server.ts'
import { type Fleet, startFleet } from './fleet.ts'

/** Two servers on one PostgreSQL: every request works on either of them. */

let postgres: Postgres
let fleet: Fleet
beforeAll(async () => {
  postgres = await startPostgres()
  const rest =
    '[[tenant]]\nname = "quota"\nmax_sandboxes = 5\n[[policy.rule]]\nprefix = ["touch"]\naction = "ask"\n'
  fleet = await startFleet(postgres.url, [{ rest }, { rest }])
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

describe('a request to a sandbox of another node', () => {
  test('runs commands, reads files, pauses, snapshots and destroys', async () => {
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

test('nodes are listed and cordoned, and cannot be removed while they run', async () => {
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

test('metrics for autoscaling are exported', async () => {
  const read = async (): Promise<string> => (await ask(1, 'GET', '/metrics')).text
  // A node probes its backends in the background after its start.
  await until(async () => (await read()).includes('ringfence_free_slots{backend="bubblewrap"}'))
  const text = await read()
  for (const name of [
    'node_lease_age_seconds',
    'free_slots{backend="bubblewrap"}',
    'cluster_creates_waiting',
  ])
    expect(text).toContain(`ringfence_${name}`)
  expect(text).toMatch(/ringfence_forwarded_total\{kind="request"\} [1-9]/)
})

test('racing creates with one idempotency key create one sandbox', async () => {
  const headers = { 'idempotency-key': 'race' }
  const made = await Promise.all(
    Array.from({ length: 20 }, (_, at) => ask(at % 2, 'POST', '/v1/sandboxes', { body: {}, headers })),
  )
  expect(made.map(({ status, text }) => (status === 201 ? '' : text)).join('')).toBe('')
  expect(new Set(made.map(({ json }) => json.id)).size).toBe(1)
  const other = await ask(1, 'POST', '/v1/sandboxes', { body: { agent_id: 'x' }, headers })
  expect(other.status).toBe(409)
  await ask(0, 'DELETE', `/v1/sandboxes/${made[0]?.json.id}`)
})

test('a quota applies across both nodes', async () => {
  const key = await fleet.key(['create', 'exec', 'read'], 'quota')
  const made = await Promise.all(
    Array.from({ length: 16 }, (_, at) => ask(at % 2, 'POST', '/v1/sandboxes', { key, body: {} })),
  )
  const ok = made.filter(({ status }) => status === 201)
  expect(ok.length).toBe(5)
  expect(made.filter(({ status }) => status === 429).length).toBe(11)
  await Promise.all(ok.map(({ json }) => ask(1, 'DELETE', `/v1/sandboxes/${json.id}`)))
  expect((await ask(1, 'POST', '/v1/sandboxes', { key, body: {} })).status).toBe(201)
})

test('the webhook limit of a tenant and of operators applies across both nodes', async () => {
  for (const key of [await fleet.key(['create', 'exec', 'read'], 'hooks'), fleet.admin]) {
    // A private address: nothing is ever sent there.
    const body = { url: 'http://127.0.0.1:9/hook' }
    const made = await Promise.all(
      Array.from({ length: 40 }, (_, at) => ask(at % 2, 'POST', '/v1/webhooks', { key, body })),
    )
    expect(made.filter(({ status }) => status === 201).length).toBe(32)
    expect(made.filter(({ status }) => status === 429).length).toBe(8)
    const hooks = made.filter(({ status }) => status === 201)
    await Promise.all(hooks.map(({ json }) => ask(0, 'DELETE', `/v1/webhooks/${json.id}`, { key })))
  }
})

test('an approval answered on another node lets the command run', async () => {
  const id = await ofFirst()
  const run = ask(1, 'POST', `/v1/sandboxes/${id}/exec`, {
    body: { command: 'touch /tmp/a' },
  })
  let pending: { id: string }[] = []
  await until(async () => {
    pending = (await ask(1, 'GET', '/v1/approvals?state=pending')).json.items
    return pending.length > 0
  })
  const answered = await ask(1, 'POST', `/v1/approvals/${pending[0]?.id}`, {
    body: { approve: false, reason: 'no' },
  })
  expect(answered.json, answered.text).toMatchObject({ state: 'rejected' })
  expect((await run).status).toBe(422)
})

test('records of both nodes form one log: list, logs, events, verification', async () => {
  const id = await ofFirst({ agent_id: 'logged' })
  const other = await ask(0, 'POST', '/v1/sandboxes', { body: { placement: { node: 'n2' } } })
  await ask(0, 'DELETE', `/v1/sandboxes/${other.json.id}`)
  await ask(1, 'POST', `/v1/sandboxes/${id}/exec`, { body: { command: 'true' } })
  const logs = (await ask(1, 'GET', `/v1/sandboxes/${id}/logs`)).json.items as { event: string }[]
  expect(logs.map(({ event }) => event)).toContain('Exec')
  const all = (await ask(1, 'GET', '/v1/audit?limit=1000')).json.items as {
    chain: string
    position: number
  }[]
  expect(new Set(all.map(({ chain }) => chain)).size).toBe(2)
  expect(all.map(({ position }) => position)).toEqual(all.map((_, at) => at))
  const page = (await ask(0, 'GET', '/v1/audit?limit=7')).json
  const rest = (await ask(1, 'GET', `/v1/audit?limit=1000&cursor=${page.next}`)).json.items
  expect(rest[0].position).toBe(7)
  expect((await ask(1, 'GET', '/v1/audit/verify')).json).toMatchObject({ ok: true })
  await ask(1, 'DELETE', `/v1/sandboxes/${id}`)
})

test('an event stream has the events of both nodes, and continues on the other node from its last id', async () => {
  const stop = new AbortController()
  const url = fleet.nodes[1]?.server.url ?? ''
  const headers = { authorization: `Bearer ${fleet.admin}` }
  const answer = await fetch(`${url}/v1/events`, { headers, signal: stop.signal })
  const id = await ofFirst({ agent_id: 'streamed' })
  let text = ''
  const reader = (answer.body as ReadableStream<Uint8Array>).getReader()
  while (!text.includes(id)) text += new TextDecoder().decode((await reader.read()).value)
  stop.abort()
  const last = /^id: (\d+)$/m.exec(text)?.[1] as string
  const again = await fetch(`${fleet.nodes[0]?.server.url ?? ''}/v1/events`, {
    headers: { ...headers, 'last-event-id': String(Number(last) - 1) },
    signal: AbortSignal.timeout(3000),
  })
  const first = new TextDecoder().decode(
    (await (again.body as ReadableStream<Uint8Array>).getReader().read()).value,
  )
  expect(/^id: (\d+)$/m.exec(first)?.[1]).toBe(last)
})

test('a snapshot of one node is a template on the other, and its archive is deleted with its record', async () => {
  const id = await ofFirst({ template: 'base', root: 'read-only' })
  await ask(1, 'PUT', `/v1/sandboxes/${id}/files?path=/tmp/kept`, { body: 'from the first' })
  const snapshot = await ask(1, 'POST', `/v1/sandboxes/${id}/snapshot`, { body: {} })
  expect(snapshot.status, snapshot.text).toBe(201)
  const body = { template: snapshot.json.id, root: 'read-only', placement: { node: 'n2' } }
  const made = await ask(0, 'POST', '/v1/sandboxes', { body })
  expect(made.status, made.text).toBe(201)
  expect(fleet.nodes[1]?.server.parts.supervisor.has(made.json.id)).toBe(true)
  expect((await ask(0, 'GET', `/v1/sandboxes/${made.json.id}/files?path=/tmp/kept`)).text).toBe(
    'from the first',
  )
  expect((await ask(1, 'DELETE', `/v1/snapshots/${snapshot.json.id}`)).status).toBe(204)
  const { templates } = fleet.nodes[0]?.server.parts ?? {}
  expect(templates?.archivePath(`${snapshot.json.id}-0.tar`)).toBeDefined()
  expect(await templates?.sweep(Date.now() + 1000)).toBeGreaterThan(0)
  expect(templates?.archivePath(`${snapshot.json.id}-0.tar`)).toBeUndefined()
  expect(templates?.archivePath('../../cluster.key')).toBeUndefined()
})

test('sandboxes with a volume are placed on its node, and any node reads its files', async () => {
  const made = await ask(0, 'POST', '/v1/volumes', { body: { name: 'shared' } })
  expect(made.status, made.text).toBe(201)
  for (const at of [0, 1]) {
    const body = { volumes: [{ name: 'shared', target: '/data' }] }
    const sandbox = await ask(at, 'POST', '/v1/sandboxes', { body })
    expect(sandbox.status, sandbox.text).toBe(201)
    const command = `echo ${at} >> /data/log`
    const run = await ask(at, 'POST', `/v1/sandboxes/${sandbox.json.id}/exec`, { body: { command } })
    expect(run.json, run.text).toMatchObject({ outcome: { code: 0 } })
    await ask(1 - at, 'DELETE', `/v1/sandboxes/${sandbox.json.id}`)
  }
  for (const at of [0, 1]) {
    expect((await ask(at, 'GET', '/v1/volumes/shared/files?path=/log')).text).toBe('0\n1\n')
    expect((await ask(at, 'GET', '/v1/volumes')).json.items).toMatchObject([{ name: 'shared' }])
  }
  expect((await ask(1, 'DELETE', '/v1/volumes/shared')).status).toBeLessThan(300)
})

test.each([
  ['a letter of the path', (id: string) => `/v1/%73andboxes/${id}`],
  ['a letter of the id', (id: string) => `/v1/sandboxes/${id.replace('s', '%73')}`],
])('a request with %s percent-encoded reaches the node of its sandbox', async (_, pathOf) => {
  const id = await ofFirst()
  const run = await ask(1, 'POST', `${pathOf(id)}/exec`, { body: { command: 'echo far' } })
  expect(run.json, run.text).toMatchObject({ stdout: 'far\n' })
  const ended = await ask(1, 'DELETE', pathOf(id))
  expect(ended.json.state, ended.text).toBe('destroyed')
  expect(fleet.nodes[0]?.server.parts.supervisor.has(id)).toBe(false)
})
