import { spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { cli } from './program.ts'

/** A symlink, left in the workspace by a sandbox, that points to a private key of the user. */

const base = mkdtempSync(join(tmpdir(), 'rf-planted-'))
const workspace = join(base, 'ws')
const home = join(base, 'home')
const env = {
  ...process.env,
  HOME: home,
  RINGFENCE_HOME: join(base, 'state'),
  CLAUDE_PROJECT_DIR: workspace,
}

beforeAll(() => {
  mkdirSync(join(home, '.ssh'), { recursive: true })
  mkdirSync(workspace)
  writeFileSync(join(home, '.ssh', 'id_rsa'), 'the user’s key')
  writeFileSync(join(workspace, 'plain.txt'), 'plain')
  symlinkSync(join(home, '.ssh', 'id_rsa'), join(workspace, 'notes.txt'))
  symlinkSync(home, join(workspace, 'docs'))
})
afterAll(() => rmSync(base, { recursive: true, force: true }))

const auto = (line: string): string =>
  spawnSync(...cli(['auto', '-w', workspace, '-c', line]), {
    env,
    cwd: workspace,
  }).stdout.toString()

const hook = (command: string): string => {
  const input = JSON.stringify({
    hook_event_name: 'PreToolUse',
    tool_name: 'Bash',
    tool_input: { command },
    cwd: workspace,
  })
  const { stdout } = spawnSync(...cli(['hook', 'claude-code']), {
    env,
    cwd: workspace,
    input,
  })
  return JSON.parse(stdout.toString()).hookSpecificOutput.permissionDecision
}

const LINES = [
  'cat notes.txt',
  'cat < notes.txt',
  'cat docs/.ssh/id_rsa',
  'head -c99 *.txt',
  'tail -n1 ./notes.txt',
]

test('control: the planted symlink works on the host', () => {
  expect(readFileSync(join(workspace, 'notes.txt'), 'utf8')).toContain('key')
  expect(auto('cat plain.txt')).toBe('plain')
  expect(hook('cat plain.txt')).toBe('allow')
})

test.each(LINES)('auto does not follow the symlink on the host: %s', (line) => {
  expect(auto(line)).not.toContain('key')
})

test.each(LINES)('a hook does not allow the symlink: %s', (line) => {
  expect(hook(line)).not.toBe('allow')
})
