import { randomUUID } from 'node:crypto'
import {
  closeSync,
  constants,
  linkSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readlinkSync,
  renameSync,
  rmdirSync,
  symlinkSync,
  unlinkSync,
} from 'node:fs'
import { observePath } from '../../host/files/walk.ts'
import { O_PATH, openChecked } from '../../host/files/walk-open.ts'
import type { Json } from '../../model/event.ts'
import { screenPath } from '../../policy/paths/paths.ts'
import { accessOf, judgedAt, OUTSIDE, READ, realOf, refusedAccess, traversal, WRITE } from './files.ts'
import { HostRefusal } from './host-parts.ts'
import { allowsName, type Entry, failure, linkText, requireChange } from './wasi-resolve.ts'

/**
 * Changes of directory entries by WASI programs: create, remove, rename, link. Every change happens inside the opened
 * directory that was checked, and never follows a link.
 */

/** Bounds how long a rename blocks the event loop; a larger tree is not moved. */
const MAX_MOVED = 1000

/** Creates a directory. */
export function createDirectory(entry: Entry): Json {
  if (entry.dot || entry.stat !== undefined) throw failure('EEXIST')
  requireChange(entry)
  return withParent(entry, (path, directory) => {
    mkdirSync(path)
    return requireUnmoved(entry, directory, () => rmdirSync(path))
  })
}

/** Creates a file and opens it; the caller closes the descriptor. */
export function createFile(entry: Entry, flags: number): number {
  requireChange(entry)
  return withParent(entry, (path, directory) => {
    const fd = openSync(path, flags | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW, 0o666)
    requireUnmoved(entry, directory, () => {
      closeSync(fd)
      unlinkSync(path)
    })
    return fd
  }) as number
}

/** Removes an empty directory. */
export function removeDirectory(entry: Entry): Json {
  const { isDirectory } = presentOf(entry)
  if (!isDirectory) throw failure('ENOTDIR')
  requireChange(entry)
  return withParent(entry, (path) => done(rmdirSync(path)))
}

/** Removes a file or link. */
export function removeFile(entry: Entry): Json {
  const { isDirectory } = presentOf(entry)
  if (isDirectory) throw failure('EISDIR')
  if (entry.slash) throw failure('ENOTDIR')
  requireChange(entry)
  return withParent(entry, (path) => done(unlinkSync(path)))
}

/** The target of a symbolic link. SECURITY: a target outside would disclose a path of the host. */
export function readLink(entry: Entry): Json {
  if (presentOf(entry).isLink === false) throw failure('EINVAL')
  if (!allowsName(entry, 'read')) throw refusedAccess(entry.asked)
  return withParent(entry, (path) => {
    const target = readlinkSync(path, 'utf8')
    requireInside(entry, target)
    return target
  })
}

/** Creates a symbolic link whose target is inside the granted paths, now and after any other change by a program. */
export function createLink(entry: Entry, target: string): Json {
  if (target === '') throw failure('ENOENT')
  if (entry.stat !== undefined || entry.dot) throw failure('EEXIST')
  if (entry.slash) throw failure('ENOENT')
  requireChange(entry)
  requireInside(entry, target)
  return withParent(entry, (path, directory) => {
    symlinkSync(target, path)
    return requireUnmoved(entry, directory, () => unlinkSync(path))
  })
}

/**
 * Undoes a change if another process moved the directory after it was checked.
 * SECURITY: in another place, `..` in a link leads elsewhere and a name may be a protected one. A change that happens
 * before the move is seen by the run that moves the directory (`requireMovable` after the rename); one after it, here.
 */
function requireUnmoved(entry: Entry, directory: string, undo: () => void): Json {
  if (readlinkSync(directory) === entry.parent.real) return true
  undo()
  throw failure('ENOENT')
}

/** Gives a file or symbolic link a second name. */
export function createHardLink(from: Entry, to: Entry): Json {
  const { isDirectory, isLink, ino } = presentOf(from)
  if (isDirectory) throw failure('EPERM')
  if (to.stat !== undefined || to.dot) throw failure('EEXIST')
  if (from.slash) throw failure('ENOTDIR')
  if (to.slash) throw failure('ENOENT')
  requireChange(to)
  requireSameAccess(from, from.real, to.real)
  if (isLink) {
    requireChange(from)
    requireInside(to, readlinkSync(from.real, 'utf8'))
  } else judgedAt(from.asked, from.real)
  return withParents(from, to, (old, path, directory) => {
    linkSync(old, path)
    const undo = (): void => unlinkSync(path)
    // SECURITY: another process may have replaced the file after it was checked.
    if (lstatSync(path, { bigint: true }).ino === ino) return requireUnmoved(to, directory, undo)
    undo()
    throw failure('ENOENT')
  })
}

/** Renames a file, link or directory. Returns how many files were checked, because that costs fuel. */
export function renameEntry(from: Entry, to: Entry): Json {
  const { isDirectory } = presentOf(from)
  if (to.dot) throw failure('EINVAL')
  if (!isDirectory && (from.slash || to.slash)) throw failure('ENOTDIR')
  if (to.slash && to.stat !== undefined && !to.stat.isDirectory()) throw failure('ENOTDIR')
  requireChange(from)
  requireChange(to)
  return withParents(from, to, (old, path, directory) => {
    const checked = requireMovable(from, to, old)
    renameSync(old, path)
    // SECURITY: checked again where it is now: another process may have changed it between the check and the rename.
    const undo = (): void => moveBack(path, old)
    try {
      requireMovable(from, to, path)
    } catch (error) {
      undo()
      throw error
    }
    requireUnmoved(to, directory, undo)
    return checked
  })
}

/** Moves an entry back to its directory; under a new name if its old one was taken meanwhile. */
function moveBack(path: string, old: string): void {
  const taken = lstatSync(old, { throwIfNoEntry: false }) !== undefined
  renameSync(path, taken ? `${old}.${randomUUID()}` : old)
}

/**
 * Throws unless everything in a tree may be at its new place: no blocked or protected name arises, no link leads outside,
 * and the program gets no access that it did not have at the old place.
 */
function requireMovable(from: Entry, to: Entry, now: string): number {
  const top = lstatSync(now)
  const queue: Moved[] = [{ rest: '', isLink: top.isSymbolicLink(), isDirectory: top.isDirectory() }]
  let count = 0
  for (let moved = queue.shift(); moved !== undefined; moved = queue.shift()) {
    const { rest, isLink, isDirectory } = moved
    const real = `${to.real}${rest}`
    requireSameAccess(from, `${from.real}${rest}`, real)
    if (rest !== '' && !allowsName(to, 'create', real)) throw refusedAccess(to.asked)
    if (isLink) requireInside(to, readlinkSync(`${now}${rest}`, 'utf8'), real)
    if (isDirectory) queue.push(...entriesBelow(now, rest))
    count++
    if (count + queue.length > MAX_MOVED)
      throw new HostRefusal('resource-exhausted', `a tree with more than ${MAX_MOVED} files is not moved`)
  }
  return count
}

type Moved = { readonly rest: string; readonly isLink: boolean; readonly isDirectory: boolean }

const entriesBelow = (now: string, rest: string): readonly Moved[] =>
  readdirSync(`${now}${rest}`, { withFileTypes: true })
    .slice(0, MAX_MOVED + 1)
    .map((entry) => ({
      rest: `${rest}/${entry.name}`,
      isLink: entry.isSymbolicLink(),
      isDirectory: entry.isDirectory(),
    }))

/** SECURITY: a file never becomes readable or writable by getting another name. */
function requireSameAccess({ asked, roots }: Entry, from: string, to: string): void {
  for (const use of [READ, WRITE]) {
    const access = accessOf({ parts: asked.parts, use }, roots)
    if (access(to) === 'granted' && access(from) !== 'granted') throw refusedAccess(asked)
  }
}

/**
 * Throws unless a link at `real` with this target leads to a path that the program may use itself.
 * SECURITY: other programs and the user follow the link too, so it may not lead outside, however it is reached.
 */
function requireInside(entry: Entry, target: string, real = entry.real): void {
  const { asked, roots } = entry
  const directory = real.slice(0, real.lastIndexOf('/')) || '/'
  const text = linkText(directory, target)
  const granted = (path: string): boolean =>
    [READ, WRITE].some((use) => accessOf({ parts: asked.parts, use }, roots)(path) === 'granted')
  if (text === undefined || screenPath(text).kind === 'refused' || !granted(text))
    throw traversal(asked, OUTSIDE)
  if (asked.use.op === 'write' && !allowsName(entry, 'create', text)) throw refusedAccess(asked)
  const seen = realOf(observePath(text))
  if (seen !== undefined && !granted(seen)) throw traversal(asked, OUTSIDE)
}

type Present = { readonly isDirectory: boolean; readonly isLink: boolean; readonly ino: bigint }

function presentOf({ stat, dot, slash }: Entry): Present {
  if (stat === undefined) throw failure('ENOENT')
  if (dot) throw failure('EINVAL')
  if (slash && !stat.isDirectory()) throw failure('ENOTDIR')
  return { isDirectory: stat.isDirectory(), isLink: stat.isSymbolicLink(), ino: stat.ino }
}

const done = (_: unknown): Json => true

/**
 * Runs the action on a path inside the opened directory, which is the directory that was checked.
 * PLATFORM: Node has no openat; on Linux, /proc/self/fd/<descriptor> refers to the opened directory.
 */
export function withParent(entry: Entry, action: (path: string, directory: string) => Json): Json {
  if (process.platform !== 'linux') throw new HostRefusal('unsupported', 'not supported on this system')
  const fd = openParent(entry)
  try {
    const directory = `/proc/self/fd/${fd}`
    return action(`${directory}/${entry.name}`, directory)
  } catch (error) {
    throw refusalOf(error)
  } finally {
    closeSync(fd)
  }
}

const withParents = (
  from: Entry,
  to: Entry,
  action: (old: string, path: string, directory: string) => Json,
): Json => withParent(from, (old) => withParent(to, (path, directory) => action(old, path, directory)))

function openParent({ parent }: Entry): number {
  try {
    return openChecked(parent, O_PATH)
  } catch {
    throw failure('ENOENT')
  }
}

/** An error of the file system as the program sees it; a code that WASI does not have becomes EIO. */
export function refusalOf(error: unknown): HostRefusal {
  if (error instanceof HostRefusal) return error
  return failure((error as NodeJS.ErrnoException).code ?? 'EIO')
}
