import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

/** Tenants, settings, and connections by host. */

let home: TestServer
const dir = mkdtempSync(join(tmpdir(), 'rf-operator-'))
beforeAll(async () => {
  home = await startTestServer(
    `
[server]
max_sandboxes = 10
[[tenant]]
name = "red"
max_sandboxes = 3
backends = ["bubblewrap"]
[[secret]]
name = "TOKEN"
env = "CANARY"
tenants = ["red"]
hosts = ["example.com"]
`,
    { env: { PATH: process.env.PATH, HOME: dir, RINGFENCE_HOME: join(dir, 'state'), CANARY: 'value' } },
  )
})
afterAll(async () => {
  await home.close()
  rmSync(dir, { recursive: true, force: true })
})

describe('GET /v1/tenants', () => {
  test('shows the limits and the usage of each tenant', async () => {
    const key = await home.key(['create', 'read', 'exec'], 'red')
    await home.key(['read'], 'blue')
    const made = await home.call('POST', '/v1/sandboxes', { key, body: { backend: 'bubblewrap' } })
    const shown = (await home.call('GET', '/v1/tenants')).json.items
    expect(shown).toMatchObject([
      { name: 'blue', configured: false, keys: 1, sandboxes: 0, max_sandboxes: 5, host_paths: [], waive: [] },
      { name: 'default', configured: false },
      { name: 'red', configured: true, keys: 1, sandboxes: 1, max_sandboxes: 3, backends: ['bubblewrap'] },
    ])
    expect((await home.call('GET', '/v1/tenants', { key })).status).toBe(403)
    await home.call('DELETE', `/v1/sandboxes/${made.json.id}`, { key })
    expect((await home.call('GET', '/v1/tenants')).json.items[2]).toMatchObject({ sandboxes: 0 })
  })
})

describe('GET /v1/settings', () => {
  test('shows every setting, and of secrets only their presence', async () => {
    const answer = await home.call('GET', '/v1/settings')
    const find = (name: string) => answer.json.items.find((one: { name: string }) => one.name === name)
    expect(find('server.max_sandboxes')).toMatchObject({ value: 10, configured: true })
    expect(find('server.port')).toMatchObject({ value: 4200, configured: false })
    expect(find('tenant')).toMatchObject({ value: '1 entry', configured: true })
    expect(find('secret')).toMatchObject({ value: 'set', configured: true })
    expect(answer.text).not.toContain('CANARY')
    const key = await home.key(['create', 'read', 'exec'], 'red')
    expect((await home.call('GET', '/v1/settings', { key })).status).toBe(403)
  })

  test('hides the password of the database', async () => {
    const { operatorViews } = await import('../../src/compose/operator-views.ts')
    const { store, keys } = home.server.parts as unknown as Record<string, never>
    const current = () => ({
      server: { database_url: 'postgres://u:canary@db/x' },
      storage: { url: 'https://canary@s3/b' },
    })
    const ringfence = { current, home: '/home/x', policyFile: '/etc/x.toml' }
    expect(JSON.stringify(operatorViews({ ringfence, store, keys } as never).configuration())).not.toContain(
      'canary',
    )
  })
})

describe('GET /v1/egress', () => {
  test('counts connections by host; a tenant sees only its own', async () => {
    const red = await home.key(['create', 'read', 'exec'], 'red')
    const blue = await home.key(['create', 'read', 'exec'], 'blue')
    const made = await home.call('POST', '/v1/sandboxes', {
      key: red,
      body: { backend: 'bubblewrap', network: { mode: 'fetch', allow_hosts: ['allowed.example'] } },
    })
    const script =
      "import urllib.request as u\nfor n in range(2):\n  try: u.urlopen('http://other.example/', timeout=5)\n  except Exception: pass\n"
    await home.call('PUT', `/v1/sandboxes/${made.json.id}/files?path=/tmp/r.py`, { key: red, body: script })
    await home.call('POST', `/v1/sandboxes/${made.json.id}/exec`, {
      key: red,
      body: { argv: ['python3', '/tmp/r.py'] },
    })
    const own = await home.call('GET', '/v1/egress', { key: red })
    expect(own.json.items).toMatchObject([
      {
        host: 'other.example',
        allowed: 0,
        blocked: 2,
        sandboxes: 1,
        reason: '`other.example` is not an allowed host',
      },
    ])
    expect((await home.call('GET', '/v1/egress', { key: blue })).json).toEqual({ since: null, items: [] })
    expect((await home.call('GET', '/v1/egress')).json.items).toHaveLength(1)
  })
})
