import { randomBytes } from 'node:crypto'
import {
  type BigIntStats,
  closeSync,
  constants,
  fchmodSync,
  fchownSync,
  fstatSync,
  futimesSync,
  lchownSync,
  lstatSync,
  mkdirSync,
  openSync,
  readlinkSync,
  renameSync,
  rmdirSync,
  symlinkSync,
  unlinkSync,
  writeSync,
} from 'node:fs'
import { basename, dirname } from 'node:path/posix'
import { setImmediate } from 'node:timers/promises'
import { O_PATH } from '../../../host/files/walk-open.ts'
import { SandboxError } from '../../../model/errors.ts'
import { isWithin } from '../../../model/files/path.ts'
import type { Mount, Protection } from '../../../model/plan.ts'
import type { Copied, Manifest } from '../../copy-in.ts'
import { hasBelow, isRepository, isRepositoryPart, touchesRepository } from '../../git-shape.ts'
import type { TarEntry, TarReader } from '../../tar/reader.ts'

const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_RDONLY, O_WRONLY } = constants

/** All names of a mount together: they are remembered as long as the sandbox lives. */
export const NAME_BYTES = 64 * 1024 * 1024
/** How many names are handled until other work of the process has its turn. */
const NAMES_AT_ONCE = 256

/** A path of the guest that was not copied back, and why. */
export type SkippedPath = { readonly path: string; readonly why: 'protected' | 'changed' | 'refused' }

/** Returns the name that protects a path below a mount, if any. For a link (`leads`) its target is checked too. */
export type ProtectedNameOf = (
  protection: Protection,
  relative: string,
  leads?: boolean,
) => string | undefined

/** Paths that were not copied, and when the guest was read. */
export type CopyOutResult = { readonly left: readonly SkippedPath[]; readonly since: string | undefined }

/**
 * Copies a mount's changes back from a guest. SECURITY: everything in the archive is hostile. Nothing is written outside
 * the checked directory, no symbolic link is followed, no protected name is created, changed or removed, no file gets more
 * than permission bits, and files that the host changed meanwhile keep the host's content.
 */
export class CopyOut {
  readonly #mount: Mount
  readonly #manifest: Manifest
  readonly #protection: Protection | undefined
  readonly #judge: (root: number, relative: string, leads?: boolean) => boolean
  readonly #left: SkippedPath[] = []
  /** Directories that were not created; their contents are skipped too. */
  readonly #without = new Set<string>()
  #nameBytes = 0

  constructor(
    mount: Mount,
    manifest: Manifest,
    protection: Protection | undefined,
    refuses: ProtectedNameOf,
  ) {
    this.#mount = mount
    this.#manifest = manifest
    this.#protection = protection
    const rests = protection ? restsOf(protection, mount.real) : []
    this.#judge = (root, relative, leads = false) => {
      if (!protection) return false
      if (touchesRepository(protection, relative, hasBelow(root))) return true
      if (rests.some((rest) => isWithin(`/${relative.toLowerCase()}`, `/${rest}`))) return true
      const full = `${mount.target === '/' ? '' : mount.target}/${relative}`
      const pinned = protection.pinned.some((path) => isWithin(full, path))
      const towards = leads && protection.pinned.some((path) => path.startsWith(`${full}/`))
      return pinned || towards || refuses(protection, relative, leads) !== undefined
    }
  }

  async take(reader: TarReader): Promise<CopyOutResult> {
    const root = this.#openRoot()
    const seen = new Set<Copied>()
    const unread = new Set<string>()
    let since: string | undefined
    for (const name of this.#manifest.keys()) this.#nameBytes += name.length
    try {
      for (let entry = await reader.next(); entry; entry = await reader.next()) {
        if (entry.kind === 'time') since ??= /^\d{1,20}$/.test(entry.link) ? entry.link : undefined
        else if (entry.kind === 'strange') this.#left.push({ path: entry.name, why: 'refused' })
        else {
          if (entry.kind === 'unread') unread.add(entry.name)
          else if (entry.kind !== 'same') await this.#apply(root, entry, reader)
          const copied = this.#manifest.get(entry.name)
          if (copied) seen.add(copied)
        }
      }
      await this.#removeGone(root, seen, unread)
      return { left: this.#left, since }
    } finally {
      closeSync(root)
    }
  }

  #openRoot(): number {
    const { real, dev, ino } = this.#mount
    const root = openSync(real, O_PATH | O_DIRECTORY | O_NOFOLLOW)
    const stat = fstatSync(root, { bigint: true })
    if (String(stat.dev) === dev && String(stat.ino) === ino) return root
    closeSync(root)
    throw new SandboxError('path-traversal', `${real} was replaced after the policy check`)
  }

  async #apply(root: number, entry: TarEntry, reader: TarReader): Promise<void> {
    const { name } = entry
    if (this.#without.has(dirname(name))) {
      if (entry.kind === 'dir') this.#without.add(name)
      return
    }
    try {
      const parent = openBelow(root, dirname(name))
      try {
        await this.#putEntry(root, `/proc/self/fd/${parent}`, entry, reader)
      } finally {
        closeSync(parent)
      }
    } catch (error) {
      if (error instanceof SandboxError) throw error
      this.#leave(entry, 'refused')
    }
  }

  async #putEntry(root: number, dir: string, entry: TarEntry, reader: TarReader): Promise<void> {
    const { name, kind } = entry
    const destination = `${dir}/${basename(name)}`
    const now = lstatSync(destination, { bigint: true, throwIfNoEntry: false })
    if (kind === 'dir' && now?.isDirectory()) return
    if (kind === 'link' && now?.isSymbolicLink() && readlinkSync(destination) === entry.link) return
    if (this.#judge(root, name, kind === 'link')) return this.#leave(entry, 'protected')
    if (kind === 'link' && this.#isShortcut(name, entry.link)) return this.#leave(entry, 'protected')
    if (!isUnchanged(now, this.#manifest.get(name))) return this.#leave(entry, 'changed')
    if (now?.isDirectory()) return this.#leave(entry, 'changed')
    if (!this.#hasRoomFor(name)) return this.#leave(entry, 'refused')
    const fresh = `${dir}/.ringfence-${randomBytes(8).toString('hex')}`
    if (kind === 'dir') mkdirSync(fresh, entry.mode | 0o700)
    else if (kind === 'link') {
      symlinkSync(entry.link, fresh)
      if (process.getuid?.() === 0) lchownSync(fresh, this.#mount.uid, this.#mount.gid)
    } else await this.#write(fresh, entry, { reader, now })
    if (!this.#place(root, fresh, destination, entry)) return this.#leave(entry, 'protected')
    if (kind === 'dir') this.#own(destination, O_DIRECTORY)
    this.#manifest.set(name, copiedOf(lstatSync(destination, { bigint: true })))
  }

  /**
   * Gives an entry its name. SECURITY: the content of a file may take long to arrive, and another sandbox with the same workspace
   * may create the other parts of a repository meanwhile. So the name is judged again, and taken back if its directory is a
   * repository afterwards that was none before.
   */
  #place(root: number, fresh: string, destination: string, { name, kind }: TarEntry): boolean {
    const remove = kind === 'dir' ? rmdirSync : unlinkSync
    let at = fresh
    let isPlaced = false
    try {
      if (this.#judge(root, name, kind === 'link')) return false
      const was = this.#protection === undefined || isRepository(dirname(destination))
      if (kind === 'dir' && lstatSync(destination, { throwIfNoEntry: false })) unlinkSync(destination)
      renameSync(fresh, destination)
      at = destination
      isPlaced = was || !isRepository(dirname(destination))
      return isPlaced
    } finally {
      if (!isPlaced) remove(at)
    }
  }

  /** SECURITY: behind a symlink to a dependency directory, names would be free that are protected where the link is. */
  #isShortcut(name: string, target: string): boolean {
    const free = this.#protection?.exceptBelow.map((one) => one.toLowerCase()) ?? []
    const isBelow = (path: string): boolean =>
      path
        .toLowerCase()
        .split('/')
        .some((segment) => free.includes(segment))
    return isBelow(target) && !isBelow(name)
  }

  async #write(
    fresh: string,
    { mode, modified }: TarEntry,
    from: { readonly reader: TarReader; readonly now: BigIntStats | undefined },
  ): Promise<void> {
    const fd = openSync(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
    try {
      for await (const piece of from.reader.content())
        for (let at = 0; at < piece.length; ) at += writeSync(fd, piece, at)
      if (process.getuid?.() === 0)
        fchownSync(fd, Number(from.now?.uid ?? this.#mount.uid), Number(from.now?.gid ?? this.#mount.gid))
      // SECURITY: setuid and setgid bits that a guest set are dropped.
      fchmodSync(fd, mode & 0o777)
      futimesSync(fd, modified, modified)
    } catch (error) {
      unlinkSync(fresh)
      throw error
    } finally {
      closeSync(fd)
    }
  }

  #own(destination: string, flags: number): void {
    if (process.getuid?.() !== 0) return
    const fd = openSync(destination, O_RDONLY | O_NOFOLLOW | flags)
    fchownSync(fd, this.#mount.uid, this.#mount.gid)
    closeSync(fd)
  }

  /** SECURITY: names in directories that cannot be read any more stay remembered, so a guest could add to them without end. */
  #hasRoomFor(name: string): boolean {
    if (this.#manifest.has(name)) return true
    this.#nameBytes += name.length
    return this.#nameBytes <= NAME_BYTES
  }

  /**
   * Removes what the guest was given and no longer has, the deepest first. SECURITY: the guest decides how much that is, so it takes
   * time in proportion to the names, and other work goes on meanwhile.
   */
  async #removeGone(root: number, seen: ReadonlySet<Copied>, unread: ReadonlySet<string>): Promise<void> {
    const isHidden = below(unread)
    const byDepth: string[][] = []
    let handled = 0
    const turn = async (): Promise<void> => {
      if (++handled % NAMES_AT_ONCE === 0) await setImmediate()
    }
    for (const [path, copied] of this.#manifest) {
      await turn()
      if (path === '' || seen.has(copied) || isHidden(path)) continue
      const depth = path.split('/').length
      byDepth[depth] ??= []
      byDepth[depth].push(path)
    }
    for (const path of byDepth.reverse().flat()) {
      await turn()
      this.#removeOne(root, path)
    }
  }

  #removeOne(root: number, path: string): void {
    try {
      this.#remove(root, path)
    } catch {
      this.#left.push({ path, why: 'refused' })
    }
  }

  #remove(root: number, path: string): void {
    const copied = this.#manifest.get(path) as Copied
    const parent = openBelow(root, dirname(path))
    try {
      const destination = `/proc/self/fd/${parent}/${basename(path)}`
      const now = lstatSync(destination, { bigint: true, throwIfNoEntry: false })
      if (now) {
        const isPart = isRepositoryPart(basename(path)) && isRepository(dirname(destination))
        if (this.#judge(root, path) || (isPart && this.#protection))
          return void this.#left.push({ path, why: 'protected' })
        if (
          now.isDirectory() !== (copied.kind === 'dir') ||
          (!now.isDirectory() && !isUnchanged(now, copied))
        )
          return void this.#left.push({ path, why: 'changed' })
        if (now.isDirectory()) rmdirSync(destination)
        else unlinkSync(destination)
      }
      this.#manifest.delete(path)
    } finally {
      closeSync(parent)
    }
  }

  #leave({ name, kind }: TarEntry, why: SkippedPath['why']): void {
    this.#left.push({ path: name, why })
    if (kind === 'dir') this.#without.add(name)
  }
}

/** Whether a path lies in one of these directories. Remembers the answer for each directory that it was asked about. */
function below(directories: ReadonlySet<string>): (path: string) => boolean {
  const known = new Map<string, boolean>([['.', false]])
  return (path) => {
    const asked: string[] = []
    let at = dirname(path)
    for (; !known.has(at) && !directories.has(at); at = dirname(at)) asked.push(at)
    const answer = known.get(at) ?? true
    for (const one of asked) known.set(one, answer)
    return answer
  }
}

/** What patterns of several names protect below a mount that is in the middle of one: `git` if the mount is a `.config`. */
function restsOf({ inner, names }: Protection, mount: string): readonly string[] {
  const above = mount.toLowerCase().split('/')
  return [...inner, ...names].flatMap((pattern) => {
    const parts = pattern.toLowerCase().split('/')
    return parts
      .map((_, index) => index)
      .filter((split) => split > 0 && above.slice(-split).join('/') === parts.slice(0, split).join('/'))
      .map((split) => parts.slice(split).join('/'))
  })
}

/** Whether the host's file is still the one that the guest was given. */
const isUnchanged = (now: BigIntStats | undefined, copied: Copied | undefined): boolean =>
  now === undefined
    ? copied === undefined
    : copied !== undefined &&
      now.ino === copied.ino &&
      now.ctimeNs === copied.ctimeNs &&
      now.size === copied.size

const copiedOf = (stat: BigIntStats): Copied => ({
  kind: stat.isDirectory() ? 'dir' : stat.isFile() ? 'file' : 'link',
  ino: stat.ino,
  size: stat.size,
  ctimeNs: stat.ctimeNs,
})

/** Opens a directory below the root without following symbolic links. */
function openBelow(root: number, relative: string): number {
  let directory = openSync(`/proc/self/fd/${root}`, O_PATH | O_DIRECTORY)
  for (const name of relative.split('/').filter((part) => part !== '' && part !== '.')) {
    const outer = directory
    try {
      directory = openSync(`/proc/self/fd/${outer}/${name}`, O_PATH | O_DIRECTORY | O_NOFOLLOW)
    } finally {
      closeSync(outer)
    }
  }
  return directory
}
