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

/** The built command line from a user's view: exit codes, error format, and that a refused command does not run. */

const isRoot = process.getuid?.() === 0
const ORDINARY = 54321
const base = mkdtempSync(join(tmpdir(), 'rf-cli-'))
const at = (...parts: readonly string[]): string => join(base, ...parts)
const workspace = at('ws')
const home = at('home')
const marker = at('ws', 'marker')

beforeAll(() => {
  const root = packageRoot()
  const { bin } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    bin: { ringfence: string }
  }
  if (!existsSync(join(root, bin.ringfence))) throw new Error('the command line is not built: npm run build')
  // A copy: readable by any user, and not rebuilt during a test.
  for (const part of ['package.json', 'dist/cli', 'dist/guest'])
    cpSync(join(root, part), at('package', part), { recursive: true })
  for (const dir of [workspace, home, at('state'), at('closed')]) mkdirSync(dir)
  symlinkSync(workspace, at('link'))
  for (const dir of [base, workspace]) chmodSync(dir, 0o755)
  chmodSync(at('closed'), 0o700)
  for (const [name, text] of Object.entries(FILES)) writeFileSync(at(name), text)
})
afterAll(() => {
  rmSync(base, { recursive: true, force: true, maxRetries: 5 })
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

/** Runs the CLI. `before`: a command prefix that changes the user or the mount namespace. */
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

/** Creates a file in the workspace, which shows that the command ran. */
const MARK = ['--', 'touch', 'marker']

describe('exit code 2 for wrong usage and invalid input', () => {
  test.each<[string, readonly string[], string]>([
    ['an unknown flag', ['run', '--fast', ...MARK], 'invalid-input'],
    ['a flag without its value', ['run', '--workspace'], 'invalid-input'],
    ['an unknown command', ['fly'], 'invalid-input'],
    ['a name inherited from Object', ['constructor'], 'invalid-input'],
    ['run without a command', ['run'], 'no-command'],
    ['run without arguments after `--`', ['run', '--'], 'no-command'],
    ['run with an empty line', ['run', '-c', ' '], 'no-command'],
    ['a line and a program', ['run', '-c', 'touch marker', ...MARK], 'invalid-input'],
    ['a relative mount', ['run', '--mount', 'ws:/data', ...MARK], 'path-not-absolute'],
    ['a relative path to read', ['run', '--read', 'ws', ...MARK], 'path-not-absolute'],
    ['a missing workspace', ['run', '--workspace', at('nothing'), ...MARK], 'invalid-input'],
    ['a mount without target', ['run', '--mount', '/data', ...MARK], 'invalid-input'],
    ['an unknown preset', ['run', '--preset', 'open', ...MARK], 'invalid-input'],
    ['an unknown network', ['run', '--network', 'some', ...MARK], 'invalid-input'],
    ['an unknown guarantee', ['run', '--waive', 'fs.all', ...MARK], 'invalid-input'],
    ['zero memory', ['run', '--memory', '0', ...MARK], 'invalid-input'],
    ['a negative timeout', ['run', '--timeout', '-1', ...MARK], 'invalid-input'],
    ['a number in scientific notation', ['run', '--pids', '1e3', ...MARK], 'invalid-input'],
    ['a number that overflows', ['run', '--disk', '9'.repeat(400), ...MARK], 'invalid-input'],
    ['an unset variable', ['run', '--env', 'NOT_THERE', ...MARK], 'invalid-input'],
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
    ['a missing configuration file', ['run', '--config', 'missing.toml', ...MARK], 'invalid-config'],
    ['a policy with a failing `match` example', ['run', '--policy', 'lying.toml', ...MARK], 'invalid-config'],
    [
      'a policy with a failing `not_match` example',
      ['run', '--policy', 'lying-too.toml', ...MARK],
      'invalid-config',
    ],
    ['validating a policy with a failing example', ['policy', 'validate', 'lying.toml'], 'invalid-config'],
    ['policy without a subcommand', ['policy'], 'invalid-input'],
    ['check without a subcommand', ['check'], 'invalid-input'],
  ])('%s', async (_, args, code) => {
    const ran = await ringfence(args.map((word) => (/^[\w-]+\.(toml|json)$/.test(word) ? at(word) : word)))
    expect([errorOf(ran), ran.code]).toEqual([code, 2])
    expect(existsSync(marker)).toBe(false)
  })

  test('without arguments, and prints the help', async () => {
    const ran = await ringfence([])
    expect(ran.code).toBe(2)
    expect(ran.stdout).toMatch(/usage: ringfence/)
  })

  test('keeps the error on one line for input with control characters', async () => {
    expect(errorOf(await ringfence(['run', '--preset', 'a\nb\x1b[31m', ...MARK]))).toBe('invalid-input')
  })
})

describe('exit code 126 for denied requests', () => {
  test.each<[string, readonly string[], string]>([
    ['a mount of `/`', ['run', '--mount', '/:/data', ...MARK], 'forbidden-host-path'],
    ['`/` as workspace', ['run', '--workspace', '/', ...MARK], 'forbidden-host-path'],
    ['a symlinked mount', ['run', '--mount', `${at('link')}:/data`, ...MARK], 'forbidden-host-path'],
    ['a symlinked workspace', ['run', '--workspace', at('link'), ...MARK], 'forbidden-host-path'],
    ['the home directory', ['run', '--workspace', home, ...MARK], 'forbidden-host-path'],
    ['a mount over the programs', ['run', '--mount', `${workspace}:/usr`, ...MARK], 'forbidden-host-path'],
    [
      'a workspace outside the allowed prefixes',
      ['run', '--policy', at('prefixes.toml'), ...MARK],
      'forbidden-host-path',
    ],
    [
      'more memory than the policy allows',
      ['run', '--policy', at('limits.toml'), '--memory', '65', ...MARK],
      'resource-limit-exceeded',
    ],
    [
      'a network mode that the policy forbids',
      ['run', '--policy', at('limits.toml'), '--network', 'full', ...MARK],
      'invalid-network-mode',
    ],
    [
      'a forbidden command',
      ['run', '--policy', at('rules.toml'), '--', 'touch', 'denied'],
      'forbidden-command',
    ],
    [
      'a forbidden command in a shell line, with --yes',
      ['run', '--policy', at('rules.toml'), '--yes', '-c', 'true && touch denied'],
      'forbidden-command',
    ],
    ['a command that needs approval', ['run', '--policy', at('rules.toml'), ...MARK], 'approval-required'],
    [
      'a command that needs approval, through auto',
      ['auto', '--policy', at('rules.toml'), '-c', 'touch marker'],
      'approval-required',
    ],
  ])('%s', async (_, args, code) => {
    const ran = await ringfence(args)
    expect([errorOf(ran), ran.code]).toEqual([code, 126])
    expect([marker, at('ws', 'denied')].filter((path) => existsSync(path))).toEqual([])
  })

  test('--yes approves a command that needs approval', async () => {
    const ran = await ringfence(['run', '--policy', at('rules.toml'), '--yes', ...MARK])
    expect(ran).toEqual({ code: 0, stdout: '', stderr: '' })
    expect(existsSync(marker)).toBe(true)
  })
})

describe('exit code 125 if Ringfence cannot run the command', () => {
  test.each<[string, readonly string[], string, RegExp]>([
    [
      'an image on a backend without images',
      ['run', '--backend', 'bubblewrap', '--image', 'debian', ...MARK],
      'unsupported',
      /debian/,
    ],
    ['a virtual machine', ['run', '--min-isolation', 'microvm', ...MARK], 'backend-unavailable', /microvm/],
    ['an unavailable backend', ['run', '--backend', 'docker', ...MARK], 'backend-unavailable', /docker/],
    [
      'a memory limit on backend native',
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

  test.runIf(isRoot)('user namespaces disabled', async () => {
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

  test.runIf(isRoot)('an unreadable workspace of an unprivileged user', async () => {
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

  test.runIf(isRoot)('a full disk under the audit log', async () => {
    const full = at('full')
    mkdirSync(full)
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k,mode=700', 'tmpfs', full])
    try {
      try {
        writeFileSync(join(full, 'ballast'), Buffer.alloc(1024 * 1024))
      } catch {
        // The disk is full now.
      }
      const ran = await ringfence(['run', ...MARK], { env: { RINGFENCE_HOME: full } })
      expect([errorOf(ran), ran.code]).toEqual(['trail-unwritable', 125])
      expect(existsSync(marker)).toBe(false)
    } finally {
      // A broker may still have its directory there.
      execFileSync('umount', ['-l', full])
    }
  })

  test.runIf(isRoot && existsSync('/usr/bin/bwrap'))(
    'missing bubblewrap, with a hint how to install it',
    async () => {
      writeFileSync(at('empty'), '')
      const before = [
        'unshare',
        '-m',
        'sh',
        '-c',
        'mount --bind "$0" /usr/bin/bwrap && exec "$@"',
        at('empty'),
      ]
      const ran = await ringfence(['run', ...MARK], { before })
      expect([errorOf(ran), ran.code]).toEqual(['backend-unavailable', 125])
      expect(ran.stderr).toContain('hint: apt-get install bubblewrap')
      expect(existsSync(marker)).toBe(false)
      const doctor = await ringfence(['doctor', '--json'], { before })
      const { backends } = JSON.parse(doctor.stdout) as {
        backends: { name: string; level: string; available: boolean; fix: string | null }[]
      }
      // Another backend may be available.
      expect(doctor.code).toBe(backends.some((one) => one.available && one.level !== 'native') ? 0 : 125)
      expect(backends.find(({ name }) => name === 'bubblewrap')).toMatchObject({
        available: false,
        fix: 'apt-get install bubblewrap',
      })
    },
  )
})

describe('exit code and output of a command', () => {
  test.each<[string, readonly string[], number]>([
    ['exit 0', ['-c', 'exit 0'], 0],
    ['another exit code', ['-c', 'exit 77'], 77],
    ['an exit code that Ringfence uses too', ['-c', 'exit 125'], 125],
    ['a signal', ['--yes', '-c', 'kill -TERM $$'], 128 + 15],
    ['no such program', ['--', 'no-such-program'], 127],
    ['a program that cannot be run', ['--', '/etc/passwd'], 126],
    ['the time limit', ['--timeout', '0.3', '--', 'sleep', '60'], 124],
    ['the idle limit', ['--idle', '0.3', '--', 'sleep', '60'], 124],
    ['the output limit', ['--output', '1000', '--', 'yes'], 124],
  ])('%s', async (_, args, code) => {
    expect((await ringfence(['run', ...args])).code).toBe(code)
  })

  test('says which limit stopped the command', async () => {
    const fill = 'import time; x=b"x"*(200<<20); time.sleep(60)'
    const { code, stderr } = await ringfence(['run', '--memory', '64', '--', 'python3', '-c', fill])
    expect(code).toBe(124)
    expect(stderr).toContain('ringfence: stopped at its limit of 64 MB of memory (--memory)\n')
  })

  test('stdout and stderr pass through, up to the output limit', async () => {
    expect(await ringfence(['run', '-c', 'echo out; echo err >&2'])).toEqual({
      code: 0,
      stdout: 'out\n',
      stderr: 'err\n',
    })
    expect((await ringfence(['run', '--output', '1000', '--', 'yes'])).stdout.length).toBe(1000)
  })

  const echo = (word: string): Promise<Ran> => ringfence(['run', '--', 'echo', word, '7'])

  test.each(['init', 'bind', 'arg', '--'])(
    'an argument equal to a launcher word is passed unchanged: %s',
    async (word) => {
      expect(await echo(word)).toEqual({ code: 0, stdout: `${word} 7\n`, stderr: '' })
    },
  )

  test('an argument equal to the launcher word `control` is passed unchanged', async () => {
    expect(await echo('control')).toEqual({ code: 0, stdout: 'control 7\n', stderr: '' })
  })

  test('--json prints outcome, output, violations and decision', async () => {
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

describe('protected names of a workspace', () => {
  const script =
    'for name in .git/config .git/hooks/pre-push .envrc; do echo x >> $name && echo "wrote $name"; done; echo x > free\n'

  test.each(['/var/tmp', '/tmp'])('below %s cannot be written', async (parent) => {
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
  ])('%j prints one JSON error with code, message and hint', async (args, exit, code) => {
    const ran = await ringfence(args)
    expect([ran.code, ran.stdout]).toEqual([exit, ''])
    const { error, ...rest } = JSON.parse(ran.stderr) as { error: Record<string, string> }
    expect(rest).toEqual({})
    expect(Object.keys(error)).toEqual(['code', 'message', 'hint'])
    expect(error.code).toBe(code)
  })

  test('--json after `--` belongs to the command', async () => {
    const ran = await ringfence(['run', '--backend', 'bubblewrap', '--image', 'debian', '--', 'x', '--json'])
    expect(errorOf(ran)).toBe('unsupported')
  })
})

describe('--explain', () => {
  test('prints the plan and runs nothing', async () => {
    const ran = await ringfence(['run', '--explain', '--read', '/opt', '--timeout', '5', ...MARK])
    expect([ran.code, ran.stderr]).toEqual([0, ''])
    for (const words of ['touch marker', 'bubblewrap (os)', workspace, '/opt', '5 s', 'git hooks'])
      expect(ran.stdout).toContain(words)
    expect(existsSync(marker)).toBe(false)
  })

  test('--json prints the plan as JSON', async () => {
    const ran = await ringfence(['run', '--explain', '--json', ...MARK])
    const { plan, backend } = JSON.parse(ran.stdout) as {
      plan: { mounts: { target: string; mode: string }[] }
      backend: string
    }
    expect(backend).toBe('bubblewrap')
    expect(plan.mounts).toMatchObject([{ target: workspace, mode: 'rw' }])
    expect(existsSync(marker)).toBe(false)
  })

  test('refuses what `run` refuses', async () => {
    const ran = await ringfence(['run', '--explain', '--workspace', '/', ...MARK])
    expect([errorOf(ran), ran.code]).toEqual(['forbidden-host-path', 126])
  })
})

describe('the state directory', () => {
  test('is private, and each run is recorded', async () => {
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

  test('is not created by a usage error', async () => {
    await ringfence(['run', '--fast'], { env: { RINGFENCE_HOME: at('never') } })
    expect(existsSync(at('never'))).toBe(false)
  })

  test('cannot be granted to a command', async () => {
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

  test('`--help` after the command belongs to the command', async () => {
    expect((await ringfence(['run', '--', 'basename', '--', '--help'])).stdout).toBe('--help\n')
    expect((await ringfence(['run', 'ls', '--help'])).stdout).toContain('Usage: ls')
    expect((await ringfence(['run', '--help'])).stdout).toContain('usage: ringfence run')
  })
})
