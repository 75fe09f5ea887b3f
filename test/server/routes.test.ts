import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startTestServer, type TestServer } from './test-server.ts'

/** End to end: HTTP, supervisor, gate, bubblewrap, audit log. */

let home: TestServer
beforeAll(async () => {
  home = await startTestServer()
})
afterAll(() => home.close())

describe('a sandbox over HTTP', () => {
  test('is created, runs a command, and is destroyed', async () => {
    const made = await home.call('POST', '/v1/sandboxes', {
      body: { metadata: { a: 'b' }, agent_id: 'agent-7' },
    })
    expect(made.status, made.text).toBe(201)
    expect(made.json).toMatchObject({
      state: 'ready',
      backend: 'bubblewrap',
      level: 'os',
      metadata: { a: 'b' },
    })
    const id = made.json.id as string
    const ran = await home.call('POST', `/v1/sandboxes/${id}/exec`, {
      body: { command: 'echo hi; echo no >&2; exit 3' },
    })
    expect(ran.json).toMatchObject({
      sandbox_id: id,
      outcome: { kind: 'exited', code: 3 },
      stdout: 'hi\n',
      stderr: 'no\n',
      truncated: false,
    })
    const denied = await home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { command: 'rm -rf /' } })
    expect(denied.status).toBe(422)
    expect(denied.json).toMatchObject({ code: 'forbidden-command' })
    const gone = await home.call('DELETE', `/v1/sandboxes/${id}`)
    expect(gone.json).toMatchObject({ id, state: 'destroyed', reason: 'killed' })
    expect((await home.call('DELETE', `/v1/sandboxes/${id}`)).status).toBe(200)
    const late = await home.call('POST', `/v1/sandboxes/${id}/exec`, { body: { argv: ['true'] } })
    expect(late).toMatchObject({ status: 409, json: { code: 'wrong-state' } })
    const trail = await home.call('GET', `/v1/audit?agent_id=agent-7`)
    expect(trail.json.items.map((one: { event: string }) => one.event)).toContain('Exec')
    expect((await home.call('GET', '/v1/audit/verify')).json).toMatchObject({ ok: true })
  })
})

const create = async (body: object = {}): Promise<string> => {
  const made = await home.call('POST', '/v1/sandboxes', { body })
  expect(made.status, made.text).toBe(201)
  return made.json.id as string
}

describe('files over HTTP', () => {
  test('are written, read, listed, described and removed as streams', async () => {
    const id = await create()
    const big = Buffer.alloc(3 * 1024 * 1024, 'x')
    const path = '/tmp/dir/big.bin'
    const put = await home.call('PUT', `/v1/sandboxes/${id}/files?path=${path}`, { body: big })
    expect(put.json, put.text).toMatchObject({ path, kind: 'file', size: big.length })
    const got = await home.call('GET', `/v1/sandboxes/${id}/files?path=${path}`)
    expect(got.text.length).toBe(big.length)
    const part = await home.call('GET', `/v1/sandboxes/${id}/files?path=${path}&offset=10&length=5`)
    expect(part.text).toBe('xxxxx')
    const list = await home.call('GET', `/v1/sandboxes/${id}/files/list?path=/tmp/dir`)
    expect(list.json.items).toMatchObject([{ name: 'big.bin' }])
    expect((await home.call('DELETE', `/v1/sandboxes/${id}/files?path=${path}`)).status).toBe(204)
    expect((await home.call('GET', `/v1/sandboxes/${id}/files?path=${path}`)).status).toBe(404)
    expect((await home.call('GET', `/v1/sandboxes/${id}/files?path=relative`)).json).toMatchObject({
      code: 'path-not-absolute',
    })
    await home.call('DELETE', `/v1/sandboxes/${id}`)
  })
})

describe('commands over HTTP', () => {
  test('stream their output, take input, and can be re-attached at any point', async () => {
    const id = await create()
    const started = await home.call('POST', `/v1/sandboxes/${id}/exec`, {
      body: { command: 'while read line; do echo "got $line"; done', stdin_open: true, background: true },
    })
    expect(started.status, started.text).toBe(202)
    const exec = started.json.exec_id as string
    const say = (data: string, eof = false) =>
      home.call('POST', `/v1/sandboxes/${id}/stdin`, { body: { exec_id: exec, data, eof } })
    await say('one\n')
    await say('two\n', true)
    const events = await home.call('GET', `/v1/sandboxes/${id}/execs/${exec}`, {
      headers: { accept: 'text/event-stream' },
    })
    const out = [...events.text.matchAll(/event: stdout\ndata: "([^"]+)"/g)].map(([, text]) =>
      atob(text as string),
    )
    expect(out.join('')).toBe('got one\ngot two\n')
    expect(events.text).toContain('event: end')
    const again = await home.call('GET', `/v1/sandboxes/${id}/execs/${exec}?after=1`, {
      headers: { accept: 'text/event-stream' },
    })
    expect(again.text).not.toContain(btoa('got one\n'))
    expect((await home.call('GET', `/v1/sandboxes/${id}/execs/${exec}`)).json).toMatchObject({
      state: 'ended',
      stdout: 'got one\ngot two\n',
      outcome: { kind: 'exited', code: 0 },
    })
    await home.call('DELETE', `/v1/sandboxes/${id}`)
    // From the audit log, after the output has left memory.
    expect((await home.call('GET', `/v1/sandboxes/${id}/execs/${exec}`)).json).toMatchObject({
      state: 'ended',
      outcome: { kind: 'exited', code: 0 },
    })
  })

  test('accept signals, time limits and input in the request', async () => {
    const id = await create()
    const run = (body: object) => home.call('POST', `/v1/sandboxes/${id}/exec`, { body })
    expect((await run({ argv: ['cat'], stdin: 'hello' })).json).toMatchObject({ stdout: 'hello' })
    expect((await run({ argv: ['sleep', '60'], timeout_ms: 100 })).json).toMatchObject({
      outcome: { kind: 'stopped', limit: 'wall' },
    })
    const sleeper = await run({ argv: ['sleep', '60'], background: true })
    const exec_id = sleeper.json.exec_id as string
    expect((await home.call('GET', `/v1/sandboxes/${id}`)).json.state).toBe('executing')
    await home.call('POST', `/v1/sandboxes/${id}/signal`, { body: { exec_id, signal: 'SIGKILL' } })
    const events = await home.call('GET', `/v1/sandboxes/${id}/execs/${exec_id}`, {
      headers: { accept: 'text/event-stream' },
    })
    expect(events.text).toContain('"signal":"SIGKILL"')
    expect((await run({ argv: ['true'], command: 'true' })).json).toMatchObject({ code: 'no-command' })
    await home.call('DELETE', `/v1/sandboxes/${id}`)
  })
})

describe('pausing a sandbox', () => {
  test('stops its processes; they continue after resume', async () => {
    const id = await create()
    const at = `/v1/sandboxes/${id}`
    await home.call('POST', `${at}/exec`, {
      body: { command: 'i=0; while sleep 0.05; do i=$((i+1)); echo $i > /tmp/n; done', background: true },
    })
    const count = async () =>
      Number(
        (await home.call('POST', `${at}/exec`, { body: { command: 'cat /tmp/n || echo 0' } })).json.stdout,
      )
    await expect.poll(count).toBeGreaterThan(2)
    expect((await home.call('POST', `${at}/pause`, { body: {} })).json).toMatchObject({ state: 'paused' })
    expect((await home.call('POST', `${at}/exec`, { body: { command: 'true' } })).status).toBe(409)
    await new Promise((resolve) => setTimeout(resolve, 300))
    expect((await home.call('POST', `${at}/resume`, { body: {} })).json.state).not.toBe('paused')
    const after = await count()
    await expect.poll(count).toBeGreaterThan(after)
    await home.call('DELETE', at)
  })

  test('completes or refuses every write under way', { timeout: 60_000 }, async () => {
    const id = await create()
    const at = `/v1/sandboxes/${id}`
    for (let round = 0; round < 20; round++) {
      const writes = Array.from({ length: 8 }, (_, n) =>
        home.call('PUT', `${at}/files?path=/tmp/w${n}`, { body: Buffer.alloc(1000) }),
      )
      await home.call('POST', `${at}/pause`, { body: {} })
      for (const { status } of await Promise.all(writes)) expect([200, 409]).toContain(status)
      await home.call('POST', `${at}/resume`, { body: {} })
    }
    await home.call('DELETE', at)
  })
})

describe('snapshots and forks', () => {
  const said = async (id: string, command: string, key = home.admin): Promise<string> =>
    (await home.call('POST', `/v1/sandboxes/${id}/exec`, { key, body: { command } })).json.stdout

  test('a fork has the files of that moment, and its own changes afterwards', {
    timeout: 60_000,
  }, async () => {
    const id = await create()
    await said(id, 'mkdir /tmp/deep && echo one > /tmp/deep/note && chmod 640 /tmp/deep/note')
    const forked = await home.call('POST', `/v1/sandboxes/${id}/fork`, { body: {} })
    expect(forked).toMatchObject({ status: 201, json: { state: 'ready' } })
    expect(forked.json.id).not.toBe(id)
    await said(id, 'echo two > /tmp/deep/note')
    expect(await said(forked.json.id, 'cat /tmp/deep/note; ls -l /tmp/deep/note | cut -c1-10')).toBe(
      'one\n-rw-r-----\n',
    )
    expect((await home.call('GET', '/v1/snapshots')).json.items).toEqual([])
    for (const one of [id, forked.json.id]) await home.call('DELETE', `/v1/sandboxes/${one}`)
  })

  test('a snapshot outlives its sandbox and belongs to its tenant', { timeout: 60_000 }, async () => {
    const id = await create()
    await said(id, 'echo kept > /tmp/note')
    const snapshot = await home.call('POST', `/v1/sandboxes/${id}/snapshot`, { body: { name: 'good' } })
    expect(snapshot).toMatchObject({ status: 201, json: { name: 'good', sandbox_id: id } })
    await home.call('DELETE', `/v1/sandboxes/${id}`)
    const other = await home.key(['create', 'exec', 'read'], 'other')
    for (const template of ['good', snapshot.json.id]) {
      const body = { template }
      expect((await home.call('POST', '/v1/sandboxes', { key: other, body })).status).toBe(404)
      const made = await home.call('POST', '/v1/sandboxes', { body })
      expect(await said(made.json.id, 'cat /tmp/note')).toBe('kept\n')
      await home.call('DELETE', `/v1/sandboxes/${made.json.id}`)
    }
    expect((await home.call('GET', '/v1/snapshots', { key: other })).json.items).toEqual([])
    expect((await home.call('DELETE', '/v1/snapshots/good', { key: other })).status).toBe(404)
    expect((await home.call('DELETE', '/v1/snapshots/good')).status).toBe(204)
    expect((await home.call('POST', '/v1/sandboxes', { body: { template: 'good' } })).status).toBe(404)
  })

  test('a paused sandbox and a backend without snapshots are refused', async () => {
    const id = await create()
    await home.call('POST', `/v1/sandboxes/${id}/pause`, { body: {} })
    for (const verb of ['snapshot', 'fork'])
      expect((await home.call('POST', `/v1/sandboxes/${id}/${verb}`, { body: {} })).status).toBe(409)
    await home.call('DELETE', `/v1/sandboxes/${id}`)
    const mock = await home.call('POST', '/v1/sandboxes', { body: { backend: 'mock' } })
    const answer = await home.call('POST', `/v1/sandboxes/${mock.json.id}/fork`, { body: {} })
    expect(answer).toMatchObject({ status: 501, json: { code: 'unsupported' } })
    expect(answer.json.message).toContain('mock')
    await home.call('DELETE', `/v1/sandboxes/${mock.json.id}`)
  })
})
