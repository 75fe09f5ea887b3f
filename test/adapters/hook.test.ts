import { spawnSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { filesOfPatch } from '../../src/adapters/hooks/hook.ts'
import { readTrail } from '../../src/audit/read.ts'
import { decisionIn, HookKit, patchAdding, program } from './hook-kit.ts'

const kit = new HookKit()
const { base, workspace } = kit
const hook = kit.hook.bind(kit)
const call = kit.call.bind(kit)
afterAll(() => kit.remove())

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

test('Claude Code: --sandboxed allows the command, --wrap runs it in a sandbox', () => {
  expect(claude('Bash', { command: 'npm test' }, '--sandboxed')).toBe('allow')
  const { stdout } = hook(['claude-code', '--wrap'], call('Bash', { command: "npm test 'it'", timeout: 5 }))
  expect(JSON.parse(stdout).hookSpecificOutput).toMatchObject({
    permissionDecision: 'allow',
    // Not on PATH here, so by its paths.
    updatedInput: {
      command: `'${process.execPath}' '${program}' run -c 'npm test '\\''it'\\'''`,
      timeout: 5,
    },
  })
  expect(claude('Bash', { command: 'rm -rf /' }, '--wrap')).toBe('deny')
})

test('Claude Code: --wrap judges the command for its sandbox, without --wrap for the host', () => {
  const push = { command: 'git push origin main' }
  expect(claude('Bash', push)).toBe('ask')
  expect(claude('Bash', push, '--sandboxed')).toBe('ask')
  const { stdout } = hook(['claude-code', '--wrap'], call('Bash', push))
  expect(JSON.parse(stdout).hookSpecificOutput).toMatchObject({
    permissionDecision: 'allow',
    updatedInput: { command: expect.stringMatching(/ run -c 'git push origin main'$/) },
  })
  expect(claude('Bash', { command: 'git reset --hard' }, '--wrap')).toBe('ask')
  expect(claude('Bash', { command: 'echo x > .git/hooks/pre-commit' }, '--wrap')).toBe('deny')
})

test('Codex: a command that needs approval is denied, because Codex hooks cannot ask', () => {
  const decision = (input: unknown, ...flags: readonly string[]): unknown =>
    JSON.parse(hook(['codex', ...flags], call('Bash', input)).stdout).hookSpecificOutput?.permissionDecision
  expect(decision({ command: 'rm -rf /' })).toBe('deny')
  expect(decision({ command: ['bash', '-lc', 'rm -rf /'] }, '--sandboxed')).toBe('deny')
  expect(decision({ command: 'git push origin main' }, '--sandboxed')).toBe('deny')
  expect(decision({ command: 'npm test' }, '--sandboxed')).toBeUndefined()
  expect(decision({ command: 'ls' })).toBeUndefined()
})

test('Gemini CLI: commands and files are allowed or denied', () => {
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
])('input that cannot be judged is blocked: %s', (_, input) => {
  for (const agent of ['claude-code', 'codex', 'gemini']) {
    const { status, stdout, stderr } = hook([agent], input)
    expect([status, stdout]).toEqual([2, ''])
    expect(stderr).toMatch(/^ringfence: /)
  }
})

test('an invalid policy blocks every call', () => {
  const config = join(base, 'broken.toml')
  writeFileSync(config, '[policy\n')
  expect(hook(['claude-code', '--config', config], call('Bash', { command: 'ls' })).status).toBe(2)
})

describe('the working directory of a call', () => {
  const sub = join(workspace, 'sub')
  mkdirSync(sub)

  test('does not change the workspace, which is the project', () => {
    const env = { CLAUDE_PROJECT_DIR: workspace }
    const write = (file_path: string, cwd: string): unknown =>
      decisionIn(hook(['claude-code'], call('Write', { file_path, content: '' }, { cwd }), env, cwd))
    expect(write(join(workspace, 'a.txt'), sub)).toBe('none')
    expect(write('b.txt', sub)).toBe('none')
    expect(write('/etc/passwd', '/etc')).toBe('deny')
    expect(write('passwd', '/etc')).toBe('deny')
    expect(write('.git/hooks/pre-commit', sub)).toBe('deny')
  })

  test('chosen by the model does not extend the workspace', () => {
    // Codex reports the `workdir` of the command as `cwd`; the hook itself starts in the project.
    const codex = (cwd: string, tool: string, input: unknown): unknown =>
      decisionIn(hook(['codex', '--sandboxed'], call(tool, input, { cwd })))
    expect(codex('/etc', 'Bash', { command: 'rm -rf ./ssh' })).toBe('deny')
    expect(codex('/etc', 'apply_patch', { command: patchAdding('cron.d/x') })).toBe('deny')
    expect(codex(workspace, 'apply_patch', { command: patchAdding('src/x.ts') })).toBe('none')
    const outside = call('write_file', { file_path: 'passwd', content: '' }, { cwd: '/etc' })
    expect(decisionIn(hook(['gemini'], outside, { GEMINI_PROJECT_DIR: workspace }))).toBe('deny')
  })

  const own = join(base, '.claude')
  test.each<[string, string, string, string]>([
    ['a header of the system', 'Read', '/usr/include/stdio.h', 'none'],
    ['a header is not written', 'Write', '/usr/include/stdio.h', 'deny'],
    ['passwords', 'Read', '/etc/shadow', 'deny'],
    ['the kernel', 'Read', '/proc/self/environ', 'deny'],
    ['another project', 'Read', join(base, 'other', 'x'), 'deny'],
    ['a search in the workspace', 'Grep', '.', 'none'],
    ['a search in keys', 'Grep', join(base, '.ssh'), 'deny'],
    ['notes', 'Read', join(own, 'projects/-work/memory/MEMORY.md'), 'none'],
    ['new notes', 'Write', join(own, 'projects/-work/memory/a.md'), 'none'],
    ['notes of another project', 'Read', join(own, 'projects/-other/memory/a.md'), 'deny'],
    ['credentials of the agent', 'Read', join(own, '.credentials.json'), 'deny'],
    ['settings of the agent', 'Write', join(own, 'settings.json'), 'deny'],
  ])('Claude Code: %s', (_, tool, file_path, wanted) => {
    mkdirSync(join(own, 'projects/-work/memory'), { recursive: true })
    writeFileSync(join(own, 'projects/-work/memory/MEMORY.md'), 'notes')
    const transcript_path = join(own, 'projects/-work/5.jsonl')
    const given = call(tool, { file_path, pattern: 'x' }, { transcript_path })
    expect(decisionIn(hook(['claude-code'], given, { CLAUDE_PROJECT_DIR: workspace }))).toBe(wanted)
  })

  test('a transcript path outside the agent’s directory grants nothing', () => {
    const given = call('Write', { file_path: '/etc/memory/x' }, { transcript_path: '/etc/5.jsonl' })
    expect(decisionIn(hook(['claude-code'], given))).toBe('deny')
  })
})

describe('Codex: a patch', () => {
  const decision = (tool: string, command: string, ...flags: readonly string[]): string =>
    decisionIn(hook(['codex', ...flags], call(tool, { command })))

  test.each([
    ['a hook of git', patchAdding('.git/hooks/pre-commit')],
    ['outside', patchAdding('/etc/cron.d/x')],
    ['outside, relative', patchAdding('../x')],
    ['the second file', `${patchAdding('a')}*** Update File: .envrc\n@@\n-a\n+b\n*** End Patch`],
    [
      'a new name',
      '*** Begin Patch\n*** Update File: a\n*** Move to: .git/hooks/x\n@@\n-a\n+b\n*** End Patch',
    ],
    ['indented', '*** Begin Patch\n*** Delete File: a\n  *** Add File: .git/hooks/x\n+y\n*** End Patch'],
    ['a deletion', '*** Begin Patch\n*** Delete File: .git/config\n*** End Patch'],
  ])('is denied: %s', (_, patch) => {
    expect(decision('apply_patch', patch)).toBe('deny')
    expect(decision('Bash', `apply_patch <<'EOF'\n${patch}\nEOF\n`, '--sandboxed')).toBe('deny')
    expect(decision('Bash', `cd . && apply_patch <<'EOF'\n${patch}\nEOF\n`, '--sandboxed')).toBe('deny')
  })

  test('after `cd` is denied, and an invalid patch is blocked', () => {
    const up = `cd .. && apply_patch <<'EOF'\n${patchAdding('x')}\nEOF\n`
    expect(decision('Bash', up, '--sandboxed')).toBe('deny')
    expect(hook(['codex'], call('apply_patch', { command: 'nothing' })).status).toBe(2)
    expect(hook(['codex'], call('apply_patch', {})).status).toBe(2)
    expect(filesOfPatch('+*** Add File: x\n-*** Add File: y')).toEqual([])
  })
})

test.runIf(process.env.RINGFENCE_FULL)('a hook with endless input blocks before the client’s timeout', () => {
  const waits = `sleep 40 | '${process.execPath}' '${program}' hook claude-code; exit $?`
  const { status, stderr } = spawnSync('/bin/bash', ['-c', waits], { env: kit.env, encoding: 'utf8' })
  expect([status, stderr]).toEqual([2, 'ringfence: the policy check took too long\n'])
})

test('decisions are recorded with the agent id', () => {
  const records = [...readTrail(join(base, 'state'), { agentId: 'claude-code' })]
  expect(records).toContainEqual(expect.objectContaining({ command: 'rm -rf /', action: 'deny' }))
})
