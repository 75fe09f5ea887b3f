import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { performLeniently } from '../../src/adapters/models/functions.ts'
import { Question } from '../../src/adapters/operations/operation.ts'
import {
  AgentSession,
  localSession,
  OPERATIONS,
  perform,
  type Result,
  remoteToolSandbox,
} from '../../src/agents.ts'
import { readTrail } from '../../src/audit/read.ts'
import { RingfenceClient } from '../../src/client/index.ts'
import { type RunningServer, startServer } from '../../src/compose/serve.ts'

/** Every operation on a real sandbox of this process, and on one behind a real server. */

const base = mkdtempSync(join(tmpdir(), 'rf-ops-'))
const env = { HOME: join(base, 'home'), PATH: process.env.PATH }
const PNG = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
)
let server: RunningServer

beforeAll(async () => {
  const config = join(base, 'ringfence.toml')
  writeFileSync(
    config,
    `[[tenant]]\nname = "default"\nhost_paths = [{ path = "${base}/work", mode = "rw" }]\n`,
  )
  server = await startServer({ config, env: { ...env, RINGFENCE_HOME: join(base, 'server') }, port: 0 })
})
afterAll(async () => {
  await server.close()
  rmSync(base, { recursive: true, force: true })
})

function workspaceOf(name: string): string {
  const workspace = join(base, 'work', name)
  mkdirSync(workspace, { recursive: true })
  return workspace
}

const local = (name: string): AgentSession =>
  localSession(
    { workspace: workspaceOf(name), agentId: 'robot' },
    { env: { ...env, RINGFENCE_HOME: join(base, 'local') }, cwd: workspaceOf(name) },
  )

async function remote(name: string): Promise<AgentSession> {
  const { secret } = await server.parts.keys.create({ name, scopes: ['create', 'exec', 'read'] })
  const client = new RingfenceClient({ url: server.url, apiKey: secret })
  return new AgentSession(async () => {
    const workspace = workspaceOf(name)
    return remoteToolSandbox(client, await client.create({ workspace, agent_id: 'robot' }), workspace)
  })
}

describe.each([['local'], ['remote']])('operations of agents, %s', (kind) => {
  let session: AgentSession
  const workspace = workspaceOf(kind)
  const call = (name: string, args: unknown = {}): Promise<Result> => perform(OPERATIONS, session, name, args)

  beforeAll(async () => {
    session = kind === 'local' ? local(kind) : await remote(kind)
  })
  afterAll(() => session.close())

  test('exec returns output and exit code, and takes input and a directory', async () => {
    expect((await call('exec', { command: 'echo hi; echo no >&2; exit 3' })).data).toMatchObject({
      exit_code: 3,
      stdout: 'hi\n',
      stderr: 'no\n',
    })
    expect((await call('exec', { command: ['cat'], stdin: 'given' })).data.stdout).toBe('given')
    mkdirSync(join(workspace, 'below'), { recursive: true })
    expect((await call('exec', { command: 'pwd', cwd: 'below' })).data.stdout).toBe(`${workspace}/below\n`)
  })

  test('a time limit is reported as an outcome', async () => {
    const { ok, data } = await call('exec', { command: 'sleep 30', timeout_ms: 300 })
    expect([ok, data.outcome]).toEqual([true, { kind: 'stopped', limit: 'wall' }])
  })

  test('processes can be started, written to, polled and killed', async () => {
    const started = await call('process_start', { command: 'while read x; do echo got $x; done', wait_ms: 0 })
    const process_id = started.data.process_id
    expect(started.data.running).toBe(true)
    let seen = (await call('process_write', { process_id, data: 'one\n' })).text
    for (let tries = 0; tries < 40 && !seen.includes('got one'); tries++)
      seen += (await call('process_poll', { process_id, wait_ms: 50 })).text
    expect(seen).toContain('got one')
    expect((await call('process_kill', { process_id, signal: 'SIGKILL' })).data.running).toBe(false)
    expect((await call('process_write', { process_id, data: 'x' })).text).toMatch(/^error: wrong-state/)
  })

  test('files can be written, read by range, edited, listed, searched and viewed as image', async () => {
    expect((await call('file_write', { path: 'src/a.txt', content: 'one\ntwo\nthree\n' })).ok).toBe(true)
    expect((await call('file_read', { path: 'src/a.txt', start_line: 2, end_line: 2 })).data).toMatchObject({
      content: 'two',
      total_lines: 3,
    })
    expect(
      (await call('file_edit', { path: 'src/a.txt', old_text: 'two', new_text: '2' })).data.replaced,
    ).toBe(1)
    expect(readFileSync(join(workspace, 'src/a.txt'), 'utf8')).toBe('one\n2\nthree\n')
    expect((await call('file_list', { path: 'src' })).data.entries).toMatchObject([{ kind: 'file' }])
    expect((await call('file_glob', { pattern: '**/*.txt' })).data.paths).toEqual([`${workspace}/src/a.txt`])
    expect((await call('file_grep', { pattern: 'thr.e' })).text).toBe(`${workspace}/src/a.txt:3:three`)
    expect((await call('file_grep', { pattern: 'absent' })).data.matches).toBe(0)
    writeFileSync(join(workspace, 'p.png'), PNG)
    expect((await call('view_image', { path: 'p.png' })).image?.mime).toBe('image/png')
  })

  test('a patch adds, changes, moves and deletes files', async () => {
    await call('file_write', { path: 'old.txt', content: 'a\nb\nc\n' })
    await call('file_write', { path: 'gone.txt', content: 'x\n' })
    const patch = [
      '*** Begin Patch',
      '*** Add File: new.txt',
      '+hello',
      '*** Update File: old.txt',
      '*** Move to: moved.txt',
      '@@',
      ' a',
      '-b',
      '+B',
      '*** Delete File: gone.txt',
      '*** End Patch',
    ].join('\n')
    expect((await call('apply_patch', { patch })).ok).toBe(true)
    expect(readFileSync(join(workspace, 'new.txt'), 'utf8')).toBe('hello\n')
    expect(readFileSync(join(workspace, 'moved.txt'), 'utf8')).toBe('a\nB\nc\n')
    expect([existsSync(join(workspace, 'old.txt')), existsSync(join(workspace, 'gone.txt'))]).toEqual([
      false,
      false,
    ])
  })

  test('code keeps its variables, returns the last value, and survives errors', async () => {
    expect((await call('run_code', { code: 'x = 20\ny = x + 1' })).ok).toBe(true)
    expect((await call('run_code', { code: 'print("p")\ny * 2' })).data).toEqual({
      output: 'p\n42\n',
      failed: false,
    })
    expect((await call('run_code', { code: '1/0' })).data).toMatchObject({ failed: true })
    expect((await call('run_code', { code: 'x' })).data.output).toBe('20\n')
    expect((await call('run_code', { code: 'x', restart: true })).data.failed).toBe(true)
    expect((await call('run_code', { language: 'javascript', code: 'let a = [1]; a' })).text).toContain(
      '[ 1 ]',
    )
    expect(
      (await call('run_code', { language: 'javascript', code: 'Promise.resolve(a.length + 1)' })).text,
    ).toContain('2')
    expect((await call('run_code', { code: 'import os\nos.system("rm -rf /")' })).text).toMatch(
      /^error: forbidden/,
    )
    await call('run_code', { language: 'bash', code: 'cd /usr; v=5' })
    expect((await call('run_code', { language: 'bash', code: 'echo $v $PWD' })).data.stdout).toBe('5 /usr\n')
  })

  test('a port of the sandbox is reachable from outside', async () => {
    const content =
      'from http.server import *\nHTTPServer(("127.0.0.1", 8123), SimpleHTTPRequestHandler).serve_forever()\n'
    await call('file_write', { path: 'serve.py', content })
    await call('process_start', { command: ['python3', '../serve.py'], cwd: 'src' })
    const { url } = (await call('expose_port', { port: 8123 })).data as { url: string }
    expect(url).toMatch(/^http:\/\/127\.0\.0\.1:/)
    if (kind === 'remote') return
    let answer = ''
    for (let tries = 0; tries < 50 && answer === ''; tries++) {
      answer = await fetch(`${url}/a.txt`).then(
        (got) => got.text(),
        () => '',
      )
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
    expect(answer).toBe('one\n2\nthree\n')
  })

  test('the policy checks, denies and asks, and refuses a host that is not allowed', async () => {
    expect((await call('policy_check', { command: 'rm -rf /' })).data.action).toBe('deny')
    expect((await call('exec', { command: 'rm -rf /' })).text).toMatch(/^error: forbidden-command/)
    expect((await call('request_host', { host: 'example.com' })).text).toMatch(/^error: invalid-network-mode/)
    const asks = perform(OPERATIONS, session, 'exec', { command: 'git reset --hard' }, { canAsk: true })
    await expect(asks).rejects.toBeInstanceOf(Question)
    if (kind === 'local')
      expect((await call('exec', { command: 'git reset --hard' })).text).toMatch(/^error: approval-required/)
  })

  test.each<[string, string, unknown, RegExp]>([
    [
      'an unknown tool',
      'rm_everything',
      {},
      /^error: invalid-input: no tool named `rm_everything`\nhint: one of: exec/,
    ],
    ['a wrong type', 'exec', { command: 7 }, /^error: invalid-input: command: /],
    ['an unknown field', 'exec', { command: 'ls', sudo: true }, /unknown field `sudo`/],
    ['a missing field', 'file_read', {}, /^error: invalid-input: path/],
    ['no object', 'exec', 'ls', /^error: invalid-input: expected an object/],
    [
      '10 MB',
      'file_write',
      { path: 'big', content: 'x'.repeat(10 * 1024 * 1024) },
      /^error: invalid-input: content: longer than/,
    ],
    [
      'a patch that does not apply',
      'apply_patch',
      { patch: '*** Begin Patch\n*** Update File: moved.txt\n@@\n-nothing like this\n+x\n*** End Patch' },
      /^error: conflict: the patch does not apply/,
    ],
    ['no patch at all', 'apply_patch', { patch: 'please fix it' }, /^error: invalid-input: not a V4A patch/],
    [
      'text that is not there',
      'file_edit',
      { path: 'moved.txt', old_text: 'zzz', new_text: '' },
      /^error: conflict/,
    ],
    [
      'a path outside, to read',
      'file_read',
      { path: '../../../../etc/shadow' },
      /^error: (path-traversal|file-not-found)/,
    ],
    [
      'a path outside, to write',
      'file_write',
      { path: '/etc/ringfence-test', content: 'x' },
      /^error: path-traversal/,
    ],
    ['a protected name', 'file_write', { path: '.git/hooks/pre-commit', content: 'x' }, /^error: /],
    ['no such process', 'process_poll', { process_id: 999 }, /^error: not-found/],
    ['a picture that is none', 'view_image', { path: 'moved.txt' }, /^error: invalid-input/],
    ['a bad expression', 'file_grep', { pattern: '(' }, /^error: invalid-input: grep failed/],
    ['a line past the end', 'file_read', { path: 'moved.txt', start_line: 99 }, /past the end/],
    ['a NUL', 'exec', { command: 'a\0b' }, /^error: invalid-input/],
  ])('invalid input is an error result: %s', async (_, name, args, said) => {
    const result = await call(name, args)
    expect(result.ok).toBe(false)
    expect(result.text).toMatch(said)
    expect((await call('exec', { command: 'echo alive' })).data.stdout).toBe('alive\n')
  })

  test('a closed sandbox is an error result, and sandbox_reset creates a new one', async () => {
    await (await session.sandbox()).close()
    for (const [name, args] of [
      ['exec', { command: 'ls' }],
      ['file_read', { path: 'a' }],
      ['run_code', { code: '1' }],
    ] as const) {
      const result = await call(name, args)
      expect(result.text).toMatch(/^error: (wrong-state|sandbox-not-found)/)
      expect(result.text).toContain('sandbox_reset')
    }
    expect((await call('sandbox_reset')).ok).toBe(true)
    expect((await call('exec', { command: 'echo again' })).data.stdout).toBe('again\n')
    expect((await call('sandbox_info')).data).toMatchObject({ workspace, backend: 'bubblewrap' })
  })
})

test('every step of an agent is recorded with its agent id', () => {
  const records = [...readTrail(join(base, 'local'), { agentId: 'robot' })]
  const commands = records.filter(({ subject }) => subject === 'command').map(({ command }) => command)
  expect(commands).toContain('echo hi; echo no >&2; exit 3')
  expect(commands).toContain('rm -rf /')
  expect(
    records.some(({ operation, path }) => operation === 'write' && String(path).endsWith('src/a.txt')),
  ).toBe(true)
})

describe('malformed arguments of small models', () => {
  const session = local('lenient')
  afterAll(() => session.close())

  test.each<[string, unknown, string]>([
    ['a JSON text', '{"command":"echo 1"}', '1\n'],
    ['in a fence', '```json\n{"command":"echo 2"}\n```', '2\n'],
    ['a comma too many', '{"command":"echo 3",}', '3\n'],
    ['no closing brace', '{"command":"echo 4"', '4\n'],
    ['twice encoded', JSON.stringify('{"command":"echo 5"}'), '5\n'],
    ['a number as text', { command: 'echo 6', timeout_ms: '5000' }, '6\n'],
    ['null for nothing', { command: 'echo 7', cwd: null }, '7\n'],
    ['a real newline', '{"command":"echo 8\necho 9"}', '8\n9\n'],
  ])('are accepted: %s', async (_, args, stdout) => {
    expect((await performLeniently(session, 'exec', args)).data.stdout).toBe(stdout)
  })

  test.each<[string, unknown]>([
    ['half a command', '{"command":"rm -r build/old'],
    ['no JSON', 'run ls please'],
    ['a list', '[1]'],
    ['10 MB', `{"command":"${'x'.repeat(10 * 1024 * 1024)}"}`],
  ])('run nothing if they cannot be repaired: %s', async (_, args) => {
    const { ok, text } = await performLeniently(session, 'exec', args)
    expect([ok, text.startsWith('error: ')]).toEqual([false, true])
  })
})
