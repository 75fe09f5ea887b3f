import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

/** Approval of hosts that are not on the allow list: who is asked, who may answer, and the scope of an answer. */

let home: TestServer
let red: string
let blue: string
beforeAll(async () => {
  home = await startTestServer('[server]\nrequests_per_second = 100000\n')
  red = await home.key(['create', 'exec', 'read'], 'red')
  blue = await home.key(['create', 'exec', 'read'], 'blue')
})
afterAll(() => home.close())

// Names below `.test` resolve nowhere, so an allowed connection fails at the DNS lookup with a clear message.
const GET = `import os, urllib.request, sys
try: urllib.request.urlopen(sys.argv[1], timeout=30)
except urllib.error.HTTPError as e: print(e.headers.get('x-ringfence-reason'))
`
const RESOLVED = /does not resolve/

async function make(key: string, network: object = { unlisted: 'ask' }): Promise<string> {
  const made = await home.call('POST', '/v1/sandboxes', { key, body: { network } })
  expect(made.status, made.text).toBe(201)
  await home.call('PUT', `/v1/sandboxes/${made.json.id}/files?path=/tmp/get.py`, { key, body: GET })
  return made.json.id
}

const get = async (id: string, key: string, url = 'http://files.test:8080/'): Promise<string> => {
  const command = `python3 /tmp/get.py ${url}`
  const ran = await home.call('POST', `/v1/sandboxes/${id}/exec`, { key, body: { command } })
  return `${ran.json.stdout}${ran.json.stderr}`
}

/** The approval that this sandbox waits for. */
async function pending(id: string) {
  for (let tries = 0; tries < 1000; tries++) {
    const { json } = await home.call('GET', '/v1/approvals?state=pending')
    const found = json.items.find((one: { sandbox_id: string }) => one.sandbox_id === id)
    if (found) return found
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
  throw new Error('nothing was asked')
}

const answer = (id: string, body: object, key = home.admin) =>
  home.call('POST', `/v1/approvals/${id}`, { key, body })

describe('a host that is not on the allow list', () => {
  test('waits for approval by an admin; the tenant itself cannot approve it', async () => {
    const id = await make(red)
    const got = get(id, red)
    const asked = await pending(id)
    expect(asked).toMatchObject({
      command: 'connect to files.test:8080',
      exec_id: null,
      host: { host: 'files.test', port: 8080, entry: 'files.test:8080', tenant: 'red' },
      decision: { action: 'ask', rules: ['network/unlisted'] },
    })
    expect((await answer(asked.id, { approve: true, scope: 'sandbox' }, red)).status).toBe(403)
    expect((await home.call('GET', `/v1/approvals/${asked.id}`, { key: blue })).status).toBe(404)
    const answered = await answer(asked.id, { approve: true })
    expect(answered.json).toMatchObject({ state: 'approved', scope: 'once' })
    expect(await got).toMatch(RESOLVED)
  })

  test('is refused with the admin’s reason, without a second approval request', async () => {
    const id = await make(red)
    const got = get(id, red)
    const { id: asked } = await pending(id)
    await answer(asked, { approve: false, reason: 'use the mirror' })
    expect(await got).toMatch(/not an allowed host \(rejected by key_\w+: use the mirror\)/)
    expect(await get(id, red)).toContain('use the mirror')
  })

  test('is reachable only from the sandbox that it was approved for, with scope `sandbox`', async () => {
    const [id, other] = [await make(red), await make(red)]
    const got = get(id, red)
    await answer((await pending(id)).id, { approve: true, scope: 'sandbox' })
    expect(await got).toMatch(RESOLVED)
    expect(await get(id, red)).toMatch(RESOLVED)
    const asks = get(other, red)
    await answer((await pending(other)).id, { approve: false })
    expect(await asks).toContain('rejected')
  })

  test('is recorded in the audit log when requested and when answered, with key, scope and reason', async () => {
    const id = await make(red)
    const got = get(id, red)
    const { id: asked } = await pending(id)
    await answer(asked, { approve: true, scope: 'sandbox', reason: 'a mirror' })
    await got
    const { json } = await home.call('GET', `/v1/audit?sandbox_id=${id}&limit=100`)
    const records = json.items.filter((one: { host?: string }) => one.host === 'files.test')
    expect(records.map((one: { event: string }) => one.event).sort()).toEqual([
      'Approval',
      'PolicyDecision',
      'SandboxViolation',
    ])
    expect(records).toContainEqual(
      expect.objectContaining({ event: 'PolicyDecision', subject: 'host', action: 'ask', port: 8080 }),
    )
    expect(records).toContainEqual(
      expect.objectContaining({
        event: 'Approval',
        approval_id: asked,
        approved: true,
        scope: 'sandbox',
        answered_by: expect.stringMatching(/^key_/),
        reason: 'a mirror',
      }),
    )
  })
})

describe('an approval with scope `always`', () => {
  test('requires the host in the policy, and applies only to the tenant that asked', async () => {
    const id = await make(red)
    const got = get(id, red, 'http://always.test:8080/')
    const { id: asked, host } = await pending(id)
    const early = await answer(asked, { approve: true, scope: 'always' })
    expect([early.status, early.json.hint]).toEqual([409, expect.stringContaining('--for always')])
    const { text, base } = (await home.call('GET', '/v1/policy')).json
    const added = `\n[[approved_host]]\nhost = "${host.entry}"\ntenant = "${host.tenant}"\n`
    expect((await home.call('PUT', '/v1/policy', { body: { text: text + added, base } })).status).toBe(200)
    expect((await answer(asked, { approve: true, scope: 'always' })).json.scope).toBe('always')
    expect(await got).toMatch(RESOLVED)
    expect(await get(await make(red), red, 'http://always.test:8080/')).toMatch(RESOLVED)
    const other = await make(blue)
    const asks = get(other, blue, 'http://always.test:8080/')
    await answer((await pending(other)).id, { approve: false })
    expect(await asks).toContain('rejected')
    // Without `unlisted = "ask"`, an approved host has no effect.
    const plain = await make(red, { mode: 'fetch', allow_hosts: ['other.test'] })
    expect(await get(plain, red, 'http://always.test:8080/')).toContain('is not an allowed host')
  })
})

test('a server with `unlisted = "deny"` refuses sandboxes with `unlisted = "ask"`', async () => {
  const strict = await startTestServer('[network]\nunlisted = "deny"\n')
  try {
    const made = await strict.call('POST', '/v1/sandboxes', { body: { network: { unlisted: 'ask' } } })
    expect([made.status, made.json.hint]).toEqual([403, expect.stringContaining('unlisted = "ask"')])
  } finally {
    await strict.close()
  }
})

test('only network mode `fetch` can ask for hosts, and a command approval takes no scope', async () => {
  const offline = await home.call('POST', '/v1/sandboxes', {
    body: { network: { mode: 'offline', unlisted: 'ask' } },
  })
  expect([offline.status, offline.json.code]).toEqual([400, 'invalid-input'])
})
