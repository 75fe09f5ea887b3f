import { afterAll, beforeAll, expect, test } from 'vitest'
import { RingfenceClient } from '../../src/client/index.ts'
import { type Postgres, startPostgres } from './postgres.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** The whole server on PostgreSQL, and two of them on one database. */

let postgres: Postgres
const servers: TestServer[] = []
beforeAll(async () => {
  postgres = await startPostgres()
})
afterAll(async () => {
  for (const home of servers) await home.close()
  await postgres.stop()
})

test('an address with a NUL character is refused, and not logged as a defect', async () => {
  const logged: string[] = []
  const home = await startTestServer('', {
    databaseUrl: postgres.fresh('nul'),
    log: (line) => void logged.push(line),
  })
  const key = await home.key(['create', 'exec', 'read'], 'red')
  for (const path of ['sandboxes', 'volumes', 'templates', 'approvals'])
    expect((await home.call('GET', `/v1/${path}/%00`, { key })).status, path).toBeOneOf([400, 404])
  expect((await home.call('GET', '/v1/sandboxes/%00', { key: 'rfs_x' })).status).toBeOneOf([400, 401])
  const e2b = { key: '', headers: { 'x-api-key': key } }
  expect((await home.call('GET', '/templates/aliases/%00', e2b)).status).toBeOneOf([400, 404])
  expect((await home.call('GET', '/snapshots?name=%00', e2b)).status).toBeOneOf([200, 400])
  expect(logged).toEqual([])
  await home.close()
})

test('a server on PostgreSQL works as on SQLite, and does not affect another server on the same database', async () => {
  for (let at = 0; at < 2; at++) servers.push(await startTestServer('', { databaseUrl: postgres.url }))
  const [one, two] = servers.map(
    ({ server, admin }) => new RingfenceClient({ url: server.url, apiKey: admin }),
  )
  const theirs = await two?.create({ agent_id: 'theirs' })
  const sandbox = await one?.create({ agent_id: 'mine' }, { idempotencyKey: 'k' })
  expect((await sandbox?.exec('echo hello'))?.stdout).toBe('hello\n')
  expect((await one?.create({ agent_id: 'mine' }, { idempotencyKey: 'k' }))?.id).toBe(sandbox?.id)
  expect(await sandbox?.close()).toMatchObject({ state: 'destroyed', reason: 'killed' })
  expect(await one?.verifyAudit()).toMatchObject({ ok: true })
  const first = servers.shift() as TestServer
  await first.close()
  expect((await theirs?.exec('echo still'))?.stdout).toBe('still\n')
  expect(await two?.verifyAudit()).toMatchObject({ ok: true })
  await theirs?.close()
})
