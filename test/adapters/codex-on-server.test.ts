import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { WebSocket } from 'ws'
import { RingfenceClient } from '../../src/client/client.ts'
import { type RunningServer, startServer } from '../../src/compose/serve.ts'
import { clientModel, type ToolCall } from './client-model.ts'
import { areInstalled, codexProgram } from './coding-agents.ts'
import { ExecServerClient } from './exec-server-client.ts'

/** Codex whose commands run in sandboxes of a server. */

const base = mkdtempSync(join(tmpdir(), 'rf-codex-server-'))
const here = join(base, 'here')
let server: RunningServer
const configFile = join(base, 'ringfence.toml')
const keys: Record<string, { readonly secret: string; readonly id: string }> = {}

beforeAll(async () => {
  mkdirSync(here)
  writeFileSync(configFile, '[policy]\nallow_interactive = true\n')
  server = await startServer({
    env: {
      HOME: base,
      PATH: process.env.PATH,
      RINGFENCE_HOME: join(base, 'state'),
      HOST_SECRET: 'of-the-host',
    },
    port: 0,
    config: configFile,
  })
  for (const tenant of ['red', 'blue']) {
    const { secret, key } = await server.parts.keys.create({ tenant, scopes: ['create', 'exec', 'read'] })
    keys[tenant] = { secret, id: key.id }
  }
}, 60_000)
afterAll(async () => {
  await server.close()
  rmSync(base, { recursive: true, force: true })
})

async function address(tenant: string): Promise<string> {
  const { path } = await new RingfenceClient({
    url: server.url,
    apiKey: keys[tenant]?.secret ?? '',
  }).execServer()
  return `${server.url.replace(/^http/, 'ws')}${path}`
}

const start = (processId: string, script: string, more: object = {}) => ({
  processId,
  argv: ['/bin/bash', '-c', script],
  cwd: 'file:///nowhere',
  env: {},
  tty: false,
  ...more,
})

async function output(client: ExecServerClient, processId: string): Promise<string> {
  let [text, after] = ['', 0]
  for (;;) {
    const read = await client.result('process/read', { processId, afterSeq: after, waitMs: 5000 })
    for (const { seq, chunk } of read.chunks as { seq: number; chunk: string }[]) {
      after = seq
      text += Buffer.from(chunk, 'base64').toString()
    }
    if (read.closed === true) return text
  }
}

test('an exec-server address belongs to its key; another tenant cannot use its sessions', async () => {
  const [red, blue] = [await address('red'), await address('blue')]
  const client = await ExecServerClient.open(red)
  const { sessionId } = await client.result('initialize', { clientName: 't' })
  await client.result('process/start', start('p', 'id -un; env; echo kept > kept.txt'))
  const said = await output(client, 'p')
  expect(said).not.toMatch(/of-the-host|rf_/)
  client.close()
  const other = await ExecServerClient.open(blue)
  expect((await other.ask('initialize', { clientName: 't', resumeSessionId: sessionId })).error).toBeDefined()
  other.close()
  const again = await ExecServerClient.open(red)
  await again.result('initialize', { clientName: 't', resumeSessionId: sessionId })
  await again.result('process/start', start('q', 'cat kept.txt', { tty: true }))
  expect(await output(again, 'q')).toContain('kept')
  again.close()
  const own = async (tenant: string): Promise<number> =>
    (await new RingfenceClient({ url: server.url, apiKey: keys[tenant]?.secret ?? '' }).list()).items.length
  expect([await own('red'), await own('blue')]).toEqual([1, 0])
}, 60_000)

test('an exec-server connection requires a key, checks Host, Origin and secret, and ends when the key is revoked', async () => {
  const url = await address('blue')
  const post = await fetch(`${server.url}/v1/exec-server`, { method: 'POST' })
  expect(post.status).toBe(401)
  await expect(ExecServerClient.open(url.replace(/[^/]+$/, '0'.repeat(48)))).rejects.toThrow(/401/)
  await expect(ExecServerClient.open(url, { origin: 'https://evil.example' })).rejects.toThrow(/403/)
  await expect(ExecServerClient.open(url, { headers: { host: 'evil.example' } })).rejects.toThrow(/4\d\d/)
  const client = await ExecServerClient.open(url)
  const ended = client.ended
  await client.result('initialize', { clientName: 't' })
  await server.parts.keys.revoke(keys.blue?.id ?? '')
  await ended
  await expect(ExecServerClient.open(url)).rejects.toThrow(/401/)
}, 60_000)

test('revoking a key ends only the connections of that key', async () => {
  const made = await Promise.all(
    ['first', 'second'].map((tenant) =>
      server.parts.keys.create({ tenant, scopes: ['create', 'exec', 'read'] }),
    ),
  )
  const clients: ExecServerClient[] = []
  for (const { secret } of made) {
    const { path } = await new RingfenceClient({ url: server.url, apiKey: secret }).execServer()
    clients.push(await ExecServerClient.open(`${server.url.replace(/^http/, 'ws')}${path}`))
  }
  const [first, second] = clients as [ExecServerClient, ExecServerClient]
  await first.result('initialize', { clientName: 't' })
  const ended = second.ended
  await server.parts.keys.revoke(made[1]?.key.id ?? '')
  await ended
  // The other one is still in.
  await first.result('process/start', start('p', 'echo still here'))
  expect(await output(first, 'p')).toBe('still here\n')
  first.close()
}, 60_000)

/** The output so far, until it contains what is awaited. */
async function until(client: ExecServerClient, processId: string, awaited: RegExp): Promise<string> {
  const said = (): string =>
    client.seen
      .filter(({ method, params }) => method === 'process/output' && params?.processId === processId)
      .map(({ params }) => Buffer.from(String(params?.chunk), 'base64').toString('latin1'))
      .join('')
  await expect.poll(said, { timeout: 20_000 }).toMatch(awaited)
  return said()
}

const write = (client: ExecServerClient, processId: string, bytes: Uint8Array) =>
  client.result('process/write', { processId, chunk: Buffer.from(bytes).toString('base64'), writeId: 'w' })

/** How much memory outside of the heap the work adds at most. */
async function growth(work: () => Promise<void>): Promise<number> {
  const used = (): number => process.memoryUsage().external
  const before = used()
  let most = before
  const look = setInterval(() => {
    most = Math.max(most, used())
  }, 20)
  await work()
  clearInterval(look)
  return Math.max(most, used()) - before
}

describe('what one client makes the server keep is limited', () => {
  const MB = 1024 * 1024
  const clients: ExecServerClient[] = []
  afterEach(() => {
    for (const client of clients.splice(0)) client.close()
  })
  const connected = async (): Promise<ExecServerClient> => {
    const client = await ExecServerClient.open(await address('red'))
    clients.push(client)
    return client
  }
  const bytesOf = (client: ExecServerClient, id: string): number =>
    client.seen
      .filter(({ method, params }) => method === 'process/output' && params?.processId === id)
      .reduce((sum, { params }) => sum + Buffer.from(String(params?.chunk), 'base64').length, 0)

  test('a client that does not read holds its commands back, and loses no output', async () => {
    const client = await connected()
    await client.result('initialize', { clientName: 't' })
    await client.result('process/start', start('warm', 'true'))
    expect(await output(client, 'warm')).toBe('')
    let read = (): void => {}
    const grown = await growth(async () => {
      await client.result('process/start', start('p', 'head -c 67108864 /dev/zero', { pipeStdin: true }))
      read = client.pause()
      await new Promise((resolve) => setTimeout(resolve, 3000))
    })
    expect(grown).toBeLessThan(48 * MB)
    read()
    const isOver = (): boolean => client.seen.some(({ method }) => method === 'process/closed')
    await expect.poll(isOver, { timeout: 30_000 }).toBe(true)
    await expect.poll(() => bytesOf(client, 'p'), { timeout: 30_000 }).toBe(64 * MB)
    // A command that is held back can be ended.
    await client.result('process/start', start('y', 'yes'))
    client.pause()
    await new Promise((resolve) => setTimeout(resolve, 500))
    const ended = client.result('process/terminate', { processId: 'y' })
    client.pause()()
    expect(await ended).toEqual({ running: true })
    client.close()
  }, 90_000)

  test('open files hold no content, and a burst opens no more than 64', async () => {
    const client = await connected()
    await client.result('initialize', { clientName: 't' })
    await client.result(
      'process/start',
      start('p', 'pwd; head -c 4194304 /dev/zero > big; echo -n abc > small'),
    )
    const at = (await output(client, 'p')).trim()
    const path = `file://${at}/big`
    let opened = 0
    const grown = await growth(async () => {
      const all = await Promise.all(
        Array.from({ length: 80 }, (_, id) => client.ask('fs/open', { handleId: `h${id}`, path })),
      )
      opened = all.filter(({ error }) => error === undefined).length
    })
    expect([opened, grown < 64 * MB]).toEqual([64, true])
    const end = await client.result('fs/readBlock', { handleId: 'h0', offset: 4 * MB - 2, len: MB })
    expect(end).toEqual({ chunk: 'AAA=', eof: true })
    expect((await client.result('fs/readBlock', { handleId: 'h0', offset: 0, len: MB })).eof).toBe(false)
    await client.result('fs/close', { handleId: 'h0' })
    await client.result('fs/open', { handleId: 's', path: `file://${at}/small` })
    expect(await client.result('fs/readBlock', { handleId: 's' })).toEqual({ chunk: 'YWJj', eof: true })
    expect(await client.result('fs/readBlock', { handleId: 's', offset: 3 })).toEqual({
      chunk: '',
      eof: true,
    })
    expect((await client.ask('fs/open', { handleId: 'd', path: `file://${at}` })).error).toBeDefined()
    client.close()
  }, 60_000)

  test('files are read and written whole up to 12 MB, also many at once', async () => {
    const client = await connected()
    await client.result('initialize', { clientName: 't' })
    await client.result('process/start', start('p', 'pwd'))
    const at = (await output(client, 'p')).trim()
    const file = Buffer.alloc(11 * MB, 'abc')
    const path = `file://${at}/whole`
    await client.result('fs/writeFile', { path, dataBase64: file.toString('base64') })
    const all = await Promise.all(Array.from({ length: 12 }, () => client.result('fs/readFile', { path })))
    for (const { dataBase64 } of all) expect(String(dataBase64).length).toBe(file.toString('base64').length)
    await client.result('process/start', start('q', 'head -c 14000000 /dev/zero > large'))
    expect(await output(client, 'q')).toBe('')
    const large = await client.ask('fs/readFile', { path: `file://${at}/large` })
    expect(large.error?.message).toMatch(/more than \d+ bytes/)
    const ended = client.ended
    void client.ask('fs/writeFile', { path, dataBase64: 'x'.repeat(17 * MB) })
    await ended
  }, 60_000)

  test('a walk of more entries than a listing may have is truncated', async () => {
    const client = await connected()
    await client.result('initialize', { clientName: 't' })
    const script = 'pwd; mkdir -p tree/a/b; cd tree/a/b; seq 50001 | xargs touch'
    await client.result('process/start', start('p', script))
    const root = `file://${(await output(client, 'p')).trim()}/tree`
    const walked = await client.result('fs/walk', { path: root, options: { maxDepth: 5 } })
    expect(walked).toMatchObject({ truncated: true })
    expect((walked.entries as { path: string }[]).map(({ path }) => path).toSorted()).toEqual([
      `${root}/a`,
      `${root}/a/b`,
    ])
    expect((await client.ask('fs/readDirectory', { path: `${root}/a/b` })).error?.message).toMatch(
      /more than 50000/,
    )
    client.close()
  }, 60_000)

  test('a message with more values than a request can have is refused', async () => {
    const socket = new WebSocket(await address('red'))
    const answer = new Promise<string>((resolve) => socket.once('message', (data) => resolve(String(data))))
    await new Promise((resolve) => socket.once('open', resolve))
    const roots = `[${Array.from({ length: 100_000 }, () => '[]').join()}]`
    socket.send(`{"id":1,"method":"capabilityRoots/discoverV1","params":{"roots":${roots}}}`)
    expect(JSON.parse(await answer)).toMatchObject({ id: -1, error: { code: -32_600 } })
    socket.close()
  })

  test('a tenant has 32 connections', async () => {
    const url = await address('red')
    const clients = await Promise.all(Array.from({ length: 32 }, () => ExecServerClient.open(url)))
    await expect(ExecServerClient.open(await address('red'))).rejects.toThrow(/429/)
    for (const client of clients) {
      const { ended } = client
      client.close()
      await ended
    }
    const again = await ExecServerClient.open(url)
    again.close()
  }, 60_000)
})

describe('terminals', () => {
  test('a command that asks for one has one: size, raw bytes, Ctrl-C, signals, resumed connections', async () => {
    const url = await address('red')
    const client = await ExecServerClient.open(url)
    const { sessionId } = await client.result('initialize', { clientName: 't' })
    const script =
      'trap "echo caught" INT; test -t 0 && test -t 1 && stty size; while :; do read line && echo "=$line="; done'
    await client.result('process/start', start('t', script, { tty: true }))
    await until(client, 't', /24 120/)
    // One character in two pieces: terminals carry bytes.
    await write(client, 't', Buffer.from([0xc3]))
    await write(client, 't', Buffer.from([0xa9, 0x0a]))
    await until(client, 't', /=\xc3\xa9=/)
    await write(client, 't', Buffer.from([3]))
    await until(client, 't', /caught/)
    const streams = client.seen.filter(({ method }) => method === 'process/output')
    expect(new Set(streams.map(({ params }) => params?.stream))).toEqual(new Set(['pty']))
    client.close()
    const again = await ExecServerClient.open(url)
    await again.result('initialize', { clientName: 't', resumeSessionId: sessionId })
    await again.result('process/signal', { processId: 't', signal: 'interrupt' })
    await until(again, 't', /caught/)
    await write(again, 't', Buffer.from('still\n'))
    await until(again, 't', /=still=/)
    expect(await again.result('process/terminate', { processId: 't' })).toEqual({ running: true })
    expect(await output(again, 't')).toMatch(/24 120[\s\S]*=still=/)
    again.close()
  }, 60_000)

  test('`/v1` starts commands in one and changes its size', async () => {
    const client = new RingfenceClient({ url: server.url, apiKey: keys.red?.secret ?? '' })
    const sandbox = await client.create({})
    const asked = { terminal: { cols: 91, rows: 17 }, background: true }
    const { exec_id } = await sandbox.exec('stty size; read x; stty size', asked)
    let said = ''
    let isResized = false
    for await (const event of sandbox.attach(exec_id)) {
      if (event.type === 'stdout') said += Buffer.from(event.data).toString()
      if (isResized || !said.includes('17 91')) continue
      isResized = true
      await sandbox.resize(exec_id, { cols: 133, rows: 44 })
      await sandbox.write(exec_id, '\n')
    }
    expect(said).toMatch(/17 91[\s\S]*44 133/)
    const { exec_id: piped } = await sandbox.exec('sleep 100', { background: true })
    await expect(sandbox.resize(piped, { cols: 1, rows: 1 })).rejects.toThrow(/no terminal/)
    await sandbox.close()
  }, 60_000)

  test('a server that gives none refuses them at `/v1`, and Codex gets pipes', async () => {
    writeFileSync(configFile, '[policy]\nallow_interactive = false\n')
    await server.reload()
    try {
      const client = new RingfenceClient({ url: server.url, apiKey: keys.red?.secret ?? '' })
      const sandbox = await client.create({})
      const terminal = { cols: 80, rows: 24 }
      await expect(sandbox.exec('true', { terminal })).rejects.toMatchObject({ code: 'interactive-disabled' })
      await sandbox.close()
      const codex = await ExecServerClient.open(await address('red'))
      await codex.result('initialize', { clientName: 't' })
      await codex.result('process/start', start('p', 'test -t 0 || echo pipes', { tty: true }))
      expect(await output(codex, 'p')).toBe('pipes\n')
      codex.close()
    } finally {
      writeFileSync(configFile, '[policy]\nallow_interactive = true\n')
      await server.reload()
    }
  }, 60_000)
})

describe.runIf(areInstalled)('an unmodified Codex', () => {
  test('runs its commands in a sandbox of the server', async () => {
    const url = await address('red')
    const exec = (cmd: string, more: object = {}): ToolCall => ({
      tool: 'exec_command',
      input: { cmd, ...more },
    })
    const model = await clientModel([
      exec('echo on the server > a.txt; cat a.txt; pwd'),
      { tool: 'apply_patch', input: '*** Begin Patch\n*** Add File: patched.txt\n+patched\n*** End Patch' },
      exec('echo x > .git/hooks/pre-commit'),
      exec('test -t 0 && echo "a terminal of $(stty size)"', { tty: true }),
      exec('read line && echo "got $line"', { tty: true, yield_time_ms: 500 }),
      {
        tool: 'write_stdin',
        inputOf: (sent) => ({ session_id: Number(/session ID (\d+)/.exec(sent)?.[1]), chars: 'typed\n' }),
      },
    ])
    const set = (name: string, value: unknown): string[] => ['-c', `${name}=${JSON.stringify(value)}`]
    const args = [
      ...['exec', '--skip-git-repo-check', '--sandbox', 'danger-full-access'],
      ...set('model', 'gpt-5.5'),
      ...set('model_provider', 'scripted'),
      ...set('model_providers.scripted.name', 's'),
      ...set('model_providers.scripted.base_url', `${model.url}/v1`),
      ...set('model_providers.scripted.wire_api', 'responses'),
      'go',
    ]
    const env = { HOME: base, PATH: '/usr/bin:/bin', CODEX_EXEC_SERVER_URL: url }
    const child = spawn(codexProgram, args, { cwd: here, env, stdio: 'ignore', timeout: 100_000 })
    await new Promise((resolve) => child.on('close', resolve))
    model.close()
    const told = model.results()
    expect(told).toContain('on the server')
    expect(told).toMatch(/forbidden-command|pre-commit/)
    expect(told).toMatch(/a terminal of \d+ \d+/)
    expect(told).toMatch(/got typed/)
  }, 120_000)
})
