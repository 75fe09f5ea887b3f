import { afterAll, beforeAll, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

/** A server without `[policy] allow_interactive`. */

let home: TestServer
beforeAll(async () => {
  home = await startTestServer('[[tenant]]\nname = "acme"\nbackends = ["bubblewrap"]\n')
})
afterAll(() => home.close())

test('no key and no token of a sandbox gets a terminal, and nothing is started', async () => {
  const worker = await home.key(['create', 'exec', 'read'], 'acme')
  const made = await home.call('POST', '/v1/sandboxes', { key: worker, body: {} })
  expect(made.status, made.text).toBe(201)
  const at = `/v1/sandboxes/${made.json.id}`
  const terminal = { cols: 80, rows: 24 }
  for (const key of [worker, made.json.token])
    for (const more of [{}, { background: true }, { stdin_open: true }]) {
      const body = { command: 'true', terminal, ...more }
      for (const headers of [{}, { accept: 'text/event-stream' }]) {
        const response = await fetch(`${home.server.url}${at}/exec`, {
          method: 'POST',
          headers: { 'x-api-key': key, 'content-type': 'application/json', ...headers },
          body: JSON.stringify(body),
        })
        expect(await response.json()).toMatchObject({ code: 'interactive-disabled' })
        expect(response.status).toBe(422)
      }
    }
  expect((await home.call('GET', `${at}/execs`, { key: worker })).json.items).toEqual([])

  const plain = { command: 'sleep 100', background: true, stdin_open: true }
  const started = await home.call('POST', `${at}/exec`, { key: worker, body: plain })
  expect(started.status, started.text).toBe(202)
  const resize = { exec_id: started.json.exec_id, terminal }
  expect(await home.call('POST', `${at}/resize`, { key: worker, body: resize })).toMatchObject({
    status: 409,
    json: { code: 'wrong-state' },
  })
  const reader = await home.key(['read'], 'acme')
  expect((await home.call('POST', `${at}/resize`, { key: reader, body: resize })).status).toBe(403)
  expect((await home.call('POST', `${at}/exec`, { key: reader, body: { ...plain, terminal } })).status).toBe(
    403,
  )
})
