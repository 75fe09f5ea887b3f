import { execFile, execFileSync } from 'node:child_process'
import {
  chmodSync,
  chownSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { cli } from './program.ts'

/** The built command line as a user meets it: exit codes, the form of its errors, and that a refusal runs nothing. */

const isRoot = process.getuid?.() === 0
const ORDINARY = 54321
const place = mkdtempSync(join(tmpdir(), 'rf-cli-'))
const at = (...parts: readonly string[]): string => join(place, ...parts)
const workspace = at('ws')
const home = at('home')
const marker = at('ws', 'marker')

beforeAll(() => {
  const root = packageRoot()
  const { bin } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    bin: { ringfence: string }
  }
  if (!existsSync(join(root, bin.ringfence))) throw new Error('the command line is not built: npm run build')
  // A copy: any user can read it, and nobody builds it anew in the middle of a test.
  for (const part of ['package.json', 'dist/cli', 'dist/guest'])
    cpSync(join(root, part), at('package', part), { recursive: true })
  for (const dir of [workspace, home, at('state'), at('closed')]) mkdirSync(dir)
  symlinkSync(workspace, at('link'))
  for (const dir of [place, workspace]) chmodSync(dir, 0o755)
  chmodSync(at('closed'), 0o700)
  for (const [name, text] of Object.entries(FILES)) writeFileSync(at(name), text)
})
afterAll(() => {
  rmSync(place, { recursive: true, force: true, maxRetries: 5 })
})
beforeEach(() => {
  rmSync(marker, { force: true })
})

const RULES = `
[[policy.rule]]
prefix = ["touch", "denied"]
action = "deny"
why = "not here"
match = ["touch denied"]

[[policy.rule]]
prefix = ["touch", "marker"]
action = "ask"
why = "somebody should look"
match = ["touch marker"]
not_match = ["touch other"]
`
const FILES: Readonly<Record<string, string>> = {
  'rules.toml': RULES,
  'limits.toml': '[policy]\nmax_memory_mb = 64\nallowed_network_modes = ["offline"]\n',
  'prefixes.toml': '[policy]\nallowed_host_prefixes = ["/nowhere"]\n',
  'broken.toml': '[policy\n',
  'unknown.toml': '[policy]\nmax_memroy_mb = 64\n',
  'lying.toml': '[[policy.rule]]\nprefix = ["touch"]\naction = "deny"\nmatch = ["ls"]\n',
  'lying-too.toml': '[[policy.rule]]\nprefix = ["touch"]\naction = "deny"\nnot_match = ["touch x"]\n',
  'bad.json': '{"policy": {"max_pids": 0}}',
}

type Ran = { readonly code: number; readonly stdout: string; readonly stderr: string }
type Way = {
  readonly env?: Readonly<Record<string, string>>
  readonly cwd?: string
  readonly before?: readonly string[]
}

/** One run. `before` stands in front of the program: another user, another mount namespace. */
function ringfence(
  args: readonly string[],
  { env = {}, cwd = workspace, before = [] }: Way = {},
): Promise<Ran> {
  const [file, ...rest] = [...before, ...cli(args, at('package')).flat()] as [string, ...string[]]
  const clean = {
    PATH: '/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin',
    HOME: home,
    LANG: 'C.UTF-8',
    RINGFENCE_HOME: at('state'),
  }
  return new Promise((resolve) => {
    const child = execFile(
      file,
      rest,
      { cwd, env: { ...clean, ...env }, maxBuffer: 1e8 },
      (error, stdout, stderr) => {
        const code = error ? (typeof error.code === 'number' ? error.code : -1) : 0
        resolve({ code, stdout, stderr })
      },
    )
    child.stdin?.end()
  })
}

const LINE = /^ringfence: ([a-z-]+): [^\n]+\n(?:hint: [^\n]+\n)?$/

/** The code of a well-formed error; anything else is shown whole. */
const errorOf = ({ stderr, stdout }: Ran): string =>
  (stdout === '' && LINE.exec(stderr)?.[1]) || `not an error: ${stdout}${stderr}`

/** What must not happen: the command leaves a mark in its workspace. */
const MARK = ['--', 'touch', 'marker']

describe('wrong usage and invalid input: 2', () => {
  test.each<[string, readonly string[], string]>([
    ['an unknown flag', ['run', '--fast', ...MARK], 'invalid-input'],
    ['a flag without its value', ['run', '--workspace'], 'invalid-input'],
    ['an unknown command', ['fly'], 'invalid-input'],
    ['what every object has', ['constructor'], 'invalid-input'],
    ['run without a command', ['run'], 'no-command'],
    ['run with nothing behind `--`', ['run', '--'], 'no-command'],
    ['run with an empty line', ['run', '-c', ' '], 'no-command'],
    ['a line and a program', ['run', '-c', 'touch marker', ...MARK], 'invalid-input'],
    ['a relative mount', ['run', '--mount', 'ws:/data', ...MARK], 'path-not-absolute'],
    ['a relative path to read', ['run', '--read', 'ws', ...MARK], 'path-not-absolute'],
    ['a workspace that is not there', ['run', '--workspace', at('nothing'), ...MARK], 'invalid-input'],
    ['half a mount', ['run', '--mount', '/data', ...MARK], 'invalid-input'],
    ['an unknown preset', ['run', '--preset', 'open', ...MARK], 'invalid-input'],
    ['an unknown network', ['run', '--network', 'some', ...MARK], 'invalid-input'],
    ['an unknown guarantee', ['run', '--waive', 'fs.all', ...MARK], 'invalid-input'],
    ['no memory', ['run', '--memory', '0', ...MARK], 'invalid-input'],
    ['less than no time', ['run', '--timeout', '-1', ...MARK], 'invalid-input'],
    ['no number', ['run', '--pids', '1e3', ...MARK], 'invalid-input'],
    ['more than a number can be', ['run', '--disk', '9'.repeat(400), ...MARK], 'invalid-input'],
    ['a variable that is not there', ['run', '--env', 'NOT_THERE', ...MARK], 'invalid-input'],
    [
      'a variable of the launcher',
      ['run', '--env', 'RINGFENCE_LAUNCH_1=x', '--env', 'RINGFENCE_LAUNCH_01=/bin/true', ...MARK],
      'invalid-input',
    ],
    [
      'writing in the read-only preset',
      ['run', '--preset', 'read-only', '--write', '/opt', ...MARK],
      'invalid-input',
    ],
    ['a broken configuration', ['run', '--config', 'broken.toml', ...MARK], 'invalid-config'],
    ['an unknown key', ['run', '--config', 'unknown.toml', ...MARK], 'invalid-config'],
    ['a bad value', ['run', '--config', 'bad.json', ...MARK], 'invalid-config'],
    ['no such configuration', ['run', '--config', 'missing.toml', ...MARK], 'invalid-config'],
    ['a policy whose examples lie', ['run', '--policy', 'lying.toml', ...MARK], 'invalid-config'],
    ['a policy whose other examples lie', ['run', '--policy', 'lying-too.toml', ...MARK], 'invalid-config'],
    ['the same, only looked at', ['policy', 'validate', 'lying.toml'], 'invalid-config'],
    ['policy without a word', ['policy'], 'invalid-input'],
    ['check without a word', ['check'], 'invalid-input'],
  ])('%s', async (_, args, code) => {
    const ran = await ringfence(args.map((word) => (/^[\w-]+\.(toml|json)$/.test(word) ? at(word) : word)))
    expect([errorOf(ran), ran.code]).toEqual([code, 2])
    expect(existsSync(marker)).toBe(false)
  })

  test('nothing at all: the help', async () => {
    const ran = await ringfence([])
    expect(ran.code).toBe(2)
    expect(ran.stdout).toMatch(/usage: ringfence/)
  })

  test('an error stays on one line, whatever somebody wrote', async () => {
    expect(errorOf(await ringfence(['run', '--preset', 'a\nb\x1b[31m', ...MARK]))).toBe('invalid-input')
  })
})

describe('denied: 126', () => {
  test.each<[string, readonly string[], string]>([
    ['a mount of `/`', ['run', '--mount', '/:/data', ...MARK], 'forbidden-host-path'],
    ['`/` as workspace', ['run', '--workspace', '/', ...MARK], 'forbidden-host-path'],
    ['a symlinked mount', ['run', '--mount', `${at('link')}:/data`, ...MARK], 'forbidden-host-path'],
    ['a symlinked workspace', ['run', '--workspace', at('link'), ...MARK], 'forbidden-host-path'],
    ['the home directory', ['run', '--workspace', home, ...MARK], 'forbidden-host-path'],
    ['a mount over the programs', ['run', '--mount', `${workspace}:/usr`, ...MARK], 'forbidden-host-path'],
    ['outside the prefixes', ['run', '--policy', at('prefixes.toml'), ...MARK], 'forbidden-host-path'],
    [
      'more memory than the policy has',
      ['run', '--policy', at('limits.toml'), '--memory', '65', ...MARK],
      'resource-limit-exceeded',
    ],
    [
      'a network that the policy has not',
      ['run', '--policy', at('limits.toml'), '--network', 'full', ...MARK],
      'invalid-network-mode',
    ],
    [
      'a forbidden command',
      ['run', '--policy', at('rules.toml'), '--', 'touch', 'denied'],
      'forbidden-command',
    ],
    [
      'the same in a line, with --yes',
      ['run', '--policy', at('rules.toml'), '--yes', '-c', 'true && touch denied'],
      'forbidden-command',
    ],
    ['one that somebody must look at', ['run', '--policy', at('rules.toml'), ...MARK], 'approval-required'],
    [
      'the same through auto',
      ['auto', '--policy', at('rules.toml'), '-c', 'touch marker'],
      'approval-required',
    ],
  ])('%s', async (_, args, code) => {
    const ran = await ringfence(args)
    expect([errorOf(ran), ran.code]).toEqual([code, 126])
    expect([marker, at('ws', 'denied')].filter((path) => existsSync(path))).toEqual([])
  })

  test('with --yes somebody looked', async () => {
    const ran = await ringfence(['run', '--policy', at('rules.toml'), '--yes', ...MARK])
    expect(ran).toEqual({ code: 0, stdout: '', stderr: '' })
    expect(existsSync(marker)).toBe(true)
  })
})

describe('Ringfence cannot: 125', () => {
  test.each<[string, readonly string[], string, RegExp]>([
    [
      'an image, behind a wall that has none',
      ['run', '--backend', 'bubblewrap', '--image', 'debian', ...MARK],
      'unsupported',
      /debian/,
    ],
    ['a virtual machine', ['run', '--min-isolation', 'microvm', ...MARK], 'backend-unavailable', /microvm/],
    ['a backend that there is not', ['run', '--backend', 'docker', ...MARK], 'backend-unavailable', /docker/],
    [
      'no wall, but a wall’s limit',
      ['run', '--backend', 'native', '--memory', '64', ...MARK],
      'missing-guarantee',
      /limit\.memory/,
    ],
  ])('%s', async (_, args, code, named) => {
    const ran = await ringfence(args)
    expect([errorOf(ran), ran.code]).toEqual([code, 125])
    expect(ran.stderr).toMatch(named)
    expect(existsSync(marker)).toBe(false)
  })

  test.runIf(isRoot)('user namespaces are switched off', async () => {
    const off = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    const state = at('no-namespaces')
    const ran = await ringfence(['run', '--', 'touch', 'marker'], {
      before: ['unshare', '-Ur', 'sh', '-c', off, 'sh'],
      env: { RINGFENCE_HOME: state },
    })
    expect([errorOf(ran), ran.code]).toEqual(['backend-unavailable', 125])
    expect(ran.stderr).toContain('sysctl -w user.max_user_namespaces')
    expect(existsSync(marker)).toBe(false)
  })

  test.runIf(isRoot)('an unreadable workspace, for an ordinary user', async () => {
    const state = at('ordinary')
    mkdirSync(state)
    chownSync(state, ORDINARY, ORDINARY)
    const before = ['setpriv', '--reuid', String(ORDINARY), '--regid', String(ORDINARY), '--clear-groups']
    const ran = await ringfence(['run', '--workspace', at('closed'), '--', 'touch', 'marker'], {
      before,
      cwd: '/',
      env: { RINGFENCE_HOME: state },
    })
    expect(errorOf(ran)).toMatch(/^(forbidden-host-path|launch-failed|invalid-input)$/)
    expect([2, 125, 126]).toContain(ran.code)
    expect(ran.stderr).toContain(at('closed'))
    expect(readdirSync(at('closed'))).toEqual([])
  })

  test.runIf(isRoot)('a full disk under the trail: nothing runs', async () => {
    const full = at('full')
    mkdirSync(full)
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k,mode=700', 'tmpfs', full])
    try {
      try {
        writeFileSync(join(full, 'ballast'), Buffer.alloc(1024 * 1024))
      } catch {
        // It is full now.
      }
      const ran = await ringfence(['run', ...MARK], { env: { RINGFENCE_HOME: full } })
      expect([errorOf(ran), ran.code]).toEqual(['trail-unwritable', 125])
      expect(existsSync(marker)).toBe(false)
    } finally {
      // A broker may still have its directory there.
      execFileSync('umount', ['-l', full])
    }
  })

  test.runIf(isRoot && existsSync('/usr/bin/bwrap'))('no bubblewrap: no run, and how to get it', async () => {
    writeFileSync(at('empty'), '')
    const before = ['unshare', '-m', 'sh', '-c', 'mount --bind "$0" /usr/bin/bwrap && exec "$@"', at('empty')]
    const ran = await ringfence(['run', ...MARK], { before })
    expect([errorOf(ran), ran.code]).toEqual(['backend-unavailable', 125])
    expect(ran.stderr).toContain('hint: apt-get install bubblewrap')
    expect(existsSync(marker)).toBe(false)
    const doctor = await ringfence(['doctor', '--json'], { before })
    const { backends } = JSON.parse(doctor.stdout) as {
      backends: { name: string; level: string; available: boolean; fix: string | null }[]
    }
    // Another wall may stand, for those who ask for it.
    expect(doctor.code).toBe(backends.some((one) => one.available && one.level !== 'native') ? 0 : 125)
    expect(backends.find(({ name }) => name === 'bubblewrap')).toMatchObject({
      available: false,
      fix: 'apt-get install bubblewrap',
    })
  })
})

describe('how a command ended', () => {
  test.each<[string, readonly string[], number]>([
    ['well', ['-c', 'exit 0'], 0],
    ['its own code', ['-c', 'exit 77'], 77],
    ['a code that we use too', ['-c', 'exit 125'], 125],
    ['a signal', ['--yes', '-c', 'kill -TERM $$'], 128 + 15],
    ['no such program', ['--', 'no-such-program'], 127],
    ['a program that cannot be run', ['--', '/etc/passwd'], 126],
    ['too long', ['--timeout', '0.3', '--', 'sleep', '60'], 124],
    ['too silent', ['--idle', '0.3', '--', 'sleep', '60'], 124],
    ['too loud', ['--output', '1000', '--', 'yes'], 124],
  ])('%s', async (_, args, code) => {
    expect((await ringfence(['run', ...args])).code).toBe(code)
  })

  test('what it says comes through, and no more than may', async () => {
    expect(await ringfence(['run', '-c', 'echo out; echo err >&2'])).toEqual({
      code: 0,
      stdout: 'out\n',
      stderr: 'err\n',
    })
    expect((await ringfence(['run', '--output', '1000', '--', 'yes'])).stdout.length).toBe(1000)
  })

  const echo = (word: string): Promise<Ran> => ringfence(['run', '--', 'echo', word, '7'])

  test.each(['init', 'bind', 'arg', '--'])('a word that is also the launcher’s: %s', async (word) => {
    expect(await echo(word)).toEqual({ code: 0, stdout: `${word} 7\n`, stderr: '' })
  })

  test('and this one', async () => {
    expect(await echo('control')).toEqual({ code: 0, stdout: 'control 7\n', stderr: '' })
  })

  test('--json says it all', async () => {
    const ran = await ringfence(['run', '--json', '--timeout', '30', '-c', 'echo out; echo err >&2; exit 3'])
    expect(ran.code).toBe(3)
    expect(JSON.parse(ran.stdout)).toMatchObject({
      backend: 'bubblewrap',
      level: 'os',
      outcome: { kind: 'exited', code: 3 },
      stdout: 'out\n',
      stderr: 'err\n',
      truncated: false,
      violations: [],
      decision: { action: 'allow' },
    })
  })
})

describe('wherever the workspace is', () => {
  const script =
    'for name in .git/config .git/hooks/pre-push .envrc; do echo x >> $name && echo "wrote $name"; done; echo x > free\n'

  test.each(['/var/tmp', '/tmp'])('%s: protected names are', async (parent) => {
    const dir = mkdtempSync(join(parent, 'rf-cli-ws-'))
    try {
      mkdirSync(join(dir, '.git/hooks'), { recursive: true })
      writeFileSync(join(dir, '.git/config'), '')
      writeFileSync(join(dir, 'attack.sh'), script)
      const ran = await ringfence(['run', '--json', '--', 'bash', './attack.sh'], { cwd: dir })
      const { stdout, violations } = JSON.parse(ran.stdout) as { stdout: string; violations: unknown[] }
      expect(stdout).toBe('')
      expect(violations.length).toBe(3)
      expect(existsSync(join(dir, 'free'))).toBe(true)
    } finally {
      rmSync(dir, { recursive: true })
    }
  })
})

describe('errors as JSON', () => {
  test.each<[readonly string[], number, string]>([
    [['run', '--json'], 2, 'no-command'],
    [['--json', 'run'], 2, 'no-command'],
    [['run', '--json', '--fast', ...MARK], 2, 'invalid-input'],
    [['run', '--json', '--workspace', '/', ...MARK], 126, 'forbidden-host-path'],
    [['run', '--json', '--backend', 'bubblewrap', '--image', 'debian', ...MARK], 125, 'unsupported'],
    [['fly', '--json'], 2, 'invalid-input'],
  ])('%j', async (args, exit, code) => {
    const ran = await ringfence(args)
    expect([ran.code, ran.stdout]).toEqual([exit, ''])
    const { error, ...rest } = JSON.parse(ran.stderr) as { error: Record<string, string> }
    expect(rest).toEqual({})
    expect(Object.keys(error)).toEqual(['code', 'message', 'hint'])
    expect(error.code).toBe(code)
  })

  test('a flag of the command itself is not ours', async () => {
    const ran = await ringfence(['run', '--backend', 'bubblewrap', '--image', 'debian', '--', 'x', '--json'])
    expect(errorOf(ran)).toBe('unsupported')
  })
})

describe('--explain', () => {
  test('tells the plan and runs nothing', async () => {
    const ran = await ringfence(['run', '--explain', '--read', '/opt', '--timeout', '5', ...MARK])
    expect([ran.code, ran.stderr]).toEqual([0, ''])
    for (const words of ['touch marker', 'bubblewrap (os)', workspace, '/opt', '5 s', 'git hooks'])
      expect(ran.stdout).toContain(words)
    expect(existsSync(marker)).toBe(false)
  })

  test('as JSON it is the plan itself', async () => {
    const ran = await ringfence(['run', '--explain', '--json', ...MARK])
    const { plan, backend } = JSON.parse(ran.stdout) as {
      plan: { mounts: { target: string; mode: string }[] }
      backend: string
    }
    expect(backend).toBe('bubblewrap')
    expect(plan.mounts).toMatchObject([{ target: workspace, mode: 'rw' }])
    expect(existsSync(marker)).toBe(false)
  })

  test('refuses what run refuses', async () => {
    const ran = await ringfence(['run', '--explain', '--workspace', '/', ...MARK])
    expect([errorOf(ran), ran.code]).toEqual(['forbidden-host-path', 126])
  })
})

describe('the state directory', () => {
  test('is private, and what was done is on record', async () => {
    const state = at('fresh')
    await ringfence(['run', '--agent-id', 'agent-7', '-c', 'exit 0'], { env: { RINGFENCE_HOME: state } })
    expect(execFileSync('stat', ['-c', '%a', state], { encoding: 'utf8' }).trim()).toBe('700')
    const verified = await ringfence(['audit', 'verify'], { env: { RINGFENCE_HOME: state } })
    expect(verified.code).toBe(0)
    const exported = await ringfence(['audit', 'export'], { env: { RINGFENCE_HOME: state } })
    const events = exported.stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { event: string; agent_id?: string })
    expect(events.filter(({ agent_id }) => agent_id === 'agent-7').map(({ event }) => event)).toEqual([
      'SandboxState',
      'PolicyDecision',
      'Exec',
      'SandboxState',
    ])
  })

  test('a refusal of usage makes none', async () => {
    await ringfence(['run', '--fast'], { env: { RINGFENCE_HOME: at('never') } })
    expect(existsSync(at('never'))).toBe(false)
  })

  test('it cannot be granted to a command', async () => {
    const ran = await ringfence(['run', '--write', at('state'), ...MARK])
    expect([errorOf(ran), ran.code]).toEqual(['forbidden-host-path', 126])
  })
})

describe('help', () => {
  test.each([['--help'], ['help'], ['run', '--help'], ['check', '-h'], ['audit', '--help']])(
    '%j %j',
    async (...args) => {
      const ran = await ringfence(args.filter((word) => word !== undefined))
      expect([ran.code, ran.stderr]).toEqual([0, ''])
      expect(ran.stdout).toMatch(/ringfence/)
      expect(ran.stdout).toMatch(/example/i)
    },
  )

  test('`--help` behind `--` is the command’s', async () => {
    expect((await ringfence(['run', '--', 'basename', '--', '--help'])).stdout).toBe('--help\n')
    expect((await ringfence(['run', 'ls', '--help'])).stdout).toContain('Usage: ls')
    expect((await ringfence(['run', '--help'])).stdout).toContain('usage: ringfence run')
  })
})
