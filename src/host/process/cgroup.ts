import { accessSync, constants, existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { SandboxError } from '../../model/errors.ts'
import type { Limits } from '../../model/spec.ts'

/** Control groups, version 1 and 2, wherever we may make one. */

export type CgroupLimit = 'memoryMb' | 'pids' | 'cpus'

/** For each limit the directory below which we can make groups that hold it. */
export type CgroupHost = {
  readonly version: 1 | 2
  readonly parents: Readonly<Partial<Record<CgroupLimit, string>>>
}

const CONTROLLER: Readonly<Record<CgroupLimit, string>> = { memoryMb: 'memory', pids: 'pids', cpus: 'cpu' }
const LIMITS = Object.keys(CONTROLLER) as readonly CgroupLimit[]

/** Finds out what this process may do, by looking at the mounts and at its own place in them. */
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
  // The topmost group that is delegated to us: below it processes may be moved about.
  let base: string | undefined
  for (let at = join(mount, path); at.startsWith(mount) && writable(at); at = dirname(at)) base = at
  if (!base) return {}
  const found: Partial<Record<CgroupLimit, string>> = {}
  const enabled = enableV2(base)
  for (const limit of LIMITS) if (enabled.includes(CONTROLLER[limit])) found[limit] = base
  return found
}

/** Hands the controllers down to the children of a group, one by one: one that is missing must not stop the rest. */
function enableV2(base: string): string[] {
  const file = join(base, 'cgroup.subtree_control')
  for (const controller of Object.values(CONTROLLER)) {
    try {
      writeFileSync(file, `+${controller}`)
    } catch {
      // Read back below: what is not there is not offered.
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

/** The group that somebody else, such as a container engine, made for a process. Undefined where it cannot be seen. */
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

/** A sandbox's own group (in version 1 one directory for each controller). */
export class Cgroup {
  readonly dirs: readonly string[]
  readonly #host: CgroupHost
  readonly #name: string

  private constructor(host: CgroupHost, name: string, dirs: readonly string[]) {
    this.#host = host
    this.#name = name
    this.dirs = dirs
  }

  /** Makes the group and reads every limit back; on failure nothing is left. */
  static create(host: CgroupHost, name: string, limits: Limits, ours = AGENT_PROCESSES): Cgroup | undefined {
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
        setLimit(host, join(host.parents[limit] as string, name), limit, ceilingOf(limits, limit, ours))
      return group
    } catch (cause) {
      for (const dir of made) rmdirSync(dir)
      throw new SandboxError(
        'launch-failed',
        `cannot make the control group ${name}: ${(cause as Error).message}`,
        { cause },
      )
    }
  }

  /** One that is there already. Only the limits that somebody asked for are looked at. */
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

  /** The limits that the kernel does not repeat as they were asked for. */
  unmet(limits: Limits): readonly CgroupLimit[] {
    return LIMITS.filter(
      (limit) => limits[limit] !== undefined && !this.#keeps(limit, limits[limit] as number),
    )
  }

  #keeps(limit: CgroupLimit, wanted: number): boolean {
    const parent = this.#host.parents[limit]
    if (!parent) return false
    const held = ceilingIn(this.#host.version, join(parent, this.#name), limit)
    // Memory is held in pages, and a share of a processor in microseconds.
    return held !== undefined && held > 0 && held <= wanted * 1.001
  }

  /** A group below this one for one of its processes. PLATFORM: in version 2 a group with processes has no children. */
  nested(name: string, limits: Limits): Cgroup | undefined {
    if (this.#host.version === 2) return undefined
    const parents = Object.fromEntries(
      LIMITS.filter((limit) => this.#host.parents[limit]).map((limit) => [limit, this.#dirOf(limit)]),
    )
    return Cgroup.create({ ...this.#host, parents }, name, limits, 0)
  }

  /** Where a limit's group lies; the host's own when this group does not hold that limit. */
  #dirOf(limit: CgroupLimit): string {
    const parent = this.#host.parents[limit] as string
    const own = join(parent, this.#name)
    return this.dirs.includes(own) ? own : parent
  }

  /** Makes room for helpers of ours that live in the group, on top of what was asked for. */
  allowPids(count: number, ours = AGENT_PROCESSES): void {
    const parent = this.#host.parents.pids
    if (parent && this.dirs.includes(join(parent, this.#name)))
      put(join(parent, this.#name, 'pids.max'), String(Math.min(count + ours, PIDS_MAX)))
  }

  /** Moves a process in, whatever it starts later included. */
  join(pid: number): void {
    for (const dir of this.dirs) writeFileSync(join(dir, 'cgroup.procs'), String(pid))
  }

  /** How often the kernel killed for memory and refused a process. */
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

  /** Removes the group; its last processes may need a moment to be gone. */
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

/** The agent and bubblewrap's own processes live in the group too. */
const AGENT_PROCESSES = 3

const ceilingOf = (limits: Limits, limit: CgroupLimit, ours: number): number =>
  (limits[limit] as number) + (limit === 'pids' ? ours : 0)

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
    return
  }
  put(join(dir, 'memory.max'), String(bytes))
  if (existsSync(join(dir, 'memory.swap.max'))) put(join(dir, 'memory.swap.max'), '0')
}

function setCpus(host: CgroupHost, dir: string, cpus: number): void {
  const quota = Math.round(cpus * PERIOD_US)
  // PLATFORM: a millisecond is the least that the kernel gives.
  if (quota < 1000) throw new Error(`${cpus} of a processor is less than the kernel can hold`)
  if (host.version === 2) put(join(dir, 'cpu.max'), `${quota} ${PERIOD_US}`)
  else {
    put(join(dir, 'cpu.cfs_period_us'), String(PERIOD_US))
    put(join(dir, 'cpu.cfs_quota_us'), String(quota))
  }
}

/** What a group holds, in the limit's own unit. */
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

/** A limit counts only once the kernel repeats it. */
function put(file: string, value: string): void {
  writeFileSync(file, value)
  const read = readFileSync(file, 'utf8').trim()
  if (read !== value) throw new Error(`${file} holds \`${read}\` instead of \`${value}\``)
}
