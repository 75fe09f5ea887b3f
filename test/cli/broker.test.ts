import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { BrokerKit, LEFT_TO_NODE, type Ran, until } from './broker-kit.ts'

/** The native front with a broker gives the same results as Node. */

const kit = new BrokerKit()
beforeAll(() => kit.start())
afterAll(() => kit.remove())

const CALL = JSON.stringify({
  session_id: 's',
  hook_event_name: 'PreToolUse',
  tool_name: 'Bash',
  tool_input: { command: 'git push' },
  cwd: kit.workspace,
})

/** What differs between any two runs. */
const stable = ({ code, stdout, stderr }: Ran): Ran => ({
  code,
  stdout: stdout.replace(/\b(sb|ex)_[0-9a-f]{20}\b/g, '$1').replace(/"duration_ms":[\d.]+/g, ''),
  stderr,
})

describe('the broker and Node give the same results', () => {
  test.each<[string, readonly string[], string?]>([
    ['check command', ['check', 'command', 'git push origin main']],
    ['check command, as JSON', ['--json', 'check', 'command', 'rm -rf /']],
    ['check path', ['check', 'path', '/etc/passwd', '--op', 'read']],
    ['check behind a plan', ['check', 'command', '--behind', 'rm -rf src']],
    ['an unknown flag', ['check', 'command', '--fast', 'ls']],
    ['hook', ['hook', 'claude-code'], CALL],
    ['a hook that cannot read its input', ['hook', 'codex'], '{'],
    ['a hook with too much input', ['hook', 'codex'], 'x'.repeat(17 * 1024 * 1024)],
    ['an unknown agent', ['hook', 'nobody'], CALL],
    ['run', ['run', '--', 'sh', '-c', 'cat; echo out; echo err >&2; exit 7'], 'some input'],
    ['run that is killed', ['run', '-c', 'kill -9 $$']],
    ['run, as JSON', ['run', '--json', '--', 'sh', '-c', 'cat; echo err >&2; exit 3'], 'some input'],
    ['run with a time limit', ['run', '--timeout', '300ms', '--', 'sleep', '30']],
    ['run with an output limit', ['run', '--output', '10', '--', 'seq', '100000']],
    ['run with limits of a cgroup', ['run', '--pids', '20', '--memory', '64', '--', 'true']],
    ['run with much output that is watched', ['run', '--idle', '20', '--', 'seq', '300000']],
    ['run of a missing program', ['run', '--', 'no-such-program']],
    ['run with a variable', ['run', '-e', 'A=1', '--', 'sh', '-c', 'echo "$A$HOME$PATH"']],
  ])('for %s', (_, args, input = '') => {
    const byBroker = kit.withoutNode(() => kit.run(args, { input }))
    const byNode = kit.run(args, { input, env: { RINGFENCE_BROKER: '0' } })
    expect(stable(byBroker)).toEqual(stable(byNode))
  })

  test.each<[string, readonly string[]]>([
    ['a plan that is refused', ['run', '--workspace', '/', '--', 'true']],
    ['run --explain', ['run', '--explain', '--', 'true']],
    ['help', ['run', '--help']],
    ['another backend', ['run', '--backend', 'native', '--', 'true']],
    ['no command', ['run']],
  ])('for requests that the broker leaves to Node: %s', (_, args) => {
    const isLeft = kit.withoutNode(() => kit.run(args)).stderr.includes(LEFT_TO_NODE)
    expect([isLeft, kit.run(args)]).toEqual([true, kit.run(args, { env: { RINGFENCE_BROKER: '0' } })])
  })

  test('and the command inherits the limits, umask, nice value and OOM score of the caller', () => {
    const script =
      'ulimit -a; ulimit -Ha; umask; nice; cat /proc/self/oom_score_adj; grep -E "^(Sig|Seccomp|NoNew|Cap)" /proc/self/status; ls -l /proc/self/fd | wc -l'
    const args = ['run', '--', 'bash', '-c', script]
    const before = ['nice', '-n', '5', 'bash', '-c', 'echo 500 > /proc/self/oom_score_adj; exec "$@"', '-']
    const byBroker = kit.withoutNode(() => kit.run(args, { before }))
    expect(byBroker.stdout).toContain('\n5\n500\n')
    expect(byBroker).toEqual(kit.run(args, { before, env: { RINGFENCE_BROKER: '0' } }))
  })

  test('and RINGFENCE_BROKER=0 and --no-broker bypass the broker', () => {
    for (const env of [
      { RINGFENCE_BROKER: '0' },
      { NODE_OPTIONS: '--no-warnings' },
      { HOME: '/' },
      { TMPDIR: '/var/tmp' },
    ])
      expect(kit.isServed({ env })).toBe(false)
    const flagged = kit.withoutNode(() => kit.run(['check', '--no-broker', 'command', 'true']))
    expect(flagged.stderr).toContain(LEFT_TO_NODE)
    expect(kit.run(['check', '--no-broker', 'command', 'true']).code).toBe(0)
  })

  test('and both write the same audit records', () => {
    const records = (env: Record<string, string>): unknown[] => {
      const before = kit.run(['audit', 'tail', '--json', '-n', '1000']).stdout.trim().split('\n').length
      kit.run(['run', '--', 'sh', '-c', 'exit 4'], { env })
      kit.run(['hook', 'claude-code'], { input: CALL, env })
      const lines = kit.run(['audit', 'tail', '--json', '-n', '1000']).stdout.trim().split('\n').slice(before)
      return lines.map((line) =>
        Object.keys(JSON.parse(line) as object)
          .sort()
          .join(),
      )
    }
    const byBroker = records({})
    expect(byBroker.length).toBeGreaterThan(3)
    expect(byBroker).toEqual(records({ RINGFENCE_BROKER: '0' }))
    expect(kit.run(['audit', 'verify']).code).toBe(0)
  })
})

describe('requests to one broker', () => {
  test('keep their variables separate, and the broker stores none', () => {
    const secret = { A_TOKEN: 'only-here' }
    const args = ['run', '-e', 'A_TOKEN', '--', 'sh', '-c', 'echo $A_TOKEN']
    expect(kit.withoutNode(() => kit.run(args, { env: secret })).stdout).toBe('only-here\n')
    expect(kit.run(args)).toMatchObject({ code: 2, stdout: '' })
    expect(readFileSync(`/proc/${kit.pid}/environ`, 'utf8')).not.toContain('A_TOKEN')
  })

  test('read configuration and policy for each request', () => {
    const file = join(kit.workspace, 'rules.toml')
    const rule = (action: string): void =>
      writeFileSync(file, `[[policy.rule]]\nprefix = ["touch"]\naction = "${action}"\nwhy = "a test"\n`)
    const verdict = (): number | null =>
      kit.withoutNode(() => kit.run(['check', 'command', '--policy', 'rules.toml', 'touch x'])).code
    rule('deny')
    expect(verdict()).toBe(4)
    rule('allow')
    expect(verdict()).toBe(0)
    writeFileSync(file, '[policy\n')
    expect(verdict()).toBe(2)
  })

  test('keep the working directory of their caller', async () => {
    const other = join(kit.base, 'other')
    mkdirSync(other)
    const pwd = (cwd: string): string => kit.withoutNode(() => kit.run(['run', '--', 'pwd'], { cwd })).stdout
    expect([pwd(other), pwd(kit.workspace)]).toEqual([`${other}\n`, `${kit.workspace}\n`])
  })

  test('of two state directories go to two brokers', async () => {
    const second = new BrokerKit({ RINGFENCE_HOME: join(kit.base, 'second') })
    mkdirSync(join(kit.base, 'second'), { mode: 0o700 })
    try {
      // Not the broker of the first kit, which is another package.
      expect(second.withoutNode(() => second.run(['check', 'command', 'true'])).code).not.toBe(0)
      expect(kit.isServed()).toBe(true)
    } finally {
      second.remove()
    }
  })

  test('run in parallel', async () => {
    const count = process.env.RINGFENCE_FULL ? 50 : 12
    const one = (n: number): Promise<[number | null, string]> => {
      const child = kit.spawn(
        n % 2
          ? ['run', '-e', `N=${n}`, '--', 'sh', '-c', `echo $N; exit ${n}`]
          : ['check', 'command', `echo ${n}`],
      )
      let said = ''
      child.stdout.on('data', (chunk) => {
        said += chunk
      })
      child.stdin.end()
      return new Promise((resolve) => child.on('close', (code) => resolve([code, said])))
    }
    const all = await Promise.all(Array.from({ length: count }, (_, n) => one(n)))
    for (const [n, [code, said]] of all.entries()) {
      expect(code).toBe(n % 2 ? n : 0)
      expect(said).toContain(n % 2 ? `${n}\n` : `echo ${n}`)
    }
  }, 120_000)

  test('leave no descriptor open in the broker', async () => {
    const open = (): number => readdirSync(`/proc/${kit.pid}/fd`).length
    kit.run(['run', '--json', '--', 'true'])
    const before = open()
    for (let n = 0; n < 5; n++) kit.run(['run', '--json', '--', 'true'])
    await until('all are closed', () => open() <= before)
  })
})

describe('failures during a request', () => {
  test('killing the front ends its command, and the broker keeps running', async () => {
    const mark = `${process.pid}.4242`
    const child = kit.spawn(['run', '--', 'sh', '-c', `echo up; sleep 1${mark}`])
    await new Promise((resolve) => child.stdout.once('data', resolve))
    const isRunning = (): boolean => spawnSync('pgrep', ['-f', `sleep 1${mark}`]).status === 0
    expect(isRunning()).toBe(true)
    child.kill('SIGKILL')
    await until('the command has ended', () => !isRunning())
    expect(kit.isServed()).toBe(true)
  })

  test('a signal to the front reaches the command', async () => {
    const child = kit.spawn([
      'run',
      '--',
      'sh',
      '-c',
      'trap "echo got; exit 9" INT; echo up; while :; do sleep 0.05; done',
    ])
    let said = ''
    child.stdout.on('data', (chunk) => {
      said += chunk
      if (said === 'up\n') child.kill('SIGINT')
    })
    const code = await new Promise((resolve) => child.on('close', resolve))
    expect([code, said]).toEqual([9, 'up\ngot\n'])
  })

  test('killing the broker ends the command with an error, and a hook does not allow it', async () => {
    const own = new BrokerKit()
    try {
      await own.start()
      const hook = own.spawn(['hook', 'claude-code'])
      hook.stdin.write('{')
      const mark = `${process.pid}.2424`
      const running = own.spawn(['run', '--', 'sh', '-c', `echo up; sleep 1${mark}`])
      const ends = [hook, running].map((child) => new Promise((resolve) => child.on('close', resolve)))
      await new Promise((resolve) => running.stdout.once('data', resolve))
      process.kill(own.pid, 'SIGKILL')
      expect(await Promise.all(ends)).toEqual([2, 125])
      expect(hook.stdout.read()).toBe(null)
      await until('the command has ended', () => spawnSync('pgrep', ['-f', `sleep 1${mark}`]).status !== 0)
      expect(own.run(['run', '--', 'echo', 'again'])).toMatchObject({ code: 0, stdout: 'again\n' })
    } finally {
      own.remove()
    }
  })

  test('a hanging broker is skipped', () => {
    process.kill(kit.pid, 'SIGSTOP')
    try {
      expect(kit.run(['run', '--', 'echo', 'done'])).toMatchObject({ code: 0, stdout: 'done\n' })
    } finally {
      process.kill(kit.pid, 'SIGCONT')
    }
  })

  test('a broker exits after its idle time, and a request at that moment is still answered', async () => {
    const own = new BrokerKit({ RINGFENCE_BROKER_IDLE: '0.2' })
    try {
      await own.start()
      for (let n = 0; own.isAlive && n < 200; n++) {
        expect(own.run(['check', 'command', 'true']).code).toBe(0)
        execFileSync('sleep', [String(0.15 + (n % 10) / 100)])
      }
      expect([own.isAlive, existsSync(own.socket)]).toEqual([false, false])
    } finally {
      own.remove()
    }
  })

  test.runIf(process.env.RINGFENCE_FULL)('a broker exits when its directory is removed', async () => {
    const own = new BrokerKit()
    try {
      await own.start()
      const { pid } = own
      rmSync(own.state, { recursive: true })
      await until('it has ended', () => !existsSync(`/proc/${pid}`))
    } finally {
      own.remove()
    }
  })

  test('a broker does not serve another build, and exits', async () => {
    const own = new BrokerKit()
    try {
      await own.start()
      const main = join(own.base, 'package', 'dist', 'cli', 'main.cjs')
      writeFileSync(main, readFileSync(main))
      expect(own.isServed()).toBe(false)
      await until('the old broker has ended', () => !own.isAlive)
    } finally {
      own.remove()
    }
  })
})
