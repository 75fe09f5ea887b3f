import { spawn } from 'node:child_process'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { hostPath } from '../../src/host/files/facts.ts'
import { Sandbox as LibrarySandbox } from '../../src/index.ts'
import { canHaveRoot, type RootHost, rootHost, sh } from './root-host.ts'

/** Host resources of a writable root: requirements, limits and release. */

let host: RootHost
beforeAll(async () => {
  host = await rootHost()
})
afterAll(() => host.close())

/** Disks of our sandboxes that are attached to loop devices. */
const attached = (): readonly string[] =>
  readdirSync('/sys/block')
    .filter((name) => name.startsWith('loop'))
    .flatMap((name) => {
      try {
        return [readFileSync(`/sys/block/${name}/loop/backing_file`, 'utf8').trim()]
      } catch {
        return []
      }
    })
    .filter((file) => file.startsWith(host.base))

/** The kernel detaches the disk of an ended sandbox a moment later. */
const nothingAttached = (): Promise<void> => expect.poll(attached, { timeout: 5000 }).toEqual([])

describe.runIf(canHaveRoot)('the disk limit of a writable root', () => {
  test('is the size of its disk, for every user and directory', { timeout: 120_000 }, async () => {
    await using sandbox = await host.open({ limits: { diskMb: 30 } })
    // Longer than the time between two measurements.
    const fill = 'head -c 80M /dev/zero > "$1" 2>/dev/null; stat -c %s "$1"; sleep 0.3; rm -f "$1"'
    for (const [user, path] of [
      ['user', '/home/user/big'],
      ['root', '/opt/big'],
      ['root', '/usr/lib/big'],
    ] as const) {
      await sandbox.files.write('/workspace/fill.sh', fill)
      const { stdout } = await sandbox.exec(['bash', '/workspace/fill.sh', path], { user })
      const bytes = Number(Buffer.from(stdout).toString())
      expect(bytes).toBeGreaterThan(10 << 20)
      expect(bytes).toBeLessThan(32 << 20)
    }
    // A file of the host is copied when it is changed, and counts then.
    const copies = 'set -e; for f in $(find /usr/lib -type f -size +1M | head -60); do chmod u+x $f; done'
    expect(await sh(sandbox, copies, 'root')).toMatch(/No space left/)
    const found = sandbox.usage()?.diskBytes ?? 0
    expect(found).toBeLessThan(40 << 20)
    expect(host.events.some(({ guarantee }) => guarantee === 'limit.disk')).toBe(true)
  })
})

describe.runIf(canHaveRoot)('the disk of a writable root', () => {
  test('is detached when the sandbox ends', async () => {
    await nothingAttached()
    const sandbox = await host.open()
    await sandbox.layers()
    expect(attached()).toHaveLength(1)
    await sandbox.close()
    await expect.poll(attached, { timeout: 5000 }).toEqual([])
    expect(readdirSync(join(host.base, 'state', 'homes'))).toEqual([])
  })

  test('is detached when the processes of the sandbox are killed', { timeout: 60_000 }, async () => {
    await nothingAttached()
    await using sandbox = await host.open()
    await sandbox.layers()
    const before = attached().length
    // As if the launcher were killed.
    const children = (): readonly string[] => readdirSync('/proc').filter((pid) => isSandboxOf(pid))
    expect(children().length).toBeGreaterThan(0)
    expect(before).toBe(1)
    const killer = spawn('kill', ['-9', ...children()])
    await new Promise((resolve) => killer.once('exit', resolve))
    await expect.poll(attached, { timeout: 5000 }).toEqual([])
    const again = await host.open()
    expect(await sh(again, 'id -un', 'root')).toBe('root\n')
    await again.close()
  })
})

/** Bubblewrap processes that belong to this process: they carry its number in their name. */
function isSandboxOf(pid: string): boolean {
  try {
    const name = readFileSync(`/proc/${pid}/cmdline`, 'latin1')
    return new RegExp(`^ringfence-bwrap-\\d+-${process.pid}-`).test(name)
  } catch {
    return false
  }
}

describe('a writable root', () => {
  test('is not supported by the library', async () => {
    const options = { env: { HOME: host.base, RINGFENCE_HOME: join(host.base, 'library') }, cwd: host.base }
    await expect(LibrarySandbox.create({ root: 'writable' }, options)).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('only on a server'),
    })
  })

  test.runIf(canHaveRoot)(
    'is refused with writable mounts of the host, full network or another backend',
    async () => {
      const write = [join(host.base, 'work')]
      mkdirSync(write[0] as string)
      await expect(host.open({ write })).rejects.toThrow(/not supported together/)
      await expect(host.open({ network: { mode: 'full' } })).rejects.toThrow(/not supported together/)
      await expect(host.open({ backend: 'native', waive: [] })).rejects.toThrow(/writable root/)
    },
  )

  test.runIf(canHaveRoot)(
    'that is only preferred is dropped with a reason if the host does not support it',
    async () => {
      const reasons: string[] = []
      const { fact } = hostPath('/proc')
      // A file system without id-mapped mounts.
      const broken = {
        unavailable: () => undefined,
        has: () => false,
        fail: (reason: string) => void reasons.push(reason),
        prepare: async (request: Parameters<typeof host.roots.prepare>[0]) => {
          const root = await host.roots.prepare(request)
          return { ...root, layers: [{ target: '/', lower: [fact as NonNullable<typeof fact>] }] }
        },
      }
      const sandbox = await host.open({ root: 'preferred' }, broken as unknown as typeof host.roots)
      expect(sandbox.plan.root).toBeUndefined()
      expect((await sandbox.exec(['id', '-un'])).outcome).toEqual({ kind: 'exited', code: 0 })
      expect(reasons.join()).toMatch(/cannot translate ids/)
      await sandbox.close()
      await expect(
        host.open({}, broken as unknown as typeof host.roots).then((one) => one.layers()),
      ).rejects.toThrow(/cannot translate ids/)
    },
  )

  test.runIf(!canHaveRoot)('is refused for a server of an unprivileged user, with the fix', async () => {
    await expect(host.open()).rejects.toMatchObject({ hint: 'start `ringfence serve` as root' })
  })
})

describe.runIf(canHaveRoot && existsSync('/bin/busybox'))('an image with a writable root', () => {
  test('is the lower layer instead of the host’s programs', { timeout: 60_000 }, async () => {
    // The smallest image: a static shell and user files.
    const tree = join(host.base, 'tree')
    for (const dir of ['bin', 'etc', 'usr/bin']) mkdirSync(join(tree, dir), { recursive: true })
    copyFileSync('/bin/busybox', join(tree, 'bin/busybox'))
    for (const name of ['sh', 'id', 'cat', 'touch', 'ls', 'stat'])
      symlinkSync('busybox', join(tree, 'bin', name))
    writeFileSync(
      join(tree, 'etc/passwd'),
      'root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n',
    )
    writeFileSync(join(tree, 'etc/group'), 'root:x:0:\nuser:x:1000:\n')
    await using sandbox = await host.open({}, undefined, { lower: [tree] })
    const { stdout } = await sandbox.exec([
      'sh',
      '-c',
      'id -un; ls /; ls /usr/bin; sudo touch /bin/x; stat -c %U /bin/x',
    ])
    expect(Buffer.from(stdout).toString()).toMatch(/^user\nbin\n[\s\S]*\nsudo\nroot\n$/)
    expect(readdirSync(join(tree, 'bin'))).not.toContain('x')
  })
})
