import { afterAll, beforeAll, expect, test } from 'vitest'
import { hasPostgres, type Postgres, startPostgres } from './postgres.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** A PostgreSQL that hangs: all its processes are stopped, so connections stay open and get no answer. */

let postgres: Postgres
beforeAll(async () => {
  postgres = await startPostgres()
})
afterAll(async () => {
  await postgres.stop()
})

const CONFIG = '[server]\ndatabase_timeout_secs = 1\ndrain_secs = 1\n'
const open = (name: string): Promise<TestServer> =>
  startTestServer(CONFIG, { databaseUrl: postgres.fresh(name) })

async function until(condition: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 200; tries++) {
    if (await condition().catch(() => false)) return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error('it did not happen')
}

test.skipIf(!hasPostgres)(
  'while PostgreSQL hangs, requests get 503 with a reason; afterwards they work again',
  async () => {
    const home = await open('answers')
    const made = await home.call('POST', '/v1/sandboxes', { body: {} })
    const path = `/v1/sandboxes/${made.json.id}`
    postgres.freeze()
    try {
      const calls = [
        home.call('GET', path),
        home.call('POST', '/v1/sandboxes', { body: {} }),
        home.call('POST', `${path}/exec`, { body: { command: 'true' } }),
        ...Array.from({ length: 40 }, () => home.call('GET', '/v1/sandboxes')),
      ]
      for (const { status, json, headers } of await Promise.all(calls)) {
        expect([status, json.code]).toEqual([503, 'store-unwritable'])
        expect(json.message).toMatch(/the database does not respond|the store cannot be used/)
        expect(json.hint).toBeTruthy()
        expect(headers.get('retry-after')).toBe('5')
      }
      const ready = await home.call('GET', '/readyz')
      expect(ready.status, ready.text).toBe(503)
    } finally {
      postgres.thaw()
    }
    await until(
      async () => (await home.call('POST', `${path}/exec`, { body: { command: 'true' } })).status === 200,
    )
    expect((await home.call('DELETE', path)).json).toMatchObject({ state: 'destroyed' })
    expect((await home.call('GET', '/v1/audit/verify')).json).toMatchObject({ ok: true })
    await home.close()
  },
)

test.skipIf(!hasPostgres)(
  'a sandbox that expires while PostgreSQL hangs is recorded as ended afterwards',
  async () => {
    const home = await open('ghosts')
    const made = await home.call('POST', '/v1/sandboxes', { body: { timeout_ms: 500 } })
    const other = await home.call('POST', '/v1/sandboxes', { body: {} })
    const path = `/v1/sandboxes/${made.json.id}`
    postgres.freeze()
    try {
      await until(async () => !home.server.parts.supervisor.liveIds.includes(made.json.id))
    } finally {
      postgres.thaw()
    }
    await until(async () => (await home.call('GET', path)).status === 200)
    const seen = await home.call('GET', path)
    expect(['destroyed', 'failed']).toContain(seen.json.state)
    expect(seen.json.reason).toMatch(/^timeout/)
    const gone = await home.call('DELETE', path)
    expect([gone.status, gone.json.state]).toEqual([200, seen.json.state])
    // The records themselves, not only what this server knows.
    const { store } = home.server
    await until(async () => {
      const [row] = await store.read('SELECT state FROM sandboxes WHERE id = ?', [made.json.id])
      return row?.state === seen.json.state
    })
    const listed = await home.call('GET', '/v1/sandboxes?state=ready')
    expect(listed.json.items.map(({ id }: { id: string }) => id)).toEqual([other.json.id])
    const trail = await home.call('GET', `/v1/audit?event=SandboxState&sandbox_id=${made.json.id}`)
    expect(trail.json.items.at(-1)).toMatchObject({ state: seen.json.state })
    await home.close()
  },
)

test.skipIf(!hasPostgres)('a shutdown completes while PostgreSQL hangs', async () => {
  const home = await open('shutdown')
  for (let count = 0; count < 3; count++) await home.call('POST', '/v1/sandboxes', { body: {} })
  postgres.freeze()
  try {
    const done = home.server.drain().then(() => 'drained')
    const late = new Promise((resolve) => setTimeout(() => resolve('still there'), 30_000).unref())
    expect(await Promise.race([done, late])).toBe('drained')
  } finally {
    postgres.thaw()
  }
})
