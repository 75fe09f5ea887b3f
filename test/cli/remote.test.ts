import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { createServer, type Server } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { answering } from './pseudo-terminal.ts'

/** The built command line against a real server, from a user's view. */

const base = mkdtempSync(join(tmpdir(), 'rf-remote-'))
const program = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
const state = join(base, 'client')
const environment = { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: state, TERM: 'xterm' }
let server: ChildProcess
let url = ''
let key = ''

beforeAll(async () => {
  const config = join(base, 'server.toml')
  writeFileSync(config, '[policy]\nallow_interactive = true\n')
  server = spawn(
    process.execPath,
    [program, 'serve', '--port', '0', '--json', '--print-key', '--config', config],
    { env: { ...environment, RINGFENCE_HOME: join(base, 'server') }, stdio: ['ignore', 'pipe', 'inherit'] },
  )
  const lines = createInterface({ input: server.stdout as NodeJS.ReadableStream })
  const line = await new Promise<string>((resolve) => lines.once('line', resolve))
  const started = JSON.parse(line) as { url: string; key: string }
  url = started.url
  key = started.key
  rf(['login', url, '--name', 'team'], { input: `${key}\n` })
  rf(['sandbox', 'create', '--name', 'web', '--label', 'kind=test', '--timeout', '10m'])
})
afterAll(async () => {
  server.kill('SIGTERM')
  await new Promise((resolve) => server.once('exit', resolve))
  rmSync(base, { recursive: true, force: true })
})

type Options = {
  readonly input?: string | Uint8Array
  readonly env?: Record<string, string>
  readonly cwd?: string
}

function rf(args: readonly string[], { input, env, cwd = base }: Options = {}) {
  const done = spawnSync(process.execPath, [program, ...args], {
    cwd,
    env: { ...environment, ...env },
    ...(input === undefined ? { stdio: ['ignore', 'pipe', 'pipe'] } : { input }),
  })
  return { status: done.status, out: done.stdout.toString('utf8'), err: done.stderr.toString('utf8') }
}

describe('login', () => {
  test('stores the key in a file that only the user can read', () => {
    expect(statSync(join(state, 'servers.json')).mode & 0o777).toBe(0o600)
    expect(rf(['login', '--list']).out).toContain(`team  ${url}`)
    expect(rf(['login', '--list', '--json']).out).not.toContain(key)
  })
  test('does not store a key that the server rejects', () => {
    const { status, err } = rf(['login', url, '--name', 'other'], { input: 'rf_wrong\n' })
    expect([status, err]).toEqual([2, expect.stringContaining('a valid API key is needed')])
    expect(rf(['login', '--list']).out).not.toContain('other')
  })
  test('uses the selected one of several servers, and removes it at logout', () => {
    rf(['login', url, '--name', 'second'], { input: key })
    expect(rf(['login', '--list']).out).toContain('*  second')
    rf(['login', '--use', 'team'])
    expect(rf(['logout', 'second']).out).toContain('removed `second`')
    expect(rf(['login', '--use', 'second']).err).toContain('no server is stored as `second`')
    expect(rf(['sandbox', 'ls']).out).toContain('web')
  })
})

describe('exec', () => {
  test('passes standard input byte for byte', () => {
    const bytes = randomBytes(300_000)
    const { status, out } = rf(['sandbox', 'exec', 'web', 'sha256sum'], { input: bytes })
    expect([status, out]).toEqual([0, `${createHash('sha256').update(bytes).digest('hex')}  -\n`])
  })
  test('passes flags after the program and the exit code of the program', () => {
    expect(rf(['sandbox', 'exec', 'web', 'ls', '--help']).out).toContain('Usage: ls')
    expect(rf(['sandbox', 'exec', 'web', '--', 'sh', '-c', 'exit 7']).status).toBe(7)
  })
  test('reports a time limit', () => {
    const { status, err } = rf(['sandbox', 'exec', 'web', '--timeout', '200ms', 'sleep', '9'])
    expect([status, err]).toEqual([124, 'ringfence: timed out after 0.2 s (--timeout)\n'])
  })
  test('passes Ctrl-C to the command', async () => {
    const line = 'trap "echo caught; exit 9" INT; echo up; while true; do sleep 0.05; done'
    const child = spawn(process.execPath, [program, 'sandbox', 'exec', 'web', '-c', line], {
      env: environment,
      stdio: ['ignore', 'pipe', 'ignore'],
    })
    let said = ''
    child.stdout.on('data', (chunk: Uint8Array) => {
      said += String(chunk)
      if (said === 'up\n') child.kill('SIGINT')
    })
    const code = await new Promise((resolve) => child.once('exit', resolve))
    expect([code, said]).toEqual([9, 'up\ncaught\n'])
  })
  test('opens a shell in a terminal', async () => {
    const { screen, status } = await answering(
      [process.execPath, program, 'sandbox', 'shell', 'web'],
      '$ ',
      'test -t 0 && echo "tty-$((40 + 2))"; exit 5',
      { cwd: base, env: environment },
    )
    expect(screen).toContain('tty-42')
    expect(status).toBe(5)
  })
})

/** A stand-in for a server that is fast: the first output is in the same packet as the answer to the upgrade. */
function eagerServer(): Server {
  const frame = (opcode: number, text: string): Buffer =>
    Buffer.concat([Buffer.from([0x80 | opcode, text.length]), Buffer.from(text)])
  const end = JSON.stringify({ end: { kind: 'exited', code: 5 } })
  return createServer((_, response) => response.end(JSON.stringify({ id: 'sb_0123456789abcdef0123' }))).on(
    'upgrade',
    ({ headers }, socket) => {
      const accepted = createHash('sha1')
        .update(`${headers['sec-websocket-key']}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`)
        .digest('base64')
      const answer = `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accepted}\r\n\r\n`
      socket.write(Buffer.concat([Buffer.from(answer), frame(2, 'first output'), frame(1, end)]))
      socket.once('data', () => socket.end())
      setTimeout(() => socket.end(frame(8, '')), 500)
    },
  )
}

test('`sandbox shell` prints output that arrives together with the connection', async () => {
  const eager = eagerServer()
  const port = await new Promise((resolve) =>
    eager.listen(0, '127.0.0.1', () => resolve((eager.address() as AddressInfo).port)),
  )
  const env = { ...environment, RINGFENCE_URL: `http://127.0.0.1:${port}`, RINGFENCE_API_KEY: 'rf_none' }
  const argv = [process.execPath, program, 'sandbox', 'shell', 'sb_0123456789abcdef0123']
  const { screen, status } = await answering(argv, 'first output', '', { cwd: base, env })
  eager.close()
  expect([screen.trim(), status]).toEqual(['first output', 5])
})

describe('cp', () => {
  test('copies a directory to a sandbox and back', () => {
    mkdirSync(join(base, 'tree', 'sub'), { recursive: true })
    writeFileSync(join(base, 'tree', 'sub', 'b'), 'content')
    expect(rf(['sandbox', 'cp', 'tree', 'web:/tmp/tree']).err).toContain('copy directories with -r')
    expect(rf(['sandbox', 'cp', '-r', 'tree', 'web:/tmp/tree']).status).toBe(0)
    expect(rf(['sandbox', 'cp', '-r', 'web:/tmp/tree', 'back']).status).toBe(0)
    expect(readFileSync(join(base, 'back', 'sub', 'b'), 'utf8')).toBe('content')
  })
  test('never writes through a symlink in the target', () => {
    mkdirSync(join(base, 'target'))
    symlinkSync(join(base, 'victim'), join(base, 'target', 'b'))
    rf(['sandbox', 'exec', 'web', '-c', 'mkdir -p /tmp/links && echo x > /tmp/links/b'])
    expect(rf(['sandbox', 'cp', '-r', 'web:/tmp/links', 'target']).status).not.toBe(0)
    expect(existsSync(join(base, 'victim'))).toBe(false)
  })
  test('names a missing file', () => {
    expect(rf(['sandbox', 'cp', 'nosuch', 'web:/tmp/x']).err).toContain('does not exist on this machine')
    expect(rf(['sandbox', 'cp', 'web:/tmp/nosuch', 'x']).err).toContain('does not exist in the sandbox')
  })
})

test('`sandbox port --open` forwards a port of a sandbox for any protocol', async () => {
  const echo = `import socket
s=socket.create_server(('127.0.0.1',7007))
print('up',flush=True)
c=s.accept()[0]
c.sendall(c.recv(99).upper())`
  const inside = spawn(process.execPath, [program, 'sandbox', 'exec', 'web', 'python3', '-c', echo], {
    env: environment,
    stdio: ['ignore', 'pipe', 'ignore'],
  })
  await new Promise((resolve) => inside.stdout.once('data', resolve))
  const forward = spawn(
    process.execPath,
    [program, 'sandbox', 'port', 'web', '7007', '--open', '--listen', '0'],
    { env: environment, stdio: ['ignore', 'ignore', 'pipe'] },
  )
  const said = await new Promise<string>((resolve) =>
    forward.stderr.once('data', (chunk: Uint8Array) => resolve(String(chunk))),
  )
  const port = Number(/127\.0\.0\.1:(\d+)/.exec(said)?.[1])
  const socket = connect(port, '127.0.0.1')
  socket.write('raw bytes')
  expect(String(await new Promise((resolve) => socket.once('data', resolve)))).toBe('RAW BYTES')
  socket.destroy()
  forward.kill('SIGINT')
  expect(await new Promise((resolve) => forward.once('exit', resolve))).toBe(0)
})

describe('sandbox commands', () => {
  test('create with name and labels, and list only running ones', () => {
    const id = rf(['sandbox', 'create', '--name', 'short']).out.trim()
    expect(rf(['sandbox', 'ls', '--label', 'kind=test']).out).not.toContain('short')
    expect(rf(['sandbox', 'rm', 'short']).status).toBe(0)
    expect(rf(['sandbox', 'ls']).out).not.toContain(id)
    expect(rf(['sandbox', 'ls', '--all']).out).toContain(id)
    expect(rf(['sandbox', 'wait', id]).out).toContain('destroyed')
    expect(rf(['sandbox', 'get', 'short']).err).toContain('no live sandbox has the id or name `short`')
  })
  test('stats prints usage', () => {
    const [row] = JSON.parse(rf(['sandbox', 'stats', 'web', '--no-stream', '--json']).out)
    expect(row).toMatchObject({ name: 'web', state: 'ready' })
    expect(row.memory_bytes === null || row.memory_bytes > 0).toBe(true)
  })
  test('logs -f prints output until the sandbox ends', async () => {
    rf(['sandbox', 'create', '--name', 'noisy'])
    const logs = spawn(process.execPath, [program, 'sandbox', 'logs', '-f', 'noisy'], {
      env: environment,
      stdio: ['ignore', 'pipe', 'ignore'],
    })
    let said = ''
    logs.stdout.on('data', (chunk: Uint8Array) => {
      said += String(chunk)
    })
    rf(['sandbox', 'exec', 'noisy', '-c', 'for i in 1 2 3 4 5 6 7 8; do echo line; sleep 0.3; done'])
    rf(['sandbox', 'rm', 'noisy'])
    await new Promise((resolve) => logs.once('exit', resolve))
    expect(said).toContain('line\n')
  })
  test('webhook commands work', () => {
    const { id } = JSON.parse(rf(['webhook', 'create', 'http://127.0.0.1:9/', '--json']).out)
    expect(rf(['webhook', 'ls']).out).toContain(id)
    expect(rf(['webhook', 'rm', id]).out).toContain('removed')
  })
  test('audit reads the log of the server if one is selected', () => {
    const env = { RINGFENCE_URL: url, RINGFENCE_API_KEY: key }
    expect(rf(['audit', 'verify'], { env }).out).toMatch(/^ok: \d+ records/)
    expect(JSON.parse(rf(['audit', 'tail', '-n', '1', '--json'], { env }).out)).toHaveProperty('hash')
    expect(rf(['audit', 'query', '--event', 'Exec', '--limit', '1'], { env }).out).toContain(' Exec ')
    expect(JSON.parse(rf(['audit', 'proof', '1'], { env }).out).record.seq).toBe(1)
    expect(rf(['audit', 'export'], { env }).out.split('\n').length).toBeGreaterThan(5)
    expect(rf(['audit', 'verify']).out).toBe('ok: 0 records, 0 checkpoints\n')
  })
})

test('a mistyped command gets a suggestion', () => {
  expect(rf(['snadbox']).err).toContain('did you mean `ringfence sandbox`?')
  expect(rf(['sandbox', 'sttas']).err).toContain('did you mean `stats`?')
})

test('learning a missing program exits with 127 and writes nothing', () => {
  const file = join(base, 'learned.toml')
  const cwd = mkdtempSync(join(tmpdir(), 'rf-remote-work-'))
  const { status, out } = rf(['policy', 'learn', '-o', file, '--', './nosuch'], { cwd })
  expect([status, out, existsSync(file)]).toEqual([127, '', false])
  expect(rf(['run', '--review', './nosuch'], { cwd }).status).toBe(127)
  rmSync(cwd, { recursive: true })
})
