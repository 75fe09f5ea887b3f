import { appendFileSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createShape } from '../../src/model/api/create-sandbox.ts'
import { readSkill } from '../../src/skills/package.ts'
import { SkillRegister } from '../../src/skills/register.ts'
import type { Scope } from '../../src/supervisor/access/keys.ts'
import { type Answer, startTestServer, type TestServer } from './test-server.ts'

/** A tenant's key gives no access to the host, except what `[[tenant]]` grants by name. */

let home: TestServer
let plain: string
let acme: string
let granted: string
let socket: Server
const ALL: readonly Scope[] = ['create', 'exec', 'read']

beforeAll(async () => {
  home = await startTestServer('[server]\nrequests_per_second = 100000\n[backends]\nallow_native = true\n')
  granted = join(home.dir, 'granted')
  mkdirSync(join(granted, 'ro'), { recursive: true })
  symlinkSync('/etc', join(granted, 'out'))
  socket = createServer()
  await new Promise<void>((resolve) => socket.listen(join(granted, 'socket'), resolve))
  appendFileSync(join(home.dir, 'ringfence.toml'), TENANT(granted))
  await home.server.reload()
  plain = await home.key(ALL, 'plain')
  acme = await home.key(ALL, 'acme')
})
afterAll(async () => {
  socket.close()
  await home.close()
})

const TENANT = (dir: string): string => `
[[tenant]]
name = "acme"
backends = ["bubblewrap", "native", "mock"]
network_modes = ["offline", "fetch", "full"]
allow_hosts = ["*.example.com"]
host_paths = [{ path = "${dir}", mode = "rw" }, { path = "/opt", mode = "ro" }]
waive = ["limit.idle"]
public_ports = false
max_memory_mb = 256
[[tenant]]
name = "bare"
backends = ["native"]
network_modes = ["full"]
[[tenant]]
name = "narrow"
backends = ["docker"]
waive = ["limit.idle"]
[[tenant]]
name = "root"
host_paths = [{ path = "/", mode = "rw" }]
`

const create = (key: string, body: unknown): Promise<Answer> =>
  home.call('POST', '/v1/sandboxes', { key, body })
const end = (made: Answer, key: string) => home.call('DELETE', `/v1/sandboxes/${made.json.id}`, { key })

/** Requests for access to the host, by field, and the setting that a refusal must name. */
const OF_THE_HOST: readonly (readonly [
  field: string,
  body: () => Record<string, unknown>,
  setting: string,
])[] = [
  ['backend', () => ({ backend: 'native' }), 'backends'],
  ['backend', () => ({ backend: 'mock' }), 'backends'],
  ['backend', () => ({ backend: 'e2b' }), 'backends'],
  ['backend', () => ({ backend: 'openshell' }), 'backends'],
  ['backend', () => ({ backend: 'no-such-backend' }), 'backends'],
  ['preset', () => ({ preset: 'danger-full-access' }), 'host_paths'],
  ['workspace', () => ({ workspace: granted }), 'host_paths'],
  ['workspace', () => ({ workspace: granted, preset: 'read-only' }), 'host_paths'],
  ['workspace', () => ({ workspace: '/no/such/path' }), 'host_paths'],
  ['workspace', () => ({ workspace: 'relative' }), 'host_paths'],
  ['read', () => ({ read: ['/opt'] }), 'host_paths'],
  ['write', () => ({ write: [granted] }), 'host_paths'],
  ['deny', () => ({ deny: ['/etc/shadow'] }), 'host_paths'],
  ['mounts', () => ({ mounts: [{ source: '/opt', target: '/mnt', mode: 'ro' }] }), 'host_paths'],
  ['network', () => ({ network: { mode: 'full' } }), 'network_modes'],
  ['unix_sockets', () => ({ unix_sockets: [join(granted, 'socket')] }), 'host_paths'],
  ['secrets', () => ({ secrets: ['T=PATH@api.example.com'] }), '[[secret]]'],
  ['waive', () => ({ waive: ['fs.protect'] }), 'waive'],
  ['image', () => ({ image: 'operators/private', backend: 'docker' }), 'images'],
]
/** Fields without effect on the host. A new field must be in one of the two lists, otherwise this test fails. */
const HARMLESS = [
  'min_isolation',
  'template',
  'root',
  'volumes',
  'limits',
  'env',
  'metadata',
  'review',
  'public_ports',
  'timeout_ms',
  'idle_ms',
  'agent_id',
  // Chooses a node of the cluster; the grants are checked there in the same way.
  'placement',
  'restart',
  // Only narrows what commands share.
  'isolation',
]

describe('a tenant without grants', () => {
  test('every field of a create request is checked against the grants', () => {
    const known = Object.keys(createShape.schema.properties as object)
    const listed = new Set([...OF_THE_HOST.map(([field]) => field), ...HARMLESS])
    expect(known.filter((field) => !listed.has(field))).toEqual([])
  })

  test.each(OF_THE_HOST)('cannot use %s %s', async (_, body, setting) => {
    const refused = await create(plain, body())
    // An image is found by the container engine, which may not run on this host.
    if (refused.status === 501 && setting === 'images') return
    expect(refused, refused.text).toMatchObject({ status: 403, json: { code: 'forbidden' } })
    expect(refused.json.hint).toContain(setting)
  })

  test.each([['create'], ['exec'], ['read']] as const)(
    'gets nothing more with the scope %s alone',
    async (scope) => {
      const key = await home.key([scope], 'plain')
      for (const [, body] of OF_THE_HOST.slice(0, 8)) expect((await create(key, body())).status).toBe(403)
    },
  )

  test('is refused, and the refusal is recorded', async () => {
    await create(plain, { backend: 'native' })
    const { json } = await home.call('GET', '/v1/audit?event=PolicyDecision&limit=1000')
    const reasons = json.items.map(({ reason }: { reason: string }) => reason)
    expect(reasons).toContain('tenant `plain` may not use the backend `native`')
  })

  test('cannot use sandboxes that the operator created in the same tenant with more rights', async () => {
    const admin = await home.key([...ALL, 'admin'], 'plain')
    const made = await create(admin, { workspace: granted, review: true })
    expect(made.status, made.text).toBe(201)
    const at = `/v1/sandboxes/${made.json.id}`
    const uses: readonly (readonly [method: string, path: string, body?: unknown])[] = [
      ['GET', ''],
      ['POST', '/exec', { argv: ['true'] }],
      ['GET', '/files?path=/etc/hostname'],
      ['PUT', '/files?path=/tmp/x', 'x'],
      ['GET', '/files/list?path=/'],
      ['POST', '/fork', {}],
      ['POST', '/snapshot', {}],
      ['GET', '/review'],
      ['GET', `/review/diff?path=${granted}`],
      ['PUT', '/network', { allow_hosts: [] }],
      ['GET', '/ports/80/'],
      ['POST', '/pause', {}],
    ]
    for (const [method, path, body] of uses) {
      const refused = await home.call(method, `${at}${path}`, {
        key: plain,
        ...(body === undefined ? {} : { body }),
      })
      expect(refused.status, `${method} ${path} ${refused.text}`).toBe(403)
    }
    // Only the operator can hand out the sandbox token; destroying a sandbox of its own tenant is always permitted.
    expect((await home.call('GET', at, { key: made.json.token })).status).toBe(200)
    expect((await end(made, plain)).json.state).toBe('destroyed')
  })

  test('cannot set reserved metadata names, and existing ones do not break the list', async () => {
    const refused = await create(plain, { metadata: { 'ringfence.e2b': 'x' } })
    expect(refused, refused.text).toMatchObject({ status: 400, json: { code: 'invalid-input' } })
    const made = await create(plain, { metadata: { name: 'fine' } })
    await home.server.store.write((tx) =>
      tx.run('UPDATE sandboxes SET spec = ? WHERE id = ?', [
        JSON.stringify({ metadata: { 'ringfence.e2b': 'x' } }),
        made.json.id,
      ]),
    )
    for (const path of ['/sandboxes', '/v2/sandboxes', '/v1/sandboxes'])
      for (const key of [plain, home.admin]) expect((await home.call('GET', path, { key })).status).toBe(200)
    await end(made, plain)
  })
})

describe('grants of [[tenant]]', () => {
  test.each<[string, () => Record<string, unknown>]>([
    ['a backend', () => ({ backend: 'mock' })],
    ['a network mode', () => ({ network: { mode: 'full' } })],
    ['a host', () => ({ network: { mode: 'fetch', allow_hosts: ['api.example.com'] } })],
    ['a host path', () => ({ workspace: granted })],
    ['a path below it', () => ({ read: [join(granted, 'ro')] })],
    ['a read-only path', () => ({ read: ['/opt'] })],
    ['a socket', () => ({ unix_sockets: [join(granted, 'socket')] })],
    ['a waiver', () => ({ waive: ['limit.idle'] })],
    ['memory', () => ({ limits: { memory_mb: 128 } })],
  ])('allow %s', async (_, body) => {
    const made = await create(acme, body())
    expect(made.status, made.text).toBe(201)
    expect(made.json.limits.memoryMb ?? 256).toBeLessThanOrEqual(256)
    await end(made, acme)
  })

  test.each<[string, () => Record<string, unknown>]>([
    ['a mode that its list leaves out', () => ({ network: { mode: 'loopback' } })],
    ['another host', () => ({ network: { allow_hosts: ['example.org'] } })],
    ['every host', () => ({ network: { allow_hosts: ['*'] } })],
    ['writing where it may read', () => ({ write: ['/opt'] })],
    ['a path beside it', () => ({ read: [`${granted}-other`] })],
    ['a path above it', () => ({ read: [join(granted, '..')] })],
    ['a symlink out of it', () => ({ read: [join(granted, 'out', 'passwd')] })],
    ['a path out of it through `..`', () => ({ read: [`${granted}/../../etc`] })],
    ['public ports', () => ({ backend: 'bubblewrap', public_ports: true })],
    ['more memory', () => ({ limits: { memory_mb: 512 } })],
    ['the whole host', () => ({ preset: 'danger-full-access' })],
  ])('do not allow %s', async (_, body) => {
    const refused = await create(acme, body())
    expect(refused, refused.text).toMatchObject({ status: 403, json: { code: 'forbidden' } })
  })

  test('a waiver does not allow another one', async () => {
    const narrow = await home.key(ALL, 'narrow')
    expect(await create(narrow, { waive: ['limit.idle', 'limit.disk'] })).toMatchObject({
      status: 403,
      json: { code: 'forbidden', message: 'tenant `narrow` may not waive `limit.disk`' },
    })
  })

  test('a symlink out of a granted directory reveals nothing about its target', async () => {
    for (const target of ['/etc', '/etc/ssl', '/etc/shadow', '/no/such/path', '/proc/self/root', home.dir]) {
      const link = join(granted, 'planted')
      rmSync(link, { force: true })
      symlinkSync(target, link)
      for (const path of [link, `${link}/`]) {
        const refused = await create(acme, { read: [path] })
        expect(refused.json, target).toMatchObject({
          code: 'forbidden',
          message: `tenant \`acme\` may not read the host path \`${path}\``,
        })
      }
    }
    rmSync(join(granted, 'planted'))
  })

  test('limit the hosts of a running sandbox', async () => {
    const made = await create(acme, { network: { mode: 'fetch' } })
    const put = (hosts: readonly string[]) =>
      home.call('PUT', `/v1/sandboxes/${made.json.id}/network`, { key: acme, body: { allow_hosts: hosts } })
    expect(made.json.network.allow_hosts).toEqual(['*.example.com'])
    expect((await put(['example.org'])).status).toBe(403)
    expect((await put(['api.example.com'])).status).toBe(200)
    await end(made, acme)
  })

  test('limit the backend that is chosen automatically', async () => {
    const key = await home.key(ALL, 'narrow')
    const made = await create(key, {})
    expect(made.status === 201 ? made.json.backend : 'docker').toBe('docker')
    if (made.status === 201) await end(made, key)
    expect((await create(key, { backend: 'bubblewrap' })).status).toBe(403)
  })

  test('allow backend native', async () => {
    const key = await home.key(ALL, 'bare')
    const made = await create(key, { backend: 'native', network: { mode: 'full' } })
    expect(made.status, made.text).toBe(201)
    const ran = await home.call('POST', `/v1/sandboxes/${made.json.id}/exec`, {
      key,
      body: { argv: ['id', '-u'] },
    })
    expect(ran.json.stdout).toBe(`${process.getuid?.()}\n`)
    await end(made, key)
  })

  test('can include the whole host', async () => {
    const key = await home.key(ALL, 'root')
    const made = await create(key, { preset: 'danger-full-access' })
    expect(made.status, made.text).toBe(201)
    await end(made, key)
  })

  test('are withdrawn with the table, also from running sandboxes', async () => {
    const made = await create(acme, { workspace: granted })
    const file = join(home.dir, 'ringfence.toml')
    writeFileSync(file, '[backends]\nallow_native = true\n')
    await home.server.reload()
    const exec = { key: acme, body: { argv: ['true'] } }
    expect((await home.call('POST', `/v1/sandboxes/${made.json.id}/exec`, exec)).status).toBe(403)
    const token = { ...exec, key: made.json.token }
    expect((await home.call('POST', `/v1/sandboxes/${made.json.id}/exec`, token)).status).toBe(403)
    expect((await end(made, acme)).status).toBe(200)
    appendFileSync(file, TENANT(granted))
    await home.server.reload()
  })

  test('duplicate tables, relative paths and unknown modes are rejected', async () => {
    const file = join(home.dir, 'ringfence.toml')
    for (const wrong of [
      '[[tenant]]\nname = "a"\n[[tenant]]\nname = "a"\n',
      '[[tenant]]\nname = "a"\nhost_paths = [{ path = "srv", mode = "ro" }]\n',
      '[[tenant]]\nname = "a"\nhost_paths = [{ path = "/srv", mode = "rwx" }]\n',
    ]) {
      writeFileSync(file, wrong)
      await expect(home.server.reload()).rejects.toMatchObject({ code: 'invalid-config' })
    }
    writeFileSync(file, `[backends]\nallow_native = true\n${TENANT(granted)}`)
    await home.server.reload()
  })
})

test('without `allow_native` nobody can use backend native, not even the operator', async () => {
  const other = await startTestServer('[[tenant]]\nname = "acme"\nbackends = ["native"]\n')
  const key = await other.key(ALL, 'acme')
  for (const one of [other.admin, key]) {
    const refused = await other.call('POST', '/v1/sandboxes', { key: one, body: { backend: 'native' } })
    expect(refused, refused.text).toMatchObject({ status: 403 })
    expect(refused.json.hint).toContain('allow_native')
  }
  await other.close()
})

test('a pooled sandbox is given only to tenants that may use its backend', async () => {
  const other = await startTestServer(
    '[[server.pool]]\nsize = 1\nbackend = "mock"\n[[tenant]]\nname = "acme"\nbackends = ["mock"]\n',
  )
  await expect.poll(async () => (await other.call('GET', '/metrics')).text).toMatch(/pool_ready 1/)
  const [stranger, key] = [await other.key(ALL, 'plain'), await other.key(ALL, 'acme')]
  const body = { backend: 'mock' }
  expect((await other.call('POST', '/v1/sandboxes', { key: stranger, body })).status).toBe(403)
  expect((await other.call('POST', '/v1/sandboxes', { key, body })).status).toBe(201)
  await other.close()
})

test('a pooled sandbox gets the limits of its tenant', async () => {
  const other = await startTestServer(
    '[[server.pool]]\nsize = 1\nbackend = "mock"\n[[tenant]]\nname = "acme"\nbackends = ["mock"]\nmax_memory_mb = 128\nmax_cpus = 1\n',
  )
  await expect.poll(async () => (await other.call('GET', '/metrics')).text).toMatch(/pool_ready 1/)
  const key = await other.key(ALL, 'acme')
  const made = await other.call('POST', '/v1/sandboxes', { key, body: { backend: 'mock' } })
  expect(made.json.limits, made.text).toMatchObject({ memoryMb: 128, cpus: 1 })
  await other.close()
})

test('a skill has no more rights than the tenant that runs it', async () => {
  const dir = mkdtempSync(join(home.dir, 'skill-'))
  writeFileSync(join(dir, 'main.py'), 'print("1")\n')
  const skill = (asks: string): string =>
    `[skill]\nname = "reader"\n[runtime]\ntype = "python"\nentry = "main.py"\n[capabilities]\n${asks}\n`
  const register = new SkillRegister(join(home.dir, 'state'))
  const run = async (asks: string, key: string): Promise<number> => {
    writeFileSync(join(dir, 'skill.toml'), skill(asks))
    register.add(await readSkill(dir))
    return (await home.call('POST', '/v1/skills/reader/run', { key, body: { input: {} } })).status
  }
  expect(await run('network = ["example.org:443"]', acme)).toBe(403)
  expect(await run('network = ["api.example.com:443"]', acme)).toBe(200)
  expect(await run('file_read = ["data/**"]', plain)).toBe(200)
  rmSync(dir, { recursive: true, force: true })
})

test('no sandbox of a tenant runs on a backend that the operator did not list', async () => {
  const other = await startTestServer('[backends]\norder = ["mock", "kubernetes"]\n')
  const key = (await other.server.parts.keys.create({ e2b: true, tenant: 'acme', scopes: ALL })).secret
  const made = await other.call('POST', '/v1/sandboxes', { key, body: {} })
  expect(made.status, made.text).toBe(403)
  expect(made.json.hint).toContain('backends = ["kubernetes"]')
  const asE2b = await fetch(`${other.server.url}/sandboxes`, {
    method: 'POST',
    headers: { 'x-api-key': key, 'content-type': 'application/json' },
    body: '{"templateID":"base"}',
  })
  expect(asE2b.status).toBe(403)
  const operators = await other.call('POST', '/v1/sandboxes', { body: {} })
  expect(operators.json).toMatchObject({ code: 'backend-unavailable' })
  await other.close()
})

test('a server does not start with a backend in its order that does not exist', async () => {
  await expect(startTestServer('[backends]\norder = ["bubblewarp"]\n')).rejects.toMatchObject({
    code: 'invalid-config',
    message: expect.stringContaining('bubblewarp'),
  })
})
