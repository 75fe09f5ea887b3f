import { afterAll, beforeAll, expect, test } from 'vitest'
import { canHaveRoot } from '../root/root-host.ts'
import { startTestServer, type TestServer } from './test-server.ts'

let home: TestServer

beforeAll(async () => {
  home = await startTestServer('')
}, 60_000)
afterAll(() => home.close())

const exec = (id: string, body: object) => home.call('POST', `/v1/sandboxes/${id}/exec`, { body })

test('isolation can be set on create, and an exec is refused if the backend cannot provide it', async () => {
  const kept = await home.call('POST', '/v1/sandboxes', { body: { isolation: 'command' } })
  expect(kept.status, kept.text).toBe(201)
  const ran = await exec(kept.json.id, { command: 'echo /proc/[0-9]*', isolation: 'command' })
  expect(ran.json.stdout, ran.text).toBe('/proc/1 /proc/2\n')
  expect((await exec(kept.json.id, { command: 'true', isolation: 'sandbox' })).json.code).toBe('forbidden')

  const shared = await home.call('POST', '/v1/sandboxes', { body: {} })
  const refused = await exec(shared.json.id, { command: 'true', isolation: 'command' })
  expect(refused.json, refused.text).toMatchObject({ code: 'missing-guarantee' })
})

/** Each line is printed by an attack that succeeded. */
const AS_ROOT = `import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def attack(name, work):
  try:
    if work() not in (-1, None): print(name)
  except OSError: pass
for part in ('mem', 'environ', 'maps'): attack('read ' + part, lambda: len(open('/proc/1/' + part, 'rb').read(1)))
for part in ('root', 'cwd', 'exe', 'ns/pid'): attack('follow ' + part, lambda: os.readlink('/proc/1/' + part))
attack('write mem', lambda: open('/proc/1/mem', 'r+b').fileno())
attack('trace', lambda: libc.syscall(101, 0x4206, 1, 0, 0))
attack('take a descriptor', lambda: libc.syscall(438, os.pidfd_open(1), 3, 0))
attack('leave the namespaces', lambda: libc.syscall(308, os.open('/proc/1/ns/mnt', os.O_RDONLY), 0))
attack('own namespaces', lambda: libc.syscall(272, 0x10000000))
attack('mount', lambda: libc.syscall(165, b't', b'/mnt', b'tmpfs', 0, 0))
attack('unmount', lambda: libc.syscall(166, b'/tmp', 2))
attack('keys', lambda: libc.syscall(248, b'user', b'x', b'y', 1, -3))
attack('vsock', lambda: socket.socket(40, socket.SOCK_STREAM).fileno())
for path in ('/tmp', '/run', '/dev', '/proc'): attack('rename ' + path, lambda: os.rename(path, path + 'x') or 0)
for path in (b'/tmp', b'/run'): attack('exchange', lambda: libc.syscall(316, -100, path, -100, b'/mnt', 2))
attack('sysctl', lambda: open('/proc/sys/kernel/hostname', 'w').write('x'))
os.kill(1, 9); os.kill(1, 19)
print('tried')
`

test.runIf(canHaveRoot)(
  'root in a writable root cannot reach another isolated command',
  { timeout: 60_000 },
  async () => {
    const { json } = await home.call('POST', '/v1/sandboxes', {
      body: { root: 'writable', isolation: 'command' },
    })
    const victim = exec(json.id, { command: 'echo own > /tmp/own; sleep 3; cat /tmp/own; ls /run' })
    const command = `cat > /opt/attack.py <<'X'\n${AS_ROOT}X\npython3 /opt/attack.py; ls /tmp; echo /proc/[0-9]*`
    const { stdout } = (await exec(json.id, { command, user: 'root' })).json
    expect(stdout).toBe('tried\n/proc/1 /proc/2\n')
    expect((await victim).json.stdout).toBe('own\nlock\nringfence\n')
  },
)
