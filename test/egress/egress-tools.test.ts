import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Connection } from '../../src/egress/connection.ts'
import { certificateEnvironment, proxyEnvironment } from '../../src/policy/network/proxy-environment.ts'
import { packageRoot } from '../conformance/world.ts'

/**
 * Real programs through the real proxy. Two network namespaces: outside has servers on public addresses and the proxy,
 * inside has only loopback. Names come from a hosts file; the proxy is not modified for the test.
 */
const run = promisify(execFile)
const root = packageRoot()
const fixture = (name: string): string => join(root, 'test', 'fixtures', name)
const asRoot = process.getuid?.() === 0
const unshare = asRoot ? [] : ['--map-root-user']
const HOSTS = [
  ...['npm', 'pip', 'git', 'www'].map((name) => `93.184.215.14 ${name}.outside.example`),
  // The host of the secret: other names of its server would be read like it.
  '93.184.215.15 api.outside.example',
]
/** An allowed name that resolves to a private address, and a name on no list. */
const LIARS = ['10.9.8.7 liar.outside.example', '93.184.215.14 elsewhere.example']

let dir: string
let outside: ChildProcess
let placeholder = ''

function canUnshare(): boolean {
  try {
    execFileSync('unshare', [...unshare, '--net', '--mount', 'true'], { stdio: 'ignore' })
    return existsSync('/usr/sbin/ip') || existsSync('/sbin/ip')
  } catch {
    return false
  }
}

function makeFiles(): void {
  const names = [...HOSTS, ...LIARS].map((line) => `DNS:${line.split(' ')[1]}`).join(',')
  const at = { cwd: dir, stdio: 'ignore' } as const
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', 'key.pem']
  execFileSync(
    'openssl',
    [
      'req',
      '-x509',
      ...key,
      '-out',
      'cert.pem',
      '-days',
      '2',
      '-subj',
      '/CN=outside',
      '-addext',
      `subjectAltName=${names}`,
    ],
    at,
  )
  mkdirSync(join(dir, 'package'))
  writeFileSync(join(dir, 'package', 'package.json'), '{"name":"tiny","version":"1.0.0","main":"index.js"}')
  writeFileSync(join(dir, 'package', 'index.js'), 'module.exports = "tiny works"\n')
  execFileSync('tar', ['czf', 'tiny.tgz', 'package'], at)
  const wheel = `
import zipfile
with zipfile.ZipFile('tinypkg-1.0-py3-none-any.whl', 'w') as z:
    z.writestr('tinypkg.py', 'word = "tinypkg works"\\n')
    z.writestr('tinypkg-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tinypkg\\nVersion: 1.0\\n')
    z.writestr('tinypkg-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    z.writestr('tinypkg-1.0.dist-info/RECORD', 'tinypkg.py,,\\n')
`
  execFileSync('python3', ['-c', wheel], at)
  const git = (...args: string[]): void =>
    void execFileSync('git', ['-c', 'user.name=t', '-c', 'user.email=t@example.com', ...args], at)
  git('init', '-q', '-b', 'main', 'repos/work')
  writeFileSync(join(dir, 'repos', 'work', 'file.txt'), 'from the repository\n')
  git('-C', 'repos/work', 'add', '.')
  git('-C', 'repos/work', 'commit', '-qm', 'one')
  git('clone', '-q', '--bare', 'repos/work', 'repos/tiny.git')
  writeFileSync(join(dir, 'hosts'), `127.0.0.1 localhost\n${[...HOSTS, ...LIARS].join('\n')}\n`)
}

const heard = (child: ChildProcess): Promise<Record<string, unknown>> =>
  new Promise((resolve, reject) => {
    child.once('message', (message) => resolve(message as Record<string, unknown>))
    child.once('exit', (code) => reject(new Error(`outside ended with ${code}`)))
  })

/** What the proxy reported and the servers saw since the last call. */
async function since(): Promise<{ events: Connection[]; seen: string[] }> {
  outside.send('tell')
  return (await heard(outside)) as unknown as { events: Connection[]; seen: string[] }
}

/** Runs a program inside. */
async function inside(argv: readonly string[], env: Record<string, string> = {}): Promise<string> {
  const line = 'ip link set lo up && exec "$0" "$@"'
  const args = [process.execPath, fixture('egress-inside.mjs'), join(dir, 'proxy.sock'), ...argv]
  const { stdout } = await run('unshare', [...unshare, '--net', 'sh', '-c', line, ...args], {
    cwd: dir,
    timeout: 50_000,
    env: {
      PATH: process.env.PATH ?? '',
      HOME: join(dir, 'home'),
      ...proxyEnvironment(3128, { nodePreload: join(root, 'guest', 'node', 'proxy.cjs') }),
      ...certificateEnvironment(join(dir, 'bundle.pem')),
      ...env,
    },
  })
  return stdout
}

describe.skipIf(!canUnshare())('real programs in a sandbox', () => {
  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'ringfence-egress-'))
    mkdirSync(join(dir, 'home'))
    makeFiles()
    const line = `ip link set lo up && ip addr add 93.184.215.14/32 dev lo && ip addr add 93.184.215.15/32 dev lo &&
      ip addr add 10.9.8.7/32 dev lo && mount --bind "${dir}/hosts" /etc/hosts && exec "$0" "$@"`
    const args = [process.execPath, fixture('egress-outside.mjs'), dir, join(root, 'dist', 'index.js')]
    outside = spawn('unshare', [...unshare, '--net', '--mount', 'sh', '-c', line, ...args], {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    })
    placeholder = String((await heard(outside)).placeholder)
  })
  afterAll(() => {
    outside?.kill()
    rmSync(dir, { recursive: true, force: true })
  })

  it('curl connects through the proxy by HTTP, HTTPS and SOCKS', async () => {
    const curl = ['curl', '-sS', '--max-time', '20']
    expect(await inside([...curl, 'http://www.outside.example/'])).toBe(
      'hello from www.outside.example, you sent nothing\n',
    )
    expect(await inside([...curl, 'https://www.outside.example/'])).toMatch(/^hello/)
    expect(await inside([...curl, '-x', 'socks5h://127.0.0.1:3128', 'https://www.outside.example/'])).toMatch(
      /^hello/,
    )
    const { events } = await since()
    expect(events.map(({ protocol, address, verdict }) => [protocol, address, verdict])).toEqual([
      ['http', '93.184.215.14', 'allow'],
      ['connect', '93.184.215.14', 'allow'],
      ['socks5', '93.184.215.14', 'allow'],
    ])
  })

  it('npm install works through the proxy', async () => {
    mkdirSync(join(dir, 'app'))
    writeFileSync(join(dir, 'app', 'package.json'), '{"name":"app","version":"1.0.0"}')
    const npm = ['npm', 'install', '--prefix', join(dir, 'app'), '--registry', 'https://npm.outside.example/']
    await inside([...npm, '--no-audit', '--no-fund', '--no-update-notifier', 'tiny'])
    expect(
      await inside(['node', '-p', `require(${JSON.stringify(join(dir, 'app', 'node_modules', 'tiny'))})`]),
    ).toBe('tiny works\n')
  })

  it('pip install works through the proxy', async () => {
    const pip = [
      'python3',
      '-m',
      'pip',
      'install',
      '-q',
      '--disable-pip-version-check',
      '--no-cache-dir',
      '--root-user-action=ignore',
    ]
    await inside([
      ...pip,
      '--index-url',
      'https://pip.outside.example/simple',
      '--target',
      join(dir, 'site'),
      'tinypkg',
    ])
    expect(
      await inside(['python3', '-c', 'import tinypkg; print(tinypkg.word)'], {
        PYTHONPATH: join(dir, 'site'),
      }),
    ).toBe('tinypkg works\n')
  })

  it.each(['http', 'https'])('git clone over %s works through the proxy', async (scheme) => {
    await inside([
      'git',
      'clone',
      '-q',
      `${scheme}://git.outside.example/tiny.git`,
      join(dir, `clone-${scheme}`),
    ])
    expect(readFileSync(join(dir, `clone-${scheme}`, 'file.txt'), 'utf8')).toBe('from the repository\n')
  })

  it('fetch of Node works through the proxy', async () => {
    const text = `Promise.all(['http', 'https'].map(async (s) => (await fetch(s + '://www.outside.example/')).status)).then((all) => console.log(all.join()))`
    expect(await inside(['node', '-e', text])).toBe('200,200\n')
  })

  it('use a brokered secret without seeing more than its placeholder', async () => {
    const header = `Authorization: Bearer ${placeholder}`
    await since()
    const body = await inside(['curl', '-sS', '-H', header, 'https://api.outside.example/me'])
    expect(body).toBe(`hello from api.outside.example, you sent Bearer ${placeholder}\n`)
    const { seen, events } = await since()
    expect(seen).toEqual(['api.outside.example /me Bearer the-real-value-0123456789'])
    expect(JSON.stringify(events)).not.toContain('the-real-value')
    const refused = await inside(['curl', '-sS', '-H', header, 'http://www.outside.example/'])
    expect(refused).toMatch(/^ringfence: capability-denied: the placeholder of `TOKEN` is sent to/)
  })

  it('reach nothing without the proxy, and no host that is not allowed', async () => {
    await since()
    const curl = ['curl', '-sS', '--max-time', '10']
    await expect(inside([...curl, '--noproxy', '*', 'http://93.184.215.14/'])).rejects.toThrow()
    for (const url of [
      'http://liar.outside.example/',
      'http://10.9.8.7/',
      'http://elsewhere.example/',
      'http://93.184.215.14/',
      'http://169.254.169.254/latest/',
    ])
      expect(await inside([...curl, url])).toMatch(/^ringfence: ssrf-blocked: /)
    await expect(inside([...curl, 'https://elsewhere.example/'])).rejects.toThrow()
    // An allowed tunnel with another name inside: the same address, another server.
    const fronted = [
      '--connect-to',
      'elsewhere.example:443:www.outside.example:443',
      'https://elsewhere.example/',
    ]
    await expect(inside([...curl, ...fronted])).rejects.toThrow()
    // A tunnel to port 443 without TLS, and TLS without a server name.
    await expect(inside([...curl, '--proxytunnel', 'http://www.outside.example:443/'])).rejects.toThrow()
    const nameless = `
      const { connect } = require('net')
      const socket = connect(3128, '127.0.0.1', () => socket.write('CONNECT www.outside.example:443 HTTP/1.1\\r\\n\\r\\n'))
      socket.once('data', () => {
        const tls = require('tls').connect({ socket, servername: '' })
        tls.on('secureConnect', () => console.log('in')).on('error', () => console.log('out'))
      })`
    expect(await inside(['node', '-e', nameless])).toBe('out\n')
    const { events, seen } = await since()
    expect(seen).toEqual([])
    expect(events.every(({ verdict }) => verdict === 'deny')).toBe(true)
    expect(events.slice(-3).map(({ reason }) => reason)).toEqual([
      'TLS names `elsewhere.example` in a connection to `www.outside.example`',
      'only TLS goes to port 443',
      'TLS names no server',
    ])
  })
})
