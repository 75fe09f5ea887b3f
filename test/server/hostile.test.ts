import { createHash } from 'node:crypto'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { gzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

/** Attacks by a caller with a valid key on other tenants and the server. */

let home: TestServer
let receiver: Server
let local: string
let red: string
const heard: string[] = []
beforeAll(async () => {
  receiver = createServer((request, response) => {
    heard.push(request.url ?? '')
    response.end()
  })
  await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve))
  local = `127.0.0.1:${(receiver.address() as AddressInfo).port}`
  home = await startTestServer(
    `[network]\nallow_private = ["127.0.0.1"]\n[server]\nrequests_per_second = 100000\nwrong_keys_per_second = 100000\n[[policy.rule]]\nprefix = ["curl"]\naction = "sandbox"\n[[tenant]]\nname = "named"\nallow_hosts = ["${local}"]\n[[tenant]]\nname = "any"\nallow_hosts = ["*"]\n`,
  )
  red = await home.key(['create', 'exec', 'read'], 'red')
})
afterAll(async () => {
  receiver.close()
  await home.close()
})

const settled = () => new Promise((resolve) => setTimeout(resolve, 400))

describe('a webhook', () => {
  const hook = (key: string, path: string) =>
    home.call('POST', '/v1/webhooks', {
      key,
      body: { url: `http://${local}/${path}`, events: ['SandboxState'] },
    })
  const grow = async (): Promise<void> => {
    const made = await home.call('POST', '/v1/sandboxes', { key: red, body: {} })
    await home.call('DELETE', `/v1/sandboxes/${made.json.id}`, { key: red })
  }

  test('of a tenant cannot reach private addresses, even if webhooks of the operator can', async () => {
    await hook(red, 'tenant')
    await hook(home.admin, 'operator')
    for (const url of ['http://169.254.169.254/', 'http://[::1]:1/', 'http://localhost/', 'http://0x7f.1/'])
      await home.call('POST', '/v1/webhooks', { key: red, body: { url } })
    await grow()
    await expect.poll(() => heard).toContain('/operator')
    await settled()
    expect(heard).not.toContain('/tenant')
  })

  test('stops when the key that created it is revoked', async () => {
    const made = await home.call('POST', '/v1/keys', {
      body: { scopes: ['create', 'exec', 'read', 'admin'] },
    })
    await hook(made.json.key, 'leaked')
    await grow()
    await expect.poll(() => heard).toContain('/leaked')
    await home.call('DELETE', `/v1/keys/${made.json.id}`)
    await settled()
    heard.length = 0
    await grow()
    await expect.poll(() => heard).toContain('/operator')
    await settled()
    expect(heard).not.toContain('/leaked')
  })
})

test('a time that no date can hold is refused, and one in a sandbox does not break the listing', async () => {
  const late = 8_700_000_000_000_000
  expect((await home.call('POST', '/v1/sandboxes', { key: red, body: { timeout_ms: late } })).status).toBe(
    400,
  )
  const made = await home.call('POST', '/v1/sandboxes', { key: red, body: {} })
  const at = `/v1/sandboxes/${made.json.id}`
  const timeout = await home.call('POST', `${at}/timeout`, { key: red, body: { timeout_ms: late } })
  expect(timeout.status).toBe(400)
  const touch = { argv: ['touch', '-d', '@9000000000000', '/tmp/late'] }
  const touched = await home.call('POST', `${at}/exec`, { key: red, body: touch })
  expect(touched.json.outcome, touched.text).toEqual({ kind: 'exited', code: 0 })
  const listed = await home.call('GET', `${at}/files/list?path=/tmp`, { key: red })
  expect(listed.status, listed.text).toBe(200)
  expect(listed.text).toContain('9999-12-31T23:59:59.999Z')
  await home.call('DELETE', at, { key: red })
})

test('private addresses that the operator allowed are reachable only for tenants that name them', async () => {
  const reaches = async (key: string): Promise<boolean> => {
    const made = await home.call('POST', '/v1/sandboxes', {
      key,
      body: { network: { mode: 'fetch', allow_hosts: [local] } },
    })
    expect(made.status, made.text).toBe(201)
    heard.length = 0
    const command = `curl -s -m 5 --noproxy "" http://${local}/inside`
    await home.call('POST', `/v1/sandboxes/${made.json.id}/exec`, { key, body: { command } })
    await home.call('DELETE', `/v1/sandboxes/${made.json.id}`, { key })
    return heard.includes('/inside')
  }
  const key = (tenant: string) => home.key(['create', 'exec', 'read'], tenant)
  expect(await reaches(home.admin)).toBe(true)
  expect(await reaches(await key('named'))).toBe(true)
  expect(await reaches(red)).toBe(false)
  expect(await reaches(await key('any'))).toBe(false)
})

describe('a signed file URL', () => {
  test('allows only its own file and operation until it expires', async () => {
    const made = await home.call('POST', '/sandboxes', {
      key: '',
      headers: { 'x-api-key': red },
      body: { templateID: 'base' },
    })
    const { sandboxID, envdAccessToken: token } = made.json
    const at = { 'e2b-sandbox-id': sandboxID, 'e2b-sandbox-port': '49983' }
    const id = sandboxID.replace(/^sb/, 'sb_')
    for (const name of ['a', 'b'])
      await home.call('PUT', `/v1/sandboxes/${id}/files?path=/home/user/${name}`, { key: red, body: name })
    const soon = String(Math.floor(Date.now() / 1000) + 60)
    const sign = (path: string, verb: string, expires: string, secret = token): string =>
      `v1_${createHash('sha256').update([path, verb, 'user', secret, expires].join(':')).digest('base64').replace(/=+$/, '')}`
    const ask = async (query: Record<string, string>, method = 'GET'): Promise<number> => {
      const search = new URLSearchParams({ username: 'user', ...query })
      const more = method === 'GET' ? {} : { body: 'x' }
      return (await home.call(method, `/files?${search}`, { key: '', headers: at, ...more })).status
    }
    const good = {
      path: '/home/user/a',
      signature_expiration: soon,
      signature: sign('/home/user/a', 'read', soon),
    }
    expect(await ask(good)).toBe(200)
    expect(await ask({ ...good, path: '/home/user/b' })).toBe(401)
    expect(await ask({ ...good, signature_expiration: String(Number(soon) + 3600) })).toBe(401)
    expect(await ask({ ...good, username: 'root' })).toBe(401)
    expect(await ask({ ...good, signature: sign('/home/user/a', 'read', soon, 'guessed') })).toBe(401)
    expect(await ask({ ...good, signature: '' })).toBe(401)
    expect(await ask(good, 'POST')).toBe(401)
    expect(
      await ask({ ...good, signature_expiration: '1', signature: sign('/home/user/a', 'read', '1') }),
    ).toBe(401)
    await home.call('DELETE', `/v1/sandboxes/${id}`)
  })
})

describe('a decompression bomb', () => {
  test('in an upload is stopped by the disk limit of the sandbox', async () => {
    const made = await home.call('POST', '/v1/sandboxes', {
      key: red,
      body: { limits: { disk_mb: 16 }, template: 'base' },
    })
    const { id, token } = made.json
    const before = process.memoryUsage().rss
    const bomb = gzipSync(Buffer.alloc(256 * 1024 * 1024))
    expect(bomb.length).toBeLessThan(1024 * 1024)
    const answer = await home.call('POST', '/files?path=/tmp/bomb&username=user', {
      key: '',
      headers: {
        'x-access-token': token,
        'e2b-sandbox-id': id.replace('_', ''),
        'content-encoding': 'gzip',
        'content-type': 'application/octet-stream',
      },
      body: new Uint8Array(bomb),
    })
    expect(answer.status).toBeGreaterThanOrEqual(400)
    expect(answer.status).not.toBe(500)
    expect(process.memoryUsage().rss - before).toBeLessThan(400 * 1024 * 1024)
    expect((await home.call('GET', '/healthz')).status).toBe(200)
    await home.call('DELETE', `/v1/sandboxes/${id}`, { key: red })
  })
})

test('a spec with too much metadata, environment or hosts is refused', async () => {
  const many = (count: number): Record<string, string> =>
    Object.fromEntries(Array.from({ length: count }, (_, at) => [`k${at}`, 'x'.repeat(4096)]))
  const hosts = Array.from({ length: 900 }, (_, at) =>
    `${'a'.repeat(60)}.${'b'.repeat(60)}.${'c'.repeat(60)}.${'d'.repeat(60)}.h${at}.example.com`.slice(-250),
  )
  for (const body of [
    { metadata: many(200) },
    { env: many(200) },
    { network: { allow_hosts: [...hosts, ...hosts].slice(0, 1024) }, env: many(20) },
  ])
    expect((await home.call('POST', '/v1/sandboxes', { key: red, body })).json.code).toBe('too-large')
  const e2b = { templateID: 'base', metadata: many(200) }
  expect((await home.call('POST', '/sandboxes', { key: red, body: e2b })).status).toBe(413)
  const fine = await home.call('POST', '/v1/sandboxes', { key: red, body: { metadata: many(20) } })
  expect(fine.status, fine.text).toBe(201)
  await home.call('DELETE', `/v1/sandboxes/${fine.json.id}`, { key: red })
})

test('the policy that a tenant reads reveals nothing about the host', async () => {
  const { json } = await home.call('GET', '/v1/policy', { key: red })
  expect(json.description.network.allow_private).toEqual([])
  expect(json.description.allowed_host_prefixes).toEqual([])
  const own = await home.call('GET', '/v1/policy')
  expect(own.json.description.network.allow_private).toEqual(['127.0.0.1'])
})
