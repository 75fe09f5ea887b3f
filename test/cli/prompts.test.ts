import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeEach, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { cli } from './program.ts'
import { answering, type Conversation } from './pseudo-terminal.ts'

/** Every prompt of the built command line, answered at a real terminal. */

const base = mkdtempSync(join(tmpdir(), 'rf-prompts-'))
const workspace = join(base, 'work')
const state = join(base, 'state')

beforeEach(() => {
  for (const dir of [workspace, state]) rmSync(dir, { recursive: true, force: true })
  mkdirSync(workspace)
})
afterAll(() => rmSync(base, { recursive: true, force: true }))

const ask = (args: readonly string[], question: string, answer: string): Promise<Conversation> =>
  answering(cli(args).flat(), question, answer, {
    cwd: workspace,
    env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: state, TERM: 'xterm' },
  })

describe('run with a command that needs approval', () => {
  // `git reset --hard` needs approval, also in a sandbox without network; without a repository it fails with git's own exit code.
  const reset = ['run', '-c', 'git reset --hard']

  test('runs the command after `y`', async () => {
    const { status, screen } = await ask(reset, '[y/N]', 'y')
    expect(screen).toContain('not a git repository')
    expect(status).toBe(128)
  })

  test.each(['n', '', 'perhaps'])('does not run the command after `%s`', async (answer) => {
    const { status, screen } = await ask(reset, '[y/N]', answer)
    expect(screen).toContain('approval-required')
    expect(screen).not.toMatch(/not a git repository|internal/)
    expect(status).toBe(126)
  })
})

describe('run --ask-hosts', () => {
  // A name below `.test` resolves nowhere: an allowed connection fails at the DNS lookup with a clear message.
  const reach = ['run', '--yes', '--ask-hosts', '-c', 'curl -sS http://files.test:8080/; echo over']

  test.each([
    ['o', 'does not resolve'],
    ['s', 'does not resolve'],
    ['n', 'rejected by terminal'],
    ['', 'rejected by terminal'],
    ['yes', 'rejected by terminal'],
  ])('answering `%s`: %s', async (answer, outcome) => {
    const { status, screen } = await ask(reach, '[N]o:', answer)
    expect(screen).toContain('wants to reach files.test:8080')
    expect(screen).toContain(outcome)
    expect(screen).toContain('over')
    expect(status).toBe(0)
  })

  test('resets the terminal before the question, so that the program cannot hide it', async () => {
    const hide = String.raw`printf '\033[1;1r\033[?7l\033]11;#000\007\033]0;'`
    const args = [...reach.slice(0, -1), `${hide}; ${reach.at(-1)}`]
    const { screen } = await ask(args, 'allow files.test:8080? [o]nce', 'n')
    expect(screen).toMatch(/\x18\x1b\\.*\x1b\[r.*\x1b\[\?7h.*\x1b\]111\x07[\s\S]*wants to reach/)
    expect(screen).toContain('rejected by terminal')
  })

  test('asks nothing if stderr is not a terminal', async () => {
    const quoted = cli(reach)
      .flat()
      .map((word) => `'${word}'`)
      .join(' ')
    const { screen } = await answering(['/bin/sh', '-c', `${quoted} 2>errors`], '[N]o:', 'o', {
      cwd: workspace,
      env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: state, TERM: 'xterm' },
    })
    expect(screen).toContain('nobody can be asked')
    expect(readFileSync(join(workspace, 'errors'), 'utf8')).not.toContain('[o]nce')
  })

  test('refuses the host if there is no terminal', () => {
    const { stdout, stderr } = spawnSync(...cli([...reach]), {
      cwd: workspace,
      env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: state },
      encoding: 'utf8',
    })
    expect(stderr).toContain('no terminal to ask at')
    expect(stdout).toContain('nobody can be asked')
  })
})

describe('run --review', () => {
  const change = ['run', '--review', '-c', 'echo hi > made.txt']
  const waiting = (): readonly string[] =>
    existsSync(join(state, 'reviews')) ? readdirSync(join(state, 'reviews')) : []

  test.each([
    ['apply', 'a', true, 0],
    ['drop', 'd', false, 0],
    ['wait', 'w', false, 1],
    ['any other answer waits', 'x', false, 1],
  ])('%s', async (_, answer, made, waits) => {
    const { status, screen } = await ask(change, '[w]ait', answer)
    expect(screen).toContain('A made.txt')
    expect(screen).not.toContain('internal')
    expect([status, existsSync(join(workspace, 'made.txt')), waiting().length]).toEqual([0, made, waits])
  })

  test('asks nothing if nothing was changed', async () => {
    const { status, screen } = await ask(['run', '--review', '-c', 'true'], '[w]ait', 'a')
    expect(screen).toContain('no changes')
    expect([status, waiting()]).toEqual([0, []])
  })
})

describe('hook install', () => {
  const file = join(base, '.claude', 'settings.json')

  test('writes and tests the hook after `yes`, and writes nothing after `n`', async () => {
    const no = await ask(['hook', 'install', 'claude-code'], '[y/N]', 'n')
    expect(no.screen).toContain('nothing written')
    expect([no.status, existsSync(file)]).toEqual([126, false])
    const yes = await ask(['hook', 'install', 'claude-code'], '[y/N]', 'yes')
    expect(yes.screen).toContain('hook for claude-code: works')
    expect(yes.status).toBe(0)
    expect(readFileSync(file, 'utf8')).toContain('hook claude-code')
  })
})

test('no built CLI file has an `import()`, which cached code cannot run', () => {
  const directory = join(packageRoot(), 'dist', 'cli')
  for (const name of readdirSync(directory).filter((one) => one.endsWith('.cjs')))
    expect([name, /(?<![\w.$])import\(/.test(readFileSync(join(directory, name), 'utf8'))]).toEqual([
      name,
      false,
    ])
})
