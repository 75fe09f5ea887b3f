import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { BrokerKit, until } from './broker-kit.ts'

/** Forged brokers: the front starts what a broker tells it to start, so it must authenticate the broker. */

const kit = new BrokerKit()
beforeAll(() => kit.start())
afterAll(() => kit.remove())

/** Listens like a broker, has a secret like a listener, and tells each caller to start a program outside the sandbox. */
const forger = (socket: string): string => `
import os, socket, struct
s = socket.socket(socket.AF_UNIX)
s.bind('${socket}')
s.listen(5)
fd = os.memfd_create('secret', 0)
os.write(fd, b'a' * 128)
os.dup2(fd, 60)
print('listening', flush=True)
frame = lambda kind, body: kind + struct.pack('>I', len(body)) + body
s.settimeout(30)
c, _ = s.accept()
words = [b'/bin/sh', b'/', b'token', b'iii', b'3', b'/bin/sh', b'-c', b'echo escaped', b'0']
try:
    c.sendall(b'a' * 64 + frame(b'A', b'') + frame(b'L', b''.join(w + b'\\0' for w in words)))
    print('heard', c.recv(1000), flush=True)
except OSError:
    print('heard nothing', flush=True)
`

describe('a socket that a sandbox created in a state directory', () => {
  const state = join(kit.workspace, 'state')
  const socket = join(state, 'broker', 'socket')

  test('receives no request and no variables', async () => {
    mkdirSync(join(state, 'broker'), { recursive: true, mode: 0o700 })
    const sandbox = kit.spawn(['run', '--yes', '--', 'python3', '-c', forger(socket)])
    let said = ''
    sandbox.stdout.on('data', (chunk) => {
      said += chunk
    })
    await until('it listens', () => said.includes('listening') && existsSync(socket))
    const env = { RINGFENCE_HOME: state, A_TOKEN: 'only-here' }
    const { code, stdout } = kit.run(['run', '--', 'echo', 'done'], { env })
    expect([code, stdout]).toEqual([0, 'done\n'])
    await once(sandbox, 'close')
    expect(said).not.toMatch(/only-here|heard b'R/)
    rmSync(state, { recursive: true, force: true })
  })
})

test('a process without the listener secret is not trusted as broker', async () => {
  const state = join(kit.base, 'mute')
  mkdirSync(join(state, 'broker'), { recursive: true, mode: 0o700 })
  const mute = forger(join(state, 'broker', 'socket')).replace("b'a' * 64 + ", "b'b' * 64 + ")
  const other = spawn('/usr/bin/python3', ['-c', mute], { stdio: ['ignore', 'pipe', 'inherit'] })
  try {
    await once(other.stdout, 'data')
    const env = { RINGFENCE_HOME: state }
    expect(kit.run(['run', '--', 'echo', 'done'], { env })).toMatchObject({ code: 0, stdout: 'done\n' })
  } finally {
    other.kill('SIGKILL')
  }
})

describe('the build check of the broker', () => {
  test('ends a broker whose build is replaced while it starts', async () => {
    const own = new BrokerKit()
    try {
      // Node reads the program some time after the front started it; by then the file is replaced.
      own.run(['check', 'command', 'true'])
      const main = join(own.base, 'package', 'dist', 'cli', 'main.cjs')
      writeFileSync(main, readFileSync(main))
      const { pid } = own
      await until('it has ended', () => !existsSync(`/proc/${pid}`))
      expect(existsSync(own.socket)).toBe(false)
    } finally {
      own.remove()
    }
  })

  test('detects a new build with the same size and modification time', async () => {
    const own = new BrokerKit()
    try {
      const main = join(own.base, 'package', 'dist', 'cli', 'main.cjs')
      const when = new Date('1985-10-26T08:15:00Z')
      utimesSync(main, when, when)
      await own.start()
      expect(own.isServed()).toBe(true)
      writeFileSync(main, readFileSync(main))
      utimesSync(main, when, when)
      expect(own.isServed()).toBe(false)
    } finally {
      own.remove()
    }
  })
})

test('a clock that was set back does not keep a broker from starting', async () => {
  const own = new BrokerKit()
  try {
    mkdirSync(join(own.state, 'broker'), { mode: 0o700 })
    const lock = join(own.state, 'broker', 'lock')
    writeFileSync(lock, '1\n', { mode: 0o600 })
    const later = new Date(Date.now() + 86_400_000)
    utimesSync(lock, later, later)
    await own.start()
  } finally {
    own.remove()
  }
})

test('a very large idle time does not overflow', async () => {
  const own = new BrokerKit({ RINGFENCE_BROKER_IDLE: '99999999' })
  try {
    await own.start()
    expect(own.isServed()).toBe(true)
  } finally {
    own.remove()
  }
})
