import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { CONTROL } from '../../src/server/e2b/control.ts'
import { TEMPLATES } from '../../src/server/e2b/templates/template-routes.ts'
import { FULL } from '../server/test-server.ts'
import { client, type Loose, type World, world } from './kit.ts'

/** E2B's surface for those who should not get anything from it: another tenant, and a fuzzer. */

const COUNT = FULL ? 50_000 : 800
const ROUTES = [...CONTROL, ...TEMPLATES]
const RPC = [
  'process.Process/List',
  'process.Process/SendInput',
  'process.Process/SendSignal',
  'process.Process/CloseStdin',
  'process.Process/Update',
  'filesystem.Filesystem/Stat',
  'filesystem.Filesystem/ListDir',
  'filesystem.Filesystem/MakeDir',
  'filesystem.Filesystem/Move',
  'filesystem.Filesystem/Remove',
  'filesystem.Filesystem/CreateWatcher',
  'filesystem.Filesystem/GetWatcherEvents',
]
let there: World
let red: string
let blue: string
let sandbox: Loose
let snapshot: string
let url: string

beforeAll(async () => {
  there = await world(
    '[policy]\nallow_interactive = true\n[server]\nrequests_per_second = 1000000\nwrong_keys_per_second = 1000000\nmax_sandboxes = 8\n',
  )
  url = there.options.apiUrl
  red = await there.key('red')
  blue = await there.key('blue')
  const { Sandbox } = await client('e2b')
  sandbox = await Sandbox.create({ ...there.options, apiKey: red })
  await sandbox.files.write('/home/user/own', 'red')
  snapshot = (await sandbox.createSnapshot()).snapshotId
}, 60_000)
afterAll(() => there.close())

type Asked = { readonly method: string; readonly path: string; readonly body?: unknown }
const ask = async (key: string, { method, path, body }: Asked): Promise<{ status: number; text: string }> => {
  const answer = await fetch(`${url}${path}`, {
    method,
    headers: { 'x-api-key': key, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
  return { status: answer.status, text: await answer.text() }
}

/** Refused, or as if it were not there. */
const SHUT = [401, 403, 404, 502]

/** What a route needs to work for its owner; pausing and ending come last, by their own tests. */
const BODIES: Readonly<Record<string, unknown>> = {
  '/sandboxes/:id/timeout': { timeout: 120 },
  '/sandboxes/:id/refreshes': { duration: 120 },
  '/sandboxes/:id/connect': { timeout: 120 },
  '/v2/sandboxes/:id/connect': { timeout: 120 },
  '/sandboxes/:id/network': { allowOut: [], denyOut: [] },
  '/sandboxes/:id/snapshots': {},
  '/sandboxes/:id/pause': {},
  '/sandboxes/:id/resume': { timeout: 120 },
}
/** Refused to the owner as well: the backend cannot, or there is no such thing. */
const NOBODY = [
  '/templates/:id/builds/:build/status',
  '/v2/templates/:id/builds/:build',
  // A snapshot has no tags; templates with tags are in details.test.ts.
  '/templates/:id/tags',
]

test('a build starts no further step once its key is revoked', { timeout: 30_000 }, async () => {
  const made = await there.server.call('POST', '/v1/keys', {
    body: { scopes: ['create', 'exec', 'read'], tenant: 'red' },
  })
  const own = made.json.key as string
  const names = JSON.parse(
    (await ask(own, { method: 'POST', path: '/v3/templates', body: { name: 'revoked' } })).text,
  )
  const build = `builds/${names.buildID}`
  const steps = ['sleep 1.5', 'true'].map((line) => ({ type: 'RUN', args: [line] }))
  const started = await ask(own, {
    method: 'POST',
    path: `/v2/templates/${names.templateID}/${build}`,
    body: { steps },
  })
  expect(started.status, started.text).toBe(202)
  const state = async (): Promise<Loose> =>
    JSON.parse(
      (await ask(red, { method: 'GET', path: `/templates/${names.templateID}/${build}/status` })).text,
    )
  await expect.poll(async () => (await state()).logs.join(), { timeout: 10_000 }).toContain('[1/2]')
  expect((await there.server.call('DELETE', `/v1/keys/${made.json.id}`)).status).toBeLessThan(300)
  await expect.poll(async () => (await state()).status, { timeout: 10_000 }).toBe('error')
  expect((await state()).reason).toMatchObject({ message: 'the key of this build was revoked', step: '2' })
})

describe('another tenant', () => {
  const own = ROUTES.filter(({ path }) => path.includes(':id') && !path.includes(':hash'))
  const order = (path: string): number => ['pause', 'resume'].findIndex((word) => path.endsWith(word))
  const sorted = [...own.filter(({ method }) => method !== 'DELETE')].sort(
    (a, b) => order(a.path) - order(b.path),
  )

  test.each(sorted.map((route) => [`${route.method} ${route.path}`, route] as const))(
    'gets 404 for a sandbox or template of the first: %s',
    async (_, { method, path }) => {
      const id =
        path.startsWith('/templates') || path.startsWith('/v2/templates') ? snapshot : sandbox.sandboxId
      const asked = {
        method,
        path: path.replace(':id', id).replace(/:\w+/, 'x'),
        ...(method === 'GET' ? {} : { body: BODIES[path] ?? {} }),
      }
      const stranger = await ask(blue, asked)
      expect(stranger.status, stranger.text).toBe(404)
      const nobody = await ask(blue, { ...asked, path: asked.path.replace(id, 'inone0000000000000000') })
      expect(nobody.status, 'what is not theirs looks like what is not there').toBe(404)
      const owner = await ask(red, asked)
      if (!NOBODY.includes(path)) expect(owner.status, owner.text).toBeLessThan(300)
    },
  )

  test('sees only its own sandboxes in lists', async () => {
    for (const path of ['/v2/sandboxes', '/sandboxes', '/snapshots']) {
      expect((await ask(blue, { method: 'GET', path })).text).toBe('[]')
      expect(JSON.parse((await ask(red, { method: 'GET', path })).text).length).toBeGreaterThan(0)
    }
  })

  test('cannot open a sandbox with its own key or token', async () => {
    const { Sandbox } = await client('e2b')
    const other = await Sandbox.create({ ...there.options, apiKey: blue })
    const call = (path: string, token: string) =>
      fetch(`${url}/${path}`, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          'e2b-sandbox-id': sandbox.sandboxId,
          'e2b-sandbox-port': '49983',
          'x-access-token': token,
        },
        body: '{"path":"/home/user/own"}',
      })
    for (const path of RPC)
      for (const token of [other.envdAccessToken, blue, '', 'x'])
        expect(SHUT, `${path} ${token}`).toContain((await call(path, token)).status)
    expect((await call('filesystem.Filesystem/Stat', sandbox.envdAccessToken)).status).toBe(200)
    const file = await fetch(`${url}/files?path=/home/user/own`, {
      headers: { 'e2b-sandbox-id': sandbox.sandboxId, 'x-access-token': other.envdAccessToken },
    })
    expect(SHUT).toContain(file.status)
    const run = (token: string) =>
      fetch(`${url}/execute`, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          'e2b-sandbox-id': sandbox.sandboxId,
          'e2b-sandbox-port': '49999',
          'x-access-token': token,
        },
        body: '{"code":"1+1"}',
      })
    for (const token of [other.envdAccessToken, blue, '']) expect(SHUT).toContain((await run(token)).status)
    expect((await run(sandbox.envdAccessToken)).status).toBe(200)
    await other.kill()
  })

  test('cannot delete a sandbox or template', async () => {
    for (const path of [`/templates/${snapshot}`, `/sandboxes/${sandbox.sandboxId}`])
      expect((await ask(blue, { method: 'DELETE', path })).status).toBe(404)
    expect(await sandbox.files.read('/home/user/own')).toBe('red')
  })
})

describe('fuzzing the E2B API', () => {
  const nasty = fc.oneof(
    fc.string({ unit: 'binary', maxLength: 60 }),
    fc.constantFrom(
      '',
      '..',
      '../..',
      '\0',
      '__proto__',
      '-1',
      '1e400',
      '9'.repeat(40),
      '/etc/shadow',
      'a\r\nb: c',
    ),
  )
  const value = fc.oneof(nasty, fc.jsonValue({ maxDepth: 3 }), fc.double(), fc.integer())
  const body = fc.oneof(
    fc
      .dictionary(
        fc.constantFrom(
          'templateID',
          'timeout',
          'metadata',
          'envVars',
          'network',
          'process',
          'path',
          'input',
          'signal',
          'pid',
          'source',
          'destination',
          'depth',
          'steps',
          'name',
          'watcherId',
          '__proto__',
        ),
        value,
        { maxKeys: 5 },
      )
      .map((made) => JSON.stringify(made) ?? 'null'),
    fc.string({ unit: 'binary', maxLength: 500 }),
    fc.constantFrom('[[[[', '{"a":', 'null', `${'['.repeat(4000)}`),
  )
  const request = fc.record({
    target: fc.oneof(
      fc
        .constantFrom(...ROUTES.filter(({ method }) => method !== 'DELETE'))
        .map((route) => ({ ...route, inside: false })),
      fc
        .constantFrom(
          ...RPC,
          'process.Process/Start',
          'files',
          'execute',
          'contexts',
          'envs',
          'metrics',
          'init',
        )
        .map((path) => ({ method: 'POST', path: `/${path}`, inside: true })),
    ),
    own: fc.boolean(),
    other: nasty,
    body,
    type: fc.constantFrom(
      'application/json',
      'application/connect+json',
      'multipart/form-data; boundary=x',
      'text/plain',
    ),
  })
  type Sample = typeof request extends fc.Arbitrary<infer T> ? T : never

  async function send({ target, own, other, body, type }: Sample): Promise<void> {
    const id = own ? sandbox.sandboxId : encodeURIComponent(other)
    const path = target.path.replace(':id', id).replace(/:\w+/g, encodeURIComponent(other))
    const response = await fetch(
      `${url}${path}${target.inside ? `?path=${encodeURIComponent(other)}` : ''}`,
      {
        method: target.method,
        headers: {
          'x-api-key': red,
          'content-type': type,
          ...(target.inside
            ? {
                'e2b-sandbox-id': sandbox.sandboxId,
                'e2b-sandbox-port': path.startsWith('/exec') || path.startsWith('/cont') ? '49999' : '49983',
                'x-access-token': sandbox.envdAccessToken,
                'connect-timeout-ms': '500',
              }
            : {}),
        },
        ...(target.method === 'GET' ? {} : { body }),
        signal: AbortSignal.timeout(60_000),
      },
    ).catch((error: Error) => {
      throw new Error(`${target.method} ${path} ${type} ${body.slice(0, 300)}: ${error.message}`)
    })
    const text = await response.text()
    const fine = response.status < 500 || [501, 502].includes(response.status)
    expect(
      fine,
      `${target.method} ${path} ${type} ${body.slice(0, 300)}: ${response.status} ${text.slice(0, 300)}`,
    ).toBe(true)
  }

  /** Some requests pause it or set its end; what is asked of a sandbox that is not there reaches little. */
  async function wake(): Promise<void> {
    const path = `/sandboxes/${sandbox.sandboxId}/connect`
    const { status } = await ask(red, { method: 'POST', path, body: { timeout: 600 } })
    if (status !== 404) return expect(status, 'awake').toBeLessThan(300)
    const { Sandbox } = await client('e2b')
    const all = JSON.parse((await ask(red, { method: 'GET', path: '/v2/sandboxes' })).text) as Loose[]
    for (const { sandboxID } of all) await Sandbox.kill(sandboxID, { ...there.options, apiKey: red })
    sandbox = await Sandbox.create({ ...there.options, apiKey: red })
  }

  test(`${COUNT} requests cause no server error`, async () => {
    let left = COUNT
    const worker = async (_: unknown, number: number): Promise<void> => {
      while (left > 0) {
        const batch = fc.sample(request, Math.min(100, left))
        left -= batch.length
        for (const one of batch) await send(one)
        if (number === 0) await wake()
      }
    }
    await Promise.all(Array.from({ length: 4 }, worker))
    expect((await there.server.call('GET', '/healthz')).status).toBe(200)
    expect(({} as Record<string, unknown>).polluted).toBeUndefined()
  }, 3_600_000)
})
