import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { clientModel, type ToolCall } from './client-model.ts'
import { areInstalled, codexProgram } from './coding-agents.ts'
import { ExecServerClient as Client } from './exec-server-client.ts'

/** An unmodified Codex whose commands and files are in a sandbox of `ringfence exec-server`. */

const base = mkdtempSync(join(tmpdir(), 'rf-exec-server-'))
const workspace = join(base, 'work')
const elsewhere = join(base, 'elsewhere')
let server: ChildProcess
let url = ''

beforeAll(async () => {
  for (const dir of [workspace, elsewhere]) mkdirSync(dir)
  writeFileSync(join(elsewhere, 'private.txt'), 'not for agents')
  server = spawn(
    process.execPath,
    [join(packageRoot(), 'dist', 'cli', 'ringfence.cjs'), 'exec-server', '--json'],
    {
      cwd: workspace,
      env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'state') },
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  )
  const lines = createInterface({ input: server.stdout as NodeJS.ReadableStream })
  url = await new Promise<string>((resolve) =>
    lines.once('line', (line) => resolve((JSON.parse(line) as { url: string }).url)),
  )
}, 60_000)
afterAll(async () => {
  // It records the end of its sandboxes before it exits.
  const exited = new Promise((resolve) => server.once('exit', resolve))
  server.kill()
  await exited
  rmSync(base, { recursive: true, force: true })
})

async function codex(calls: readonly ToolCall[]): Promise<string> {
  const model = await clientModel(calls)
  const set = (name: string, value: unknown): string[] => ['-c', `${name}=${JSON.stringify(value)}`]
  const child = spawn(
    codexProgram,
    [
      ...['exec', '--skip-git-repo-check', '--sandbox', 'danger-full-access'],
      ...set('model', 'gpt-5.5'),
      ...set('model_provider', 'scripted'),
      ...set('model_providers.scripted.name', 's'),
      ...set('model_providers.scripted.base_url', `${model.url}/v1`),
      ...set('model_providers.scripted.wire_api', 'responses'),
      'go',
    ],
    {
      cwd: workspace,
      env: { HOME: base, PATH: '/usr/bin:/bin', CODEX_EXEC_SERVER_URL: url },
      stdio: 'ignore',
      timeout: 100_000,
    },
  )
  await new Promise((resolve) => child.on('close', resolve))
  model.close()
  return model.results()
}

const exec = (cmd: string, more: object = {}): ToolCall => ({ tool: 'exec_command', input: { cmd, ...more } })

describe.runIf(areInstalled)('Codex', () => {
  test('runs its commands in the sandbox, and its model gets the reason of a refusal', async () => {
    const told = await codex([
      exec('echo made > made.txt; cat made.txt'),
      exec(`cat ${elsewhere}/private.txt`),
      exec('find /etc -delete'),
      exec('echo code > .git/hooks/pre-commit'),
      { tool: 'apply_patch', input: '*** Begin Patch\n*** Add File: patched.txt\n+patched\n*** End Patch' },
      exec('cat patched.txt', { tty: true }),
    ])
    expect(readFileSync(join(workspace, 'made.txt'), 'utf8')).toBe('made\n')
    expect(readFileSync(join(workspace, 'patched.txt'), 'utf8')).toBe('patched\n')
    expect(told).not.toContain('not for agents')
    expect(told).toMatch(/forbidden-command: writes .*pre-commit.*What would pass/)
    expect(told).toContain('patched')
    expect(existsSync(join(workspace, '.git', 'hooks', 'pre-commit'))).toBe(false)
  }, 120_000)
})

const uri = (path: string): string => `file://${path}`
const start = (processId: string, script: string, more: object = {}) => ({
  processId,
  argv: ['/bin/bash', '-c', script],
  cwd: uri(workspace),
  env: {},
  tty: false,
  ...more,
})

describe('the exec-server protocol', () => {
  test('rejects clients without the secret, and web pages', async () => {
    const wrong = url.replace(/[^/]+$/, 'guess')
    await expect(Client.open(wrong)).rejects.toThrow(/401/)
    await expect(Client.open(url, { origin: 'https://evil.example' })).rejects.toThrow(/401/)
    await expect(Client.open(url, { headers: { host: 'evil.example' } })).rejects.toThrow(/401/)
  })

  test('requires `initialize` first and rejects unknown methods', async () => {
    const client = await Client.open(url)
    expect((await client.ask('environment/info')).error?.message).toMatch(/initialize/)
    await client.ask('initialize', { clientName: 't' })
    expect((await client.ask('initialize', { clientName: 't' })).error?.message).toMatch(/already/)
    expect((await client.ask('fs/format')).error?.code).toBe(-32_601)
    expect((await client.ask('fs/readFile', { path: '/etc/passwd' })).error?.message).toMatch(/file: URI/)
    expect((await client.ask('fs/readFile', { path: uri('/no/such') })).error?.code).toBeLessThan(0)
    client.close()
  })

  test('resumes a session with its output after a lost connection', async () => {
    const client = await Client.open(url)
    const { sessionId } = await client.result('initialize', { clientName: 't' })
    await client.result('process/start', start('p', 'echo one; read x; echo "got $x"', { pipeStdin: true }))
    client.close()
    const again = await Client.open(url)
    expect(await again.result('initialize', { clientName: 't', resumeSessionId: sessionId })).toEqual({
      sessionId,
    })
    await again.result('process/write', { processId: 'p', chunk: btoa('hello\n'), writeId: 'w' })
    let after = 0
    let text = ''
    for (let over = false; !over; ) {
      const read = await again.result('process/read', { processId: 'p', afterSeq: after, waitMs: 5000 })
      for (const { seq, chunk } of read.chunks as { seq: number; chunk: string }[]) {
        after = seq
        text += atob(chunk)
      }
      over = read.closed === true
    }
    expect(text).toBe('one\ngot hello\n')
    again.close()
    const other = await Client.open(url)
    expect((await other.ask('initialize', { clientName: 't', resumeSessionId: 'guess' })).error).toBeDefined()
    other.close()
  })

  test('interrupts and terminates processes, and reports their end', async () => {
    const client = await Client.open(url)
    await client.result('initialize', { clientName: 't' })
    await client.result(
      'process/start',
      start('i', 'trap "echo caught; exit 7" INT; echo up; while :; do sleep 0.05; done'),
    )
    await client.result('process/read', { processId: 'i', waitMs: 5000 })
    await client.result('process/signal', { processId: 'i', signal: 'interrupt' })
    const ended = await client.result('process/read', { processId: 'i', afterSeq: 2, waitMs: 5000 })
    expect(
      ended.exitCode ??
        (await client.result('process/read', { processId: 'i', afterSeq: 3, waitMs: 5000 })).exitCode,
    ).toBe(7)
    await client.result('process/start', start('k', 'sleep 1000'))
    expect(await client.result('process/terminate', { processId: 'k' })).toEqual({ running: true })
    expect(await client.result('process/terminate', { processId: 'nobody' })).toEqual({ running: false })
    client.close()
  })

  test('reads and writes large files in blocks, lists, copies and walks directories, and refuses protected names', async () => {
    const client = await Client.open(url)
    await client.result('initialize', { clientName: 't' })
    const big = Buffer.alloc(3 * 1024 * 1024, 'abc')
    const at = (name: string): string => uri(join(workspace, name))
    await client.result('fs/createDirectory', { path: at('d/e'), recursive: true })
    await client.result('fs/writeFile', { path: at('d/big'), dataBase64: big.toString('base64') })
    await client.result('fs/open', { handleId: 'h', path: at('d/big') })
    const pieces: Buffer[] = []
    for (let offset = 0, eof = false; !eof; ) {
      const block = await client.result('fs/readBlock', { handleId: 'h', offset, len: 1024 * 1024 })
      pieces.push(Buffer.from(block.chunk as string, 'base64'))
      offset += pieces.at(-1)?.length ?? 0
      eof = block.eof === true
    }
    expect(Buffer.concat(pieces).equals(big)).toBe(true)
    await client.result('fs/close', { handleId: 'h' })
    await client.result('fs/copy', { sourcePath: at('d'), destinationPath: at('copy'), recursive: true })
    const options = { maxDepth: 5, maxDirectories: 100, maxEntries: 100, followDirectorySymlinks: false }
    const walked = await client.result('fs/walk', { path: at('copy'), options })
    expect((walked.entries as { path: string }[]).map(({ path }) => path).toSorted()).toEqual([
      at('copy/big'),
      at('copy/e'),
    ])
    expect(await client.result('fs/getMetadata', { path: at('copy/big') })).toMatchObject({
      isFile: true,
      size: big.length,
    })
    expect(await client.result('fs/canonicalize', { path: at('d/../copy') })).toEqual({ path: at('copy') })
    expect((await client.ask('fs/writeFile', { path: at('.envrc'), dataBase64: '' })).error?.message).toMatch(
      /protected name/,
    )
    await client.result('fs/remove', { path: at('copy'), recursive: true, force: true })
    expect(existsSync(join(workspace, 'copy'))).toBe(false)
    const refused = await client.ask('http/request', {
      method: 'GET',
      url: 'https://a.example/',
      requestId: 'r',
    })
    expect(refused.error).toBeDefined()
    client.close()
  })

  test('sends HTTP requests to a server in the sandbox, with binary bodies, whole or streamed', async () => {
    const client = await Client.open(url)
    await client.result('initialize', { clientName: 'test' })
    const serve = `require('node:http').createServer((request, answer) => {
      if (request.url === '/moved') return answer.writeHead(302, { location: '/slow' }).end('gone')
      answer.writeHead(200, { 'x-kind': 'test' })
      answer.write(Buffer.from([0, 255, 254]))
      setTimeout(() => answer.end(Buffer.from([128, 13, 10, 13, 10])), 300)
    }).listen(8471, '127.0.0.1', () => console.log('up'))`
    const argv = ['node', '-e', serve]
    await client.result('process/start', { processId: 'web', argv, cwd: uri(workspace), env: {}, tty: false })
    await expect.poll(() => client.seen.some(({ method }) => method === 'process/output')).toBe(true)
    const request = { method: 'GET', url: 'http://127.0.0.1:8471/moved', headers: [] }
    const body = Buffer.from([0, 255, 254, 128, 13, 10, 13, 10])
    expect(await client.result('http/request', { ...request, requestId: 'a' })).toMatchObject({
      status: 200,
      headers: expect.arrayContaining([{ name: 'x-kind', value: 'test' }]),
      bodyBase64: body.toString('base64'),
    })
    const streamed = { ...request, requestId: 'b', streamResponse: true }
    expect(await client.result('http/request', streamed)).toMatchObject({ status: 200, bodyBase64: '' })
    const deltas = () => client.seen.filter(({ method }) => method === 'http/request/bodyDelta')
    await expect.poll(() => deltas().at(-1)?.params?.done, { timeout: 20_000 }).toBe(true)
    expect(deltas().map(({ params }) => params?.seq)).toEqual(deltas().map((_, index) => index + 1))
    const bytes = deltas().map(({ params }) => Buffer.from(String(params?.deltaBase64), 'base64'))
    expect(Buffer.concat(bytes)).toEqual(body)
    expect(deltas().length).toBeGreaterThan(2)
    const nowhere = { method: 'GET', url: 'http://127.0.0.1:9/', requestId: 'c', streamResponse: true }
    expect((await client.ask('http/request', nowhere)).error?.message).toMatch(/connect/)
    await client.result('process/terminate', { processId: 'web' })
    client.close()
  })
})
