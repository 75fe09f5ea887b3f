import { spawn } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ComposeOptions, Sandbox, wrap } from '../../src/index.ts'
import { cli } from '../cli/program.ts'
import { freshWorkspace } from '../conformance/world.ts'

/** Every spec option that bubblewrap enforces, with real grants, tested from the outside. */

let base: string
let workspace: string
let options: ComposeOptions

beforeAll(() => {
  base = realpathSync(mkdtempSync(join(tmpdir(), 'rf-wall-')))
  workspace = join(base, 'workspace')
  mkdirSync(workspace)
  options = { env: { HOME: join(base, 'home'), RINGFENCE_HOME: join(base, 'state') }, cwd: workspace }
})

afterAll(() => rmSync(base, { recursive: true, force: true }))

const inBase = (name: string, content?: string): string => {
  const path = join(base, name)
  if (content === undefined) mkdirSync(path, { recursive: true })
  else writeFileSync(path, content)
  return path
}

async function run(
  spec: Record<string, unknown>,
  script: string,
): Promise<{ out: string; violations: readonly { guarantee: string }[] }> {
  await using sandbox = await Sandbox.create({ workspace, ...spec }, options)
  const file = join(workspace, 'script.sh')
  writeFileSync(file, script)
  const done = await sandbox.exec(['bash', file], { cwd: '/tmp' })
  return {
    out: Buffer.from(done.stdout).toString() + Buffer.from(done.stderr).toString(),
    violations: done.violations,
  }
}

describe('grants', () => {
  test('apply for reading, writing and mounting at another path, and the longest matching path wins', async () => {
    const data = inBase('data')
    writeFileSync(join(data, 'f'), 'data')
    const out = inBase('out')
    const inner = join(out, 'fixed')
    mkdirSync(inner)
    const script = `cat ${data}/f /elsewhere/f; echo x > ${data}/g; echo x > ${out}/g; echo x > ${inner}/g; ls ${inner}`
    const done = await run(
      { read: [data, inner], write: [out], mounts: [{ source: data, target: '/elsewhere', mode: 'ro' }] },
      script,
    )
    expect(done.out).toContain('datadata')
    expect(existsSync(join(data, 'g'))).toBe(false)
    expect(existsSync(join(out, 'g'))).toBe(true)
    expect(existsSync(join(inner, 'g'))).toBe(false)
  })

  test('exclude denied paths, and protected names such as .ssh at their top level', async () => {
    const hidden = join(workspace, 'hidden')
    mkdirSync(hidden, { recursive: true })
    writeFileSync(join(hidden, 'f'), 'canary-1')
    mkdirSync(join(workspace, '.ssh'), { recursive: true })
    writeFileSync(join(workspace, '.ssh', 'id_rsa'), 'canary-2')
    writeFileSync(join(workspace, 'plain'), 'canary-3')
    const { out } = await run(
      { deny: [hidden, join(workspace, 'plain')] },
      `cat ${hidden}/f ${workspace}/.ssh/id_rsa ${workspace}/plain; ls -a ${hidden}`,
    )
    expect(out).not.toMatch(/canary/)
  })

  test('follow the presets read-only and danger-full-access', async () => {
    expect((await run({ preset: 'read-only' }, `echo x > ${workspace}/ro || echo refused`)).out).toContain(
      'refused',
    )
    const outside = inBase('danger')
    const { out } = await run(
      { preset: 'danger-full-access' },
      `echo x > ${outside}/f && echo done; ls ${join(base, 'state')}; cat /proc/1/comm`,
    )
    expect(out).toContain('done')
    expect(existsSync(join(outside, 'f'))).toBe(true)
    // The state directory and the host's processes are hidden even with danger-full-access.
    expect(out).not.toContain('keys')
    expect(out).not.toContain('systemd')
  })

  test('expose only the unix socket that is named', async () => {
    const socket = join(base, 'granted.sock')
    const other = join(base, 'other.sock')
    const servers = await Promise.all(
      [socket, other].map(
        (path) =>
          new Promise<ReturnType<typeof createServer>>((resolve) => {
            const server = createServer((peer) => peer.end('hi')).listen(path, () => resolve(server))
          }),
      ),
    )
    const python = `/usr/bin/python3 -c "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(9))"`
    const { out } = await run({ unixSockets: [socket] }, `${python} ${socket}; ${python} ${other}`)
    for (const server of servers) server.close()
    expect(out).toContain("b'hi'")
    expect(out).toContain('FileNotFoundError')
  })

  test('give access to the host network only in network mode `full`', async () => {
    let seen = 0
    const server = createServer((peer) => {
      seen++
      peer.end()
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as { port: number }
    const script = `exec 3<>/dev/tcp/127.0.0.1/${port} && echo connected`
    expect((await run({ network: { mode: 'loopback' } }, script)).out).not.toContain('connected')
    expect((await run({ network: { mode: 'full' } }, script)).out).toContain('connected')
    server.close()
    expect(seen).toBe(1)
  })
})

describe('mounts match what the policy checked', () => {
  test('a source that is replaced after the check is refused', async () => {
    const source = inBase('swapped')
    await using sandbox = await Sandbox.create({ workspace, read: [source] }, options)
    rmSync(source, { recursive: true })
    symlinkSync('/etc', source)
    await expect(sandbox.exec(['ls', source])).rejects.toMatchObject({ code: 'launch-failed' })
  })

  test('a symlink planted at a mount point creates nothing on the host', async () => {
    const shared = inBase('planted')
    mkdirSync(join(shared, 'sub'))
    const target = inBase('victim')
    rmSync(join(shared, 'sub'), { recursive: true })
    symlinkSync(`/oldroot${target}/made`, join(shared, 'sub'))
    const spec = {
      workspace: shared,
      mounts: [{ source: workspace, target: join(shared, 'sub', 'deep'), mode: 'ro' as const }],
    }
    await using sandbox = await Sandbox.create(spec, options)
    await expect(sandbox.exec(['true'])).rejects.toMatchObject({ code: 'launch-failed' })
    expect(readdirSync(target)).toEqual([])
  })

  test('file descriptors of the caller are not inherited', async () => {
    const secret = inBase('fd-secret', 'canary-fd')
    const fd = openSync(secret, 'r')
    const wrapped = await wrap({ workspace }, ['bash', '-c', 'cat <&9'], options)
    const child = spawn(wrapped.command, wrapped.args, {
      env: wrapped.env as NodeJS.ProcessEnv,
      cwd: '/',
      stdio: ['ignore', 'pipe', 'pipe', 'ignore', 'ignore', 'ignore', 'ignore', 'ignore', 'ignore', fd],
    })
    let out = ''
    child.stdout?.on('data', (chunk) => (out += chunk))
    child.stderr?.on('data', (chunk) => (out += chunk))
    await new Promise((resolve) => child.on('close', resolve))
    expect(out).not.toContain('canary')
    expect(out).toMatch(/Bad file descriptor/)
  })
})

const alive = (marker: string): boolean =>
  readdirSync('/proc').some((pid) => {
    if (!/^\d+$/.test(pid)) return false
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes(marker)
    } catch {
      return false
    }
  })

const until = async (condition: () => boolean): Promise<boolean> => {
  for (let tries = 0; tries < 100 && !condition(); tries++)
    await new Promise((resolve) => setTimeout(resolve, 50))
  return condition()
}

describe('ending `ringfence run`', () => {
  const start = (seconds: string) => {
    writeFileSync(
      join(workspace, 'long.sh'),
      `trap "" TERM INT HUP\nsetsid sleep ${seconds} &\nsleep ${seconds}\n`,
    )
    const env = { ...process.env, RINGFENCE_HOME: join(base, 'state') }
    return spawn(...cli(['run', '--', 'bash', 'long.sh']), {
      cwd: workspace,
      env,
      stdio: 'ignore',
    })
  }

  test('SIGKILL to the ringfence process ends every process of the sandbox', async () => {
    const child = start('987.25')
    expect(await until(() => alive('987.25'))).toBe(true)
    child.kill('SIGKILL')
    expect(await until(() => !alive('987.25'))).toBe(true)
  })

  test('SIGINT ends every process of the sandbox, and the exit code is 130', async () => {
    const child = start('986.25')
    expect(await until(() => alive('986.25'))).toBe(true)
    const code = new Promise((resolve) => child.on('close', resolve))
    child.kill('SIGINT')
    expect(await code).toBe(130)
    expect(await until(() => !alive('986.25'))).toBe(true)
  })
})

describe('interrupting a start', () => {
  // Children of this process, or orphans: other tests run their own sandboxes at the same time.
  const ours = (): string[] =>
    readdirSync('/proc').filter((pid) => {
      if (!/^\d+$/.test(pid)) return false
      try {
        const status = readFileSync(`/proc/${pid}/stat`, 'latin1')
        const parent = Number(/\) \S (\d+)/.exec(status)?.[1])
        return (
          [1, process.pid].includes(parent) &&
          /\((bwrap|ringfence-agent|exe)\) [^Z]/.test(status) &&
          readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes('--args')
        )
      } catch {
        return false
      }
    })

  test('an abort while the sandbox starts leaves no process', { timeout: 600_000 }, async () => {
    const tries = process.env.RINGFENCE_FULL ? 2000 : 60
    const before = new Set(ours())
    for (let done = 0; done < tries; done++) {
      await using sandbox = await Sandbox.create({ workspace }, options)
      const stop = new AbortController()
      setTimeout(() => stop.abort(), (done % 24) * 0.7)
      // Both ways: a single command, and a command in a sandbox that stays open.
      const running = sandbox.exec(['sleep', '60'], { signal: stop.signal, last: done % 2 === 0 })
      await expect(running).rejects.toMatchObject({ name: 'AbortError' })
    }
    expect(await until(() => ours().every((pid) => before.has(pid)))).toBe(true)
  })

  test('a command refused by the policy leaves no process', async () => {
    const before = new Set(ours())
    for (let done = 0; done < 30; done++) {
      await using sandbox = await Sandbox.create({ workspace }, options)
      const refused = sandbox.exec('rm -rf /', { last: done % 2 === 0 })
      await expect(refused).rejects.toMatchObject({ code: 'forbidden-command' })
    }
    expect(await until(() => ours().every((pid) => before.has(pid)))).toBe(true)
  })
})

describe('the file-system guard', () => {
  test('protects the same names as the policy code', async () => {
    const { protectedBy, PROTECTION } = await import('../../src/policy/paths/protect.ts')
    const names = [
      'a',
      '.git',
      '.GIT',
      'x/.git',
      '.github',
      'node_modules/.vscode',
      'node_modules',
      '.vscode',
      'sub/.vscode',
      '.vscode2',
      '.bashrc',
      'd/.envrc',
      'site-packages/.idea',
      '.claude',
      'CLAUDE.md',
      '.mcp.json',
      'ringfence.toml',
      '.jj',
      '.hg',
    ]
    const root = freshWorkspace({ workspace, outside: [] })
    writeFileSync(
      join(root, 'make.sh'),
      names
        .map((name) => `mkdir -p "$(dirname '${name}')"; mkdir '${name}' 2>/dev/null && echo 'made ${name}'`)
        .join('\n'),
    )
    rmSync(join(root, '.git'), { recursive: true })
    await using sandbox = await Sandbox.create({ workspace: root }, options)
    const { stdout } = await sandbox.exec(['bash', 'make.sh'])
    const made = new Set(
      Buffer.from(stdout)
        .toString()
        .split('\n')
        .filter(Boolean)
        .map((line) => line.slice(5)),
    )
    const allowed = names.filter((name) => protectedBy(PROTECTION, name) === undefined)
    // `mkdir -p` of a parent has created `node_modules` already.
    expect([...made, 'node_modules'].sort()).toEqual([...new Set(allowed)].sort())
  })

  test('protects `.config/git` also when `.config` is the workspace', async () => {
    const root = join(freshWorkspace({ workspace, outside: [] }), '.config')
    mkdirSync(join(root, 'git'), { recursive: true })
    await using sandbox = await Sandbox.create({ workspace: root }, options)
    const { stdout } = await sandbox.exec([
      'bash',
      '-c',
      'for file in git/config nvim other/git plain; do mkdir -p "$(dirname $file)"; echo x > $file && echo $file; done 2>/dev/null',
    ])
    expect(Buffer.from(stdout).toString()).toBe('other/git\nplain\n')
  })

  test('protects git directories behind a symlink, a worktree pointer or a granted .git', async () => {
    const root = freshWorkspace({ workspace, outside: [] })
    renameSync(join(root, '.git'), join(root, 'repository'))
    symlinkSync('repository', join(root, '.git'))
    const tree = join(root, 'tree')
    mkdirSync(join(root, 'repository', 'worktrees', 'tree'), { recursive: true })
    mkdirSync(tree)
    writeFileSync(join(root, 'repository', 'worktrees', 'tree', 'commondir'), '../..\n')
    writeFileSync(join(tree, '.git'), `gitdir: ${join(root, 'repository', 'worktrees', 'tree')}\n`)
    const script = (to: string): string =>
      `echo PWNED > ${to}/hooks/post-commit; echo PWNED >> ${to}/config; mv ${to}/hooks ${to}/h2; echo fine > ${to}/index`
    const attack = async (spec: Record<string, unknown>, to: string) => {
      await using sandbox = await Sandbox.create(spec, options)
      writeFileSync(join(sandbox.plan.cwd, 'a.sh'), script(to))
      await sandbox.exec(['bash', 'a.sh'])
      expect(existsSync(join(root, 'repository', 'hooks', 'post-commit'))).toBe(false)
      expect(readFileSync(join(root, 'repository', 'config'), 'utf8')).not.toContain('PWNED')
      expect(existsSync(join(root, 'repository', 'index'))).toBe(true)
    }
    await attack({ workspace: root }, join(root, 'repository'))
    await attack({ workspace: tree, write: [join(root, 'repository')] }, join(root, 'repository'))
    rmSync(join(root, '.git'))
    const other = join(root, 'vendor', 'sub', '.git')
    await using sandbox = await Sandbox.create({ workspace: tree, write: [other] }, options)
    writeFileSync(join(tree, 'a.sh'), script(other))
    await sandbox.exec(['bash', 'a.sh'])
    expect(existsSync(join(other, 'hooks', 'post-commit'))).toBe(false)
  })

  test('loses no file when several processes create files at once', async () => {
    const root = freshWorkspace({ workspace, outside: [] })
    writeFileSync(
      join(root, 'many.sh'),
      'mkdir m; for t in 1 2 3 4; do (for i in $(seq 100); do echo $t-$i > m/$t-$i; done) & done; wait; cat m/* | wc -l\n',
    )
    await using sandbox = await Sandbox.create({ workspace: root }, options)
    expect(
      Buffer.from((await sandbox.exec(['bash', 'many.sh'])).stdout)
        .toString()
        .trim(),
    ).toBe('400')
  })
})
