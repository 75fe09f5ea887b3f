import { once } from 'node:events'
import { accessSync, chmodSync, constants, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { Sandbox, type Spec } from '../../src/index.ts'

/** Without network, a connection attempt is reported; connections inside the sandbox work. */

const base = mkdtempSync(join(tmpdir(), 'rf-connects-'))
afterAll(() => rmSync(base, { recursive: true, force: true }))

const SCRIPT = `
import socket, threading
def attempt(family, kind, address):
    with socket.socket(family, kind) as s:
        s.settimeout(2)
        try:
            s.sendto(b"x", address) if kind == socket.SOCK_DGRAM else s.connect(address)
        except OSError as error:
            print(error.errno)
attempt(socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80))
attempt(socket.AF_INET6, socket.SOCK_STREAM, ("::ffff:10.0.0.1", 80))
attempt(socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 443))
attempt(socket.AF_INET, socket.SOCK_DGRAM, ("8.8.8.8", 53))
with socket.create_server(("127.0.0.1", 0)) as server:
    threading.Thread(target=lambda: server.accept()[0].sendall(b"inside")).start()
    with socket.create_connection(server.getsockname()) as client:
        print(client.recv(10))
a, b = socket.socketpair()
a.sendall(b"pair")
print(b.recv(10))
`

it.each<[string, Spec]>([
  ['with a writable workspace', {}],
  ['with a read-only preset', { preset: 'read-only' }],
  ['with network mode loopback', { network: { mode: 'loopback' } }],
])('a connection out of the sandbox is refused and reported as a violation, %s', async (_, more) => {
  const workspace = join(base, 'ws')
  mkdirSync(workspace, { recursive: true })
  writeFileSync(join(workspace, 'connect.py'), SCRIPT)
  const env = { PATH: process.env.PATH, HOME: join(base, 'home'), RINGFENCE_HOME: join(base, 'state') }
  await using sandbox = await Sandbox.create({ workspace, ...more }, { env, cwd: workspace })
  const done = await sandbox.exec(['python3', 'connect.py'], { approve: () => true })
  const mode = 'network' in more ? 'net.loopback' : 'net.offline'
  expect(Buffer.from(done.stdout).toString()).toBe("101\n101\n101\n101\nb'inside'\nb'pair'\n")
  expect(done.violations).toEqual([
    { guarantee: mode, details: 'connect 169.254.169.254:80' },
    { guarantee: mode, details: 'connect [::ffff:10.0.0.1]:80' },
    { guarantee: mode, details: 'connect [2001:db8::1]:443' },
    { guarantee: mode, details: 'connect 8.8.8.8:53' },
  ])
})

const canWritePrograms = ((): boolean => {
  try {
    accessSync('/usr/local', constants.W_OK)
    return true
  } catch {
    return false
  }
})()

it.runIf(canWritePrograms).each<[string, boolean]>([
  ['with a workspace', true],
  ['without a workspace', false],
])('a unix socket of the host in a program directory is refused, %s', async (_, hasWorkspace) => {
  const beside = mkdtempSync('/usr/local/rf-socket-')
  const server = createServer((socket) => socket.end('reached')).listen(join(beside, 's'))
  await once(server, 'listening')
  // Any user of the host may connect: nothing but the sandbox refuses it.
  chmodSync(beside, 0o755)
  chmodSync(join(beside, 's'), 0o777)
  const workspace = mkdtempSync(join(base, 'programs-'))
  const env = { PATH: process.env.PATH, HOME: join(base, 'home'), RINGFENCE_HOME: join(base, 'state') }
  try {
    await using sandbox = await Sandbox.create(hasWorkspace ? { workspace } : {}, { env, cwd: workspace })
    const line = `import socket; s=socket.socket(socket.AF_UNIX); s.connect("${beside}/s"); print(s.recv(9))`
    const done = await sandbox.exec(['python3', '-c', line], { approve: () => true })
    expect(done.stdout).toBe('')
    expect(done.violations).toEqual([{ guarantee: 'ipc.private', details: `connect ${beside}/s` }])
  } finally {
    server.close()
    rmSync(beside, { recursive: true, force: true })
  }
})
