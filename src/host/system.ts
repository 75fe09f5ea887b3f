import {
  accessSync,
  constants,
  existsSync,
  lstatSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statfsSync,
  statSync,
} from 'node:fs'
import { totalmem } from 'node:os'
import { join } from 'node:path'

/** Facts about this host: programs, the layout of its root, the current user. */

const PROGRAM_PATH = ['/usr/local/bin', '/usr/bin', '/bin', '/usr/local/sbin', '/usr/sbin', '/sbin']

/** A program from the system directories. SECURITY: never from the caller's PATH, which a project may set. */
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

/** Changes when a file is replaced or the machine reboots; the key of everything cached about a host. */
export function hostFingerprint(files: readonly string[]): string {
  const of = (path: string): string => {
    const stat = statSync(path, { throwIfNoEntry: false })
    return stat ? `${path}:${stat.size}:${stat.mtimeMs}:${stat.ino}` : `${path}:-`
  }
  const boot = readText('/proc/sys/kernel/random/boot_id') ?? ''
  return [boot.trim(), String(process.getuid?.() ?? -1), ...files.map(of)].join('|')
}

/** The text of a file, or nothing if it cannot be read. */
export function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return undefined
  }
}

/** The effective user and group of this process. */
export const caller = (): { readonly uid: number; readonly gid: number } => ({
  uid: process.getuid?.() ?? -1,
  gid: process.getgid?.() ?? -1,
})

/** The hard limit of this process: open files, or processes of its user. */
export function hardLimit(name: 'open files' | 'processes', otherwise: number): number {
  const text = readText('/proc/self/limits') ?? ''
  return Number(new RegExp(`^Max ${name}\\s+\\S+\\s+(\\d+)`, 'm').exec(text)?.[1] ?? otherwise)
}

/** The memory of this machine in MiB. */
export const hostMemoryMb = (): number => Math.floor(totalmem() / 1024 / 1024)

/** The system's program directories. Each mount costs half a millisecond, so only existing ones are used. */
const PROGRAM_DIRS = ['/usr', '/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32', '/nix/store']

/** Files of /etc without secrets that ordinary programs require. */
const ETC_FILES = ['/etc/alternatives', '/etc/ld.so.cache', '/etc/localtime', '/etc/matplotlibrc']
const CERTIFICATES = ['/etc/ssl/certs', '/etc/pki/tls/certs', '/etc/ca-certificates']

/** The directories with the host's programs, and the symbolic links that lead to them. */
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
 * Translates a pid inside a sandbox to the pid on the host, by searching below the sandbox's first process.
 * SECURITY: finds only processes of the sandbox's own tree, whatever number the sandbox gives.
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

/** A process and its descendants. */
export function descendantsOf(root: number): readonly number[] {
  const found = [root]
  for (let at = 0; at < found.length && found.length < MAX_TREE; at++)
    found.push(...childrenOf(found[at] as number))
  return found
}

/** The number in the sandbox's own namespace: the second one. An isolated command has a third, which others may have too. */
const innerPid = (pid: number): number | undefined => {
  const numbers = /^NSpid:\t(.*)$/m.exec(readText(`/proc/${pid}/status`) ?? '')?.[1]?.split('\t') ?? []
  return numbers.length > 1 ? Number(numbers[1]) : undefined
}

/** The children of all threads of a process. */
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

/** `pid-start`: the pid with the start time, because a pid alone may be reused. */
export function processKey(pid: number): string {
  const stat = readText(`/proc/${pid}/stat`) ?? ''
  return `${pid}-${stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? 0}`
}

/** Whether the process with this key still runs. */
export const isAlive = (key: string | undefined): boolean =>
  key !== undefined && /^\d+-\d+$/.test(key) && processKey(Number.parseInt(key, 10)) === key

/** Jiffies of /proc; the kernel has always used this value for user space. */
const TICK_MS = 10
const PAGE_BYTES = 4096

/** The root file system of a sandbox as the host sees it, by the process that waits for its first process. */
export function rootOf(parent: number): string | undefined {
  const [first] = childrenOf(parent)
  return first === undefined ? undefined : `/proc/${first}/root`
}

/** Bytes in use on the file system that is the root of a sandbox. */
export function diskUsageOf(root: string | undefined): number | undefined {
  if (root === undefined) return undefined
  try {
    const { blocks, bfree, bsize } = statfsSync(root)
    return (blocks - bfree) * bsize
  } catch {
    // It has just ended.
    return undefined
  }
}

/** Memory in use and CPU time of a process and its descendants, including ended children. */
export function treeUsage(root: number): { readonly memoryBytes: number; readonly cpuMs: number } {
  const waiting = [root]
  let memoryBytes = 0
  let cpuMs = 0
  for (let seen = 0; waiting.length > 0 && seen < MAX_TREE; seen++) {
    const pid = waiting.shift() as number
    // The process name before the bracket may contain any character.
    const fields = (readText(`/proc/${pid}/stat`) ?? '').replace(/^.*\) /s, '').split(' ')
    cpuMs += fields.slice(11, 15).reduce((sum, ticks) => sum + Number(ticks || 0), 0) * TICK_MS
    memoryBytes += residentPages(pid, fields) * PAGE_BYTES
    waiting.push(...childrenOf(pid))
  }
  return { memoryBytes, cpuMs }
}

/** A process whose main thread has exited shows its memory only in the files of its other threads. */
function residentPages(pid: number, fields: readonly string[]): number {
  const [state, threads, pages] = [fields[0], Number(fields[17]), Number(fields[21] ?? 0)]
  if (state !== 'Z' || threads <= 1) return pages
  const others = namesIn(`/proc/${pid}/task`).map((thread) => readText(`/proc/${pid}/task/${thread}/statm`))
  return Math.max(...others.map((text) => Number(text?.split(' ')[1] ?? 0)), 0)
}
