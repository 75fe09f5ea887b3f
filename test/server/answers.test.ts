import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { JsonSchema } from '../../src/model/shape.ts'
import { ROUTES } from '../../src/server/app.ts'
import { readSkill } from '../../src/skills/package.ts'
import { SkillRegister } from '../../src/skills/register.ts'
import { packageRoot } from '../conformance/world.ts'
import { checkEvents, checkedAnswers } from './answer-contract.ts'
import { startTestServer, type TestServer } from './test-server.ts'

/** Every route declares its answers, and answers as it declares: `answer-contract.ts` checks each one that is sent here. */

const ASKING = `
[policy]
allow_interactive = true
[[policy.rule]]
prefix = ["touch", "asked"]
action = "ask"
why = "needs approval"
match = ["touch asked"]
[network]
allow_private = ["127.0.0.1"]
[sandbox]
wasm_epoch_deadline = 100
[server]
approval_timeout_secs = 60
`

let home: TestServer
beforeAll(async () => {
  home = await startTestServer(ASKING)
  const skill = await readSkill(join(packageRoot(), 'examples', 'skills', 'greet'))
  new SkillRegister(join(home.dir, 'state')).add(skill)
  mkdirSync(join(home.dir, 'reviewed'))
})
afterAll(() => home.close())

/** Sends a request and expects its status. */
async function send(line: string, body?: unknown, status = 200, headers = {}) {
  const [method, path] = line.split(' ') as [string, string]
  const answer = await home.call(method, path, { body, headers })
  expect([line, answer.status, answer.status === status ? '' : answer.text]).toEqual([line, status, ''])
  return answer
}

const idOf = async (line: string, body: unknown): Promise<string> => (await send(line, body, 201)).json.id
const STREAM = { accept: 'text/event-stream' }

/** The declared answers that a test can cause; a port returns the answer of its program. */
const declared = ROUTES.filter(({ method }) => method !== 'ALL').flatMap(({ method, path, answers }) =>
  Object.entries(answers).flatMap(([status, { shape }]) => (shape ? [`${method} ${path} ${status}`] : [])),
)

describe('declared answers of routes', () => {
  test('have a schema, another content type, or no content', () => {
    const nothing = ROUTES.flatMap(({ method, path, answers }) =>
      Object.entries(answers)
        .filter(([status, { shape, type }]) => Number(status) < 400 && status !== '204' && !shape && !type)
        .map(([status]) => `${method} ${path} ${status}`),
    )
    expect(nothing).toEqual([])
  })

  test('describe the fields of every object', () => {
    const bare = ROUTES.flatMap(({ method, path, answers }) =>
      Object.values(answers).flatMap(({ shape }) =>
        shape && isBare(shape.schema) ? [`${method} ${path}`] : [],
      ),
    )
    expect(bare).toEqual([])
  })
})

function isBare(schema: JsonSchema): boolean {
  const { type, properties, additionalProperties, ...rest } = schema
  if (type === 'object') return properties === undefined && additionalProperties === undefined
  return Object.values({ ...rest, properties })
    .flatMap((one) => (Array.isArray(one) ? one : [one, ...Object.values(one ?? {})]))
    .some((one) => typeof one === 'object' && one !== null && isBare(one as JsonSchema))
}

describe('sent answers match their declared schema', () => {
  test('for a sandbox, its commands and its files', async () => {
    const id = await idOf('POST /v1/sandboxes', { metadata: { a: 'b' }, network: { mode: 'fetch' } })
    const at = `/v1/sandboxes/${id}`
    await send('GET /v1/sandboxes')
    const { exec_id } = (
      await send(`POST ${at}/exec`, { command: 'cat', stdin_open: true, background: true }, 202)
    ).json
    for (const path of ['', '/metrics', '/usage', '/wall', '/egress', '/execs', `/execs/${exec_id}`])
      await send(`GET ${at}${path}`)
    await send(`POST ${at}/stdin`, { exec_id, data: 'x' })
    await send(`POST ${at}/signal`, { exec_id })
    const terminal = { cols: 80, rows: 24 }
    const shown = await send(`POST ${at}/exec`, { command: 'sleep 100', terminal, background: true }, 202)
    await send(`POST ${at}/resize`, { exec_id: shown.json.exec_id, terminal })
    await send(`POST ${at}/exec`, { command: 'echo out; echo err >&2; exit 3' })
    await send(`POST ${at}/exec`, { command: 'echo streamed' }, 200, STREAM)
    await send(`PUT ${at}/files?path=/tmp/a`, 'text')
    await send(`GET ${at}/files/stat?path=/tmp/a`)
    await send(`GET ${at}/files/list?path=/tmp`)
    await send(`DELETE ${at}/files?path=/tmp/a`, undefined, 204)
    await send(`PUT ${at}/network`, { allow_hosts: ['example.com', '169.254.169.254'] })
    await send(`POST ${at}/timeout`, { timeout_ms: 60_000 })
    await send(`POST ${at}/pause`, {})
    await send(`POST ${at}/resume`, {})
    await send(`DELETE ${at}`)
    for (const path of ['/wall', '/execs', `/execs/${exec_id}`, '/logs']) await send(`GET ${at}${path}`)
    await send(`GET /v1/events?sandbox_id=${id}&after=0`)
  })

  test('for snapshots and reviews', async () => {
    const id = await idOf('POST /v1/sandboxes', {})
    const snapshot = await idOf(`POST /v1/sandboxes/${id}/snapshot`, { name: 'one' })
    await send(`POST /v1/sandboxes/${id}/fork`, {}, 201)
    await send('GET /v1/snapshots')
    await send(`DELETE /v1/snapshots/${snapshot}`, undefined, 204)
    const workspace = join(home.dir, 'reviewed')
    const reviewed = await idOf('POST /v1/sandboxes', { workspace, review: true })
    const at = `/v1/sandboxes/${reviewed}`
    await send(`POST ${at}/exec`, { command: 'echo a > a; echo b > b; ln -s a c' })
    await send(`GET ${at}/review`)
    await send(`GET ${at}/review/diff?path=${join(workspace, 'a')}`)
    await send(`POST ${at}/review/apply`, { paths: [join(workspace, 'a')] })
    await send(`DELETE ${at}`)
    await send('GET /v1/reviews')
    await send(`POST ${at}/review/drop`, {}, 204)
  })

  test('for volumes and templates', async () => {
    const at = `/v1/volumes/${await idOf('POST /v1/volumes', { name: 'data', size_mb: 16 })}`
    await send(`PUT ${at}/files?path=/a`, 'text')
    await send(`GET ${at}/files/list?path=/`)
    await send(`DELETE ${at}/files?path=/a`, undefined, 204)
    await send(`POST ${at}/copy`, { name: 'copy', read_only: true }, 201)
    for (const path of ['/v1/volumes', at]) await send(`GET ${path}`)
    await send(`DELETE ${at}`, undefined, 204)
    const row = { id: 'tpl1', kind: 'template', tenant: 'default', name: 'one', sandboxId: null } as const
    const { templates } = home.server.parts
    await templates.save({ ...row, backend: 'bubblewrap', createdAt: Date.now(), data: { places: 0 } })
    for (const path of ['/v1/templates', '/v1/templates/one']) await send(`GET ${path}`)
    await send('DELETE /v1/templates/one', undefined, 204)
    await send(`PUT /v1/templates/files/${'0'.repeat(64)}`, 'archive', 204)
    const build = await send('POST /v1/templates', { name: 'two', template: 'nothing' }, 202)
    await send(`GET /v1/templates/builds/${build.json.id}`)
  })

  test('for approvals and the policy', async () => {
    const id = await idOf('POST /v1/sandboxes', {})
    const running = send(`POST /v1/sandboxes/${id}/exec`, { command: 'touch asked' }, 200, STREAM)
    const pending = await untilSome<{ id: string }>(
      async () => (await send('GET /v1/approvals?state=pending')).json.items,
    )
    await send(`GET /v1/approvals/${pending.id}`)
    await send(`POST /v1/approvals/${pending.id}`, { approve: true, reason: 'fine' })
    await running
    await send('POST /v1/policy/evaluate', { command: 'ls | sudo rm -rf /' })
    for (const body of [
      { command: 'touch asked; ls' },
      { path: '/etc', op: 'read' },
      { url: 'http://127.0.0.1/' },
      { url: 'http://169.254.169.254/' },
    ])
      await send('POST /v1/policy/try', body)
    const { text, base } = (await send('GET /v1/policy')).json
    await send('POST /v1/policy/check', { text })
    await send('POST /v1/policy/check', { text: 'wrong = ' })
    await send('PUT /v1/policy', { text, base })
    await send('GET /v1/policy/suggestions')
    await send('POST /v1/reload', {})
  })

  test('for the audit log, keys, webhooks, skills and the host', async () => {
    for (const path of ['/v1/audit', '/v1/audit/verify', '/v1/audit/head', '/v1/audit/proof/0', '/api/audit'])
      await send(`GET ${path}`)
    await send(`DELETE /v1/keys/${await idOf('POST /v1/keys', { name: 'one' })}`, undefined, 204)
    await send('GET /v1/keys')
    const hook = await idOf('POST /v1/webhooks', { url: 'http://127.0.0.1:9/' })
    await send('GET /v1/webhooks')
    await send(`DELETE /v1/webhooks/${hook}`, undefined, 204)
    await send('POST /v1/skills/greet/run', { input: 'Ada' })
    for (const path of [
      '/v1/skills',
      '/api/skills/usage',
      '/v1/backends',
      '/v1/doctor',
      '/v1/tenants',
      '/v1/settings',
      '/v1/egress',
      '/healthz',
      '/readyz',
    ])
      await send(`GET ${path}`)
  })

  test('for the console', async () => {
    const { link } = (await send('POST /v1/console/links', {}, 201)).json
    const own = { origin: home.server.url, 'sec-fetch-site': 'same-origin' }
    await send('POST /v1/console/session', { link }, 201, own)
    await send('GET /v1/console/session')
    await idOf('POST /v1/sandboxes', {})
    await consoleEvents(['hello', 'approvals', 'reviews', 'record', 'samples'])
  })

  test('for every declared answer, without exception', () => {
    // No server that is not ready exists in these tests; test/cluster checks the answers about nodes.
    const elsewhere = (one: string): boolean => one.includes(' /v1/nodes')
    expect(declared.filter((one) => !checkedAnswers.has(one) && !elsewhere(one))).toEqual(['GET /readyz 503'])
  })
})

async function untilSome<T>(find: () => Promise<readonly T[]>): Promise<T> {
  for (;;) {
    const [first] = await find()
    if (first) return first
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

/** Reads the console's stream until each of these events has arrived. */
async function consoleEvents(names: readonly string[]): Promise<void> {
  const path = '/v1/console/events?after=0'
  const stop = new AbortController()
  const headers = { authorization: `Bearer ${home.admin}` }
  const { body } = await fetch(`${home.server.url}${path}`, { headers, signal: stop.signal })
  let text = ''
  for await (const chunk of (body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream())) {
    text += chunk
    if (text.endsWith('\n\n') && names.every((name) => text.includes(`event: ${name}\n`))) break
  }
  stop.abort()
  checkEvents('GET', path, text)
}
