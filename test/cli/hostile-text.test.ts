import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { cli } from './program.ts'

/** Names and reasons chosen by a sandbox or an agent, printed by every command: none can control the terminal. */

const HOSTILE =
  'x\u001b[2J\u009b31m\u202eevil\u2066\u200b\u2028\u{e0041}\rringfence: ok\nringfence: forged\u0007y'
const base = mkdtempSync(join(tmpdir(), 'rf-hostile-'))
const workspace = join(base, 'work')

type Ran = { readonly code: number; readonly text: string; readonly stdout: string }

function ringfence(args: readonly string[], input = '', env: Record<string, string> = {}): Promise<Ran> {
  return new Promise((resolve) => {
    const options = {
      cwd: workspace,
      env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'state'), ...env },
    }
    const child = execFile(...cli([...args]), options, (error, stdout, stderr) =>
      resolve({ code: Number(error?.code ?? 0), text: `${stdout}${stderr}`, stdout }),
    )
    child.stdin?.on('error', () => {})
    child.stdin?.end(input)
  })
}

/** Checks that the output has only visible characters and our own line feeds, and no line started by the hostile text. */
function harmless({ text }: Ran): string {
  expect(text).not.toMatch(/[^\P{Cc}\n\t]|[\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/u)
  expect(text).not.toMatch(/^ringfence: (forged|ok)/m)
  return text
}

const server = createServer((_, response) => {
  const sandbox = {
    id: `sb_${HOSTILE}`,
    state: 'ready',
    backend: HOSTILE,
    level: HOSTILE,
    agent_id: HOSTILE,
    tenant: HOSTILE,
    metadata: { [HOSTILE]: HOSTILE },
    created_at: HOSTILE,
  }
  const approval = {
    id: HOSTILE,
    state: HOSTILE,
    command: HOSTILE,
    decision: { reason: HOSTILE, action: 'ask' },
  }
  const record = { seq: 1, time: HOSTILE, event: HOSTILE, command: HOSTILE }
  const everything = { ...record, ...approval, ...sandbox, name: HOSTILE, scopes: [HOSTILE] }
  response.setHeader('content-type', 'application/json')
  response.end(JSON.stringify({ ...everything, items: [everything], policy: HOSTILE, url: HOSTILE }))
})
beforeAll(async () => {
  mkdirSync(workspace)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
})
afterAll(() => {
  server.closeAllConnections()
  server.close()
  rmSync(base, { recursive: true, force: true })
})

test.each<[string, readonly string[], string?]>([
  ['an unknown command', [HOSTILE]],
  ['an unknown flag', ['run', `--${HOSTILE}`]],
  ['check command', ['check', 'command', `cat '${HOSTILE}' > '/etc/${HOSTILE}'`]],
  ['check command, a variable', ['check', 'command', `rm -rf "/${HOSTILE}"; '${HOSTILE}'`]],
  ['check path', ['check', 'path', `/${HOSTILE}`, '--op', 'read']],
  ['check url', ['check', 'url', `http://${HOSTILE}/`]],
  ['run, not found', ['run', '--', HOSTILE]],
  ['run, denied', ['run', '-c', `rm -rf / '${HOSTILE}'`]],
  ['run --explain', ['run', '--explain', '-c', `echo '${HOSTILE}'`]],
  ['eval', ['eval', `throw new Error(${JSON.stringify(HOSTILE)})`]],
  ['eval, a value', ['eval', JSON.stringify(HOSTILE)]],
  ['wasm', ['wasm', 'run', HOSTILE]],
  ['skill', ['skill', 'run', HOSTILE]],
  ['review', ['review', 'show', HOSTILE]],
  ['policy', ['policy', 'validate', HOSTILE]],
  ['image', ['image', 'rm', HOSTILE]],
  ['audit', ['audit', HOSTILE]],
  ['hook, an unknown agent', ['hook', HOSTILE]],
])('%s prints hostile input escaped', async (_, args, input) => {
  // PLATFORM: no argument of a process has a zero byte; this text has none.
  harmless(await ringfence(args, input))
  harmless(await ringfence([...args, '--json'], input))
})

test.each([
  ['claude-code', 'Bash', { command: `rm -rf '/${HOSTILE}'` }],
  ['codex', 'Bash', { command: `cat '${HOSTILE}' > '/etc/${HOSTILE}'` }],
  ['codex', 'apply_patch', { command: `*** Begin Patch\n*** Add File: /etc/${HOSTILE}\n+x\n*** End Patch` }],
  ['gemini', 'write_file', { file_path: `/etc/${HOSTILE}`, content: '' }],
  ['claude-code', HOSTILE, { file_path: 5 }],
  ['claude-code', 'Write', { file_path: 5 }],
])('hook %s %j: the reason is escaped', async (agent, tool_name, tool_input) => {
  const ran = await ringfence(['hook', agent], JSON.stringify({ cwd: workspace, tool_name, tool_input }))
  harmless(ran)
  const strings: string[] = []
  JSON.parse(ran.stdout || '{}', (_, value) => {
    if (typeof value === 'string') strings.push(value)
    return value
  })
  for (const text of strings) harmless({ code: 0, text, stdout: '' })
})

test('run --review and review print file names and contents escaped', async () => {
  const name = HOSTILE.replaceAll('/', '')
  const made = `printf '%s' "$X" > "$X"; ln -s "$X" "l$X"; mkdir "d$X"; mkdir -p .git; true`
  writeFileSync(join(workspace, 'make.sh'), made)
  const ran = await ringfence(['run', '--review', '--env', `X=${name}`, '--', 'sh', 'make.sh'])
  expect(harmless(ran)).toContain('\\u001b[2J')
  const id = /rv_[0-9a-f]+/.exec(ran.text)?.[0] ?? ''
  harmless(await ringfence(['review', 'ls']))
  harmless(await ringfence(['review', 'show', id]))
  harmless(await ringfence(['review', 'show', id, '--json']))
  // A file created meanwhile is not overwritten; the error names it.
  writeFileSync(join(workspace, name), 'mine')
  const applied = await ringfence(['review', 'apply', id])
  expect(harmless(applied)).toContain('not applied')
})

test('audit prints the same JSON values, escaped', async () => {
  await ringfence(['run', '-c', `echo '${HOSTILE}'`])
  for (const args of [
    ['tail'],
    ['query'],
    ['tail', '--json'],
    ['query', '--json'],
    ['verify'],
    ['proof', '0'],
  ])
    harmless(await ringfence(['audit', ...args]))
  const { stdout } = await ringfence(['audit', 'query', '--json'])
  const records = stdout
    .trim()
    .split('\n')
    .map((line) => JSON.stringify(JSON.parse(line)))
  expect(records.some((record) => record.includes('\u202e'))).toBe(true)
})

test('a skill with a hostile description is printed escaped', async () => {
  const dir = join(base, 'skill')
  mkdirSync(dir)
  const text = JSON.stringify(HOSTILE).replaceAll(
    /[\u007f-\uffff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
  )
  writeFileSync(
    join(dir, 'skill.toml'),
    `name = "odd"\nversion = "1"\ndescription = "x\\u001b[2J\\u202e"\n[runtime]\ntype = "node"\nentry = "main.mjs"\n`,
  )
  writeFileSync(join(dir, 'main.mjs'), `console.error(${text}); throw new Error(${text})`)
  harmless(await ringfence(['skill', 'inspect', dir]))
  harmless(await ringfence(['skill', 'inspect', dir, '--json']))
  harmless(await ringfence(['skill', 'run', dir]))
  harmless(await ringfence(['skill', 'list']))
})

describe('hostile server responses are printed escaped', () => {
  test.each([
    [['sandbox', 'ls']],
    [['sandbox', 'get', 'sb_1']],
    [['sandbox', 'logs', 'sb_1']],
    [['sandbox', 'port', 'sb_1', '80']],
    [['approve']],
    [['approve', 'ap_1']],
    [['reject', 'ap_1']],
    [['reload']],
    [['key', 'ls']],
  ])('%j', async (args) => {
    const { port } = server.address() as AddressInfo
    const env = { RINGFENCE_URL: `http://127.0.0.1:${port}`, RINGFENCE_API_KEY: 'rf_x' }
    harmless(await ringfence(args, '', env))
    harmless(await ringfence([...args, '--json'], '', env))
  })
})

test('no other file of src/cli writes to the terminal directly', () => {
  const directory = join(packageRoot(), 'src', 'cli')
  const free = ['terminal/output.ts', 'terminal/terminal.ts']
  const files = readdirSync(directory, { recursive: true, encoding: 'utf8' })
  const checked = files.filter((one) => /(?<!\.test)\.ts$/.test(one) && !free.includes(one))
  expect(checked).toContain('run.ts')
  for (const name of checked)
    expect([
      name,
      /process\.(stdout|stderr)\.write|console\.(log|error|warn)/.test(
        readFileSync(join(directory, name), 'utf8'),
      ),
    ]).toEqual([name, false])
})
