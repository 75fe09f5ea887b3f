import {
  type BigIntStats,
  closeSync,
  constants,
  fstatSync,
  fsyncSync,
  ftruncateSync,
  futimesSync,
  lstatSync,
  lutimesSync,
  readdirSync,
  readlinkSync,
  readSync,
  writeSync,
} from 'node:fs'
import { kindOf, observePath, type PathObservation } from '../../host/files/walk.ts'
import { O_PATH, openChecked } from '../../host/files/walk-open.ts'
import type { Json } from '../../model/event.ts'
import { type FileUse, judgedAt, LIST, READ, refusedAccess, WRITE } from './files.ts'
import { type HostParts, HostRefusal, type Params, textParam } from './host-parts.ts'
import {
  createDirectory,
  createFile,
  createHardLink,
  createLink,
  readLink,
  refusalOf,
  removeDirectory,
  removeFile,
  renameEntry,
  withParent,
} from './wasi-entries.ts'
import { allowsName, type Entry, failure, resolveEntry, type Start } from './wasi-resolve.ts'
import { WasiTimes } from './wasi-times.ts'

const { O_CREAT, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY } = constants
const MAX_OPEN = 128
const MAX_CHUNK = 262_144
const MAX_SIZE = 64 * 1024 * 1024
const MAX_ENTRIES = 10_000

/** An open file or directory; `writes` if its path was checked for writing. */
type Handle = { readonly fd: number; readonly writes: boolean }
type Action = (params: Params) => Json

/** Files of WASI programs: every path is checked like the path of a host function; open files are used by handle. */
export class WasiFiles {
  readonly #parts: HostParts
  readonly #handles = new Map<number, Handle>()
  readonly #times = new WasiTimes()
  readonly #actions: Readonly<Record<string, Action>> = {
    open: (params) => this.#open(params),
    close: (params) => this.#close(params),
    read: (params) => this.#read(params),
    write: (params) => this.#write(params),
    truncate: ({ handle, size }) => {
      ftruncateSync(this.#handle(handle).fd, whole(size, MAX_SIZE))
      return true
    },
    allocate: (params) => this.#allocate(params),
    sync: ({ handle }) => {
      fsyncSync(this.#handle(handle).fd)
      return true
    },
    fstat: ({ handle }) => this.#stat(fstatSync(this.#handle(handle).fd, { bigint: true })),
    stat: (params) => this.#statPath(params),
    times: (params) => this.#setTimes(params),
    list: (params) => this.#list(params),
    mkdir: (params) => createDirectory(this.#entry(WRITE, params)),
    rmdir: (params) => removeDirectory(this.#entry(WRITE, params)),
    unlink: (params) => removeFile(this.#entry(WRITE, params)),
    readlink: (params) => readLink(this.#entry(READ, params)),
    symlink: (params) => createLink(this.#entry(WRITE, params), textParam(params, 'target')),
    link: (params) => createHardLink(this.#entry(WRITE, params), this.#target(params)),
    rename: (params) => renameEntry(this.#entry(WRITE, params), this.#target(params)),
  }

  constructor(parts: HostParts) {
    this.#parts = parts
  }

  call(method: string, params: Params): Json {
    const action = Object.hasOwn(this.#actions, method) ? this.#actions[method] : undefined
    if (action === undefined) throw new HostRefusal('unsupported', `\`${method}\` is not supported`)
    try {
      return action(params)
    } catch (error) {
      throw refusalOf(error)
    }
  }

  /** Closes the files that the guest left open. */
  close(): void {
    for (const { fd } of this.#handles.values()) closeSync(fd)
    this.#handles.clear()
  }

  #handle(handle: unknown): Handle {
    const held = typeof handle === 'number' ? this.#handles.get(handle) : undefined
    if (held === undefined) throw new HostRefusal('bad-handle', 'no such file is open')
    return held
  }

  /** The directory that a path starts from: a preopened one by its path, an opened one by its handle. */
  #start(dir: unknown): Start {
    if (typeof dir !== 'string') return { base: realOfHandle(this.#handle(dir).fd), opened: true }
    const base = dir === '' ? this.#parts.workspace : dir
    if (base === undefined) throw failure('ENOENT')
    return { base, opened: false }
  }

  #entry(use: FileUse, params: Params, follow = false): Entry {
    const path = textParam(params, 'path')
    return resolveEntry({ asked: { parts: this.#parts, use, path }, start: this.#start(params.dir), follow })
  }

  #target({ toDir, to }: Params): Entry {
    return this.#entry(WRITE, { dir: toDir, path: to })
  }

  #open(params: Params): Json {
    const { read, write, create, exclusive, truncate, directory, follow } = params
    if (this.#handles.size >= MAX_OPEN) throw failure('EMFILE')
    const changes = write === true || create === true || truncate === true
    const use = changes ? WRITE : directory === true ? LIST : READ
    const path = textParam(params, 'path')
    const exact = create === true && exclusive === true
    const entry = this.#entry(use, params, !exact && (follow === true || path.endsWith('/')))
    requireKind(entry, { create: create === true, exact, changes, directory: directory === true })
    // SECURITY: permission to write does not imply permission to read.
    if (changes && read === true) judgedAt({ ...entry.asked, use: { ...READ, op: 'write' } }, entry.real)
    const mode = changes ? (read === true ? O_RDWR : O_WRONLY) : O_RDONLY
    const fd =
      entry.stat === undefined
        ? created(entry, mode)
        : opened(existing(entry), mode | (truncate === true ? O_TRUNC : 0))
    const handle = nextFree(this.#handles)
    this.#handles.set(handle, { fd, writes: changes })
    return { handle, kind: fstatSync(fd).isDirectory() ? 'dir' : 'file' }
  }

  #close({ handle }: Params): Json {
    closeSync(this.#handle(handle).fd)
    this.#handles.delete(handle as number)
    return true
  }

  #read({ handle, at, length }: Params): Json {
    const { fd } = this.#handle(handle)
    const buffer = Buffer.alloc(whole(length, MAX_CHUNK))
    return buffer.subarray(0, readSync(fd, buffer, 0, buffer.length, whole(at, 2 ** 40))).toString('base64')
  }

  #write(params: Params): Json {
    const { fd } = this.#handle(params.handle)
    const bytes = Buffer.from(textParam(params, 'data'), 'base64')
    const at = params.at === -1 ? fstatSync(fd).size : whole(params.at, 2 ** 40)
    requireSize(at + bytes.length)
    const count = writeSync(fd, bytes, 0, bytes.length, at)
    if (params.sync === true) fsyncSync(fd)
    return { count, end: at + count }
  }

  /** Extends a file with zeros that take up space, so that later writes do not fail for lack of it. */
  #allocate({ handle, at, length }: Params): Json {
    const { fd } = this.#handle(handle)
    const end = whole(at, 2 ** 40) + whole(length, 2 ** 40)
    if (length === 0) throw failure('EINVAL')
    requireSize(end)
    const zeros = Buffer.alloc(MAX_CHUNK)
    for (let from = fstatSync(fd).size; from < end; )
      from += writeSync(fd, zeros, 0, Math.min(zeros.length, end - from), from)
    return true
  }

  #stat(stat: BigIntStats): Json {
    const { atim, mtim } = this.#times.of(stat)
    return {
      kind: stat.isSymbolicLink() ? 'link' : kindOf(stat),
      size: Number(stat.size),
      dev: String(stat.dev),
      ino: String(stat.ino),
      nlink: Number(stat.nlink),
      atim: String(atim),
      mtim: String(mtim),
      ctim: String(stat.ctimeNs),
    }
  }

  #statPath(params: Params): Json {
    const path = textParam(params, 'path')
    const entry = this.#entry(READ, params, params.follow === true || path.endsWith('/'))
    const { asked, stat, slash } = entry
    if (stat === undefined) throw failure('ENOENT')
    if (slash && !stat.isDirectory()) throw failure('ENOTDIR')
    if (stat.isSymbolicLink()) {
      if (!allowsName(entry, 'read')) throw refusedAccess(asked)
      return this.#stat(stat)
    }
    const fd = opened(existing(entry), O_PATH)
    try {
      return this.#stat(fstatSync(fd, { bigint: true }))
    } finally {
      closeSync(fd)
    }
  }

  #setTimes(params: Params): Json {
    const wanted = { atim: textParam(params, 'atim'), mtim: textParam(params, 'mtim') }
    if (params.handle !== undefined) return this.#setHandleTimes(params.handle, wanted)
    const entry = this.#entry(WRITE, params, params.follow === true)
    this.#requireTimes(entry)
    return withParent(entry, (path) => {
      this.#times.set(
        wanted,
        () => lstatSync(path, { bigint: true }),
        (atime, mtime) => lutimesSync(path, atime, mtime),
      )
      return true
    })
  }

  #setHandleTimes(handle: unknown, wanted: { readonly atim: string; readonly mtim: string }): Json {
    const { fd, writes } = this.#handle(handle)
    // SECURITY: a file that was opened for reading only is checked for writing now.
    if (!writes) {
      const real = realOfHandle(fd)
      const at = real.lastIndexOf('/')
      const asked = { parts: this.#parts, use: WRITE, path: real.slice(at + 1) }
      this.#requireTimes(
        resolveEntry({ asked, start: { base: real.slice(0, at) || '/', opened: false }, follow: false }),
      )
    }
    this.#times.set(
      wanted,
      () => fstatSync(fd, { bigint: true }),
      (atime, mtime) => futimesSync(fd, atime, mtime),
    )
    return true
  }

  #requireTimes(entry: Entry): void {
    if (entry.stat === undefined) throw failure('ENOENT')
    if (entry.stat.isFile()) judgedAt(entry.asked, entry.real)
    else if (!allowsName(entry, 'create')) throw refusedAccess(entry.asked)
  }

  #list({ dir, handle }: Params): Json {
    if (process.platform !== 'linux') throw new HostRefusal('unsupported', 'not supported on this system')
    const { base } = this.#start(dir ?? handle)
    const asked = { parts: this.#parts, use: LIST, path: '.' }
    const fd = opened(judgedAt(asked, base), O_RDONLY)
    try {
      return namesIn(`/proc/self/fd/${fd}`, fstatSync(fd, { bigint: true }))
    } finally {
      closeSync(fd)
    }
  }
}

type Wanted = {
  readonly create: boolean
  readonly exact: boolean
  readonly changes: boolean
  readonly directory: boolean
}

function requireKind({ stat, slash }: Entry, { create, exact, changes, directory }: Wanted): void {
  if (stat === undefined) {
    if (!create) throw failure('ENOENT')
    if (slash || directory) throw failure(directory ? 'EINVAL' : 'EISDIR')
    return
  }
  if (exact) throw failure('EEXIST')
  if (stat.isSymbolicLink()) throw failure('ELOOP')
  if (stat.isDirectory() && changes) throw failure('EISDIR')
  if (!stat.isDirectory() && (directory || slash)) throw failure('ENOTDIR')
}

/** Judges an entry that exists. SECURITY: it must still be the entry that was resolved, reached through no new link. */
function existing({ asked, real }: Entry): PathObservation {
  const seen = judgedAt(asked, real)
  if (seen.state !== 'exists' || seen.symlinks.length > 0 || seen.real !== real) throw failure('ENOENT')
  return seen
}

function created(entry: Entry, mode: number): number {
  const seen = judgedAt(entry.asked, entry.real)
  return process.platform === 'linux' ? createFile(entry, mode) : opened(seen, mode | O_CREAT)
}

/** The path that an open file or directory has now. */
function realOfHandle(fd: number): string {
  if (process.platform !== 'linux') throw new HostRefusal('unsupported', 'not supported on this system')
  const real = readlinkSync(`/proc/self/fd/${fd}`)
  const { dev, ino } = fstatSync(fd, { bigint: true })
  const seen = observePath(real)
  const same = seen.state === 'exists' && seen.thing.ino === String(ino) && seen.thing.dev === String(dev)
  if (!same || seen.symlinks.length > 0) throw failure('ENOENT')
  return real
}

function opened(seen: PathObservation, flags: number): number {
  try {
    return openChecked(seen, flags)
  } catch {
    throw failure('ENOENT')
  }
}

const nextFree = (taken: ReadonlyMap<number, unknown>): number => {
  let next = 1
  while (taken.has(next)) next++
  return next
}

/** `.` and `..` first. The parent may lie outside the granted paths, so its inode is not disclosed. */
function namesIn(directory: string, own: BigIntStats): Json {
  const names = readdirSync(directory)
    .slice(0, MAX_ENTRIES)
    .sort((a, b) => (a < b ? -1 : 1))
  const entries = names.flatMap((name) => {
    const stat = lstatSync(`${directory}/${name}`, { bigint: true, throwIfNoEntry: false })
    return stat ? [{ name, kind: stat.isSymbolicLink() ? 'link' : kindOf(stat), ino: String(stat.ino) }] : []
  })
  return [{ name: '.', kind: 'dir', ino: String(own.ino) }, { name: '..', kind: 'dir', ino: '0' }, ...entries]
}

function requireSize(size: number): void {
  if (size > MAX_SIZE) throw new HostRefusal('resource-exhausted', `a file has at most ${MAX_SIZE} bytes`)
}

function whole(value: unknown, max: number): number {
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 0 || value > max)
    throw new HostRefusal('invalid-input', 'a number is out of range')
  return value
}
