import { execFile } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { BackendSandbox } from '../../src/backends/backend.ts'
import { probeKvm } from '../../src/backends/microvm/drivers/kvm-probe.ts'
import { DESCRIPTORS } from '../../src/backends/microvm/drivers/launch.ts'
import { GuestImages } from '../../src/backends/microvm/image/image.ts'
import type { MicrovmSandbox } from '../../src/backends/microvm/sandbox.ts'
import { childrenOf, processKey } from '../../src/host/system.ts'
import { isFine, type Row } from '../../src/prove/suite.ts'
import { testImages, testState } from '../conformance/engines.ts'
import { packageRoot, planOf } from '../conformance/world.ts'
import { agent, emulator, emulators, machineImages, machines, whyNoMachine } from './microvm-parts.ts'

const MINUTES = 60_000
const FULL = process.env.RINGFENCE_FULL === '1'
const run = promisify(execFile)

/** In CI a test that cannot run is a failure. */
const reason = whyNoMachine()
if (reason && process.env.CI) throw new Error(`microvm: ${reason}`)
if (reason) process.stderr.write(`skipped: microvm: ${reason}\n`)

/** Without --full: one attack on each guarantee that a virtual machine implements differently. */
const SOME = [
  ...['fs.read', 'fs.write', 'fs.protect', 'net.offline', 'net.fetch', 'proc.hidden', 'kernel.filtered'],
  ...[
    'kernel.separate',
    'limit.memory',
    'limit.pids',
    'limit.cpu',
    'cleanup',
    'proc.between',
    'secrets.between',
  ],
]

const said = async (sandbox: BackendSandbox, line: string): Promise<string> => {
  const { stdout, stderr } = await sandbox.exec({ argv: ['/bin/sh', '-c', line] })
  return Buffer.from(stdout).toString() + Buffer.from(stderr).toString()
}

describe.skipIf(reason !== undefined)('microvm', () => {
  let workspace: string
  const backend = machines()
  const open = async (spec: Record<string, unknown> = {}, from = backend): Promise<MicrovmSandbox> =>
    (await from.open(planOf({ backend: 'microvm', ...spec }))) as MicrovmSandbox

  beforeAll(async () => {
    await machineImages()
    workspace = mkdtempSync(join(tmpdir(), 'rf-microvm-'))
    // Creates the template that the tests below start from.
    await (await open()).close()
  }, 5 * MINUTES)
  afterAll(async () => {
    await backend.close()
    rmSync(workspace, { recursive: true, force: true })
  })

  test('every guarantee that microvm claims holds against its attacks', {
    timeout: 60 * MINUTES,
  }, async () => {
    const args = [join(packageRoot(), 'dist', 'test', 'conformance.js'), '--json', '--backend', 'microvm']
    const small = FULL ? [] : ['--few', '1', '--only', SOME.join(',')]
    const { stdout } = await run(process.execPath, [...args, ...small], {
      cwd: packageRoot(),
      maxBuffer: 1e8,
    }).catch((error: { stdout?: string; stderr?: string }) => {
      if (error.stdout) return { stdout: error.stdout }
      throw new Error(error.stderr)
    })
    const { rows, uses } = JSON.parse(stdout) as { rows: Row[]; uses: { ok: boolean }[] }
    expect(rows.filter((row) => !isFine(row))).toEqual([])
    expect(uses.filter((use) => !use.ok)).toEqual([])
    expect(rows.find((row) => row.guarantee === 'kernel.separate')?.verdict).toBe('held')
    expect(rows.find((row) => row.guarantee === 'limit.cpu')?.verdict).toBe('refused')
  })

  test('two clones of a template have different random numbers, ids and host names, and the right time', {
    timeout: MINUTES,
  }, async () => {
    const line =
      'cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id /etc/machine-id; hostname; head -c16 /dev/urandom | od -An -tx1; date +%s'
    const clones = await Promise.all([open(), open()])
    const [first = [], second = []] = (await Promise.all(clones.map((one) => said(one, line)))).map((text) =>
      text.trim().split('\n'),
    )
    expect(first).toHaveLength(6)
    for (const [index, text] of first.slice(0, 5).entries()) expect(text).not.toBe(second[index])
    expect(Math.abs(Number(first[5]) - Date.now() / 1000)).toBeLessThan(30)
    await Promise.all(clones.map((one) => one.close()))
  })

  test('root in a command has no root rights in the guest', { timeout: MINUTES }, async () => {
    const sandbox = await open()
    const answers = await said(
      sandbox,
      [
        'ls /dev | tr "\\n" " "; echo',
        'find /sys /cgroup /data /modules /layer -mindepth 1 2>/dev/null | wc -l',
        'cat /proc/self/uid_map',
        'echo 1 > /proc/sys/kernel/printk; echo b > /proc/sysrq-trigger; cat /proc/kmsg',
        'mknod /tmp/port c 246 1; ls -l /proc/1/fd; cat /proc/1/root/init',
        'echo $$ > /proc/self/oom_score_adj; echo -1000 > /proc/self/oom_score_adj',
      ].join('; '),
    )
    const [devices, hidden, map] = answers.split('\n')
    expect(devices).not.toMatch(/vport|vd[a-z]|hvc|mem|port|kmsg/)
    expect(hidden).toBe('0')
    // Every user in a command is user 100000 of the guest.
    expect(map).toMatch(/^\s*\d+\s+(100000|0)\s+1$/)
    expect(answers).toMatch(/printk.*(denied|not permitted|Read-only)/i)
    expect(answers).toMatch(/sysrq-trigger.*(denied|not permitted)/i)
    expect(answers).toMatch(/mknod.*(denied|not permitted)/i)
    expect(answers).toMatch(/\/proc\/1\/fd.*(denied|not permitted)/i)
    await sandbox.close()
  })

  test('granted directories are copied in and back, without changes to protected names', {
    timeout: MINUTES,
  }, async () => {
    mkdirSync(join(workspace, '.git', 'hooks'), { recursive: true })
    writeFileSync(join(workspace, '.git', 'config'), 'mine')
    writeFileSync(join(workspace, 'before'), 'from the host')
    const sandbox = await open({ workspace })
    expect(await said(sandbox, 'cat before; rm before; mkdir d; echo made > d/f; chmod 755 d/f')).toBe(
      'from the host',
    )
    // After each command, not only at the end.
    expect(readFileSync(join(workspace, 'd', 'f'), 'utf8')).toBe('made\n')
    expect(existsSync(join(workspace, 'before'))).toBe(false)
    await said(sandbox, 'echo PWNED > .git/hooks/x; echo PWNED > .envrc; echo again >> d/f')
    await sandbox.close()
    expect(readFileSync(join(workspace, 'd', 'f'), 'utf8')).toBe('made\nagain\n')
    expect(readdirSync(join(workspace, '.git', 'hooks'))).toEqual([])
    expect(existsSync(join(workspace, '.envrc'))).toBe(false)
  })

  test('a resumed machine keeps its files and has the right time', { timeout: MINUTES }, async () => {
    const sandbox = await open()
    await said(sandbox, 'echo kept > /tmp/kept')
    await sandbox.pause()
    await new Promise((resolve) => setTimeout(resolve, 2500))
    await expect(sandbox.exec({ argv: ['true'] })).rejects.toThrow(/paused/)
    await sandbox.resume()
    const [kept, time] = (await said(sandbox, 'cat /tmp/kept; date +%s')).split('\n')
    expect(kept).toBe('kept')
    expect(Math.abs(Number(time) - Date.now() / 1000)).toBeLessThan(2)
    await sandbox.close()
  })

  test('a machine from the warm pool has its own id and an empty /tmp', { timeout: MINUTES }, async () => {
    const pooling = machines({ ready: 1 })
    const first = await open({}, pooling)
    const ids = [await said(first, 'cat /etc/machine-id')]
    await new Promise((resolve) => setTimeout(resolve, 3000))
    const second = await open({}, pooling)
    ids.push(await said(second, 'cat /etc/machine-id'))
    expect(new Set(ids).size).toBe(2)
    expect(await said(second, 'ls -A /tmp | wc -l')).toBe('0\n')
    await Promise.all([first.close(), second.close()])
    await pooling.close()
  })

  test('the emulator runs jailed: seccomp, no capabilities, own namespaces, no host directories', {
    timeout: MINUTES,
  }, async () => {
    const sandbox = await open()
    const [pid = 0] = emulators()
    expect(pid).toBeGreaterThan(0)
    const status = readFileSync(`/proc/${pid}/status`, 'utf8')
    expect(status).toMatch(/^Seccomp:\t2$/m)
    expect(status).toMatch(/^NoNewPrivs:\t1$/m)
    expect(status).toMatch(/^CapEff:\t0+$/m)
    if (process.getuid?.() === 0) expect(status).not.toMatch(/^Uid:\t0\t/m)
    const seen = readdirSync(`/proc/${pid}/root`)
    expect(seen.filter((name) => ['home', 'root', 'etc', 'var', 'tmp', 'sys'].includes(name))).toEqual([])
    for (const space of ['net', 'pid', 'mnt', 'ipc', 'uts', 'user'])
      expect(readlinkSync(`/proc/${pid}/ns/${space}`)).not.toBe(readlinkSync(`/proc/self/ns/${space}`))
    const writable = readdirSync(`/proc/${pid}/fd`).filter((fd) => {
      const flags = /^flags:\t(\d+)$/m.exec(readFileSync(`/proc/${pid}/fdinfo/${fd}`, 'utf8'))?.[1] ?? '0'
      return (Number.parseInt(flags, 8) & 3) !== 0 && fd === String(DESCRIPTORS.memory)
    })
    expect(writable).toEqual([])
    await sandbox.close()
  })

  test('leaves no directories, processes, descriptors, cgroups or mounts after repeated create/close cycles', {
    timeout: 60 * MINUTES,
  }, async () => {
    const groups = (): string[] =>
      ['memory', 'pids', 'cpu'].flatMap((name) => {
        try {
          return readdirSync(`/sys/fs/cgroup/${name}`).filter((one) =>
            one.includes(`-${processKey(process.pid)}-`),
          )
        } catch {
          return []
        }
      })
    const left = (): unknown => ({
      directories: readdirSync(join(testState(), 'run')).filter((name) =>
        name.includes(processKey(process.pid)),
      ),
      children: childrenOf(process.pid).length,
      descriptors: readdirSync('/proc/self/fd').length,
      groups: groups(),
      mounts: readFileSync('/proc/self/mountinfo', 'utf8').split('\n').length,
    })
    const before = left()
    for (let cycle = 0; cycle < (FULL ? 200 : 3); cycle++) {
      const sandbox = await open()
      expect(await said(sandbox, `echo ${cycle}`)).toBe(`${cycle}\n`)
      await sandbox.close()
    }
    expect(left()).toEqual(before)
  })

  test.runIf(FULL)('20 idle machines use less than 4 GiB of memory', { timeout: 10 * MINUTES }, async () => {
    const below = (pid: number): number[] => [pid, ...childrenOf(pid).flatMap(below)]
    const shareOf = (pid: number): number =>
      Number(/^Pss:\s+(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))?.[1] ?? 0)
    const standing = []
    for (let count = 0; count < 20; count++) {
      const sandbox = await open()
      await said(sandbox, 'true')
      standing.push(sandbox)
    }
    const kilobytes = childrenOf(process.pid)
      .flatMap(below)
      .reduce((sum, pid) => sum + shareOf(pid), 0)
    await Promise.all(standing.map((one) => one.close()))
    process.stderr.write(`20 idle machines: ${Math.round(kilobytes / 1024)} MB\n`)
    expect(kilobytes).toBeLessThan(4 * 1024 * 1024)
  })

  test.runIf(FULL)(
    'boots a root file system from any image of the image store',
    { timeout: 5 * MINUTES },
    async () => {
      await testImages().build('microvm-small', { kind: 'host', programs: ['sh', 'ls', 'cat'] })
      const sandbox = await open({ image: 'microvm-small' })
      expect(await said(sandbox, 'command -v node; ls /usr/bin | wc -l')).toMatch(/^\d{1,3}\n$/)
      await sandbox.close()
      testImages().remove('microvm-small')
    },
  )

  test('building an image twice from the same input gives the same digest', {
    timeout: 2 * MINUTES,
  }, async () => {
    const image = await testImages().build('microvm-probe', { kind: 'host', programs: ['sh', 'ls'] })
    const digests = []
    for (const round of [1, 2]) {
      const stateDir = mkdtempSync(join(tmpdir(), `rf-microvm-image${round}-`))
      mkdirSync(join(stateDir, 'images', 'microvm'), { recursive: true })
      const kernel = join(testState(), 'images', 'microvm')
      for (const name of readdirSync(kernel).filter((file) => /^(kernel|vmlinux|module)/.test(file)))
        await run('cp', [join(kernel, name), join(stateDir, 'images', 'microvm', name)])
      // Unpacked again each time, so that the second build reuses nothing of the first.
      const { ImageStore } = await import('../../src/backends/images/store.ts')
      const images = new ImageStore(stateDir)
      const own = await images.build('probe-image', { kind: 'host', programs: ['sh', 'ls'] })
      expect(own.layer).toBe(image.layer)
      digests.push((await new GuestImages({ stateDir, agent, images }).get(own)).digest)
      rmSync(stateDir, { recursive: true, force: true })
    }
    expect(digests[0]).toBe(digests[1])
    testImages().remove('microvm-probe')
  })

  test('KVM counts as usable only if the processor supports virtualization, and TCG always works', {
    timeout: MINUTES,
  }, async () => {
    const usable = await probeKvm('/usr/bin/qemu-system-x86_64')
    const probe = await emulator().probe()
    expect(probe).toEqual({ usable: true, accelerator: 'tcg' })
    if (!/\b(vmx|svm)\b/.test(readFileSync('/proc/cpuinfo', 'utf8'))) expect(usable).toBe(false)
  })
})
