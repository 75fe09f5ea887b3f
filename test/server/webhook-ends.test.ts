import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

/** A webhook ends with its key and when it is removed, also while many records wait for their delivery. */

let home: TestServer
/** The posts of each path; the first one of a path is answered by the test. */
const posts = new Map<string, ServerResponse[]>()
const receiver = createServer((request, response) => {
  request.resume().on('end', () => {
    const own = posts.get(request.url ?? '') ?? []
    posts.set(request.url ?? '', [...own, response])
    if (own.length > 0) response.end()
  })
})
const countOf = (path: string): number => posts.get(path)?.length ?? 0

beforeAll(async () => {
  await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve))
  home = await startTestServer('[network]\nallow_private = ["127.0.0.0/8"]\n')
})
afterAll(async () => {
  await home.close()
  receiver.close()
})

/** A webhook of a key of its own that has received the first of five records, and has not answered yet. */
async function slow(path: string): Promise<{ readonly hook: string; readonly key: string }> {
  const scopes = ['create', 'exec', 'read', 'admin']
  const made = (await home.call('POST', '/v1/keys', { body: { scopes } })).json
  const url = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}${path}`
  const hook = await home.call('POST', '/v1/webhooks', {
    key: made.key,
    body: { url, events: ['SandboxState'] },
  })
  for (let n = 0; n < 5; n++) await home.server.trail.append({ event: 'SandboxState', state: 'destroyed' })
  await expect.poll(() => countOf(path)).toBe(1)
  return { hook: hook.json.id, key: made.id }
}

test('all records reach a slow webhook that stays', async () => {
  const { hook } = await slow('/stays')
  posts.get('/stays')?.[0]?.end()
  await expect.poll(() => countOf('/stays')).toBe(5)
  await home.call('DELETE', `/v1/webhooks/${hook}`)
})

test.each([200, 500])('a revoked key ends its webhook after the post under way (%s)', async (status) => {
  const path = `/revoked-${status}`
  const { key } = await slow(path)
  expect((await home.call('DELETE', `/v1/keys/${key}`)).status).toBe(204)
  posts.get(path)?.[0]?.writeHead(status).end()
  // Longer than the first retry waits.
  await sleep(3000)
  expect(countOf(path)).toBe(1)
})

test.each([200, 500])('a removed webhook gets nothing after the post under way (%s)', async (status) => {
  const path = `/removed-${status}`
  const { hook } = await slow(path)
  expect((await home.call('DELETE', `/v1/webhooks/${hook}`)).status).toBe(204)
  posts.get(path)?.[0]?.writeHead(status).end()
  await sleep(3000)
  expect(countOf(path)).toBe(1)
})
