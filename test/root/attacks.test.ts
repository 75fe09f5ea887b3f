import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { Sandbox } from '../../src/supervisor/sandbox.ts'
import { canHaveRoot, type RootHost, rootHost, sh } from './root-host.ts'

/** Attacks that only the root user of a sandbox can try. The other attacks run as that user in test/conformance. */

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

describe.runIf(canHaveRoot)('root in a sandbox with a writable root', () => {
  test('cannot change programs of the host', async () => {
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

  test('cannot connect to a unix socket of the host next to its programs', async () => {
    const beside = mkdtempSync('/usr/local/rf-socket-')
    const server = createServer((socket) => socket.end('reached')).listen(join(beside, 's'))
    try {
      await using sandbox = await host.open()
      const line = `import socket; s=socket.socket(socket.AF_UNIX); s.connect("${beside}/s"); print(s.recv(9))`
      const said = await sh(sandbox, `test -S ${beside}/s && echo there; python3 -c '${line}' 2>&1`, 'root')
      expect(said).toContain('there')
      expect(said).not.toContain('reached')
    } finally {
      server.close()
      rmSync(beside, { recursive: true, force: true })
    }
  })

  test('cannot create devices, or setuid files that are root’s on the host', async () => {
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

  test('cannot change devices of the host or inherit descriptors of the agent', async () => {
    await using sandbox = await host.open()
    const before = ['/dev/null', '/dev/tty', '/dev/urandom'].map((path) => statSync(path).mode)
    const script =
      'for d in null tty urandom; do chmod 600 /dev/$d; chown 1000 /dev/$d; rm -f /dev/$d; done 2>/dev/null; ls -l /proc/self/fd | wc -l'
    await sh(sandbox, script, 'root')
    expect(['/dev/null', '/dev/tty', '/dev/urandom'].map((path) => statSync(path).mode)).toEqual(before)
    expect(await sh(sandbox, 'sudo ls /proc/self/fd | tr "\\n" " "')).toBe('0 1 2 3 ')
  })

  test('runs every process in the id range of its sandbox', async () => {
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

  test('cannot see another sandbox', async () => {
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
