import { closeSync, constants, fstatSync, ftruncateSync, mkdirSync, openSync, readlinkSync } from 'node:fs'
import { SandboxError } from '../../model/errors.ts'
import { kindOf, type PathObservation, type PathThing } from './walk.ts'

const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_TRUNC } = constants

/** PLATFORM: Linux's flag for a descriptor that only refers to an inode; Node does not define it. */
export const O_PATH = 0x20_00_00
/** PLATFORM: macOS's flag that rejects a symbolic link in any component. */
const O_NOFOLLOW_ANY = 0x20_00_00_00

const FILE_MODE = 0o666
const DIR_MODE = 0o777

type Existing = Extract<PathObservation, { state: 'exists' }>
type Missing = Extract<PathObservation, { state: 'missing' }>

/**
 * Opens exactly the inode that was observed and checked, or throws `path-traversal` because the path now leads elsewhere.
 * If the path was missing, `O_CREAT` creates it and its parents, and fails if anything has appeared there meanwhile. With
 * `O_PATH` the descriptor only refers to the inode, for a mount. The caller closes the descriptor.
 */
export function openChecked(observation: PathObservation, flags: number): number {
  if (observation.state === 'unreadable') throw gone(observation)
  if (observation.state === 'missing' && (flags & O_CREAT) === 0) throw gone(observation)
  if (observation.state === 'exists' && (flags & O_CREAT) !== 0 && (flags & O_EXCL) !== 0)
    throw changed(observation)
  try {
    if (process.platform !== 'linux') return openElsewhere(observation, flags)
    return observation.state === 'exists' ? openExisting(observation, flags) : openNew(observation, flags)
  } catch (error) {
    throw error instanceof SandboxError ? error : changed(observation, error)
  }
}

/**
 * SECURITY: first a descriptor without side effects, then the identity check, then the open. Opening at once would block
 * on a pipe, trigger a device or truncate a file that was put there after the check.
 */
function openExisting(observation: Existing, flags: number): number {
  const naming = (flags & O_PATH) !== 0
  const { kind } = observation.thing
  if (!naming && kind !== 'file' && kind !== 'dir') throw changed(observation)
  const descriptor = openPath(observation.real)
  try {
    requireSame(observation, descriptor, observation)
    return openSync(`/proc/self/fd/${descriptor}`, naming ? O_PATH : flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW))
  } finally {
    closeSync(descriptor)
  }
}

function openNew(observation: Missing, flags: number): number {
  const parent = openPath(observation.ancestor)
  try {
    requireSame(observation, parent, { real: observation.ancestor, thing: observation.thing })
  } catch (error) {
    closeSync(parent)
    throw error
  }
  return createBelow(parent, observation.missing, flags)
}

/**
 * Creates the missing directories and the file. Takes ownership of `parent` and closes it.
 * EEXIST aborts: the entry did not exist when the path was checked.
 */
function createBelow(parent: number, [name = '', ...rest]: readonly string[], flags: number): number {
  const path = `/proc/self/fd/${parent}/${name}`
  let next: number
  try {
    if (rest.length === 0) return openSync(path, flags | O_CREAT | O_EXCL | O_NOFOLLOW, FILE_MODE)
    mkdirSync(path, DIR_MODE)
    next = openSync(path, O_PATH | O_NOFOLLOW | O_DIRECTORY)
  } finally {
    closeSync(parent)
  }
  return createBelow(next, rest, flags)
}

/**
 * Opens a descriptor that refers to the inode at a real path, without following any symbolic link.
 * PLATFORM: Node has no openat; `/proc/self/fd/N/name` is also resolved from the open directory N.
 */
function openPath(real: string): number {
  const names = real.split('/').filter((name) => name !== '')
  let descriptor = openSync('/', O_PATH | O_DIRECTORY)
  for (const [index, name] of names.entries()) {
    const parent = descriptor
    try {
      descriptor = openSync(
        `/proc/self/fd/${parent}/${name}`,
        O_PATH | O_NOFOLLOW | (index + 1 < names.length ? O_DIRECTORY : 0),
      )
    } finally {
      closeSync(parent)
    }
  }
  return descriptor
}

type Judged = { readonly real: string; readonly thing: PathThing }

/**
 * INVARIANT: same device, inode and kind, and the kernel's path of the descriptor is the checked path.
 * SECURITY: file systems reuse inode numbers at once, so a pipe created after an unlink may have the file's number.
 */
function requireSame(observation: PathObservation, fd: number, { real, thing }: Judged): void {
  const stat = fstatSync(fd, { bigint: true })
  const same = String(stat.dev) === thing.dev && String(stat.ino) === thing.ino && kindOf(stat) === thing.kind
  const here = process.platform !== 'linux' || readlinkSync(`/proc/self/fd/${fd}`) === real
  if (!same || !here) throw changed(observation)
}

function openElsewhere(observation: Existing | Missing, flags: number): number {
  if (process.platform !== 'darwin') {
    throw new SandboxError('unsupported', 'opening a checked path is not supported on this system')
  }
  const guarded = (flags & ~(O_TRUNC | O_CREAT)) | O_NOFOLLOW_ANY | O_NONBLOCK
  if (observation.state === 'missing') {
    if (observation.missing.length > 1) throw gone(observation)
    return openSync(
      `${observation.ancestor}/${observation.missing[0]}`,
      guarded | O_CREAT | O_EXCL,
      FILE_MODE,
    )
  }
  const fd = openSync(observation.real, guarded)
  try {
    requireSame(observation, fd, observation)
    if ((flags & O_TRUNC) !== 0) ftruncateSync(fd)
    return fd
  } catch (error) {
    closeSync(fd)
    throw error
  }
}

const gone = ({ asked }: PathObservation): SandboxError =>
  new SandboxError('forbidden-host-path', `\`${asked}\` is missing or outside the allowed paths`)

const changed = ({ asked }: PathObservation, cause?: unknown): SandboxError =>
  new SandboxError('path-traversal', `\`${asked}\` has changed since it was checked`, { cause })
