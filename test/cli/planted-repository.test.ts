import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { cli } from './program.ts'

/** A bare repository, written by a sandbox, whose configuration makes git run a program. */

const base = mkdtempSync(join(tmpdir(), 'rf-planted-'))
const workspace = join(base, 'ws')
const marker = join(base, 'RAN')
const env = { ...process.env, HOME: join(base, 'home'), CLAUDE_PROJECT_DIR: workspace }

function plant(directory: string): void {
  execFileSync('git', ['init', '--quiet', '--bare', directory])
  const set = (key: string, value: string): void =>
    void execFileSync('git', ['--git-dir', directory, 'config', key, value])
  const script = join(directory, 'monitor.sh')
  writeFileSync(script, `#!/bin/sh\ntouch '${marker}'\n`)
  chmodSync(script, 0o755)
  set('core.bare', 'false')
  set('core.worktree', '.')
  set('core.fsmonitor', script)
}

beforeAll(() => {
  mkdirSync(env.HOME, { recursive: true })
  plant(workspace)
  plant(join(workspace, 'evil'))
})

afterAll(() => rmSync(base, { recursive: true, force: true }))

const ran = (): boolean => {
  const found = existsSync(marker)
  rmSync(marker, { force: true })
  return found
}

test('control: the planted git configuration runs its program', () => {
  spawnSync('git', ['status'], { cwd: workspace })
  expect(ran()).toBe(true)
})

test.each(['git status', 'git log -3', 'git diff', 'git -C . status'])(
  'auto runs `%s` on the host without the planted program',
  (line) => {
    spawnSync(...cli(['auto', '-w', workspace, '-c', line]), { env })
    expect(ran()).toBe(false)
  },
)

test.each(['cd evil && git status', 'git -C evil status', '(cd evil; git diff --stat)'])(
  'check does not allow `%s` on the host',
  (line) => {
    const { stdout } = spawnSync(...cli(['check', 'command', '--json', line]), { env })
    expect(JSON.parse(stdout.toString()).action).toBe('sandbox')
  },
)

test('a hook does not allow git in a workspace without its own repository', () => {
  const ask = (): string => {
    const call = { tool_name: 'Bash', tool_input: { command: 'git status' }, cwd: workspace }
    const { stdout } = spawnSync(...cli(['hook', 'claude-code']), {
      env,
      input: JSON.stringify(call),
    })
    return JSON.parse(stdout.toString()).hookSpecificOutput.permissionDecision
  }
  expect(ask()).toBe('ask')
  execFileSync('git', ['init', '--quiet', join(base, 'other')])
  execFileSync('mv', [join(base, 'other', '.git'), workspace])
  expect(ask()).toBe('allow')
})
