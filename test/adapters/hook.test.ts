import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { withHook } from '../../src/adapters/hook.ts'
import { readTrail } from '../../src/audit/read.ts'
import { packageRoot } from '../conformance/world.ts'

/** The built command, as a coding agent starts it: one JSON on stdin, an answer in that agent's format. */

const base = mkdtempSync(join(tmpdir(), 'rf-hook-'))
const workspace = join(base, 'work')
mkdirSync(workspace)
afterAll(() => rmSync(base, { recursive: true, force: true }))

type Ran = { readonly status: number | null; readonly stdout: string; readonly stderr: string }

function hook(args: readonly string[], input: string): Ran {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [join(packageRoot(), 'dist', 'cli', 'ringfence.cjs'), 'hook', ...args],
    {
      input,
      cwd: workspace,
      env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'state') },
      encoding: 'utf8',
    },
  )
  return { status, stdout, stderr }
}

const call = (tool_name: string, tool_input: unknown): string =>
  JSON.stringify({ session_id: 's', hook_event_name: 'PreToolUse', cwd: workspace, tool_name, tool_input })

const claude = (tool: string, input: unknown, ...flags: readonly string[]): unknown => {
  const { status, stdout } = hook(['claude-code', ...flags], call(tool, input))
  expect(status).toBe(0)
  return JSON.parse(stdout).hookSpecificOutput?.permissionDecision ?? 'none'
}

test.each<[string, string, unknown, string]>([
  ['deny', 'Bash', { command: 'rm -rf /' }, 'deny'],
  ['ask', 'Bash', { command: 'git push origin main' }, 'ask'],
  ['allow', 'Bash', { command: 'ls -la' }, 'allow'],
  ['only in a sandbox', 'Bash', { command: 'npm test' }, 'ask'],
  ['a file outside', 'Write', { file_path: '/etc/passwd', content: '' }, 'deny'],
  ['a protected file', 'Edit', { file_path: '.git/hooks/pre-commit' }, 'deny'],
  ['credentials', 'Read', { file_path: join(base, '.ssh', 'id_rsa') }, 'deny'],
  ['an ordinary file', 'Write', { file_path: 'a.txt', content: '' }, 'none'],
  ['a tool that is not ours', 'WebSearch', { query: 'x' }, 'none'],
])('Claude Code: %s', (_, tool, input, decision) => {
  expect(claude(tool, input)).toBe(decision)
})

test('Claude Code: --sandboxed lets it run, --wrap runs it in a sandbox', () => {
  expect(claude('Bash', { command: 'npm test' }, '--sandboxed')).toBe('allow')
  const { stdout } = hook(['claude-code', '--wrap'], call('Bash', { command: "npm test 'it'", timeout: 5 }))
  expect(JSON.parse(stdout).hookSpecificOutput).toMatchObject({
    permissionDecision: 'allow',
    updatedInput: { command: `ringfence run -c 'npm test '\\''it'\\'''`, timeout: 5 },
  })
  expect(claude('Bash', { command: 'rm -rf /' }, '--wrap')).toBe('deny')
})

test('Codex: what needs a person is refused, for it cannot ask', () => {
  const decision = (input: unknown, ...flags: readonly string[]): unknown =>
    JSON.parse(hook(['codex', ...flags], call('Bash', input)).stdout).hookSpecificOutput?.permissionDecision
  expect(decision({ command: 'rm -rf /' })).toBe('deny')
  expect(decision({ command: ['bash', '-lc', 'rm -rf /'] }, '--sandboxed')).toBe('deny')
  expect(decision({ command: 'git push origin main' }, '--sandboxed')).toBe('deny')
  expect(decision({ command: 'npm test' }, '--sandboxed')).toBeUndefined()
  expect(decision({ command: 'ls' })).toBeUndefined()
})

test('Gemini CLI', () => {
  const answer = (tool: string, input: unknown): unknown =>
    JSON.parse(hook(['gemini'], call(tool, input)).stdout)
  expect(answer('run_shell_command', { command: 'rm -rf /' })).toMatchObject({ decision: 'deny' })
  expect(answer('run_shell_command', { command: 'ls' })).toEqual({ decision: 'allow' })
  expect(answer('write_file', { file_path: '/etc/x', content: '' })).toMatchObject({ decision: 'deny' })
})

test.each([
  ['nothing', ''],
  ['half a JSON', '{"tool_name":"Bash","tool_inp'],
  ['a list', '[]'],
  ['no tool', '{}'],
  ['no command', call('Bash', {})],
  ['a number as command', call('Bash', { command: 5 })],
  ['a file tool without a file', call('Write', {})],
  ['20 MB', call('Bash', { command: `echo ${'x'.repeat(20 * 1024 * 1024)}` })],
])('what cannot be judged is blocked: %s', (_, input) => {
  for (const agent of ['claude-code', 'codex', 'gemini']) {
    const { status, stdout, stderr } = hook([agent], input)
    expect([status, stdout]).toEqual([2, ''])
    expect(stderr).toMatch(/^ringfence: /)
  }
})

test('a broken policy blocks too', () => {
  const config = join(base, 'broken.toml')
  writeFileSync(config, '[policy\n')
  expect(hook(['claude-code', '--config', config], call('Bash', { command: 'ls' })).status).toBe(2)
})

describe('install', () => {
  test.each([
    ['claude-code', '.claude/settings.json', 'PreToolUse'],
    ['codex', '.codex/hooks.json', 'PreToolUse'],
    ['gemini', '.gemini/settings.json', 'BeforeTool'],
  ])('%s: shows first, writes after a yes, keeps what was there', (agent, file, event) => {
    const path = join(base, file)
    const shown = hook(['install', agent], '')
    expect([shown.status, existsSync(path)]).toEqual([126, false])
    expect(shown.stdout).toContain(`ringfence hook ${agent}`)
    mkdirSync(join(path, '..'), { recursive: true })
    writeFileSync(path, JSON.stringify({ theme: 'dark', hooks: { [event]: [{ matcher: 'X', hooks: [] }] } }))
    expect(hook(['install', agent, '--yes'], '').status).toBe(0)
    expect(hook(['install', agent, '--yes'], '').status).toBe(0)
    const settings = JSON.parse(readFileSync(path, 'utf8'))
    expect(settings.theme).toBe('dark')
    expect(settings.hooks[event]).toHaveLength(2)
    expect(settings.hooks[event][1].hooks).toEqual([{ type: 'command', command: `ringfence hook ${agent}` }])
  })

  test('a settings file that cannot be read is left alone', () => {
    const path = join(base, '.claude/settings.json')
    writeFileSync(path, '{ not json')
    expect(hook(['install', 'claude-code', '--yes'], '').status).toBe(2)
    expect(readFileSync(path, 'utf8')).toBe('{ not json')
    expect(() => withHook('codex', [], 'x')).toThrow()
  })
})

test('what was judged is in the trail under the agent', () => {
  const records = [...readTrail(join(base, 'state'), { agentId: 'claude-code' })]
  expect(records).toContainEqual(expect.objectContaining({ command: 'rm -rf /', action: 'deny' }))
})
