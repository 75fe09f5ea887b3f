import { randomBytes } from 'node:crypto'
import {
  closeSync,
  constants,
  fchmodSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
} from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { Change } from './changes.ts'
import { at, pieces, whileAt } from './read.ts'

const { O_CREAT, O_EXCL, O_NOFOLLOW, O_RDONLY, O_WRONLY } = constants

/** Paths that a review itself changed, with their ctime: these are not foreign changes. */
export type OwnChanges = { readonly [path: string]: string }

/**
 * Applies one change to the original, and returns our own changes there. The original must be as it was when the command
 * started, or as we left it; a file is replaced atomically. SECURITY: no symbolic link is followed, neither in the
 * original's directories nor in the changes.
 */
export function applyChange(change: Change, startedNs: bigint, own: OwnChanges): Promise<OwnChanges> {
  return whileAt(change, async (target, parent) => {
    const around = `/proc/self/fd/${parent}`
    const aroundIsKnown = isKnown(`${around}/.`, dirname(change.path), startedNs, own)
    const check = (): void => requireUnchanged(change, target, startedNs, own)
    check()
    if (change.change === 'deleted') rmSync(target, { recursive: change.kind === 'dir' })
    else if (change.kind === 'dir') applyDirectory(change, target)
    else if (change.kind === 'link')
      await replace(target, parent, (fresh) => symlinkSync(change.target ?? '', fresh), check)
    else if (change.change === 'mode') setMode(target, change.mode)
    else if (change.kind === 'file')
      await replace(target, parent, (fresh) => copyContent(change, fresh, target), check)
    else throw new Error('devices, pipes and sockets cannot be applied')
    return {
      ...dated(change.path, target),
      ...(aroundIsKnown ? dated(dirname(change.path), `${around}/.`) : {}),
    }
  })
}

const ctimeOf = (target: string): bigint | undefined =>
  lstatSync(target, { bigint: true, throwIfNoEntry: false })?.ctimeNs

function dated(path: string, target: string): OwnChanges {
  const ctime = ctimeOf(target)
  return ctime === undefined ? {} : { [path]: String(ctime) }
}

/** Whether only we changed the path since the start. */
function isKnown(target: string, path: string, startedNs: bigint, own: OwnChanges): boolean {
  const ctime = ctimeOf(target)
  return ctime !== undefined && (ctime < startedNs || own[path] === String(ctime))
}

function requireUnchanged(change: Change, target: string, startedNs: bigint, own: OwnChanges): void {
  const now = ctimeOf(target)
  if (change.change === 'added' && now !== undefined) throw new Error('the path exists by now')
  if (change.change !== 'added' && now === undefined) throw new Error('the original is gone')
  // The time of a directory changes with its entries, and each entry is checked by itself.
  if (change.kind === 'dir' && change.change === 'mode') return
  if (now !== undefined && !isAllKnown(target, change.path, startedNs, own))
    throw new Error('the original has changed meanwhile')
}

/** The same for a directory with everything below it. */
function isAllKnown(target: string, path: string, startedNs: bigint, own: OwnChanges): boolean {
  if (!isKnown(target, path, startedNs, own)) return false
  return (
    !lstatSync(target).isDirectory() ||
    readdirSync(target).every((name) => isAllKnown(`${target}/${name}`, `${path}/${name}`, startedNs, own))
  )
}

function applyDirectory(change: Change, target: string): void {
  if (change.change === 'changed') unlinkSync(target)
  if (change.change !== 'mode') mkdirSync(target)
  setMode(target, change.mode)
}

function setMode(target: string, mode: number): void {
  const fd = openSync(target, O_RDONLY | O_NOFOLLOW)
  fchmodSync(fd, mode)
  closeSync(fd)
}

/** Writes beside the original, then renames over it, if it is still the original. */
async function replace(
  target: string,
  parent: number,
  make: (fresh: string) => Promise<void> | void,
  check: () => void,
): Promise<void> {
  const fresh = `/proc/self/fd/${parent}/.ringfence-${randomBytes(6).toString('hex')}`
  try {
    await make(fresh)
    check()
    if (lstatSync(target, { throwIfNoEntry: false })?.isDirectory()) rmSync(target, { recursive: true })
    renameSync(fresh, target)
  } catch (error) {
    rmSync(fresh, { force: true })
    throw error
  }
}

/** A disk that is nearly full writes only a part, and reports it with the next write. */
async function writeAll(file: FileHandle, bytes: Buffer, at: number): Promise<void> {
  for (let done = 0; done < bytes.length; )
    done += (await file.write(bytes, done, bytes.length - done, at + done)).bytesWritten
}

const NOTHING = Buffer.alloc(1024 * 1024)

async function copyContent(change: Change, fresh: string, target: string): Promise<void> {
  const source = { root: change.upper as string, relative: change.relative }
  const owner = lstatSync(target, { throwIfNoEntry: false }) ?? at(source, (path) => lstatSync(path))
  const file = await open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
  try {
    let size = 0
    for await (const bytes of pieces(source)) {
      // A hole stays a hole, so that the copy takes no more space than in the guest.
      if (!bytes.equals(NOTHING.subarray(0, bytes.length))) await writeAll(file, bytes, size)
      size += bytes.length
    }
    if (size !== change.size) throw new Error('it changed while it was copied')
    await file.truncate(size)
    if (process.getuid?.() === 0) await file.chown(owner.uid, owner.gid)
    // SECURITY: setuid and setgid bits that a guest set are dropped.
    await file.chmod(change.mode)
    await file.sync()
  } finally {
    await file.close()
  }
}
