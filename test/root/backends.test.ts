import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { cannotTry, type RootBackend, type RootHost, rootHost, sh, text } from './root-host.ts'

/** A writable root on every backend that supports it, and attacks of its root user on the agent and the limits. */

const FULL = process.env.RINGFENCE_FULL === '1'
const BACKENDS: readonly RootBackend[] = ['bubblewrap', 'docker', 'microvm']

describe.each(BACKENDS.filter((backend) => !cannotTry(backend)))('a writable root on %s', (backend) => {
  // An emulated virtual machine is slow.
  const inFull = test.runIf(FULL || backend !== 'microvm')
  let host: RootHost
  beforeAll(async () => {
    host = await rootHost(backend)
  }, 60_000)
  afterAll(() => host.close(), 60_000)

  inFull('keeps the agent alive after every signal and after the death of its subreapers', async () => {
    await using sandbox = await host.open()
    await sh(sandbox, 'for s in $(seq 1 64); do kill -$s 1; done 2>/dev/null; true', 'root')
    await sh(sandbox, 'kill -9 $PPID; sleep 5', 'root')
    await sandbox.files.write('/workspace/stop.sh', 'kill -STOP -1')
    const limits = { wallMs: 500 }
    const stopped = await sandbox.exec(['bash', '/workspace/stop.sh'], { user: 'root', limits })
    expect(stopped.outcome).toEqual({ kind: 'stopped', limit: 'wall' })
    expect(await sh(sandbox, 'echo alive')).toBe('alive\n')
  })

  test('does not let root trace, read or change the agent', async () => {
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

  inFull('rejects malformed requests at the sudo socket of the agent', async () => {
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

  test('has users, `sudo` and writable directories', async () => {
    await using sandbox = await host.open()
    expect(await sh(sandbox, 'id -un; sudo id -un; sudo sh -c "exit 7" || echo $?')).toBe('user\nroot\n7\n')
    const script = 'mkdir /app /opt/x && chown 33:33 /app && stat -c %U /app; echo 1 > /etc/x; cat /etc/x'
    expect(await sh(sandbox, script, 'root')).toBe('www-data\n1\n')
    // The image of a machine has only some programs of the host.
    if (backend !== 'microvm')
      expect(await sh(sandbox, 'useradd -m ada && su ada -c "id -un; touch ~/x"', 'root')).toBe('ada\n')
    await sandbox.files.ownedBy('root').write('/app/two', 'x')
    expect(await sh(sandbox, 'stat -c %U /app/two')).toBe('root\n')
    expect(await sh(sandbox, 'cat /proc/self/status | grep -E "NoNewPrivs|CapBnd"', 'root')).toMatch(
      /CapBnd:\s+00000000000004fb\nNoNewPrivs:\s+1\n/,
    )
  })

  test('supports `sudo` in isolated commands: recorded, and limited to processes of the command', async () => {
    await using sandbox = await host.open({ isolation: 'command' })
    host.events.length = 0
    const script =
      'id -un; sudo id -un; sudo sh -c "exit 7" || echo $?; sudo sh -c "echo /proc/[0-9]*" | wc -w'
    const said = await sh(sandbox, script)
    expect(said).toMatch(/^user\nroot\n7\n[4-9]\n$/)
    expect(host.events.find(({ command }) => command === 'id -un')).toMatchObject({ user: 'root' })
    expect(
      await sh(sandbox, 'python3 -c "import socket;s=socket.socket();s.bind((\'\',80))"; id -un', 'root'),
    ).toBe('root\n')
    const running = await sandbox.spawn(['bash', '-c', 'sudo sleep 4321'], { limits: { wallMs: 1500 } })
    expect((await running.result).outcome).toEqual({ kind: 'stopped', limit: 'wall' })
    expect(await sh(sandbox, 'touch /run/x /tmp/x && stat -c %U /run /tmp', 'root')).toBe('root\nroot\n')
  })

  test('counts processes started by `sudo` towards the process limit', async () => {
    const many =
      'import os,time\nn=0\ntry:\n  while n<60:\n    if os.fork()==0: time.sleep(9);os._exit(0)\n    n+=1\nexcept OSError: pass\nprint(n<60)'
    for (const isolation of ['sandbox', 'command'] as const) {
      await using sandbox = await host.open({ isolation, limits: { pids: 40 } })
      expect(await sh(sandbox, `sudo python3 -c '${many}'`)).toContain('True')
    }
  })

  inFull('records processes started by `sudo`, and ends them with their command', async () => {
    await using sandbox = await host.open()
    host.events.length = 0
    const running = await sandbox.spawn(['bash', '-c', 'sudo sleep 4321'], { limits: { wallMs: 1500 } })
    expect((await running.result).outcome).toEqual({ kind: 'stopped', limit: 'wall' })
    expect(await sh(sandbox, 'sleep 0.3; pgrep -c -x sleep')).toMatch(/^[01]\n/)
    expect(host.events.find(({ command }) => command === 'sleep 4321')).toMatchObject({
      event: 'PolicyDecision',
      user: 'root',
      exec_id: running.execId,
    })
  })

  inFull('passes size and Ctrl-C to a terminal of root', async () => {
    await using sandbox = await host.open()
    let said = ''
    const running = await sandbox.spawn(['sudo', 'bash', '--norc'], {
      terminal: { cols: 90, rows: 30 },
      output: (_, chunk) => {
        said += text(chunk)
      },
    })
    const type = async (line: string, until: RegExp): Promise<void> => {
      await running.write(Buffer.from(line))
      await expect.poll(() => said, { timeout: 20_000 }).toMatch(until)
    }
    await type('stty size; id -un\r', /30 90\s+root/)
    await type('sleep 300\r', /sleep 300/)
    await type('\u0003', /\^C/)
    await running.write(Buffer.from('exit 5\r'))
    expect((await running.result).outcome).toEqual({ kind: 'exited', code: 5 })
  })

  test('limits everything that root writes: sparse files, attributes, names, deleted files', async () => {
    await using sandbox = await host.open({ limits: { diskMb: 64 } })
    const full = await sh(
      sandbox,
      'head -c 200M /dev/zero > /opt/zeroes; sleep 0.4; stat -c %s /opt/zeroes',
      'root',
    )
    expect(full).toContain('No space left on device')
    expect(Number(/^(\d+)$/m.exec(full)?.[1])).toBeLessThan(64 * 1024 * 1024)
    expect(
      await sh(sandbox, 'rm /opt/zeroes; head -c 20M /dev/zero > /usr/local/x && echo again', 'root'),
    ).toBe('again\n')
    const held = `import os
f = os.open('/opt/held', os.O_RDWR | os.O_CREAT); os.unlink('/opt/held')
try:
  for i in range(200): os.write(f, bytes(1 << 20))
except OSError as e: print(e.errno, i < 64)`
    expect(await sh(sandbox, `python3 -c "${held}"`, 'root')).toBe('28 True\n')
    const sparse = `import os
f = os.open('/opt/sparse', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 1 << 34); n = 0
try:
  for i in range(300): os.pwrite(f, bytes(1 << 20), i << 25); n += 1
except OSError as e: print(e.errno, n < 64)
os.unlink('/opt/sparse')`
    expect(await sh(sandbox, `python3 -c "${sparse}"`, 'root')).toBe('28 True\n')
    const names = `import os
os.mkdir('/opt/many')
try:
  for i in range(200000): os.close(os.open(f'/opt/many/{i}', os.O_CREAT))
except OSError as e: print(e.errno)`
    expect(await sh(sandbox, `python3 -c "${names}"`, 'root')).toBe('28\n')
    const attributes = `import os
n = 0
try:
  for i in range(50000):
    os.close(os.open(f'/opt/many/{i}', os.O_CREAT)); os.setxattr(f'/opt/many/{i}', 'user.big', os.urandom(3000)); n += 1
except OSError as e: print(e.errno, n * 3000 < 64 << 20)`
    expect(await sh(sandbox, `python3 -c "${attributes}"`, 'root')).toBe('28 True\n')
    const events = host.events.filter(({ event }) => event === 'SandboxViolation')
    expect(JSON.stringify(events)).toContain('limit.disk')
  })

  test('gives root no device of the host, no mounts and no new namespaces', async () => {
    await using sandbox = await host.open()
    const devices = `exec 2>/dev/null; for d in "c 1 1" "b 7 0" "b 254 0" "c 10 237"; do mknod /opt/node $d 2>/dev/null && cat /opt/node > /dev/null 2>&1 && echo read $d; rm -f /opt/node; done
ls /dev/loop* /dev/vd* /dev/sd* /dev/mem /dev/kmsg /dev/vport* /dev/hvc* 2>/dev/null
mount -t tmpfs x /mnt 2>/dev/null && echo mounted; unshare -U true 2>/dev/null && echo namespace; chroot / true 2>/dev/null && echo chroot
nsenter -t 1 -m true 2>/dev/null && echo entered; reboot -f 2>/dev/null && echo rebooted; insmod /dev/null 2>/dev/null && echo module
echo 1 > /proc/sys/kernel/panic 2>/dev/null && echo set; echo b > /proc/sysrq-trigger 2>/dev/null && echo sysrq
for f in $(find /sys/fs/cgroup /proc/1 -maxdepth 1 -type f 2>/dev/null); do echo 1 > $f 2>/dev/null && echo wrote $f; done; true`
    expect(await sh(sandbox, devices, 'root')).toBe('')
  })

  inFull('lets root open a port below 1024', async () => {
    await using sandbox = await host.open()
    const script =
      'python3 -c "import socket; s = socket.socket(); s.bind((\'127.0.0.1\', 80)); s.listen(); print(80)"'
    expect(await sh(sandbox, script, 'root')).toBe('80\n')
  })

  test('can be copied completely, and the original sandbox continues', async () => {
    await using sandbox = await host.open({ limits: { diskMb: 64 } })
    const write =
      'echo kept > /opt/kept; rm /etc/hostname; chown 33 /opt/kept; head -c 3M /dev/urandom > /opt/big'
    expect(await sh(sandbox, write, 'root')).toBe('')
    const disk = join(host.base, `copy-${backend}`)
    const sum = await sh(sandbox, 'cksum /opt/big')
    await sandbox.copyDisk(disk)
    expect(await sh(sandbox, 'rm /opt/kept; ls /opt', 'root')).toBe('big\n')
    await using copy = await host.open({ limits: { diskMb: 64 } }, undefined, { disk })
    expect(await sh(copy, 'cat /opt/kept; stat -c %U /opt/kept; cksum /opt/big')).toBe(
      `kept\nwww-data\n${sum}`,
    )
  })

  inFull('follows no symlinks that root left when it is started again', async () => {
    const disk = join(host.base, `links-${backend}`)
    {
      await using sandbox = await host.open({ limits: { diskMb: 64 } })
      const links =
        'rm -rf /home/user; ln -s /etc /home/user; mv /etc /etc2; ln -s /proc /etc; rm -rf /opt; ln -s /dev /opt; ls -d /etc2'
      expect(await sh(sandbox, links, 'root')).toBe('/etc2\n')
      await sandbox.copyDisk(disk)
    }
    await using copy = await host.open({ limits: { diskMb: 64 } }, undefined, { disk })
    const { stdout } = await copy.exec(
      ['/bin/sh', '-c', 'id -u; readlink /etc /opt; ls /proc/hosts /dev/passwd'],
      {
        user: 'root',
      },
    )
    expect(text(stdout)).toBe('0\n/proc\n/dev\n')
  })
})
