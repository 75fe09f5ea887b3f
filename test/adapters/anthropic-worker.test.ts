import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { FakeEnvironment, FakeSession } from './anthropic-environment.ts'
import { full, installed } from './sdk.ts'

/** `ringfence worker anthropic` with the real SDK, on an environment that the tests play. */

const base = mkdtempSync(join(tmpdir(), 'rf-worker-'))
const work = join(base, 'work')
const environment = new FakeEnvironment()
let url = ''
let worker: ChildProcess
let log = ''

function start(...args: string[]): ChildProcess {
  const cli = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
  const child = spawn(
    process.execPath,
    [cli, 'worker', 'anthropic', '--environment', 'env_test', '--workspace', work, ...args],
    {
      env: {
        HOME: base,
        PATH: process.env.PATH,
        RINGFENCE_HOME: join(base, 'state'),
        ANTHROPIC_ENVIRONMENT_KEY: 'environment-key-7d2',
        ANTHROPIC_BASE_URL: url,
        NODE_PATH: join(packageRoot(), 'test', 'adapters', 'node_modules'),
        HOST_SECRET: 'of-the-host',
      },
      stdio: ['ignore', 'ignore', 'pipe'],
    },
  )
  child.stderr?.on('data', (chunk) => {
    log += chunk
  })
  return child
}

beforeAll(async () => {
  installed()
  mkdirSync(work)
  writeFileSync(join(base, 'private.txt'), 'not for agents')
  url = await environment.listen()
  worker = start('--sessions', '3')
}, 120_000)
afterAll(() => {
  worker.kill('SIGKILL')
  environment.close()
  rmSync(base, { recursive: true, force: true })
})

const bash = (command: string, more: object = {}) => ({ name: 'bash', input: { command, ...more } })
const over = (session: FakeSession, timeout = 30_000) =>
  expect.poll(() => session.isOver, { timeout }).toBe(true)

describe('an Anthropic session', () => {
  test('runs its tools in its own sandbox, checked by the policy', async () => {
    const one = environment.hand(
      new FakeSession('sess_one', [
        bash('echo made > made.txt; cd /tmp; pwd'),
        bash('pwd'),
        { name: 'read', input: { file_path: 'made.txt' } },
        { name: 'write', input: { file_path: 'a/b.txt', content: 'one\ntwo\n' } },
        { name: 'edit', input: { file_path: 'a/b.txt', old_string: 'two', new_string: 'three' } },
        { name: 'glob', input: { pattern: '**/*.txt' } },
        { name: 'grep', input: { pattern: 'thr' } },
        bash(`cat ${base}/private.txt`),
        bash(`echo code > ${work}/sess_one/.git/hooks/pre-commit`),
        { name: 'write', input: { file_path: '.envrc', content: 'x' } },
        bash('git reset --hard'),
        bash('env'),
      ]),
    )
    await over(one, 60_000)
    expect(one.text(0)).toContain('/tmp')
    expect(one.text(1)).toContain('/tmp')
    expect(one.text(2)).toContain('made')
    expect(readFileSync(join(work, 'sess_one', 'a', 'b.txt'), 'utf8')).toBe('one\nthree\n')
    expect(one.text(5)).toMatch(/a\/b\.txt/)
    expect(one.text(6)).toContain('three')
    expect(one.text(7)).not.toContain('not for agents')
    expect(one.text(8)).toMatch(/forbidden-command/)
    expect(one.text(9)).toMatch(/protected name/)
    expect(one.text(10)).toMatch(/approval-required/)
    expect(one.results.map(({ is_error }) => is_error).slice(8)).toEqual([true, true, true, false])
    expect(one.text(11)).not.toMatch(/of-the-host|environment-key/)
    expect(one.stopped).toBe(true)
    expect(one.heartbeats).toBeGreaterThan(0)
  }, 90_000)

  test('cannot weaken its sandbox with fields of the work item or of a tool call', async () => {
    const secret = Buffer.from(
      JSON.stringify({
        sessions_token: 'item-token',
        api_base_url: 'http://192.0.2.1/',
        roots: ['/'],
        sandbox: false,
      }),
    ).toString('base64url')
    const more = { secret, workdir: '/', unrestrictedPaths: true, env: { HOST_SECRET: 'x' }, tools: ['host'] }
    const two = environment.hand(
      new FakeSession(
        'sess_two',
        [
          bash('cat ../sess_one/made.txt; ls /root /home 2>&1'),
          bash('id', { sandbox: 'none', cwd: '/', allowedRoots: ['/'] }),
          { name: 'read', input: { file_path: '/etc/shadow' } },
          { name: 'read', input: { file_path: '../sess_one/made.txt' } },
          { name: 'write', input: { file_path: `${base}/escaped.txt`, content: 'x' } },
        ],
        more,
      ),
    )
    await over(two)
    expect(two.text(0)).not.toContain('made\n')
    expect(two.text(1)).toMatch(/invalid-input/)
    expect(two.text(2)).not.toContain('root:')
    expect(two.results.map(({ is_error }) => is_error)).toEqual([false, true, true, true, false])
    // It went to the sandbox's own /tmp.
    expect(existsSync(join(base, 'escaped.txt'))).toBe(false)
    expect([...two.tokens]).toEqual(['Bearer item-token'])
    expect([...environment.keys]).toEqual(['Bearer environment-key-7d2'])
  }, 60_000)

  test.each(full ? ['../../escape', 'a/b', '.hidden', 'x'.repeat(200)] : ['../../escape'])(
    'with the id `%s` is not served',
    async (id) => {
      const bad = environment.hand(new FakeSession(id, [bash('echo hello')]))
      await over(bad)
      expect(bad.results).toEqual([])
      await expect.poll(() => log).toContain('is not a session id')
      expect(existsSync(join(base, 'escape'))).toBe(false)
    },
    60_000,
  )

  test('continues after its stream is cut, and ends when it is stopped or its lease is lost', async () => {
    const cut = environment.hand(
      new FakeSession('sess_cut', [bash('sleep 1; echo after'), bash('echo more')]),
    )
    await expect.poll(() => cut.heartbeats, { timeout: 20_000 }).toBeGreaterThan(0)
    cut.cut()
    await over(cut)
    expect(cut.text(1)).toContain('more')
    const [stopped, taken] = ['sess_stop', 'sess_taken'].map((id) =>
      environment.hand(new FakeSession(id, [bash('echo $$ > pid; sleep 600')])),
    ) as [FakeSession, FakeSession]
    await expect.poll(() => existsSync(join(work, 'sess_taken', 'pid')), { timeout: 20_000 }).toBe(true)
    stopped.state = 'stopping'
    taken.state = 'taken'
    await over(stopped)
    await expect.poll(() => log, { timeout: 20_000 }).toContain('work work_sess_taken: the lease was lost')
    // A lost item belongs to another worker.
    expect(taken.stopped).toBe(false)
  }, 90_000)
})

test('the worker limits parallel sessions, renews their leases, and drains on SIGTERM', async () => {
  const many = Array.from({ length: 5 }, (_, n) =>
    environment.hand(new FakeSession(`sess_m${n}`, [bash('sleep 3; echo done')])),
  )
  await expect.poll(() => environment.waiting, { timeout: 20_000 }).toBe(2)
  await new Promise((resolve) => setTimeout(resolve, 1000))
  expect(environment.waiting, 'two wait while three run').toBe(2)
  const exit = new Promise((resolve) => worker.once('exit', resolve))
  worker.kill('SIGTERM')
  expect(await exit).toBe(0)
  expect(many.map(({ stopped }) => stopped)).toEqual([true, true, true, false, false])
  expect(many.slice(0, 3).map((session) => session.text(0))).toEqual(
    Array(3).fill(expect.stringContaining('done')),
  )
  expect(many[0]?.heartbeats).toBeGreaterThan(1)
}, 90_000)

test('the worker names a missing option, key or package', async () => {
  const cli = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
  const run = (env: object, ...args: string[]) =>
    new Promise<string>((resolve) => {
      const child = spawn(process.execPath, [cli, 'worker', ...args], {
        env: { HOME: base, PATH: process.env.PATH, ...env },
      })
      let said = ''
      child.stderr.on('data', (chunk) => {
        said += chunk
      })
      child.on('close', () => resolve(said))
    })
  expect(await run({}, 'anthropic')).toMatch(/--environment is missing/)
  expect(await run({}, 'anthropic', '--environment', 'e')).toMatch(/ANTHROPIC_ENVIRONMENT_KEY is not set/)
  expect(await run({ ANTHROPIC_ENVIRONMENT_KEY: 'k' }, 'anthropic', '--environment', 'e')).toMatch(
    /`@anthropic-ai\/sdk` is not installed beside ringfence/,
  )
})
