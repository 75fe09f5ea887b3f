import { spawn } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { verifyTrail } from '../../src/audit/verify.ts'
import * as ringfence from '../../src/index.ts'
import { until } from '../backends/persistent-sandbox.ts'
import { leftovers } from '../conformance/leftovers.ts'
import { packageRoot } from '../conformance/world.ts'

const { ExecPolicy, Sandbox, SandboxBuilder, wrap } = ringfence

let base: string
let workspace: string
let options: ringfence.ComposeOptions

beforeAll(() => {
  base = mkdtempSync(join(tmpdir(), 'rf-library-'))
  workspace = join(base, 'workspace')
  mkdirSync(workspace)
  options = {
    env: { HOME: join(base, 'home'), RINGFENCE_HOME: join(base, 'state'), PATH: process.env.PATH },
    cwd: workspace,
  }
})

afterAll(() => rmSync(base, { recursive: true, force: true }))

/** The command line of each process, as `ps` shows it; a process that exits meanwhile has none. */
function processList(): readonly string[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .map((pid) => {
      try {
        return readFileSync(`/proc/${pid}/cmdline`, 'latin1')
      } catch {
        return ''
      }
    })
}

const text = (output: Uint8Array | string): string => Buffer.from(output as Uint8Array).toString('utf8')

describe('Sandbox', () => {
  test('creates, runs commands, handles files and closes; the audit log verifies', async () => {
    await using sandbox = await Sandbox.create({ workspace, agentId: 'tester' }, options)
    const first = await sandbox.exec(['echo', 'hello'])
    expect(first.outcome).toEqual({ kind: 'exited', code: 0 })
    expect(text(first.stdout)).toBe('hello\n')
    expect(first.layers).toContain('seccomp')
    const line = await sandbox.exec('echo a > f && cat f | tr a b')
    expect(text(line.stdout)).toBe('b\n')
    await sandbox.files.write(join(workspace, 'g'), 'content')
    expect(text(await sandbox.files.read(join(workspace, 'g')))).toBe('content')
    expect(await sandbox.files.list(workspace)).toEqual(['f', 'g'])
    expect((await sandbox.files.stat(join(workspace, 'g'))).size).toBe(7)
    await sandbox.files.remove(join(workspace, 'g'))
    expect(existsSync(join(workspace, 'g'))).toBe(false)
    await expect(sandbox.files.read('/etc/shadow')).rejects.toMatchObject({ code: 'path-traversal' })
    await sandbox.close()
    await sandbox.close()
    await expect(sandbox.exec('true')).rejects.toMatchObject({ code: 'wrong-state' })
    expect(await verifyTrail(join(base, 'state'))).toMatchObject({ ok: true })
  })

  test('reports a violation in the result and, with the agent id, in the audit log', async () => {
    await using sandbox = await Sandbox.create({ workspace, agentId: 'curious' }, options)
    writeFileSync(join(workspace, 'try.sh'), 'mkdir .git\n')
    const { violations } = await sandbox.exec(['bash', 'try.sh'])
    expect(violations).toEqual([{ guarantee: 'fs.protect', details: `create ${join(workspace, '.git')}` }])
    const lines = readFileSync(join(base, 'state', 'trail', '000001.jsonl'), 'utf8')
    expect(lines).toContain('"event":"SandboxViolation"')
    expect(lines).toContain('"agent_id":"curious"')
  })

  test('streams output and stops on abort', async () => {
    await using sandbox = await Sandbox.create({ workspace }, options)
    const stop = new AbortController()
    const seen: string[] = []
    const done = sandbox.exec('echo first; sleep 20', {
      signal: stop.signal,
      output: (_, chunk) => {
        seen.push(text(chunk))
        stop.abort()
      },
    })
    await expect(done).rejects.toMatchObject({ name: 'AbortError' })
    expect(seen.join('')).toBe('first\n')
  })

  test('uses backend native only by name, and refuses limits that native cannot enforce', async () => {
    await using sandbox = await Sandbox.create({ workspace, backend: 'native' }, options)
    expect(sandbox.level).toBe('native')
    expect(text((await sandbox.exec(['echo', 'x'])).stdout)).toBe('x\n')
    await expect(
      Sandbox.create({ workspace, backend: 'native', limits: { memoryMb: 64 } }, options),
    ).rejects.toMatchObject({ code: 'missing-guarantee' })
  })

  test('opened by root on a workspace of another user runs as that user', async () => {
    if (process.getuid?.() !== 0) return
    const { chownSync, chmodSync } = await import('node:fs')
    const theirs = join(base, 'theirs')
    mkdirSync(theirs)
    chmodSync(base, 0o755)
    chownSync(theirs, 54321, 54321)
    await using sandbox = await Sandbox.create({ workspace: theirs }, options)
    const done = await sandbox.exec('id -u; echo x > mine')
    expect(text(done.stdout)).toBe('54321\n')
    expect(statSync(join(theirs, 'mine')).uid).toBe(54321)
  })

  test('leaves no processes, cgroups or files after many commands', { timeout: 900_000 }, async () => {
    const runs = process.env.RINGFENCE_FULL ? 10_000 : 200
    await using sandbox = await Sandbox.create({ workspace, limits: { pids: 64 } }, options)
    await sandbox.exec(['true'])
    const before = leftovers()
    for (let done = 0; done < runs; done += 4)
      await Promise.all([1, 2, 3, 4].map(() => sandbox.exec(['true'])))
    // Other tests run at the same time; our own leftovers must be gone within seconds.
    const more = () => Object.entries(leftovers()).filter(([name, count]) => count > (before[name] ?? 0))
    for (let tries = 0; tries < 60 && more().length > 0; tries++)
      await new Promise((resolve) => setTimeout(resolve, 250))
    expect(more()).toEqual([])
    if (process.env.RINGFENCE_FULL)
      console.log(`${runs} runs, before and after: ${JSON.stringify(before)} ${JSON.stringify(leftovers())}`)
  })
})

test('runs of the command line leave no processes, cgroups or files', { timeout: 600_000 }, async () => {
  const runs = process.env.RINGFENCE_FULL ? 500 : 6
  const cli = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
  const run = (): Promise<number | null> =>
    new Promise((resolve) => {
      const env = { ...process.env, RINGFENCE_HOME: join(base, 'state') }
      spawn(process.execPath, [cli, 'run', '--pids', '64', '--', 'true'], {
        cwd: workspace,
        env,
        stdio: 'ignore',
      }).on('close', resolve)
    })
  const before = leftovers()
  for (let done = 0; done < runs; done += 2) expect(await Promise.all([run(), run()])).toEqual([0, 0])
  const more = () => Object.entries(leftovers()).filter(([name, count]) => count > (before[name] ?? 0))
  for (let tries = 0; tries < 60 && more().length > 0; tries++)
    await new Promise((resolve) => setTimeout(resolve, 250))
  expect(more()).toEqual([])
  expect(readdirSync(workspace).filter((name) => name.startsWith('.'))).toEqual([])
  if (process.env.RINGFENCE_FULL)
    console.log(
      `${runs} command line runs, before and after: ${JSON.stringify(before)} ${JSON.stringify(leftovers())}`,
    )
})

/** Runs a wrapped command as a caller would. */
function start({
  command,
  args,
  env,
  cwd,
}: ringfence.Wrapped): Promise<{ code: number | null; out: string }> {
  return new Promise((resolve) => {
    const child = spawn(command, args, {
      env: env as NodeJS.ProcessEnv,
      cwd,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    let out = ''
    child.stdout.on('data', (chunk) => (out += chunk))
    child.stderr.on('data', (chunk) => (out += chunk))
    child.on('close', (code) => resolve({ code, out }))
  })
}

describe('wrap and SandboxBuilder', () => {
  test('let the caller start the process and get its exit code', async () => {
    const wrapped = await wrap({ workspace }, ['bash', '-c', 'id -u; exit 7'], options)
    const { code } = await start(wrapped)
    await wrapped.dispose()
    expect(code).toBe(7)
  })

  test('prevent writing outside the grants, also from a child shell', async () => {
    const outside = join(base, 'outside')
    mkdirSync(outside)
    const script = join(workspace, 'w.sh')
    writeFileSync(script, `bash -c 'bash -c "echo x > ${outside}/f"'\n`)
    const wrapped = await new SandboxBuilder(undefined, options)
      .withReadPaths('/usr')
      .withWritePaths(workspace)
      .withNetwork('deny')
      .wrap(['bash', script])
    expect((await start(wrapped)).code).not.toBe(0)
    expect(existsSync(join(outside, 'f'))).toBe(false)
    expect((await start({ ...wrapped, command: '/bin/bash', args: [script], env: {}, cwd: '/' })).code).toBe(
      0,
    )
    expect(existsSync(join(outside, 'f'))).toBe(true)
  })

  test('refuse limits that a wrapped command cannot enforce', async () => {
    for (const limits of [{ wallMs: 10 }, { idleMs: 10 }, { outputBytes: 10 }])
      await expect(wrap({ workspace, limits }, ['true'], options)).rejects.toMatchObject({
        code: 'unsupported',
      })
    await expect(Sandbox.create({ workspace, template: 'x' }, options)).rejects.toMatchObject({
      code: 'unsupported',
    })
    const network = { mode: 'offline', allowHosts: ['example.com'] } as const
    await expect(Sandbox.create({ workspace, network }, options)).rejects.toMatchObject({
      code: 'invalid-input',
    })
  })

  test('leave the command unchanged with backend native', async () => {
    const wrapped = await new SandboxBuilder('native', options).wrap(['echo', 'a b'])
    expect([wrapped.command, ...wrapped.args]).toEqual(['echo', 'a b'])
  })

  test('refuse a second use, double wrapping, empty and relative paths', async () => {
    const builder = new SandboxBuilder(undefined, options)
    const wrapped = await builder.wrap(['true'])
    await expect(builder.wrap(['true'])).rejects.toMatchObject({ code: 'already-wrapped' })
    await expect(wrap({}, [wrapped.command, ...wrapped.args], options)).rejects.toMatchObject({
      code: 'already-wrapped',
    })
    await expect(
      new SandboxBuilder(undefined, options).withReadPaths('').wrap(['true']),
    ).rejects.toMatchObject({ code: 'invalid-input' })
    await expect(
      new SandboxBuilder(undefined, options).withReadPaths('etc').wrap(['true']),
    ).rejects.toMatchObject({ code: 'path-not-absolute' })
  })

  test('show no secret and no command text in the process list', async () => {
    const wrapped = await wrap({ workspace, env: { TOKEN: 'hunter2' } }, ['sleep', '1.25'], options)
    const child = spawn(wrapped.command, wrapped.args, {
      env: wrapped.env as NodeJS.ProcessEnv,
      cwd: wrapped.cwd,
      stdio: 'ignore',
    })
    // Wait for the command itself: by then every process of the sandbox exists.
    await until(() => processList().some((line) => line.startsWith('sleep\u00001.25')))
    const bwrap = processList().filter((line) => line.startsWith('ringfence-bwrap'))
    expect(bwrap.length).toBeGreaterThan(0)
    expect(bwrap.join('\n')).not.toMatch(/hunter2|sleep/)
    child.kill('SIGKILL')
  })
})

describe('network mode fetch', () => {
  test('limits requested hosts to the operator’s list, on create and later', async () => {
    const config = join(workspace, '..', 'hosts.toml')
    writeFileSync(config, '[network]\nallow_hosts = ["*.example.com"]\n')
    const bounded = { ...options, config }
    const ask = (hosts: readonly string[]) =>
      Sandbox.create({ workspace, network: { allowHosts: hosts } }, bounded)
    await expect(ask(['example.org'])).rejects.toMatchObject({ code: 'ssrf-blocked' })
    await using sandbox = await ask(['a.example.com'])
    await sandbox.setAllowHosts(['b.example.com'])
    await expect(sandbox.setAllowHosts(['example.org'])).rejects.toMatchObject({ code: 'ssrf-blocked' })
    await expect(sandbox.setAllowHosts(['*'])).rejects.toMatchObject({ code: 'ssrf-blocked' })
  })

  test('cannot be enabled later for a sandbox without network', async () => {
    await using sandbox = await Sandbox.create({ workspace }, options)
    await expect(sandbox.setAllowHosts(['example.com'])).rejects.toMatchObject({ code: 'wrong-state' })
  })
})

describe('aliases for other sandbox libraries', () => {
  test('sandboxExecute and executeStreaming run commands', async () => {
    const done = await ringfence.sandboxExecute('echo out; exit 3', { workDir: workspace, compose: options })
    expect(done).toMatchObject({ success: false, exitCode: 3, output: 'out\n' })
    const refused = await ringfence.sandboxExecute('rm -rf /', { workDir: workspace, compose: options })
    expect(refused).toMatchObject({ success: false, exitCode: 126 })
    const events = []
    for await (const event of ringfence.executeStreaming('echo a; echo b >&2', {
      workDir: workspace,
      compose: options,
    }))
      events.push(event.type)
    expect(events).toContain('stdout')
    expect(events.at(-1)).toBe('end')
  })

  test('ExecPolicy evaluates, adds, saves and loads rules', () => {
    const context = { workspace, home: join(base, 'home') }
    const policy = new ExecPolicy({}, context)
    expect(policy.evaluate('ls -la').action).toBe('allow')
    expect(policy.evaluate('rm -rf /').action).toBe('deny')
    policy.addPrefixRule(['git', 'push'], 'deny', 'not from here')
    const file = join(base, 'policy.json')
    policy.save(file)
    expect(statSync(file).mode & 0o777).toBe(0o600)
    expect(ExecPolicy.load(file, context).evaluate('git push origin main').action).toBe('deny')
    expect(() => policy.addPrefixRule(['bash'], 'allow')).toThrow()
  })

  test('sanitizeEnvVars, parseBashCommand and isDangerousCommand work', () => {
    const kept = ringfence.sanitizeEnvVars({
      PATH: '/bin',
      HOME: '/h',
      TERM: 'x',
      LANG: 'C',
      NODE_ENV: 'test',
      LD_PRELOAD: 'x',
      GIT_SSH: 'x',
      npm_config_x: 'y',
      OPENAI_API_KEY: 'k',
      NODE_OPTIONS: 'x',
    })
    expect(Object.keys(kept)).toEqual(expect.arrayContaining(['PATH', 'HOME', 'TERM', 'LANG', 'NODE_ENV']))
    for (const name of ['LD_PRELOAD', 'GIT_SSH', 'npm_config_x', 'OPENAI_API_KEY', 'NODE_OPTIONS'])
      expect(kept).not.toHaveProperty(name)
    expect(ringfence.parseBashCommand('ls | wc -l && echo $(id)').map(({ command }) => command)).toEqual(
      expect.arrayContaining(['ls', 'wc', 'echo', 'id']),
    )
    expect(ringfence.isDangerousCommand('rm -fr /')).toBe(true)
    expect(ringfence.isDangerousCommand('ls')).toBe(false)
  })

  test('createSandboxConfigForMode maps the three modes', () => {
    expect(ringfence.createSandboxConfigForMode('read-only', '/w')).toEqual({
      preset: 'read-only',
      workspace: '/w',
      network: { mode: 'offline' },
    })
    expect(ringfence.createSandboxConfigForMode('danger-full-access', '/w').network).toEqual({ mode: 'full' })
  })
})
