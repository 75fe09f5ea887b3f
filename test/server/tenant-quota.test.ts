import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, startTestServer, type TestServer } from './test-server.ts'

/** One tenant cannot take every sandbox of the server. */

const SMALL = `[server]
max_sandboxes = 4
requests_per_second = 100000
[[tenant]]
name = "small"
max_sandboxes = 1
`
let home: TestServer
const keys: Record<string, string> = {}
beforeAll(async () => {
  home = await startTestServer(SMALL)
  for (const tenant of ['red', 'blue', 'small'])
    keys[tenant] = await home.key(['create', 'exec', 'read'], tenant)
  keys.second = await home.key(['create', 'exec', 'read'], 'red')
  keys.operator = await home.key(['create', 'exec', 'read', 'admin'], 'red')
})
afterAll(() => home.close())

const v1 = (who: string): Promise<Answer> =>
  home.call('POST', '/v1/sandboxes', { key: keys[who] as string, body: {} })
const e2b = (who: string): Promise<Answer> =>
  home.call('POST', '/sandboxes', {
    key: '',
    headers: { 'x-api-key': keys[who] as string },
    body: { templateID: 'base' },
  })
const end = async (...made: readonly Answer[]): Promise<void> => {
  for (const { json } of made) {
    const id: string = json.id ?? json.sandboxID.replace(/^sb/, 'sb_')
    expect((await home.call('DELETE', `/v1/sandboxes/${id}`)).status).toBe(200)
  }
}

describe.each([
  ['/v1', v1],
  ['E2B’s routes', e2b],
])('the default quota of a tenant: %s', (_, create) => {
  test('is half of all sandboxes, whatever its number of keys, and other tenants have room', async () => {
    const made = await Promise.all([create('red'), create('second')])
    for (const one of made) expect(one.status, one.text).toBe(201)
    for (const who of ['red', 'second']) {
      const refused = await create(who)
      expect(refused.status, refused.text).toBe(429)
      expect(refused.text).toContain('this tenant already has 2 sandboxes')
    }
    const others = [await create('blue'), await create('small')]
    for (const one of others) expect(one.status, one.text).toBe(201)
    await end(...made, ...others)
    await end(await create('red'))
  })

  test('can be set per tenant, and the error names the setting', async () => {
    const one = await create('small')
    const refused = await create('small')
    expect(refused.status).toBe(429)
    await end(one)
  })

  test('does not apply to the operator, whose sandboxes do not count', async () => {
    const operators = await Promise.all([create('operator'), create('operator')])
    const own = [await create('red'), await create('red')]
    for (const one of [...operators, ...own]) expect(one.status, one.text).toBe(201)
    await end(...operators, ...own)
  })
})

test('parallel creates share one quota', async () => {
  const made = await Promise.all(Array.from({ length: 8 }, (_, n) => v1(n % 2 ? 'red' : 'second')))
  const good = made.filter(({ status }) => status === 201)
  expect(good.length).toBe(2)
  await end(...good)
})

test('a reload applies the new quota', async () => {
  writeFileSync(
    join(home.dir, 'ringfence.toml'),
    `${SMALL.replace('[server]', '[server]\nmax_sandboxes_per_tenant = 1')}`,
  )
  await home.server.reload()
  const one = await v1('blue')
  const refused = await v1('blue')
  expect(refused.status).toBe(429)
  expect(refused.json.hint).toContain('max_sandboxes_per_tenant')
  await end(one)
})
