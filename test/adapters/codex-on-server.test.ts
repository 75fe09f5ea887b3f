import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { RingfenceClient } from '../../src/client/client.ts'
import { type RunningServer, startServer } from '../../src/compose/serve.ts'
import { clientModel, type ToolCall } from './client-model.ts'
import { areInstalled, codexProgram } from './coding-agents.ts'
import { ExecServerClient } from './exec-server-client.ts'

/** Codex whose commands run in sandboxes of a server. */

const base = mkdtempSync(join(tmpdir(), 'rf-codex-server-'))
const here = join(base, 'here')
let server: RunningServer
const keys: Record<string, { readonly secret: string; readonly id: string }> = {}

beforeAll(async () => {
  mkdirSync(here)
  server = await startServer({
    env: {
      HOME: base,
      PATH: process.env.PATH,
      RINGFENCE_HOME: join(base, 'state'),
      HOST_SECRET: 'of-the-host',
    },
    port: 0,
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

test('an address stands for its key; another tenant cannot use its sessions', async () => {
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

test('needs a key; Host, Origin and the secret are checked; a revoked key ends its connections', async () => {
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

test('connections of several keys end each with its own', async () => {
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

describe.runIf(areInstalled)('an unmodified Codex', () => {
  test('runs its commands in a sandbox of the server', async () => {
    const url = await address('red')
    const exec = (cmd: string): ToolCall => ({ tool: 'exec_command', input: { cmd } })
    const model = await clientModel([
      exec('echo on the server > a.txt; cat a.txt; pwd'),
      { tool: 'apply_patch', input: '*** Begin Patch\n*** Add File: patched.txt\n+patched\n*** End Patch' },
      exec('echo x > .git/hooks/pre-commit'),
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
  }, 120_000)
})
