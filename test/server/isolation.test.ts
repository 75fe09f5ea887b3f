import { afterAll, beforeAll, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

let home: TestServer

beforeAll(async () => {
  home = await startTestServer('')
}, 60_000)
afterAll(() => home.close())

const exec = (id: string, body: object) => home.call('POST', `/v1/sandboxes/${id}/exec`, { body })

test('a create isolates its commands, and an exec is refused where that cannot be kept', async () => {
  const kept = await home.call('POST', '/v1/sandboxes', { body: { isolation: 'command' } })
  expect(kept.status, kept.text).toBe(201)
  const ran = await exec(kept.json.id, { command: 'echo /proc/[0-9]*', isolation: 'command' })
  expect(ran.json.stdout, ran.text).toBe('/proc/1 /proc/2\n')
  expect((await exec(kept.json.id, { command: 'true', isolation: 'sandbox' })).json.code).toBe('forbidden')

  const shared = await home.call('POST', '/v1/sandboxes', { body: {} })
  const refused = await exec(shared.json.id, { command: 'true', isolation: 'command' })
  expect(refused.json, refused.text).toMatchObject({ code: 'missing-guarantee' })
})
