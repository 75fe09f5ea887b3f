import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

/** A sandbox that asks about hosts which are not on its list: who is asked, who answers, and how far the answer reaches. */

let home: TestServer
let red: string
let blue: string
beforeAll(async () => {
  home = await startTestServer('[server]\nrequests_per_second = 100000\n')
  red = await home.key(['create', 'exec', 'read'], 'red')
  blue = await home.key(['create', 'exec', 'read'], 'blue')
})
afterAll(() => home.close())

// Names below `.test` resolve nowhere, so an admitted connection ends at the look-up and says so.
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

describe('a host that is not on the list', () => {
  test('waits for an admin; the tenant that asked cannot answer', async () => {
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

  test('is refused with the reason of whoever said no, and not asked about again', async () => {
    const id = await make(red)
    const got = get(id, red)
    const { id: asked } = await pending(id)
    await answer(asked, { approve: false, reason: 'use the mirror' })
    expect(await got).toMatch(/not an allowed host \(rejected by key_\w+: use the mirror\)/)
    expect(await get(id, red)).toContain('use the mirror')
  })

  test('is open for the sandbox after a yes for the sandbox, and for no other', async () => {
    const [id, other] = [await make(red), await make(red)]
    const got = get(id, red)
    await answer((await pending(id)).id, { approve: true, scope: 'sandbox' })
    expect(await got).toMatch(RESOLVED)
    expect(await get(id, red)).toMatch(RESOLVED)
    const asks = get(other, red)
    await answer((await pending(other)).id, { approve: false })
    expect(await asks).toContain('rejected')
  })

  test('is on record when asked and when answered, with who and how far', async () => {
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

describe('always', () => {
  test('needs the host in the policy, holds for the tenant that asked, and for nobody else', async () => {
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
    // Without questions, an approved host opens nothing.
    const plain = await make(red, { mode: 'fetch', allow_hosts: ['other.test'] })
    expect(await get(plain, red, 'http://always.test:8080/')).toContain('is not an allowed host')
  })
})

test('an operator who writes `deny` wants no questions', async () => {
  const strict = await startTestServer('[network]\nunlisted = "deny"\n')
  try {
    const made = await strict.call('POST', '/v1/sandboxes', { body: { network: { unlisted: 'ask' } } })
    expect([made.status, made.json.hint]).toEqual([403, expect.stringContaining('unlisted = "ask"')])
  } finally {
    await strict.close()
  }
})

test('only mode `fetch` can ask, and a command has no scope', async () => {
  const offline = await home.call('POST', '/v1/sandboxes', {
    body: { network: { mode: 'offline', unlisted: 'ask' } },
  })
  expect([offline.status, offline.json.code]).toEqual([400, 'invalid-input'])
})
