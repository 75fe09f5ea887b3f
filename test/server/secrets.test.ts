import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

/** Secrets declared by the operator: for which tenant, for which host, and the effect of a reload. */

const [FIRST, SECOND] = ['value-one-0123456789', 'value-two-0123456789']
const OWN = 'the-server-s-own-0123456789'
const state = mkdtempSync(join(tmpdir(), 'rf-secrets-'))
const seen: string[] = []
let api: Server
let at: string
let home: TestServer
let red: string
let blue: string

const OPEN = `
[network]
allow_private = ["localhost"]
[[policy.rule]]
prefix = ["curl"]
action = "sandbox"
`
const declared = (file: string): string => `${OPEN}
[[secret]]
name = "LENT"
file = "${file}"
hosts = ["http://${at}"]
tenants = ["red"]
`

beforeAll(async () => {
  api = createServer((request, response) => {
    seen.push(String(request.headers.authorization))
    response.end('fine')
  })
  await new Promise<void>((resolve) => api.listen(0, '127.0.0.1', resolve))
  at = `localhost:${(api.address() as AddressInfo).port}`
  home = await startTestServer('', {
    env: { PATH: process.env.PATH, HOME: state, RINGFENCE_HOME: state, OWN_TOKEN: OWN },
  })
  red = await home.key(['create', 'exec', 'read'], 'red')
  blue = await home.key(['create', 'exec', 'read'], 'blue')
  writeFileSync(join(home.dir, 'value'), `${FIRST}\n`, { mode: 0o600 })
  await reload(declared(join(home.dir, 'value')))
}, 60_000)
afterAll(async () => {
  await home.close()
  rmSync(state, { recursive: true, force: true })
  await new Promise((resolve) => api.close(resolve))
})

async function reload(config: string, status = 200): Promise<string> {
  writeFileSync(join(home.dir, 'ringfence.toml'), config)
  const answer = await home.call('POST', '/v1/reload', { body: {} })
  expect(answer.status, answer.text).toBe(status)
  return answer.text
}

const make = (key: string, secret: string) =>
  home.call('POST', '/v1/sandboxes', { key, body: { secrets: [secret], network: { mode: 'fetch' } } })

/** The credential that the test server received when a command in the sandbox called it. */
async function carried(id: string): Promise<{ readonly given: string | undefined; readonly said: string }> {
  seen.length = 0
  const command = `curl -s -i --noproxy "" -H "authorization: $TOKEN" http://${at}/; echo "[$TOKEN]"`
  const { json, text, status } = await home.call('POST', `/v1/sandboxes/${id}/exec`, {
    key: red,
    body: { command },
  })
  expect(status, text).toBe(200)
  return { given: seen[0], said: json.stdout }
}

describe('a secret declared by the operator', () => {
  test('is available to its tenant for its host; a reload replaces or withdraws it in running sandboxes', async () => {
    const made = await make(red, `TOKEN=LENT@http://${at}`)
    expect(made.status, made.text).toBe(201)
    const first = await carried(made.json.id)
    expect(first.given, first.said).toBe(FIRST)
    expect(first.said).toMatch(/fine\[rfs_\w+\]/)

    writeFileSync(join(home.dir, 'value'), SECOND)
    await reload(declared(join(home.dir, 'value')))
    expect((await carried(made.json.id)).given).toBe(SECOND)

    await reload(declared(join(home.dir, 'nowhere')), 400)
    expect((await carried(made.json.id)).given, 'a wrong file changes nothing').toBe(SECOND)

    await reload(OPEN)
    const last = await carried(made.json.id)
    expect(last.given).toBeUndefined()
    expect(last.said).toContain('taken back')

    const trail = await home.call('GET', '/v1/audit?event=Secret')
    expect(trail.json.items.filter(({ name }: { name: string }) => name === 'LENT').length).toBe(3)
    for (const value of [FIRST, SECOND]) expect(JSON.stringify(trail.json)).not.toContain(value)
    await home.call('DELETE', `/v1/sandboxes/${made.json.id}`, { key: red })
    await reload(declared(join(home.dir, 'value')))
  })

  test('is not available to other tenants or for another host', async () => {
    const other = await make(blue, `TOKEN=LENT@http://${at}`)
    expect(other, other.text).toMatchObject({ status: 403, json: { code: 'forbidden' } })
    for (const key of [red, home.admin]) {
      const refused = await make(key, 'TOKEN=LENT@attacker.example')
      expect(refused, refused.text).toMatchObject({ status: 422, json: { code: 'capability-denied' } })
    }
  })
})

test('a variable of the server’s environment is available to the operator only', async () => {
  const secret = `TOKEN=OWN_TOKEN@http://${at}`
  for (const key of [red, blue]) {
    const refused = await make(key, secret)
    expect(refused, refused.text).toMatchObject({ status: 403, json: { code: 'forbidden' } })
    expect(refused.text).not.toContain(OWN)
  }
  const operator = await make(home.admin, secret)
  expect(operator.status, operator.text).toBe(201)
  await home.call('DELETE', `/v1/sandboxes/${operator.json.id}`)
})

test('a declared secret over HTTPS works with a large CA bundle of the system', async () => {
  const file = join(home.dir, 'value')
  await reload(declared(file).replace(`"http://${at}"`, '"api.outside.example"'))
  const made = await make(red, 'TOKEN=LENT@api.outside.example')
  expect(made.status, made.text).toBe(201)
  const command = 'wc -c < "$SSL_CERT_FILE"'
  const ran = await home.call('POST', `/v1/sandboxes/${made.json.id}/exec`, { key: red, body: { command } })
  expect(ran.status, ran.text).toBe(200)
  expect(Number(ran.json.stdout)).toBeGreaterThan(131_072)
  await home.call('DELETE', `/v1/sandboxes/${made.json.id}`, { key: red })
})
