import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeEach, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { cli } from './program.ts'
import { answering, type Conversation } from './pseudo-terminal.ts'

/** Every question that the built command line asks, put to somebody at a real terminal. */

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

describe('run with a question', () => {
  // `git reset --hard` is asked about, also in a sandbox without network; with no repository it fails by itself, with git's own exit code.
  const reset = ['run', '-c', 'git reset --hard']

  test('yes runs it', async () => {
    const { status, screen } = await ask(reset, '[y/N]', 'y')
    expect(screen).toContain('not a git repository')
    expect(status).toBe(128)
  })

  test.each(['n', '', 'perhaps'])('`%s` does not', async (answer) => {
    const { status, screen } = await ask(reset, '[y/N]', answer)
    expect(screen).toContain('approval-required')
    expect(screen).not.toMatch(/not a git repository|internal/)
    expect(status).toBe(126)
  })
})

describe('run --ask-hosts', () => {
  // A name below `.test` resolves nowhere: an admitted connection ends at the look-up and says so.
  const reach = ['run', '--yes', '--ask-hosts', '-c', 'curl -sS http://files.test:8080/; echo over']

  test.each([
    ['o', 'does not resolve'],
    ['s', 'does not resolve'],
    ['n', 'rejected by terminal'],
    ['', 'rejected by terminal'],
    ['yes', 'rejected by terminal'],
  ])('`%s`: %s', async (answer, outcome) => {
    const { status, screen } = await ask(reach, '[N]o:', answer)
    expect(screen).toContain('wants to reach files.test:8080')
    expect(screen).toContain(outcome)
    expect(screen).toContain('over')
    expect(status).toBe(0)
  })

  test('the question names the host, on a terminal that the program left in disorder', async () => {
    const hide = String.raw`printf '\033[1;1r\033[?7l\033]11;#000\007\033]0;'`
    const args = [...reach.slice(0, -1), `${hide}; ${reach.at(-1)}`]
    const { screen } = await ask(args, 'allow files.test:8080? [o]nce', 'n')
    expect(screen).toMatch(/\x18\x1b\\.*\x1b\[r.*\x1b\[\?7h.*\x1b\]111\x07[\s\S]*wants to reach/)
    expect(screen).toContain('rejected by terminal')
  })

  test('nobody is asked where the question would not be seen', async () => {
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

  test('without a terminal nobody is asked, and the host is refused', () => {
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
    ['anything else waits', 'x', false, 1],
  ])('%s', async (_, answer, made, waits) => {
    const { status, screen } = await ask(change, '[w]ait', answer)
    expect(screen).toContain('A made.txt')
    expect(screen).not.toContain('internal')
    expect([status, existsSync(join(workspace, 'made.txt')), waiting().length]).toEqual([0, made, waits])
  })

  test('nothing was changed, nothing is asked', async () => {
    const { status, screen } = await ask(['run', '--review', '-c', 'true'], '[w]ait', 'a')
    expect(screen).toContain('no changes')
    expect([status, waiting()]).toEqual([0, []])
  })
})

describe('hook install', () => {
  const file = join(base, '.claude', 'settings.json')

  test('yes writes and tries it; no does not', async () => {
    const no = await ask(['hook', 'install', 'claude-code'], '[y/N]', 'n')
    expect(no.screen).toContain('nothing written')
    expect([no.status, existsSync(file)]).toEqual([126, false])
    const yes = await ask(['hook', 'install', 'claude-code'], '[y/N]', 'yes')
    expect(yes.screen).toContain('hook for claude-code: works')
    expect(yes.status).toBe(0)
    expect(readFileSync(file, 'utf8')).toContain('hook claude-code')
  })
})

test('no built file of the command line has an `import()`, which code from a cache cannot do', () => {
  const directory = join(packageRoot(), 'dist', 'cli')
  for (const name of readdirSync(directory).filter((one) => one.endsWith('.cjs')))
    expect([name, /(?<![\w.$])import\(/.test(readFileSync(join(directory, name), 'utf8'))]).toEqual([
      name,
      false,
    ])
})
