import { afterAll, beforeAll, expect, test } from 'vitest'
import { RingfenceClient } from '../../src/client/index.ts'
import { type Postgres, startPostgres } from './postgres.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** The whole server on PostgreSQL, and two of them on one database. */

let postgres: Postgres
const houses: TestServer[] = []
beforeAll(async () => {
  postgres = await startPostgres()
})
afterAll(async () => {
  for (const home of houses) await home.close()
  await postgres.stop()
})

test('works the same, keeps its trail, and leaves a neighbour on the same database alone', async () => {
  for (let at = 0; at < 2; at++) houses.push(await startTestServer('', { databaseUrl: postgres.url }))
  const [one, two] = houses.map(
    ({ server, admin }) => new RingfenceClient({ url: server.url, apiKey: admin }),
  )
  const theirs = await two?.create({ agent_id: 'theirs' })
  const sandbox = await one?.create({ agent_id: 'mine' }, { idempotencyKey: 'k' })
  expect((await sandbox?.exec('echo hello'))?.stdout).toBe('hello\n')
  expect((await one?.create({ agent_id: 'mine' }, { idempotencyKey: 'k' }))?.id).toBe(sandbox?.id)
  expect(await sandbox?.close()).toMatchObject({ state: 'destroyed', reason: 'killed' })
  expect(await one?.verifyAudit()).toMatchObject({ ok: true })
  const first = houses.shift() as TestServer
  await first.close()
  expect((await theirs?.exec('echo still'))?.stdout).toBe('still\n')
  expect(await two?.verifyAudit()).toMatchObject({ ok: true })
  await theirs?.close()
})
