import {
  accessSync,
  constants,
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
} from 'node:fs'
import { totalmem } from 'node:os'
import { join } from 'node:path'

/** What is on this host: programs, the shape of its root, who we are. */

const PROGRAM_PATH = ['/usr/local/bin', '/usr/bin', '/bin', '/usr/local/sbin', '/usr/sbin', '/sbin']

/** A program from the system's own directories. SECURITY: never from the caller's PATH, which a project may set. */
export function systemProgram(name: string): string | undefined {
  return PROGRAM_PATH.map((dir) => join(dir, name)).find(isExecutable)
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}

/** What changes when a file is replaced or the machine restarts; the key of everything remembered about a host. */
export function hostFingerprint(files: readonly string[]): string {
  const of = (path: string): string => {
    const stat = statSync(path, { throwIfNoEntry: false })
    return stat ? `${path}:${stat.size}:${stat.mtimeMs}:${stat.ino}` : `${path}:-`
  }
  const boot = readText('/proc/sys/kernel/random/boot_id') ?? ''
  return [boot.trim(), String(process.getuid?.() ?? -1), ...files.map(of)].join('|')
}

export function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return undefined
  }
}

export const caller = (): { readonly uid: number; readonly gid: number } => ({
  uid: process.getuid?.() ?? -1,
  gid: process.getgid?.() ?? -1,
})

/** The most that a process of this host may have: open files, or processes of its user. */
export function hardLimit(name: 'open files' | 'processes', otherwise: number): number {
  const text = readText('/proc/self/limits') ?? ''
  return Number(new RegExp(`^Max ${name}\\s+\\S+\\s+(\\d+)`, 'm').exec(text)?.[1] ?? otherwise)
}

export const hostMemoryMb = (): number => Math.floor(totalmem() / 1024 / 1024)

/** Where a system keeps its programs. Each mount costs half a millisecond, so only what is there. */
const PROGRAM_DIRS = ['/usr', '/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32', '/nix/store']

/** Files of /etc without secrets that ordinary programs cannot do without. */
const ETC_FILES = ['/etc/alternatives', '/etc/ld.so.cache', '/etc/localtime']
const CERTIFICATES = ['/etc/ssl/certs', '/etc/pki/tls/certs', '/etc/ca-certificates']

/** The directories that hold the host's own tools, and the links that lead to them. */
export function observeLayout(): {
  readonly links: readonly { readonly path: string; readonly target: string }[]
  readonly programs: readonly string[]
  readonly etc: readonly string[]
  readonly certificates: readonly string[]
} {
  const isLink = (path: string): boolean => lstatSync(path).isSymbolicLink()
  const present = [...PROGRAM_DIRS, ...ETC_FILES].filter((path) => existsSync(path))
  const real = present.filter((path) => !isLink(path))
  return {
    links: present.filter(isLink).map((path) => ({ path, target: readlinkSync(path) })),
    programs: real.filter((path) => PROGRAM_DIRS.includes(path)),
    etc: real.filter((path) => ETC_FILES.includes(path)),
    certificates: CERTIFICATES.filter((path) => existsSync(path)),
  }
}

/**
 * The host's number of a process that a sandbox knows by another one, looked for below the sandbox's first process.
 * SECURITY: only what is in the sandbox's own tree can be found, whatever number the sandbox gives.
 */
export function hostPidOf(root: number, inner: number): number | undefined {
  const waiting = [root]
  for (let seen = 0; waiting.length > 0 && seen < MAX_TREE; seen++) {
    const pid = waiting.shift() as number
    if (innerPid(pid) === inner) return pid
    waiting.push(...childrenOf(pid))
  }
  return undefined
}

const MAX_TREE = 10_000

const innerPid = (pid: number): number | undefined => {
  const numbers = /^NSpid:\t(.*)$/m.exec(readText(`/proc/${pid}/status`) ?? '')?.[1]?.split('\t') ?? []
  return numbers.length > 1 ? Number(numbers.at(-1)) : undefined
}

/** A process with threads has the children of all of them. */
export function childrenOf(pid: number): readonly number[] {
  const threads = namesIn(`/proc/${pid}/task`)
  const texts = threads.map((thread) => readText(`/proc/${pid}/task/${thread}/children`) ?? '')
  return texts.flatMap((text) => text.split(' ').filter(Boolean).map(Number))
}

function namesIn(dir: string): readonly string[] {
  try {
    return readdirSync(dir)
  } catch {
    return []
  }
}

/** `pid-start`: who began when. The number alone may be somebody else's by now. */
export function lifeOf(pid: number): string {
  const stat = readText(`/proc/${pid}/stat`) ?? ''
  return `${pid}-${stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? 0}`
}

export const isAlive = (life: string | undefined): boolean =>
  life !== undefined && /^\d+-\d+$/.test(life) && lifeOf(Number.parseInt(life, 10)) === life

/** Jiffies of /proc; the kernel has used this value for user space for ever. */
const TICK_MS = 10
const PAGE_BYTES = 4096

/** Memory in use and processor time of a process and everything below it, ended children included. */
export function treeUsage(root: number): { readonly memoryBytes: number; readonly cpuMs: number } {
  const waiting = [root]
  let memoryBytes = 0
  let cpuMs = 0
  for (let seen = 0; waiting.length > 0 && seen < MAX_TREE; seen++) {
    const pid = waiting.shift() as number
    // The name before the bracket may hold anything.
    const fields = (readText(`/proc/${pid}/stat`) ?? '').replace(/^.*\) /s, '').split(' ')
    cpuMs += fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks || 0), 0) * TICK_MS
    memoryBytes += Number(fields[21] ?? 0) * PAGE_BYTES
    waiting.push(...childrenOf(pid))
  }
  return { memoryBytes, cpuMs }
}
