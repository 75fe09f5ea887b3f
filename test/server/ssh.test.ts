import { spawn } from 'node:child_process'
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { RingfenceClient } from '../../src/client/client.ts'
import { type RunningServer, startServer } from '../../src/compose/serve.ts'
import { packageRoot } from '../conformance/world.ts'

/** The real ssh, scp and rsync into a sandbox, through `ringfence sandbox ssh`. */

const isInstalled = ['/usr/sbin/sshd', '/usr/bin/ssh', '/usr/bin/rsync'].every((file) => existsSync(file))
const base = mkdtempSync(join(tmpdir(), 'rf-ssh-'))
const cli = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
const configFile = join(base, 'ringfence.toml')
let server: RunningServer
let id = ''
let config = ''
const keys: Record<string, string> = {}

type Ran = { readonly code: number | null; readonly stdout: string; readonly stderr: string }

async function run(file: string, args: readonly string[], key = 'red', input?: string): Promise<Ran> {
  const env = {
    HOME: base,
    PATH: process.env.PATH,
    RINGFENCE_HOME: join(base, 'client'),
    RINGFENCE_URL: server.url,
    RINGFENCE_API_KEY: keys[key],
    SSH_AUTH_SOCK: '/tmp/agent-of-the-user',
  }
  const child = spawn(file, args, { env, cwd: base, timeout: 60_000 })
  let [stdout, stderr] = ['', '']
  child.stdout.on('data', (chunk) => {
    stdout += chunk
  })
  child.stderr.on('data', (chunk) => {
    stderr += chunk
  })
  // A client that ends at once does not read its input.
  child.stdin.on('error', () => {})
  child.stdin.end(input ?? '')
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve))
  return { code, stdout, stderr }
}
/** Runs a program while `work` uses it, then ends it. */
async function during(
  file: string,
  args: readonly string[],
  work: (said: () => string) => Promise<void>,
  input = '',
): Promise<void> {
  const env = { PATH: process.env.PATH, RINGFENCE_URL: server.url, RINGFENCE_API_KEY: keys.red }
  const child = spawn(file, args, { env, cwd: base, stdio: ['pipe', 'pipe', 'inherit'] })
  let said = ''
  child.stdout.on('data', (chunk) => {
    said += chunk
  })
  child.stdin.write(input)
  const ended = new Promise((resolve) => child.once('close', resolve))
  try {
    await work(() => said)
  } finally {
    child.kill()
    await ended
  }
}

async function freePort(): Promise<number> {
  const listener = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => listener.once('listening', resolve))
  const { port } = listener.address() as AddressInfo
  await new Promise((resolve) => listener.close(resolve))
  return port
}

/** A program for `node -e` or a file, without quotes that a shell would need. */
const answering = (port: number): string =>
  `require("node:http").createServer((_, answer) => answer.end("from the sandbox")).listen(${port}, "127.0.0.1", () => console.log("listening"))`

const ringfence = (args: readonly string[], key?: string) => run(process.execPath, [cli, ...args], key)

beforeAll(async () => {
  writeFileSync(configFile, '[policy]\nallow_interactive = true\n')
  server = await startServer({
    env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'server') },
    config: configFile,
    port: 0,
  })
  for (const tenant of ['red', 'blue'])
    keys[tenant] = (await server.parts.keys.create({ tenant, scopes: ['create', 'exec', 'read'] })).secret
  id = (await new RingfenceClient({ url: server.url, apiKey: keys.red ?? '' }).create({})).id
}, 60_000)
afterAll(async () => {
  await server.close()
  rmSync(base, { recursive: true, force: true })
})

describe.runIf(isInstalled)('ssh into a sandbox', () => {
  test('runs commands with their exit code and the environment of the sandbox', async () => {
    const ran = await ringfence(['sandbox', 'ssh', id, '--', 'echo "$HOME"; cat; exit 7'])
    expect(ran.stderr).toBe('')
    expect(ran.code).toBe(7)
    expect(ran.stdout).toMatch(/^\/(home\/user|tmp)\n/)
    const printed = await ringfence(['sandbox', 'ssh', id, '--print'])
    config = printed.stdout.trim()
    expect(config).toContain(id)
  }, 60_000)

  test('supports scp, rsync and a terminal', async () => {
    const bytes = Buffer.alloc(2_000_000, 'abcdefg')
    writeFileSync(join(base, 'big'), bytes)
    expect(await run('scp', ['-q', '-F', config, 'big', `${id}:big`])).toMatchObject({ code: 0, stderr: '' })
    expect(await run('scp', ['-q', '-F', config, `${id}:big`, 'back'])).toMatchObject({ code: 0 })
    expect(readFileSync(join(base, 'back')).equals(bytes)).toBe(true)
    mkdirSync(join(base, 'tree', 'a'), { recursive: true })
    writeFileSync(join(base, 'tree', 'a', 'b'), 'inside')
    const shell = `ssh -F ${config}`
    expect(await run('rsync', ['-a', '-e', shell, 'tree/', `${id}:tree/`])).toMatchObject({ code: 0 })
    expect((await run('ssh', ['-F', config, id, 'cat tree/a/b'])).stdout).toBe('inside')
    expect((await run('ssh', ['-tt', '-F', config, id, 'tty'])).stdout).toMatch(/^\/dev\/pts\/\d/)
  }, 60_000)

  test('sftp, and local forwarding to a program on the loopback of the sandbox', async () => {
    const batch = 'mkdir dir\nput big dir/put\nrename dir/put dir/moved\nget dir/moved got\nls -l dir\n'
    const transfer = await run('sftp', ['-q', '-b', '-', '-F', config, id], 'red', batch)
    expect(transfer).toMatchObject({ code: 0, stdout: expect.stringContaining('moved') })
    expect(readFileSync(join(base, 'got')).equals(readFileSync(join(base, 'big')))).toBe(true)
    const port = await freePort()
    const forward = [
      '-F',
      config,
      '-L',
      `127.0.0.1:${port}:127.0.0.1:8123`,
      id,
      `node -e '${answering(8123)}'`,
    ]
    await during('ssh', forward, async (said) => {
      await expect.poll(said, { timeout: 20_000 }).toContain('listening')
      expect(await (await fetch(`http://127.0.0.1:${port}/`)).text()).toBe('from the sandbox')
    })
  }, 60_000)

  /**
   * What VS Code's Remote-SSH does, by hand: one connection without a terminal and with a dynamic forward, a shell that reads
   * its script from standard input, a server that the script starts on the loopback, and requests through the forward.
   */
  test('the steps of an editor: a script on standard input starts a server, reached by a dynamic forward', async () => {
    const port = await freePort()
    const forward = ['-T', '-F', config, '-o', 'ConnectTimeout=15', '-D', `127.0.0.1:${port}`, id, 'bash']
    const script = [
      'mkdir -p ~/.server && cd ~/.server && uname -sm',
      `printf '%s' '${answering(8124)}' > server.cjs`,
      'node server.cjs > log 2>&1 & echo $! > pid',
      'until grep -q listening log; do sleep 0.1; done; cat log; echo ready; cat',
    ].join('\n')
    await during(
      'ssh',
      forward,
      async (said) => {
        await expect.poll(said, { timeout: 20_000 }).toContain('ready')
        expect(said()).toMatch(/^Linux /)
        const through = ['-s', '--socks5-hostname', `127.0.0.1:${port}`]
        expect((await run('curl', [...through, 'http://127.0.0.1:8124/'])).stdout).toBe('from the sandbox')
        // The loopback is the sandbox's: what listens on the server's own is not there.
        expect((await run('curl', [...through, server.url])).code).not.toBe(0)
      },
      `${script}\n`,
    )
  }, 60_000)

  test('a sandbox with a writable root has its own user', async () => {
    const client = new RingfenceClient({ url: server.url, apiKey: keys.red ?? '' })
    const other = await client.create({ template: 'base' })
    const ran = await ringfence(['sandbox', 'ssh', other.id, '--', 'id -un; echo "$HOME"'])
    expect(ran).toMatchObject({ code: 0, stdout: 'user\n/home/user\n' })
    await other.close()
  }, 60_000)

  test('forwards no agent, display or remote port, and pins the host key', async () => {
    const text = readFileSync(config, 'utf8')
    for (const line of [
      'ForwardAgent no',
      'ForwardX11 no',
      'StrictHostKeyChecking yes',
      'IdentityAgent none',
      'PermitLocalCommand no',
    ])
      expect(text).toContain(line)
    const forward = [
      '-F',
      config,
      '-o',
      'ExitOnForwardFailure=yes',
      '-R',
      '127.0.0.1:45123:127.0.0.1:22',
      id,
      'true',
    ]
    expect((await run('ssh', forward)).code).toBe(255)
    const agent = await run('ssh', [
      '-F',
      config,
      '-o',
      'ForwardAgent=/tmp/agent-of-the-user',
      id,
      'echo "[$SSH_AUTH_SOCK]"',
    ])
    expect(agent.stdout).toBe('[]\n')
    const dir = join(config, '..')
    const pinned = readFileSync(join(dir, 'known_hosts'), 'utf8')
    await run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', join(base, 'other')])
    writeFileSync(join(dir, 'known_hosts'), `${id} ${readFileSync(join(base, 'other.pub'), 'utf8')}`)
    const changed = await run('ssh', ['-F', config, id, 'true'])
    expect(changed.code).toBe(255)
    expect(changed.stderr).toMatch(/HOST IDENTIFICATION HAS CHANGED|verification failed/)
    writeFileSync(join(dir, 'known_hosts'), pinned)
    expect((await run('ssh', ['-F', config, id, 'true'])).code).toBe(0)
  }, 60_000)

  test('is recorded; another tenant, unknown names and servers without `allow_interactive` are refused', async () => {
    const client = new RingfenceClient({ url: server.url, apiKey: keys.red ?? '' })
    const { items } = await client.audit({ sandbox_id: id, limit: 200 } as never)
    expect(JSON.stringify(items)).toMatch(/sshd -i -f/)
    expect((await ringfence(['sandbox', 'ssh', id, 'true'], 'blue')).stderr).toMatch(/not-found/)
    expect((await run('ssh', ['-F', config, id, 'true'], 'blue')).code).toBe(255)
    const marker = join(base, 'marker')
    for (const bad of [`-oProxyCommand=touch ${marker}`, `$(touch ${marker})`, 'sb_1 -o x', '../x', 'sb_zz'])
      expect((await ringfence(['sandbox', 'ssh', '--', bad, 'true'])).stderr).toMatch(
        /not-found|not a sandbox|invalid-input/,
      )
    expect(existsSync(marker)).toBe(false)
    writeFileSync(configFile, '')
    await server.reload()
    expect((await ringfence(['sandbox', 'ssh', id, 'true'])).code).not.toBe(0)
    appendFileSync(configFile, '[policy]\nallow_interactive = true\n')
    await server.reload()
    expect((await ringfence(['sandbox', 'ssh', id, 'true'])).code).toBe(0)
  }, 60_000)
})
