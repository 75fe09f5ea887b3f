import { lstatSync, readFileSync, readlinkSync, renameSync, symlinkSync, unlinkSync } from 'node:fs'

/** The holder in another pid namespace cannot be checked; a critical section takes milliseconds, never this long. */
const FOREIGN_STALE_MS = 60_000

/** `inherited`: the last holder crashed, or we left something unfinished ourselves; it must be repaired first. */
type Acquired = 'free' | 'inherited'

/** A lock between processes that survives a crashed holder. */
export type Lock = {
  /** Takes the lock if it is free or its holder has exited. */
  readonly tryAcquire: () => Acquired | undefined
  /** Only the holder may call it. */
  readonly release: () => void
  /** The current holder, for messages. */
  readonly holderPid: () => number | undefined
}

/** The holder of a lock: `pid.start.boot.namespace.nonce`. */
type Holder = {
  readonly pid: number
  readonly start: string
  readonly boot: string
  readonly space: string
  readonly nonce: string
}

/**
 * The lock is a symbolic link whose target names the holder: it is created atomically, so there is never a lock without a
 * name. Node has no flock.
 *
 * A dead holder X is succeeded by the first process that creates `<path>.after.<X>`; if that one dies too, by the first
 * `.after.` of its own, and so on. The successor then renames its own link over `<path>`.
 * INVARIANT: once `<path>` no longer names X it never does again (X is dead), so a latecomer who still succeeds X
 * notices it by reading `<path>` once more.
 * PLATFORM: one machine only. On a file system shared by several, each would take the others' holders for dead.
 */
export function createLock(path: string): Lock {
  const me = self()
  return {
    tryAcquire() {
      if (claim(path, me)) return 'free'
      return holderOf(path) === me || succeed(path, me) ? 'inherited' : undefined
    },
    release: () => unlinkSync(path),
    holderPid: () => parseHolder(holderOf(path) ?? '')?.pid,
  }
}

/** Whether the lock is held, or its holder crashed. */
export const isLocked = (path: string): boolean => holderOf(path) !== undefined

function succeed(path: string, me: string): boolean {
  const first = holderOf(path)
  const passed: string[] = []
  let holder = first
  let lockPath = path
  while (holder !== undefined && isDead(holder, lockPath)) {
    lockPath = `${path}.after.${parseHolder(holder)?.nonce}`
    passed.push(lockPath)
    if (claim(lockPath, me)) return conclude(path, me, { first, passed })
    holder = holderOf(lockPath)
  }
  return false
}

function conclude(
  path: string,
  me: string,
  chain: { readonly first: string | undefined; readonly passed: readonly string[] },
): boolean {
  if (holderOf(path) !== chain.first) {
    unlinkSync(chain.passed.at(-1) as string)
    return false
  }
  const fresh = `${path}.new.${parseHolder(me)?.nonce}`
  try {
    symlinkSync(me, fresh)
    renameSync(fresh, path)
  } catch (error) {
    // We stay alive, so a claim that we cannot conclude would lock all others out.
    unlinkSync(chain.passed.at(-1) as string)
    throw error
  }
  for (const link of chain.passed) unlinkSync(link)
  return true
}

function claim(path: string, me: string): boolean {
  try {
    symlinkSync(me, path)
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  }
}

function holderOf(path: string): string | undefined {
  try {
    return readlinkSync(path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw error
  }
}

function isDead(holder: string, lockPath: string): boolean {
  const them = parseHolder(holder)
  if (them === undefined) return false
  if (them.boot !== bootId()) return true
  if (them.space !== pidSpace()) return isOld(lockPath)
  const start = startOf(them.pid)
  return start === undefined || start !== them.start
}

function isOld(lockPath: string): boolean {
  const made = lstatSync(lockPath, { throwIfNoEntry: false })?.mtimeMs
  return made !== undefined && Date.now() - made > FOREIGN_STALE_MS
}

function parseHolder(text: string): Holder | undefined {
  const [, pid, start, boot, space, nonce] = /^(\d+)\.(\d+)\.(\w+)\.(\w+)\.(\w+)$/.exec(text) ?? []
  if (!pid || !start || !boot || !space || !nonce) return undefined
  return { pid: Number(pid), start, boot, space, nonce }
}

/** The creation time distinguishes two locks of one process. */
function self(): string {
  const start = startOf(process.pid) ?? '0'
  return `${process.pid}.${start}.${bootId()}.${pidSpace()}.${process.hrtime.bigint().toString(36)}`
}

/** The start time of a process in ticks since boot: together with the pid it is unique. */
function startOf(pid: number): string | undefined {
  const stat = contentOf(`/proc/${pid}/stat`)
  if (stat === undefined) return contentOf('/proc/self/stat') === undefined ? signalled(pid) : undefined
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  // A zombie holds nothing any more; it only waits for its parent.
  return fields[0] === 'Z' || fields[0] === 'X' ? undefined : fields[19]
}

// PLATFORM: without /proc (macOS) only the pid is known; a reused pid delays the takeover until that process exits.
function signalled(pid: number): string | undefined {
  try {
    process.kill(pid, 0)
    return '0'
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM' ? '0' : undefined
  }
}

const bootId = (): string => contentOf('/proc/sys/kernel/random/boot_id')?.slice(0, 8) ?? 'none'

function pidSpace(): string {
  try {
    return /\d+/.exec(readlinkSync('/proc/self/ns/pid'))?.[0] ?? 'none'
  } catch {
    return 'none'
  }
}

function contentOf(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return undefined
  }
}
