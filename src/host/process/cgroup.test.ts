import { execFileSync, spawn } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { SandboxError } from '../../model/errors.ts'
import type { Limits } from '../../model/spec.ts'
import { Cgroup, type CgroupHost, cgroupHost } from './cgroup.ts'

/**
 * The layouts are FAKES: ordinary files in a temporary directory that imitate the kernel's files, so that both versions are
 * tested on every host. Real cgroups are tested below, where the tests may create them.
 */

let place = ''
beforeEach(() => {
  place = mkdtempSync(join(tmpdir(), 'rf-cgroup-'))
})
afterEach(() => {
  rmSync(place, { recursive: true, force: true })
})

const file = (path: string, content = ''): void => {
  mkdirSync(join(place, path, '..'), { recursive: true })
  writeFileSync(join(place, path), content)
}

/** A directory that looks like a cgroup: `cgroup.procs` is writable. */
const group = (path: string, files: Readonly<Record<string, string>> = {}): void => {
  file(`${path}/cgroup.procs`)
  for (const [name, content] of Object.entries(files)) file(`${path}/${name}`, content)
}

const mount = (path: string, type: string, options: string, id: number): string =>
  `${30 + id} 23 0:${30 + id} / ${join(place, path)} rw,relatime shared:${id} - ${type} ${type} ${options}`

const proc = (mounts: readonly string[], own: readonly string[]): string => {
  const other = '22 1 0:20 / / rw,relatime - ext4 /dev/vda rw'
  file('proc/mountinfo', `${[other, ...mounts].join('\n')}\n`)
  file('proc/cgroup', `${own.join('\n')}\n`)
  return join(place, 'proc')
}

const v1 = (own = '/user/me') => {
  const mounts = ['memory', 'pids', 'cpu,cpuacct'].map((name, index) =>
    mount(`fs/${name}`, 'cgroup', `rw,${name}`, index),
  )
  return proc(mounts, [
    `9:name=systemd:/`,
    `4:memory:${own}`,
    `3:pids:${own}`,
    `2:cpu,cpuacct:${own}`,
    '0::/',
  ])
}

/** Creates a file that not even root can write, as the kernel refuses missing controllers. */
function freeze(path: string): () => void {
  chmodSync(path, 0o444)
  if (process.getuid?.() !== 0) return () => {}
  execFileSync('mount', ['--bind', path, path])
  execFileSync('mount', ['-o', 'remount,ro,bind', path])
  return () => void execFileSync('umount', [path])
}

const relative = (host: CgroupHost): Record<string, string> =>
  Object.fromEntries(
    Object.entries(host.parents).map(([limit, path]) => [limit, path.slice(place.length + 1)]),
  )

describe('a fake version 1', () => {
  test('the process’s own cgroup of each controller, if it is visible', () => {
    for (const name of ['memory', 'pids', 'cpu,cpuacct']) group(`fs/${name}/user/me`)
    const host = cgroupHost(v1())
    expect(host.version).toBe(1)
    expect(relative(host)).toEqual({
      memoryMb: 'fs/memory/user/me',
      pids: 'fs/pids/user/me',
      cpus: 'fs/cpu,cpuacct/user/me',
    })
  })

  test('the mount itself if the path belongs to another namespace', () => {
    for (const name of ['memory', 'pids', 'cpu,cpuacct']) group(`fs/${name}`)
    expect(relative(cgroupHost(v1('/docker/0123')))).toEqual({
      memoryMb: 'fs/memory',
      pids: 'fs/pids',
      cpus: 'fs/cpu,cpuacct',
    })
  })

  test('only the controllers that may be used', () => {
    group('fs/pids/user/me')
    mkdirSync(join(place, 'fs/memory/user/me'), { recursive: true })
    expect(relative(cgroupHost(v1()))).toEqual({ pids: 'fs/pids/user/me' })
  })

  test('a controller with a similar name is another controller', () => {
    group('fs/cpuset')
    const host = cgroupHost(proc([mount('fs/cpuset', 'cgroup', 'rw,cpuset', 1)], ['3:cpuset:/']))
    expect(relative(host)).toEqual({})
  })
})

describe('a fake version 2', () => {
  const unified = (own: string) => proc([mount('fs', 'cgroup2', 'rw,nsdelegate', 1)], [`0::${own}`])
  const control = (controllers: string): Record<string, string> => ({ 'cgroup.subtree_control': controllers })

  test('uses the topmost delegated cgroup, and offers only controllers that are enabled', () => {
    mkdirSync(join(place, 'fs/slice'), { recursive: true })
    group('fs/slice/me', control(''))
    group('fs/slice/me/session', control(''))
    const host = cgroupHost(unified('/slice/me/session'))
    expect(host.version).toBe(2)
    // A plain file keeps the last written word; the kernel would return a list.
    expect(readFileSync(join(place, 'fs/slice/me/cgroup.subtree_control'), 'utf8')).toBe('+cpu')
    expect(readFileSync(join(place, 'fs/slice/me/session/cgroup.subtree_control'), 'utf8')).toBe('')
    expect(relative(host)).toEqual({})
  })

  test.each([
    ['all', 'cpuset cpu memory pids\n', { memoryMb: 'fs/me', pids: 'fs/me', cpus: 'fs/me' }],
    ['some', 'memory hugetlb\n', { memoryMb: 'fs/me' }],
    ['none', '\n', {}],
  ])('offers the controllers that the group hands down: %s', (_, controllers, parents) => {
    group('fs/me', control(controllers))
    const thaw = freeze(join(place, 'fs/me/cgroup.subtree_control'))
    try {
      expect(relative(cgroupHost(unified('/me')))).toEqual(parents)
    } finally {
      thaw()
    }
  })

  test('nothing if nothing is delegated', () => {
    mkdirSync(join(place, 'fs/slice'), { recursive: true })
    expect(relative(cgroupHost(unified('/slice')))).toEqual({})
  })

  test('nothing without such a mount, or without a cgroup in it', () => {
    expect(relative(cgroupHost(proc([], ['0::/'])))).toEqual({})
    expect(relative(cgroupHost(proc([mount('fs', 'cgroup2', 'rw', 1)], [])))).toEqual({})
  })
})

/** A helper that watches the directory creates the files that the kernel would create. */
function fakeHost(version: 1 | 2): CgroupHost {
  const parent = join(place, 'parent')
  mkdirSync(parent, { recursive: true })
  return { version, parents: { memoryMb: parent, pids: parent, cpus: parent } }
}

const writtenBy = (host: CgroupHost, limits: Limits): Record<string, string> => {
  const made = Cgroup.create(host, 'g', limits)
  const dir = made?.dirs[0]
  return dir
    ? Object.fromEntries(readdirSync(dir).map((name) => [name, readFileSync(join(dir, name), 'utf8')]))
    : {}
}

describe('the limits in the kernel’s format', () => {
  test.each<[string, 1 | 2, Limits, Record<string, string>]>([
    ['memory', 2, { memoryMb: 64 }, { 'memory.max': '67108864' }],
    [
      'memory',
      1,
      { memoryMb: 64 },
      { 'memory.limit_in_bytes': '67108864', 'memory.kmem.tcp.limit_in_bytes': '16777216' },
    ],
    ['1.5 CPUs', 2, { cpus: 1.5 }, { 'cpu.max': '150000 100000' }],
    ['1.5 CPUs', 1, { cpus: 1.5 }, { 'cpu.cfs_period_us': '100000', 'cpu.cfs_quota_us': '150000' }],
    ['the kernel’s minimum', 2, { cpus: 0.01 }, { 'cpu.max': '1000 100000' }],
    ['no file for limits enforced elsewhere', 2, { wallMs: 5, diskMb: 5 }, {}],
  ])('%s, version %i', (_, version, limits, expected) => {
    expect(writtenBy(fakeHost(version), limits)).toEqual(expected)
  })

  test.each([1, 2] as const)('the pids limit includes Ringfence’s own processes, version %i', (version) => {
    const { 'pids.max': pids } = writtenBy(fakeHost(version), { pids: 10 })
    expect(Number(pids)).toBeGreaterThan(10)
    expect(Number(pids)).toBeLessThanOrEqual(13)
  })

  test('one directory per controller in version 1, one for all in version 2', () => {
    const parents = { memoryMb: join(place, 'memory'), pids: join(place, 'pids') }
    for (const dir of Object.values(parents)) mkdirSync(dir)
    const separate = Cgroup.create({ version: 1, parents }, 'g', { memoryMb: 1, pids: 1 })
    expect(separate?.dirs).toEqual([join(place, 'memory/g'), join(place, 'pids/g')])
    expect(Cgroup.create(fakeHost(2), 'g', { memoryMb: 1, pids: 1 })?.dirs).toEqual([join(place, 'parent/g')])
  })

  test('no cgroup without limits, or if none can enforce them', () => {
    expect(Cgroup.create(fakeHost(2), 'g', {})).toBeUndefined()
    expect(Cgroup.create({ version: 2, parents: {} }, 'g', { memoryMb: 1 })).toBeUndefined()
    expect(readdirSync(join(place, 'parent'))).toEqual([])
  })

  test('counters are empty without a cgroup', () => {
    const made = Cgroup.create(fakeHost(2), 'g', { memoryMb: 1, pids: 1 }) as Cgroup
    expect(made.counts()).toEqual({ oomKills: 0, pidsRefused: 0 })
  })

  test.each([
    [2, 'memory.events', 'low 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 9\n'],
    [1, 'memory.oom_control', 'oom_kill_disable 0\nunder_oom 0\noom_kill 2\n'],
  ] as const)('counts are read from the right line, version %i', (version, name, content) => {
    const made = Cgroup.create(fakeHost(version), 'g', { memoryMb: 1, pids: 1 }) as Cgroup
    writeFileSync(join(place, 'parent/g', name), content)
    writeFileSync(join(place, 'parent/g/pids.events'), 'max 5\n')
    expect(made.counts()).toEqual({ oomKills: 2, pidsRefused: 5 })
  })

  test.each([1, 2] as const)(
    'a CPU limit below the kernel’s minimum is rejected, never raised, version %i',
    (version) => {
      expect(() => Cgroup.create(fakeHost(version), 'g', { cpus: 0.001 })).toThrow(
        /less than the kernel's minimum/,
      )
      expect(readdirSync(join(place, 'parent'))).toEqual([])
    },
  )

  test('if it cannot be created, the error says so', () => {
    const host: CgroupHost = { version: 2, parents: { pids: join(place, 'not-there') } }
    expect(() => Cgroup.create(host, 'g', { pids: 1 })).toThrow(SandboxError)
  })

  test('a cgroup of that name that is not Ringfence’s is kept', () => {
    const host = fakeHost(2)
    mkdirSync(join(place, 'parent/g'))
    expect(() => Cgroup.create(host, 'g', { pids: 1 })).toThrow(/EEXIST/)
    expect(existsSync(join(place, 'parent/g'))).toBe(true)
  })

  test('removing a missing cgroup is not an error', async () => {
    const made = Cgroup.create(fakeHost(2), 'g', { pids: 1 }) as Cgroup
    rmSync(join(place, 'parent/g'), { recursive: true })
    await made.remove()
  })
})

/** The real kernel, where the tests may create cgroups: usually as root. */
const real = process.platform === 'linux' ? cgroupHost() : { version: 2 as const, parents: {} }
const has = (limit: keyof CgroupHost['parents']): boolean =>
  process.getuid?.() === 0 && real.parents[limit] !== undefined

describe('on this host', () => {
  const name = `ringfence-test-${process.pid}`
  const made: Cgroup[] = []
  const create = (limits: Limits): Cgroup => {
    const one = Cgroup.create(real, name, limits) as Cgroup
    made.push(one)
    return one
  }
  afterEach(async () => {
    for (const one of made.splice(0)) await one.remove()
  })

  /** Runs a script inside the group. */
  const inside = (one: Cgroup, script: string): Promise<number | null> =>
    new Promise((resolve) => {
      const join_ = one.dirs.map((dir) => `echo $$ > ${dir}/cgroup.procs`).join('; ')
      spawn('/bin/bash', ['-c', `${join_}; ${script}`], { stdio: 'ignore' }).on('close', (code) =>
        resolve(code),
      )
    })

  test.runIf(has('pids'))('the kernel refuses processes above the limit, which is reported', async () => {
    const one = create({ pids: 5 })
    await inside(one, 'for i in $(seq 40); do sleep 1 & done; wait')
    expect(one.counts().pidsRefused).toBeGreaterThan(0)
  })

  test.runIf(has('memoryMb'))('the kernel kills processes above the memory limit, as reported', async () => {
    const one = create({ memoryMb: 16 })
    await inside(one, 'x=$(head -c 60000000 /dev/zero | tr "\\0" a); echo "$x"')
    expect(one.counts().oomKills).toBeGreaterThan(0)
  })

  test.runIf(has('pids'))('removal waits for the last process', async () => {
    const one = create({ pids: 5 })
    const ended = inside(one, 'sleep 0.3')
    while (one.dirs.some((dir) => readFileSync(join(dir, 'cgroup.procs'), 'utf8') === ''))
      await new Promise((go) => setTimeout(go, 5))
    await one.remove()
    expect(one.dirs.filter((dir) => existsSync(dir))).toEqual([])
    expect(await ended).toBe(0)
  })

  test.runIf(has('pids') && has('memoryMb'))('a limit that the kernel rejects leaves nothing', () => {
    const bad = { memoryMb: 64, pids: -100 }
    expect(() => Cgroup.create(real, name, bad)).toThrow(SandboxError)
    for (const parent of Object.values(real.parents)) expect(existsSync(join(parent, name))).toBe(false)
  })

  test.runIf(has('pids') && has('memoryMb'))(
    'the kernel accepts the largest limit that a spec may request',
    () => {
      create({ pids: 2 ** 22, memoryMb: 2 ** 30 })
    },
  )

  test.runIf(has('cpus'))('so is the smallest share of a CPU, and it is not rounded up', () => {
    const one = create({ cpus: 0.01 })
    const quota = real.version === 1 ? 'cpu.cfs_quota_us' : 'cpu.max'
    expect(readFileSync(join(one.dirs[0] as string, quota), 'utf8')).toMatch(/^1000\b/)
  })
})
