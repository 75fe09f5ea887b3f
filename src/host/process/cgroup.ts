import { accessSync, constants, existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import type { Limits } from '../../model/spec.ts'

/** cgroups, version 1 and 2, wherever this process may create one. */

export type CgroupLimit = 'memoryMb' | 'pids' | 'cpus'

/** For each limit, the directory in which cgroups with that limit can be created. */
export type CgroupHost = {
  readonly version: 1 | 2
  readonly parents: Readonly<Partial<Record<CgroupLimit, string>>>
}

const CONTROLLER: Readonly<Record<CgroupLimit, string>> = { memoryMb: 'memory', pids: 'pids', cpus: 'cpu' }
const LIMITS = Object.keys(CONTROLLER) as readonly CgroupLimit[]

/** Finds the writable cgroups from the mounts and this process's own cgroup. */
export function cgroupHost(proc = '/proc/self'): CgroupHost {
  const mounts = readFileSync(join(proc, 'mountinfo'), 'utf8')
    .split('\n')
    .map((line) => line.split(' '))
  const own = readFileSync(join(proc, 'cgroup'), 'utf8').split('\n')
  const parents: Partial<Record<CgroupLimit, string>> = {}
  for (const limit of LIMITS) {
    const parent = parentV1(CONTROLLER[limit], mounts, own)
    if (parent) parents[limit] = parent
  }
  if (Object.keys(parents).length > 0) return { version: 1, parents }
  return { version: 2, parents: parentsV2(mounts, own) }
}

function parentV1(
  controller: string,
  mounts: readonly string[][],
  own: readonly string[],
): string | undefined {
  const mount = mounts.find(
    (fields) => isMount(fields, 'cgroup') && optionsOf(fields).includes(controller),
  )?.[4]
  const path = own
    .map((line) => line.split(':'))
    .find((parts) => parts[1]?.split(',').includes(controller))?.[2]
  if (!mount || !path) return undefined
  // In a container without a cgroup namespace the path is the host's and does not exist below our mount.
  return [join(mount, path), mount].find(writable)
}

function parentsV2(mounts: readonly string[][], own: readonly string[]): CgroupHost['parents'] {
  const mount = mounts.find((fields) => isMount(fields, 'cgroup2'))?.[4]
  const path = own.find((line) => line.startsWith('0::'))?.slice(3)
  if (!mount || path === undefined) return {}
  // The topmost group that is delegated to us: processes may be moved between the groups below it.
  let base: string | undefined
  for (let at = join(mount, path); at.startsWith(mount) && writable(at); at = dirname(at)) base = at
  if (!base) return {}
  const found: Partial<Record<CgroupLimit, string>> = {}
  const enabled = enableV2(base)
  for (const limit of LIMITS) if (enabled.includes(CONTROLLER[limit])) found[limit] = base
  return found
}

/** Enables the controllers for a group's children one by one, so that a missing one does not stop the rest. */
function enableV2(base: string): string[] {
  const file = join(base, 'cgroup.subtree_control')
  for (const controller of Object.values(CONTROLLER)) {
    try {
      writeFileSync(file, `+${controller}`)
    } catch {
      // Checked below: a controller that is not enabled is not offered.
    }
  }
  return readFileSync(file, 'utf8').trim().split(' ')
}

const isMount = (fields: readonly string[], type: string): boolean => fields[fields.indexOf('-') + 1] === type
const optionsOf = (fields: readonly string[]): string[] => (fields.at(-1) ?? '').split(',')

function writable(directory: string): boolean {
  try {
    accessSync(join(directory, 'cgroup.procs'), constants.W_OK)
    accessSync(directory, constants.W_OK)
    return true
  } catch {
    return false
  }
}

/** The cgroup that another program, such as a container engine, created for a process. Undefined if not visible. */
export function groupOfProcess(pid: number, limits: Limits, proc = '/proc'): Cgroup | undefined {
  try {
    const mounts = readFileSync(join(proc, 'self', 'mountinfo'), 'utf8')
      .split('\n')
      .map((line) => line.split(' '))
    const own = readFileSync(join(proc, String(pid), 'cgroup'), 'utf8').split('\n')
    return Cgroup.found(dirsOfProcess(mounts, own), limits)
  } catch {
    return undefined
  }
}

type GroupDirs = { readonly version: 1 | 2; readonly dirs: Readonly<Partial<Record<CgroupLimit, string>>> }

function dirsOfProcess(mounts: readonly string[][], own: readonly string[]): GroupDirs {
  const dirs: Partial<Record<CgroupLimit, string>> = {}
  const paths = own.map((line) => line.split(':'))
  for (const limit of LIMITS) {
    const controller = CONTROLLER[limit]
    const mount = mounts.find((one) => isMount(one, 'cgroup') && optionsOf(one).includes(controller))?.[4]
    const path = paths.find((parts) => parts[1]?.split(',').includes(controller))?.[2]
    if (mount && path && path !== '/') dirs[limit] = join(mount, path)
  }
  if (Object.keys(dirs).length > 0) return { version: 1, dirs }
  const mount = mounts.find((one) => isMount(one, 'cgroup2'))?.[4]
  const path = paths.find((parts) => parts[0] === '0')?.[2]
  if (!mount || !path || path === '/') return { version: 2, dirs }
  return { version: 2, dirs: Object.fromEntries(LIMITS.map((limit) => [limit, join(mount, path)])) }
}

/** The cgroup of a sandbox (in version 1 one directory per controller). */
export class Cgroup {
  readonly dirs: readonly string[]
  readonly #host: CgroupHost
  readonly #name: string

  private constructor(host: CgroupHost, name: string, dirs: readonly string[]) {
    this.#host = host
    this.#name = name
    this.dirs = dirs
  }

  /** Creates the group and reads every limit back; leaves nothing behind on failure. */
  static create(
    host: CgroupHost,
    name: string,
    limits: Limits,
    agentProcesses = AGENT_PROCESSES,
  ): Cgroup | undefined {
    const wanted = LIMITS.filter((limit) => limits[limit] !== undefined && host.parents[limit])
    if (wanted.length === 0) return undefined
    const dirs = [...new Set(wanted.map((limit) => join(host.parents[limit] as string, name)))]
    const group = new Cgroup(host, name, dirs)
    const made: string[] = []
    try {
      for (const dir of dirs) {
        mkdirSync(dir)
        made.push(dir)
      }
      for (const limit of wanted)
        setLimit(
          host,
          join(host.parents[limit] as string, name),
          limit,
          ceilingOf(limits, limit, agentProcesses),
        )
      return group
    } catch (cause) {
      for (const dir of made) rmdirSync(dir)
      throw new SandboxError(
        'launch-failed',
        `cannot create the cgroup ${name}: ${(cause as Error).message}`,
        { cause },
      )
    }
  }

  /** Wraps an existing group. Only the requested limits are checked. */
  static found({ version, dirs }: GroupDirs, limits: Limits): Cgroup | undefined {
    const seen = LIMITS.filter((limit) => limits[limit] !== undefined && dirs[limit])
    const name = basename(dirs[seen[0] as CgroupLimit] ?? '')
    const parents: Partial<Record<CgroupLimit, string>> = {}
    for (const limit of seen)
      if (basename(dirs[limit] as string) === name) parents[limit] = dirname(dirs[limit] as string)
    if (Object.keys(parents).length === 0) return undefined
    const all = [...new Set(Object.values(parents).map((parent) => join(parent, name)))]
    return new Cgroup({ version, parents }, name, all)
  }

  /** The limits whose value in the kernel is not the requested one. */
  unmet(limits: Limits): readonly CgroupLimit[] {
    return LIMITS.filter(
      (limit) => limits[limit] !== undefined && !this.#keeps(limit, limits[limit] as number),
    )
  }

  #keeps(limit: CgroupLimit, wanted: number): boolean {
    const parent = this.#host.parents[limit]
    if (!parent) return false
    const held = ceilingIn(this.#host.version, join(parent, this.#name), limit)
    // The kernel rounds memory to pages, and CPU quotas to microseconds.
    return held !== undefined && held > 0 && held <= wanted * 1.001
  }

  /** Creates a group below this one for one of its processes. PLATFORM: in v2 a group with processes has no children. */
  nested(name: string, limits: Limits): Cgroup | undefined {
    if (this.#host.version === 2) return undefined
    const parents = Object.fromEntries(
      LIMITS.filter((limit) => this.#host.parents[limit]).map((limit) => [limit, this.#dirOf(limit)]),
    )
    return Cgroup.create({ ...this.#host, parents }, name, limits, 0)
  }

  /** The directory for a limit; the host's own group if this group does not enforce that limit. */
  #dirOf(limit: CgroupLimit): string {
    const parent = this.#host.parents[limit] as string
    const own = join(parent, this.#name)
    return this.dirs.includes(own) ? own : parent
  }

  /** Raises the process limit by the number of our helper processes in the group. */
  allowPids(count: number, agentProcesses = AGENT_PROCESSES): void {
    const parent = this.#host.parents.pids
    if (parent && this.dirs.includes(join(parent, this.#name)))
      put(join(parent, this.#name, 'pids.max'), String(Math.min(count + agentProcesses, PIDS_MAX)))
  }

  /** Moves a process into the group; its future children follow. */
  join(pid: number): void {
    for (const dir of this.dirs) writeFileSync(join(dir, 'cgroup.procs'), String(pid))
  }

  /** Whether a process is in the group, for every limit of it. */
  contains(pid: number): boolean {
    return this.dirs.every((dir) =>
      readFileSync(join(dir, 'cgroup.procs'), 'utf8').split('\n').includes(String(pid)),
    )
  }

  /** The number of OOM kills and of rejected forks. */
  counts(): { readonly oomKills: number; readonly pidsRefused: number } {
    const v1 = this.#host.version === 1
    return {
      oomKills: this.#count('memoryMb', v1 ? 'memory.oom_control' : 'memory.events', 'oom_kill'),
      pidsRefused: this.#count('pids', 'pids.events', 'max'),
    }
  }

  #count(limit: CgroupLimit, file: string, field: string): number {
    const parent = this.#host.parents[limit]
    const path = parent && join(parent, this.#name, file)
    if (!path || !existsSync(path)) return 0
    const line = readFileSync(path, 'utf8')
      .split('\n')
      .find((text) => text.startsWith(`${field} `))
    return Number(line?.slice(field.length + 1) ?? 0)
  }

  /** Removes the group; waits briefly for its last processes. */
  async remove(): Promise<void> {
    for (const dir of this.dirs) await removeGroup(dir)
  }
}

// Not from node:timers/promises: that costs milliseconds at start-up.
const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

async function removeGroup(dir: string): Promise<void> {
  for (let wait = 0; ; wait = Math.min(wait * 2 + 1, 100)) {
    try {
      return rmdirSync(dir)
    } catch (error) {
      const code = (error as NodeJS.ErrnoException).code
      if (code === 'ENOENT') return
      if (code !== 'EBUSY') throw error
      await sleep(wait)
    }
  }
}

/** The agent and bubblewrap's own processes are in the group too. */
const AGENT_PROCESSES = 3

const ceilingOf = (limits: Limits, limit: CgroupLimit, agentProcesses: number): number =>
  (limits[limit] as number) + (limit === 'pids' ? agentProcesses : 0)

const MB = 1024 * 1024
const PERIOD_US = 100_000
/** PLATFORM: the kernel's PID_MAX_LIMIT. */
const PIDS_MAX = 2 ** 22

function setLimit(host: CgroupHost, dir: string, limit: CgroupLimit, value: number): void {
  switch (limit) {
    case 'pids':
      put(join(dir, 'pids.max'), String(Math.min(value, PIDS_MAX)))
      break
    case 'memoryMb':
      setMemory(host, dir, value * MB)
      break
    case 'cpus':
      setCpus(host, dir, value)
      break
    default:
      limit satisfies never
  }
}

function setMemory(host: CgroupHost, dir: string, bytes: number): void {
  if (host.version === 1) {
    put(join(dir, 'memory.limit_in_bytes'), String(bytes))
    const both = join(dir, 'memory.memsw.limit_in_bytes')
    if (existsSync(both)) put(both, String(bytes))
    // Version 1 counts the buffers of sockets separately, not only those of TCP; they are on top of the memory.
    put(join(dir, 'memory.kmem.tcp.limit_in_bytes'), String(bytes / 4))
    return
  }
  put(join(dir, 'memory.max'), String(bytes))
  if (existsSync(join(dir, 'memory.swap.max'))) put(join(dir, 'memory.swap.max'), '0')
}

function setCpus(host: CgroupHost, dir: string, cpus: number): void {
  const quota = Math.round(cpus * PERIOD_US)
  // PLATFORM: the kernel's minimum is one millisecond.
  if (quota < 1000) throw new Error(`${cpus} CPUs is less than the kernel's minimum`)
  if (host.version === 2) put(join(dir, 'cpu.max'), `${quota} ${PERIOD_US}`)
  else {
    put(join(dir, 'cpu.cfs_period_us'), String(PERIOD_US))
    put(join(dir, 'cpu.cfs_quota_us'), String(quota))
  }
}

/** The limit that a group enforces, in the unit of the limit. */
function ceilingIn(version: 1 | 2, dir: string, limit: CgroupLimit): number | undefined {
  const read = (file: string): number => Number(readFileSync(join(dir, file), 'utf8').trim())
  try {
    if (limit === 'pids') return read('pids.max')
    if (limit === 'memoryMb') return read(version === 1 ? 'memory.limit_in_bytes' : 'memory.max') / MB
    if (version === 1) return read('cpu.cfs_quota_us') / read('cpu.cfs_period_us')
    const [quota, period] = readFileSync(join(dir, 'cpu.max'), 'utf8').split(' ').map(Number)
    return (quota as number) / (period as number)
  } catch {
    return undefined
  }
}

/** Writes a limit and verifies it: a limit counts only if the kernel returns the same value. */
function put(file: string, value: string): void {
  writeFileSync(file, value)
  const read = readFileSync(file, 'utf8').trim()
  if (read !== value) throw new Error(`${file} contains \`${read}\` instead of \`${value}\``)
}
