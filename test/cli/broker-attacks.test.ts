import { execFileSync, spawnSync } from 'node:child_process'
import {
  chmodSync,
  chownSync,
  existsSync,
  mkdirSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
} from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { BrokerKit } from './broker-kit.ts'

/** Callers that the broker must not serve, and callers that must not reach it. */

const isRoot = process.getuid?.() === 0
const ORDINARY = 54321
const kit = new BrokerKit()
const broker = join(kit.state, 'broker')
beforeAll(async () => {
  chmodSync(kit.base, 0o755)
  await kit.start()
})
afterAll(() => kit.remove())

const has = (program: string): boolean => spawnSync('which', [program]).status === 0

test('only its user can open the broker socket', () => {
  expect([statSync(broker).mode & 0o777, statSync(kit.socket).mode & 0o777]).toEqual([0o700, 0o600])
  expect(kit.isServed()).toBe(true)
})

describe('the broker does not serve a caller with', () => {
  const unshared = (flags: readonly string[]): readonly string[] => ['unshare', ...flags, '--']
  const rows: readonly [string, readonly string[], boolean][] = [
    ['another user namespace', unshared(['-U', '-r']), true],
    ['another mount namespace', unshared(['-m']), isRoot],
    ['another network namespace', unshared(['-n']), isRoot],
    ['another IPC namespace', unshared(['-i']), isRoot],
    ['another UTS namespace', unshared(['-u']), isRoot],
    ['another cgroup namespace', unshared(['-C']), isRoot],
    ['another PID namespace', unshared(['-p', '-f', '--mount-proc']), isRoot],
    ['no new privileges', ['setpriv', '--no-new-privs'], has('setpriv')],
    ['fewer capabilities', ['setpriv', '--bounding-set', '-sys_admin'], isRoot && has('setpriv')],
    ['other groups', ['setpriv', '--groups', '12345'], isRoot && has('setpriv')],
    ['another umask', ['sh', '-c', 'umask 077; exec "$@"', '-'], true],
    ['other resource limits', ['sh', '-c', 'ulimit -c 0; ulimit -t 1000; exec "$@"', '-'], true],
  ]
  for (const [name, before, can] of rows)
    test.runIf(can)(name, () => {
      expect(kit.isServed({ before })).toBe(false)
      expect(kit.run(['check', 'command', 'true'], { before }).code).toBe(0)
    })

  // /proc does not show that a process is in a Landlock domain; but such a process cannot read the listener secret.
  test.runIf(isRoot)('a Landlock domain, without no_new_privs', () => {
    const script = `
import ctypes, os, sys
libc, rules = ctypes.CDLL(None, use_errno=True), ctypes.c_uint64(1 << 9)
fd = libc.syscall(444, ctypes.byref(rules), 8, 0)
assert fd >= 0 and libc.syscall(446, fd, 0) == 0, os.strerror(ctypes.get_errno())
os.close(fd)
os.execv(sys.argv[1], sys.argv[1:])`
    const before = ['/usr/bin/python3', '-c', script]
    expect(kit.isServed({ before })).toBe(false)
    expect(kit.run(['check', 'command', 'true'], { before }).code).toBe(0)
  })

  test.runIf(isRoot)('another root directory', () => {
    // The same files below another root: a recursive bind mount in the caller's own mount namespace would differ too.
    const root = join(kit.base, 'root')
    mkdirSync(root, { recursive: true })
    const script = `mount --rbind / "${root}" && exec /usr/sbin/chroot "${root}" "$@"`
    expect(kit.isServed({ before: ['unshare', '-m', 'sh', '-c', script, '-'] })).toBe(false)
  })

  test.runIf(isRoot)('another user id, even if the socket is open to everybody', () => {
    const before = ['setpriv', '--reuid', String(ORDINARY), '--regid', String(ORDINARY), '--clear-groups']
    for (const path of [kit.state, broker]) chmodSync(path, 0o777)
    chmodSync(kit.socket, 0o666)
    try {
      expect(kit.isServed({ before })).toBe(false)
      expect(knock(kit.socket, before)).toBe('closed')
    } finally {
      chmodSync(kit.state, 0o700)
      chmodSync(broker, 0o700)
      chmodSync(kit.socket, 0o600)
    }
    expect(knock(kit.socket, before)).toMatch(/Permission denied/)
  })
})

/** Connects, sends a request as the front does but without the secret, and returns the answer. */
function knock(socket: string, before: readonly string[] = []): string {
  const script = `
import socket, struct
s = socket.socket(socket.AF_UNIX)
try:
    s.connect('${socket}')
    shown = s.recv(64, socket.MSG_WAITALL)
    body = b'2\\0' + b'0' * 64 + b'\\0x\\0/usr/bin/node\\x00000\\0/\\x003\\0check\\0command\\0true\\x000\\0'
    s.sendall(b'R' + struct.pack('>I', len(body)) + body)
    answer = s.recv(5)
    print(answer[:1].decode() or 'closed')
except (ConnectionResetError, BrokenPipeError):
    print('closed')
except OSError as error:
    print(error)`
  const [file, ...args] = [...before, '/usr/bin/python3', '-c', script]
  return execFileSync(file as string, args, { encoding: 'utf8' }).trim()
}

test('a request without the listener secret is refused', () => {
  expect(knock(kit.socket)).toBe('N')
})

describe('the front does not use a broker directory that is', () => {
  const moved = join(kit.state, 'elsewhere')
  test('a symlink', () => {
    renameSync(broker, moved)
    symlinkSync(moved, broker)
    try {
      expect(kit.isServed()).toBe(false)
    } finally {
      rmSync(broker)
      renameSync(moved, broker)
    }
    expect(kit.isServed()).toBe(true)
  })

  test('accessible to other users', () => {
    chmodSync(broker, 0o755)
    expect(kit.isServed()).toBe(false)
    chmodSync(broker, 0o700)
  })

  test.runIf(isRoot)('owned by another user', () => {
    chownSync(broker, ORDINARY, ORDINARY)
    expect(kit.isServed()).toBe(false)
    chownSync(broker, 0, 0)
    expect(kit.isServed()).toBe(true)
  })

  test('without a listening socket', () => {
    renameSync(kit.socket, `${kit.socket}.ours`)
    execFileSync('python3', ['-c', `import socket; socket.socket(socket.AF_UNIX).bind('${kit.socket}')`])
    try {
      expect(kit.isServed()).toBe(false)
      expect(kit.run(['check', 'command', 'true']).code).toBe(0)
    } finally {
      renameSync(`${kit.socket}.ours`, kit.socket)
    }
  })
})

describe('a sandbox cannot reach the broker', () => {
  const script = (path: string): string =>
    `import os, socket; print(os.path.exists('${path}'));\ntry:\n s = socket.socket(socket.AF_UNIX); s.connect('${path}'); s.send(b'x'); print('answer', s.recv(1))\nexcept OSError as error: print('refused')`

  test.each<[string, readonly string[]]>([
    ['with its workspace only', []],
    ['with full access', ['--preset', 'danger-full-access']],
  ])('%s', (_, flags) => {
    const { stdout, stderr } = kit.run(['run', '--yes', ...flags, '--', 'python3', '-c', script(kit.socket)])
    expect([stdout, stderr]).toEqual(['False\nrefused\n', ''])
  })

  test.each<[string, readonly string[]]>([
    ['as a socket', ['--unix-socket', kit.socket]],
    ['as a mount', ['--mount', `${broker}:/broker`]],
    ['as a directory', ['--read', broker]],
  ])('nor can its socket be granted %s', (_, flags) => {
    expect(kit.run(['run', ...flags, '--', 'true'])).toMatchObject({ code: 126 })
  })

  test('with full access and another state directory', () => {
    const env = { RINGFENCE_HOME: join(kit.base, 'other-state') }
    const args = ['run', '--yes', '--preset', 'danger-full-access', '--', 'python3', '-c', script(kit.socket)]
    expect(kit.run(args, { env }).stdout).not.toContain("answer b'")
    expect(existsSync(kit.socket)).toBe(true)
  })
})
