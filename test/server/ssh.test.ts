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
  child.stdin.end(input ?? '')
  const code = await new Promise<number | null>((resolve) => child.on('close', resolve))
  return { code, stdout, stderr }
}
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
  // PLATFORM: sandboxes of a server that runs as root have a user of their own only with a writable root.
  const spec = process.getuid?.() === 0 ? { template: 'base' } : {}
  id = (await new RingfenceClient({ url: server.url, apiKey: keys.red ?? '' }).create(spec)).id
}, 60_000)
afterAll(async () => {
  await server.close()
  rmSync(base, { recursive: true, force: true })
})

describe.runIf(isInstalled)('ssh into a sandbox', () => {
  test('runs commands with their exit code, and the environment of the sandbox', async () => {
    const ran = await ringfence(['sandbox', 'ssh', id, '--', 'echo "$HOME"; cat; exit 7'])
    expect(ran.stderr).toBe('')
    expect(ran.code).toBe(7)
    expect(ran.stdout).toMatch(/^\/(home\/user|tmp)\n/)
    const printed = await ringfence(['sandbox', 'ssh', id, '--print'])
    config = printed.stdout.trim()
    expect(config).toContain(id)
  }, 60_000)

  test('scp, rsync and a terminal work', async () => {
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

  test('the far end gets no agent, no display, no remote forwarding, and its key is pinned', async () => {
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

  test('is recorded; another tenant, other names and a server without `allow_interactive` are refused', async () => {
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
