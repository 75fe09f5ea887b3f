import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Sandbox } from '../../src/supervisor/sandbox.ts'
import { canHaveRoot, type RootHost, rootHost, sh } from './root-host.ts'

/** What only the root user of a sandbox could try. The other attacks run as that user in test/conformance. */

let host: RootHost
beforeAll(async () => {
  host = await rootHost()
})
afterAll(() => host.close())

const STORED = 0x7000_0000

/** The host id of the sandbox's root user. */
const firstIdOf = async (sandbox: Sandbox): Promise<number> =>
  Number(/root-user\(host id (\d+)\)/.exec((await sandbox.layers()).join(' '))?.[1])

const diskOf = (sandbox: Sandbox): string => join(host.base, 'state', 'homes', sandbox.id, 'disk')

describe.runIf(canHaveRoot)('the agent', () => {
  test('survives every signal, and the end of its reapers', async () => {
    await using sandbox = await host.open()
    await sh(sandbox, 'for s in $(seq 1 64); do kill -$s 1; done 2>/dev/null; true', 'root')
    await sh(sandbox, 'kill -9 $PPID; sleep 5', 'root')
    await sandbox.files.write('/workspace/stop.sh', 'kill -STOP -1')
    const limits = { wallMs: 500 }
    const stopped = await sandbox.exec(['bash', '/workspace/stop.sh'], { user: 'root', limits })
    expect(stopped.outcome).toEqual({ kind: 'stopped', limit: 'wall' })
    expect(await sh(sandbox, 'echo alive')).toBe('alive\n')
  })

  test('can be neither traced nor read nor changed by root', async () => {
    await using sandbox = await host.open()
    const script = `python3 - <<'X'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
  import time; time.sleep(5); os._exit(0)
print('own child', libc.ptrace(16, child, 0, 0))
for pid in (1, os.getppid(), int(open(f'/proc/{os.getppid()}/stat').read().split(')')[1].split()[1])):
  if open(f'/proc/{pid}/comm').read().strip() in ('bash', 'python3'): continue
  print('trace', libc.ptrace(16, pid, 0, 0), libc.ptrace(0x4206, pid, 0, 0))
  buffer = (ctypes.c_char * 8)()
  vec = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
  there = (ctypes.c_void_p * 2)(0x400000, 8)
  print('read', libc.process_vm_readv(pid, vec, 1, there, 1, 0))
  fd = libc.syscall(434, pid, 0)
  print('descriptor', [libc.syscall(438, fd, n, 0) for n in range(3, 12)].count(-1))
  for name in ('mem', 'environ', 'maps', 'root', 'cwd', 'exe', 'fd/3', 'fd/4', 'stack', 'syscall', 'auxv'):
    try: os.close(os.open(f'/proc/{pid}/{name}', os.O_RDONLY)) or (open(f'/proc/{pid}/{name}','rb').read() and print('opened', name))
    except OSError: pass
os.kill(child, 9)
X`
    expect(await sh(sandbox, script, 'root')).toMatch(
      /^own child 0\n(trace -1 -1\nread -1\ndescriptor 9\n)+$/,
    )
  })

  test('takes nothing but requests at its socket', async () => {
    await using sandbox = await host.open()
    const script = `python3 - <<'X'
import array, os, socket
for size in (0, 1, 7, 4096, 150000):
  for fds in (0, 1, 3, 3, 20):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('/run/ringfence/sudo')
    try: s.sendmsg([os.urandom(size) if size != 7 else b'argv\\0x\\0'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [1] * fds))] if fds else [])
    except OSError: pass
held = []
for i in range(200):
  s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.setblocking(False)
  try: s.connect('/run/ringfence/sudo')
  except OSError: pass
  held.append(s)
X
sudo id -un`
    expect(await sh(sandbox, script)).toContain('root\n')
    const fields = `python3 - <<'X'
import array, socket
for field in (b'builtin\\0', b'rlimit\\0core\\0' + b'1\\0', b'wait-for-start\\0', b'owner\\0root\\0'):
  s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('/run/ringfence/sudo')
  s.sendmsg([field + b'as\\0root\\0argv\\0id\\0'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1, 2]))])
  print(s.recv(16))
X`
    expect(await sh(sandbox, fields)).toBe("b''\n".repeat(4))
  })
})

describe.runIf(canHaveRoot)('the host', () => {
  test('keeps its programs whatever root does to them', async () => {
    const programs = ['/usr/bin/true', '/usr/bin/env', '/var/lib/dpkg/status']
    const state = () =>
      programs.map((path) => {
        const { mode, uid, mtimeMs, ctimeMs } = statSync(path)
        return [createHash('sha256').update(readFileSync(path)).digest('hex'), mode, uid, mtimeMs, ctimeMs]
      })
    const before = state()
    await using sandbox = await host.open()
    const script = `for f in ${programs.join(' ')}; do chmod 4777 $f; chown 1000 $f; touch $f; done
echo x >> /usr/bin/true; mv /usr/bin/env /usr/bin/env2; rm /var/lib/dpkg/status; setfattr -n user.x -v y /usr/bin 2>/dev/null
rm -rf /usr/share/doc; ls /usr/share/doc 2>/dev/null | wc -l`
    expect(await sh(sandbox, script, 'root')).toContain('0\n')
    expect(state()).toEqual(before)
    expect(readdirSync('/usr/share/doc').length).toBeGreaterThan(10)
  })

  test('gets no device and no root-owned or setuid file of root’s', async () => {
    await using sandbox = await host.open()
    const devices = `for d in "c 1 3" "b 7 0" "c 0 0" "b 254 0"; do mknod /opt/node $d 2>/dev/null && echo made $d; mknod /tmp/node $d 2>/dev/null && [ "$d" != "c 0 0" ] && echo made $d; done; ls /dev/loop* /dev/vd* /dev/sd* 2>/dev/null; true`
    expect(await sh(sandbox, devices, 'root')).toBe('')
    const setuid =
      'cp /bin/bash /opt/bash; chmod 6755 /opt/bash; sync; su user -c "/opt/bash -p -c id" 2>/dev/null'
    expect(await sh(sandbox, setuid, 'root')).toMatch(/^uid=1000\(user\) gid=1000\(user\) groups/)
    const said = execFileSync('debugfs', ['-R', 'stat upper-0/opt/bash', diskOf(sandbox)], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    })
    expect(said).toMatch(new RegExp(`Mode:  06755[\\s\\S]*User: +${STORED} +Group: +${STORED}`))
    expect(statSync(diskOf(sandbox)).mode & 0o777).toBe(0o600)
  })

  test('keeps its devices, and the agent keeps its descriptors to itself', async () => {
    await using sandbox = await host.open()
    const before = ['/dev/null', '/dev/tty', '/dev/urandom'].map((path) => statSync(path).mode)
    const script =
      'for d in null tty urandom; do chmod 600 /dev/$d; chown 1000 /dev/$d; rm -f /dev/$d; done 2>/dev/null; ls -l /proc/self/fd | wc -l'
    await sh(sandbox, script, 'root')
    expect(['/dev/null', '/dev/tty', '/dev/urandom'].map((path) => statSync(path).mode)).toEqual(before)
    expect(await sh(sandbox, 'sudo ls /proc/self/fd | tr "\\n" " "')).toBe('0 1 2 3 ')
  })

  test('has every process of a sandbox in the sandbox’s own range of ids', async () => {
    const sandboxes = await Promise.all(Array.from({ length: 6 }, () => host.open()))
    try {
      const firsts = await Promise.all(sandboxes.map(firstIdOf))
      expect(new Set(firsts).size).toBe(6)
      for (const first of firsts) {
        expect((first - STORED) % 65_536).toBe(0)
        expect(first).toBeGreaterThan(STORED)
      }
      const [one] = sandboxes as [Sandbox]
      const running = await one.spawn(['sudo', 'sleep', '987'])
      await expect.poll(() => uidsOf('sleep\u0000987'), { timeout: 5000 }).toEqual([firsts[0]])
      running.signal('SIGKILL')
      const map = await sh(one, 'cat /proc/self/uid_map; setpriv --reuid 70000 true 2>&1 | wc -l', 'root')
      expect(map).toMatch(/^\s+0\s+\d+\s+65536\n1\n/)
    } finally {
      await Promise.all(sandboxes.map((sandbox) => sandbox.close()))
    }
  })

  test('shows one sandbox nothing of another', async () => {
    await using one = await host.open()
    await using other = await host.open()
    const mark = 'only-in-the-first-sandbox'
    await sh(
      one,
      `echo ${mark} > /opt/mark; echo ${mark} > /tmp/mark; echo ${mark} > ~/mark; sleep 60 &`,
      'root',
    )
    const script = `cat /opt/mark /tmp/mark /root/mark /proc/*/root/opt/mark /run/ringfence/stage/*/*/opt/mark 2>/dev/null
grep -rl ${mark} /opt /root /home /tmp /run /srv /mnt 2>/dev/null; ls /run/ringfence; cat /proc/self/mountinfo | grep -c disk`
    expect(await sh(other, script, 'root')).toMatch(/^\/workspace\/script.sh\n|^sudo\n/)
    expect(await sh(other, script, 'root')).not.toContain(`${mark}\n${mark}`)
  })
})

/** The host ids of processes by their command line. */
const uidsOf = (line: string): readonly number[] =>
  readdirSync('/proc').flatMap((pid) => {
    try {
      if (!/^\d+$/.test(pid) || !readFileSync(`/proc/${pid}/cmdline`, 'latin1').startsWith(line)) return []
      return [Number(/^Uid:\t(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])]
    } catch {
      return []
    }
  })
