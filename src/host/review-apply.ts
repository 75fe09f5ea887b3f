import { randomBytes } from 'node:crypto'
import {
  closeSync,
  constants,
  copyFileSync,
  fchmodSync,
  fchownSync,
  fsyncSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
} from 'node:fs'
import { basename, dirname } from 'node:path'
import type { Change } from './review.ts'
import { O_PATH } from './walk-open.ts'

const { O_DIRECTORY, O_NOFOLLOW, O_RDONLY } = constants

/**
 * Makes one change real. The original must be as it was when the command started; a file is replaced whole or not at
 * all. SECURITY: no link is followed on the way, neither in the original's directories nor in the changes.
 */
export function applyChange(change: Change, startedNs: bigint): void {
  const parent = openParent(change)
  try {
    const place = `/proc/self/fd/${parent}/${basename(change.path)}`
    requireUnchanged(change, place, startedNs)
    if (change.change === 'deleted') rmSync(place, { recursive: change.kind === 'dir' })
    else if (change.kind === 'dir') applyDirectory(change, place)
    else if (change.kind === 'link')
      replace(place, parent, (fresh) => symlinkSync(change.target ?? '', fresh))
    else if (change.change === 'mode') setMode(place, change.mode)
    else if (change.kind === 'file') replace(place, parent, (fresh) => copyContent(change, fresh, place))
    else throw new Error('devices, pipes and sockets are not applied')
  } finally {
    closeSync(parent)
  }
}

/** Directories on the way that are new come first in the order of paths, so they exist by now. */
function openParent(change: Change): number {
  const names = dirname(change.relative)
    .split('/')
    .filter((name) => name !== '' && name !== '.')
  let place = openSync(change.root, O_PATH | O_DIRECTORY)
  for (const name of names) {
    const outer = place
    try {
      place = openSync(`/proc/self/fd/${outer}/${name}`, O_PATH | O_DIRECTORY | O_NOFOLLOW)
    } catch {
      throw new Error(`\`${name}\` on the way is no directory any more`)
    } finally {
      closeSync(outer)
    }
  }
  return place
}

function requireUnchanged(change: Change, place: string, startedNs: bigint): void {
  const now = lstatSync(place, { bigint: true, throwIfNoEntry: false })
  if (change.change === 'added' && now) throw new Error('something stands there by now')
  if (change.change !== 'added' && !now) throw new Error('the original is gone')
  // A directory's own time says that something in it changed, and that is judged by itself.
  if (change.kind === 'dir' && change.change === 'mode') return
  if (now && isNewer(place, startedNs)) throw new Error('the original changed meanwhile')
}

/** Also when only something below it changed. */
function isNewer(place: string, startedNs: bigint): boolean {
  const stat = lstatSync(place, { bigint: true })
  if (stat.ctimeNs >= startedNs) return true
  return stat.isDirectory() && readdirSync(place).some((name) => isNewer(`${place}/${name}`, startedNs))
}

function applyDirectory(change: Change, place: string): void {
  if (change.change === 'changed') unlinkSync(place)
  if (change.change !== 'mode') mkdirSync(place)
  setMode(place, change.mode)
}

function setMode(place: string, mode: number): void {
  const fd = openSync(place, O_RDONLY | O_NOFOLLOW)
  fchmodSync(fd, mode)
  closeSync(fd)
}

/** Beside the original first, then in its place in one step. */
function replace(place: string, parent: number, make: (fresh: string) => void): void {
  const fresh = `/proc/self/fd/${parent}/.ringfence-${randomBytes(6).toString('hex')}`
  try {
    make(fresh)
    if (lstatSync(place, { throwIfNoEntry: false })?.isDirectory()) rmSync(place, { recursive: true })
    renameSync(fresh, place)
  } catch (error) {
    rmSync(fresh, { force: true })
    throw error
  }
}

function copyContent(change: Change, fresh: string, place: string): void {
  const source = openSync(change.from as string, O_RDONLY | O_NOFOLLOW)
  const owner = lstatSync(place, { throwIfNoEntry: false }) ?? lstatSync(change.from as string)
  try {
    copyFileSync(`/proc/self/fd/${source}`, fresh, constants.COPYFILE_EXCL)
    const fd = openSync(fresh, O_RDONLY | O_NOFOLLOW)
    if (process.getuid?.() === 0) fchownSync(fd, owner.uid, owner.gid)
    // SECURITY: whatever a guest set, its files never run as somebody else.
    fchmodSync(fd, change.mode)
    fsyncSync(fd)
    closeSync(fd)
  } finally {
    closeSync(source)
  }
}
