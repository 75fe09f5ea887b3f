import { createHmac } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { RingfenceClient } from '../../src/client/index.ts'
import { ROUTES } from '../../src/server/app.ts'
import { startTestServer, type TestServer } from './test-server.ts'

const ASKING = `
[policy]
allow_interactive = true
[[policy.rule]]
prefix = ["touch", "asked"]
action = "ask"
why = "a person looks first"
match = ["touch asked"]
[network]
allow_private = ["127.0.0.1"]
[server]
approval_timeout_secs = 2
`

let home: TestServer
let client: RingfenceClient
beforeAll(async () => {
  home = await startTestServer(ASKING)
  client = new RingfenceClient({ url: home.server.url, apiKey: home.admin })
})
afterAll(() => home.close())

describe('approvals', () => {
  const asked = async () => {
    for (;;) {
      const { items } = await client.approvals('pending')
      if (items[0]) return items[0]
      await new Promise((resolve) => setTimeout(resolve, 10))
    }
  }

  test('a command waits for approval and runs after it is approved', async () => {
    const sandbox = await client.create()
    const running = sandbox.exec('touch asked && ls asked')
    const question = await asked()
    expect(question).toMatchObject({
      command: 'touch asked && ls asked',
      sandbox_id: sandbox.id,
      state: 'pending',
    })
    const worker = await home.key(['create', 'exec', 'read'])
    const own = await home.call('POST', `/v1/approvals/${question.id}`, {
      key: worker,
      body: { approve: true },
    })
    expect(own.status).toBe(403)
    expect(await client.answer(question.id, true)).toMatchObject({ state: 'approved' })
    expect(await running).toMatchObject({ stdout: 'asked\n' })
    await expect(client.answer(question.id, false)).rejects.toMatchObject({ code: 'conflict' })
    await sandbox.close()
  })

  test('a rejected command and an expired approval are both refused', async () => {
    const sandbox = await client.create()
    const first = sandbox.exec('touch asked').catch((error: unknown) => error)
    await client.answer((await asked()).id, false)
    expect(await first).toMatchObject({ code: 'approval-required' })
    const second = sandbox.exec('touch asked').catch((error: unknown) => error)
    expect(await second).toMatchObject({ code: 'approval-required' })
    expect((await client.approvals('expired')).items.length).toBe(1)
    await sandbox.close()
  })

  test('a rejection reaches the caller with its author and reason; request and answer are recorded once each', async () => {
    const sandbox = await client.create()
    const refused = sandbox.exec('touch asked').catch((error: unknown) => error)
    const question = await asked()
    const before = await client.audit({ sandbox_id: sandbox.id, limit: 100 })
    expect(before.items.filter(({ exec_id }) => exec_id === question.exec_id)).toMatchObject([
      { event: 'PolicyDecision', action: 'ask', command: 'touch asked' },
    ])
    const { answered_by } = await client.answer(question.id, false, 'write below build/ instead')
    const error = (await refused) as { code: string; message: string; reasons: string[] }
    expect(error.code).toBe('approval-required')
    expect(error.message).toContain(`rejected by \`${answered_by}\`: write below build/ instead`)
    const { items } = await client.audit({ sandbox_id: sandbox.id, limit: 100 })
    const ofCommand = items.filter(({ exec_id }) => exec_id === question.exec_id)
    expect(ofCommand.map(({ event, action, state }) => [event, action ?? state])).toEqual([
      ['PolicyDecision', 'ask'],
      ['Approval', 'rejected'],
    ])
    expect(ofCommand[1]).toMatchObject({
      approval_id: question.id,
      answered_by,
      reason: 'write below build/ instead',
    })
    await sandbox.close()
  })

  test('an approval that expires is recorded once as `expired`, and the error says so', async () => {
    const sandbox = await client.create()
    const error = await sandbox.exec('touch asked').catch((failed: unknown) => failed)
    expect((error as Error).message).toContain('(not answered: no answer within 2 s)')
    const { items } = await client.audit({ sandbox_id: sandbox.id, limit: 100 })
    const ofCommand = items.filter(({ exec_id }) => exec_id !== undefined)
    expect(ofCommand.map(({ event, action, state }) => [event, action ?? state])).toEqual([
      ['PolicyDecision', 'ask'],
      ['Approval', 'expired'],
    ])
    await sandbox.close()
  })

  test('an approval timeout may exceed the maximum of setTimeout', async () => {
    const file = join(home.dir, 'ringfence.toml')
    writeFileSync(file, ASKING.replace('approval_timeout_secs = 2', 'approval_timeout_secs = 2592000'))
    await client.reload()
    const sandbox = await client.create()
    const running = sandbox.exec('touch asked; echo late')
    const question = await asked()
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect(await client.answer(question.id, true)).toMatchObject({ state: 'approved' })
    expect(await running).toMatchObject({ stdout: 'late\n' })
    writeFileSync(file, ASKING)
    await client.reload()
    await sandbox.close()
  })

  test('the stream of a command reports that it waits for approval', async () => {
    const sandbox = await client.create()
    const seen: string[] = []
    for await (const event of sandbox.stream('touch asked; echo done')) {
      seen.push(event.type)
      if (event.type === 'approval') await client.answer(event.id, true)
    }
    expect(seen).toEqual(['approval', 'start', 'stdout', 'end'])
    await sandbox.close()
  })
})

describe('terminals and ports', () => {
  const open = (path: string, key = home.admin): WebSocket =>
    new WebSocket(`${home.server.url.replace('http', 'ws')}${path}`, ['ringfence', `bearer.${key}`])

  test('a terminal can be resized', async () => {
    const sandbox = await client.create()
    const socket = open(`/v1/sandboxes/${sandbox.id}/pty?cols=90&rows=30&command=sh`)
    let text = ''
    socket.on('message', (data: Buffer) => {
      text += data.toString()
    })
    await new Promise((resolve, reject) => socket.once('open', resolve).once('error', reject))
    expect(socket.protocol).toBe('ringfence')
    socket.send(Buffer.from('stty size\n'))
    await until(() => text.includes('30 90'))
    socket.send(JSON.stringify({ resize: { cols: 100, rows: 40 } }))
    socket.send(Buffer.from('stty size\n'))
    await until(() => text.includes('40 100'))
    socket.send(Buffer.from('exit 5\n'))
    await until(() => text.includes('"code":5'))
    await sandbox.close()
  })

  test('a 1 TiB file is refused when read whole, and can be streamed', async () => {
    const sandbox = await client.create({})
    await sandbox.exec(['truncate', '-s', '1T', '/tmp/endless'])
    await expect(sandbox.files.read('/tmp/endless')).rejects.toMatchObject({ code: 'too-large' })
    const reader = (await sandbox.files.readStream('/tmp/endless')).getReader()
    expect((await reader.read()).value?.length).toBeGreaterThan(0)
    await reader.cancel()
    await sandbox.close()
  })

  test('a web server in a sandbox receives neither our key nor our cookies', async () => {
    const sandbox = await client.create({ network: { mode: 'loopback' } })
    const program = `
import http.server
class H(http.server.BaseHTTPRequestHandler):
  def do_POST(self):
    body = self.rfile.read(int(self.headers.get('content-length', 0)))
    self.send_response(201); self.send_header('set-cookie', 'a=b'); self.end_headers()
    self.wfile.write(self.path.encode() + b' ' + body + b' ' + str(self.headers.get('authorization')).encode())
  def log_message(self, *a): pass
http.server.HTTPServer(('127.0.0.1', 8000), H).serve_forever()`
    await sandbox.files.write('/tmp/serve.py', program)
    await sandbox.exec(['python3', '/tmp/serve.py'], { background: true })
    const call = () =>
      home.call('POST', `/v1/sandboxes/${sandbox.id}/ports/8000/a/b?c=d`, {
        body: 'hello',
        headers: { cookie: 'x=y' },
      })
    await until(async () => (await call()).status === 201)
    const answer = await call()
    expect(answer).toMatchObject({ status: 201, text: '/a/b?c=d hello None' })
    expect(answer.headers.get('set-cookie')).toBeNull()
    expect(answer.headers.get('content-security-policy')).toContain('sandbox')
    await sandbox.close()
  })
})

describe('webhooks and events', () => {
  test('every record is delivered with a signature', async () => {
    const got: { body: string; headers: Record<string, unknown> }[] = []
    let failing = true
    const receiver = createServer((request, response) => {
      let body = ''
      request.on('data', (chunk) => (body += chunk))
      request.on('end', () => {
        if (!failing) got.push({ body, headers: request.headers })
        response.writeHead(failing ? 500 : 200).end()
        failing = false
      })
    })
    await new Promise<void>((resolve) => receiver.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/hook`
    const hook = await home.call('POST', '/v1/webhooks', { body: { url, events: ['SandboxState'] } })
    const sandbox = await client.create({ agent_id: 'hooked' })
    await until(() => got.length > 0)
    const [first] = got
    const {
      'webhook-id': id,
      'webhook-timestamp': time,
      'webhook-signature': signature,
    } = first?.headers ?? {}
    const mac = createHmac('sha256', hook.json.secret).update(`${id}.${time}.${first?.body}`).digest('base64')
    expect(signature).toBe(`v1,${mac}`)
    expect(JSON.parse(first?.body ?? '{}')).toMatchObject({
      type: 'SandboxState',
      data: { sandbox_id: sandbox.id },
    })
    await home.call('DELETE', `/v1/webhooks/${hook.json.id}`)
    await sandbox.close()
    receiver.close()
  })

  test('events start at any record and follow new ones', async () => {
    const stop = new AbortController()
    const seen: number[] = []
    const reading = (async () => {
      for await (const record of client.events({ after: 0, signal: stop.signal })) {
        seen.push(record.seq)
        if (record.event === 'SandboxState' && record.agent_id === 'watched' && record.state === 'destroyed')
          stop.abort()
      }
    })()
    const sandbox = await client.create({ agent_id: 'watched' })
    await sandbox.close()
    await reading.catch(() => {})
    expect(seen).toEqual(Array.from({ length: seen.length }, (_, at) => at + 1))
  })
})

describe('reload', () => {
  test('applies all of the configuration or nothing, also to running sandboxes', async () => {
    const sandbox = await client.create()
    expect((await sandbox.exec('echo one')).stdout).toBe('one\n')
    const before = (await client.audit({ sandbox_id: sandbox.id })).items.at(-1)?.policy
    const file = join(home.dir, 'ringfence.toml')
    writeFileSync(file, `${ASKING}\n[[policy.rule]]\nprefix = ["echo"]\naction = "deny"\nmatch = ["ls"]\n`)
    await expect(client.reload()).rejects.toMatchObject({ code: 'invalid-config' })
    expect((await sandbox.exec('echo two')).stdout).toBe('two\n')
    writeFileSync(
      file,
      `${ASKING}\n[[policy.rule]]\nprefix = ["echo"]\naction = "deny"\nmatch = ["echo a"]\n`,
    )
    const { policy } = await client.reload()
    await expect(sandbox.exec('echo three')).rejects.toMatchObject({ code: 'forbidden-command' })
    const last = (await client.audit({ sandbox_id: sandbox.id })).items.at(-1)
    expect(last?.policy).toBe(policy)
    expect(before).not.toBe(policy)
    writeFileSync(file, ASKING)
    await client.reload()
    await sandbox.close()
  })
})

describe('general behaviour', () => {
  test('OpenAPI describes every route', async () => {
    const { json } = await home.call('GET', '/openapi.json')
    expect(json.openapi).toBe('3.1.0')
    const count = Object.values(json.paths as Record<string, object>).flatMap(Object.keys).length
    expect(count).toBe(ROUTES.reduce((sum, { method }) => sum + (method === 'ALL' ? 5 : 1), 0))
    const create = json.paths['/v1/sandboxes'].post.requestBody.content['application/json'].schema
    expect(create.properties.network.properties.mode.enum).toContain('fetch')
  })

  test('one idempotency key creates one sandbox', async () => {
    const options = { idempotencyKey: 'once' }
    const [one, two] = await Promise.all([client.create({}, options), client.create({}, options)])
    expect(one.id).toBe(two.id)
    expect((await client.create({}, options)).id).toBe(one.id)
    await expect(client.create({ agent_id: 'other' }, options)).rejects.toMatchObject({ code: 'conflict' })
    await one.close()
  })

  test('pages do not overlap, and the last page ends the list', async () => {
    const made = await Promise.all(Array.from({ length: 5 }, () => client.create({ agent_id: 'paged' })))
    const seen: string[] = []
    for (let cursor: string | undefined; ; ) {
      const page = await client.list({ agent_id: 'paged', limit: 2, ...(cursor ? { cursor } : {}) })
      seen.push(...page.items.map(({ id }) => id))
      if (!page.next) break
      cursor = page.next
    }
    expect([...seen].sort()).toEqual(made.map(({ id }) => id).sort())
    await Promise.all(made.map((one) => one.close()))
  })

  test('evaluate, backends, metrics, /api routes and health answer', async () => {
    expect(await client.evaluate('rm -rf /')).toMatchObject({ action: 'deny' })
    expect((await client.backends()).backends.map(({ name }) => name)).toContain('bubblewrap')
    expect((await home.call('GET', '/metrics')).text).toMatch(/ringfence_execs_total\{outcome="exited"\} \d+/)
    const audit = await home.call('GET', '/api/audit?limit=3')
    expect(Object.keys(audit.json[0])).toEqual(
      expect.arrayContaining([
        'timestamp',
        'agent_id',
        'event',
        'violation_type',
        'details',
        'hash',
        'prev_hash',
      ]),
    )
    expect((await home.call('GET', '/api/skills/usage')).json).toEqual([])
    expect((await home.call('GET', '/healthz', { key: '' })).json).toEqual({ ok: true })
    expect((await home.call('GET', '/readyz', { key: '' })).json).toEqual({ ready: true, problems: [] })
  })

  test('a sandbox is destroyed at its deadline and reports the reason', async () => {
    const [short, idle] = await Promise.all([
      client.create({ timeout_ms: 150 }),
      client.create({ idle_ms: 150 }),
    ])
    await until(
      async () =>
        (await short.refresh()).state === 'destroyed' && (await idle.refresh()).state === 'destroyed',
    )
    expect([short.info.reason, idle.info.reason]).toEqual(['timeout', 'idle'])
  })

  test('extending a timeout never shortens it', async () => {
    const sandbox = await client.create({ timeout_ms: 60_000 })
    const before = sandbox.info.expires_at
    expect(Date.parse((await sandbox.setTimeout(1000, true)).expires_at ?? '')).toBeGreaterThan(
      Date.parse(before ?? '') - 100,
    )
    const far = Date.parse((await sandbox.extendTimeout(90_000_000)).expires_at ?? '')
    expect(far).toBeGreaterThan(Date.now() + 80_000_000)
    expect(Date.parse((await sandbox.extendTimeout(1000)).expires_at ?? '')).toBe(far)
    expect((await sandbox.setTimeout(0)).expires_at).toBeNull()
    expect((await sandbox.extendTimeout(1000)).expires_at).toBeNull()
    await sandbox.close()
  })
})

async function until(done: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await done())) await new Promise((resolve) => setTimeout(resolve, 20))
}

describe('the network of a running sandbox', () => {
  test('can be changed at once and is recorded; a sandbox without network is refused', async () => {
    const sandbox = await client.create({ network: { mode: 'fetch', allow_hosts: ['one.example'] } })
    const changed = await sandbox.setAllowHosts(['two.example'])
    expect(changed.network).toEqual({ mode: 'fetch', allow_hosts: ['two.example'] })
    const { items } = await client.audit({ sandbox_id: sandbox.id })
    expect(items.find(({ subject }) => subject === 'network')).toMatchObject({ allow_hosts: ['two.example'] })
    await expect(sandbox.setAllowHosts(['http://nonsense/'])).rejects.toMatchObject({
      code: expect.any(String),
    })
    const offline = await client.create()
    await expect(offline.setAllowHosts(['two.example'])).rejects.toThrow()
    await Promise.all([sandbox.close(), offline.close()])
  })
})

describe('running a skill', () => {
  test('accepts only names of registered skills, never a path', async () => {
    for (const name of ['none', '..%2f..%2fetc', '%2ftmp'])
      expect((await home.call('POST', `/v1/skills/${name}/run`, { body: {} })).status).toBe(404)
  })
})
