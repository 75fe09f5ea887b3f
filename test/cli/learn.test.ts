import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { cli } from './program.ts'

/** `policy learn` from a user's view: learn a policy from a program, then run the program under that policy. */
let base: string
let workspace: string
let data: string

beforeAll(() => {
  // Not in /tmp, because a sandbox has its own /tmp.
  base = mkdtempSync(join(homedir(), 'rf-learn-'))
  workspace = join(base, 'ws')
  data = join(base, 'data.txt')
  mkdirSync(join(base, '.aws'))
  mkdirSync(workspace)
  writeFileSync(data, 'needed\n')
  writeFileSync(join(base, '.aws', 'credentials'), 'canary\n')
  writeFileSync(
    join(workspace, 'job.py'),
    `for p in ['${data}', '${join(base, '.aws', 'credentials')}']:
    try: print(open(p).read())
    except OSError as e: print('no', p)
open('made', 'w').write('x')
try: open('${join(base, 'elsewhere')}', 'w')
except OSError: pass
`,
  )
})

afterAll(() => rmSync(base, { recursive: true, force: true }))

const ringfence = (...args: readonly string[]) =>
  spawnSync(...cli([...args]), {
    cwd: workspace,
    encoding: 'utf8',
    env: { ...process.env, RINGFENCE_HOME: join(base, 'home') },
  })

describe('policy learn', () => {
  test('finds the paths that a program needs, keeps no change of its run, and writes a policy that allows it', () => {
    const file = join(base, 'learned.toml')
    const learned = ringfence('policy', 'learn', '--yes', '-o', file, '--', 'python3', 'job.py')
    expect([learned.status, learned.stderr]).toEqual([0, expect.stringContaining('learned: 1 paths')])
    expect(existsSync(join(workspace, 'made'))).toBe(false)
    const text = readFileSync(file, 'utf8')
    expect(text).toContain(data)
    expect(text).toMatch(/# left out: .*\.aws/)
    expect(text).toMatch(/# left out: .*elsewhere/)
    expect(text).not.toMatch(/prefixes = .*\.aws/)
    expect(ringfence('policy', 'validate', file).status).toBe(0)
    const again = ringfence('run', '--config', file, '--read', data, '--', 'python3', 'job.py')
    expect([again.status, again.stdout]).toEqual([0, expect.stringContaining('needed')])
    expect(again.stdout).not.toContain('canary')
    expect(ringfence('run', '--config', file, '--', 'ls').status).toBe(126)
  })

  test('does not run a denied command', () => {
    const denied = ringfence('policy', 'learn', '--yes', '-c', 'rm -rf /')
    expect([denied.status, denied.stdout]).toEqual([126, ''])
  })
})

test('python3 is installed for these tests', () => {
  expect(execFileSync('python3', ['--version'], { encoding: 'utf8' })).toContain('Python')
})
