import {
  closeSync,
  constants,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  readdirSync,
  readSync,
  renameSync,
  rmdirSync,
  type Stats,
  unlinkSync,
  writeSync,
} from 'node:fs'
import { observePath, type PathObservation } from '../../host/files/walk.ts'
import { openChecked } from '../../host/files/walk-open.ts'
import type { Json } from '../../model/event.ts'
import { type FileUse, judgedPath, LIST, READ, realOf, WRITE } from './files.ts'
import { type HostParts, HostRefusal, notHere, type Params, textParam } from './host-parts.ts'

const { O_CREAT, O_DIRECTORY, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY } = constants
const MAX_OPEN = 128
const MAX_CHUNK = 262_144
const MAX_SIZE = 64 * 1024 * 1024
const MAX_ENTRIES = 10_000

/** Files of WASI programs: every path is checked like the path of a host function; open files are used by handle. */
export class WasiFiles {
  readonly #parts: HostParts
  readonly #handles = new Map<number, number>()
  #next = 1

  constructor(parts: HostParts) {
    this.#parts = parts
  }

  call(method: string, params: Params): Json {
    switch (method) {
      case 'open':
        return this.#open(params)
      case 'close':
        return this.#close(params)
      case 'read':
        return this.#read(params)
      case 'write':
        return this.#write(params)
      case 'truncate':
        return this.#truncate(params)
      case 'fstat':
        return statOf(fstatSync(this.#fd(params)))
      case 'stat':
        return this.#at(READ, params, O_RDONLY, (fd) => statOf(fstatSync(fd)))
      case 'list':
        return this.#at(LIST, params, O_RDONLY | O_DIRECTORY, namesIn)
      case 'mkdir':
      case 'rmdir':
      case 'unlink':
        return this.#change(method, params)
      case 'rename':
        return this.#rename(params)
      default:
        throw new HostRefusal('unsupported', `\`${method}\` is not supported`)
    }
  }

  /** Closes the files that the guest left open. */
  close(): void {
    for (const fd of this.#handles.values()) closeSync(fd)
    this.#handles.clear()
  }

  #fd({ handle }: Params): number {
    const fd = typeof handle === 'number' ? this.#handles.get(handle) : undefined
    if (fd === undefined) throw new HostRefusal('bad-handle', 'no such file is open')
    return fd
  }

  #open(params: Params): Json {
    const { read, write, create, exclusive, truncate, directory } = params
    if (this.#handles.size >= MAX_OPEN) throw new HostRefusal('resource-exhausted', 'too many open files')
    const changes = write === true || create === true || truncate === true
    const path = textParam(params, 'path')
    const seen = judgedPath(this.#parts, changes ? WRITE : directory === true ? LIST : READ, path)
    // SECURITY: permission to write does not imply permission to read.
    if (changes && read === true) judgedPath(this.#parts, { ...READ, op: 'write' }, path)
    if (seen.state === 'exists' && create === true && exclusive === true)
      throw new HostRefusal('exists', 'the file exists')
    if (seen.state === 'exists' && seen.thing.kind === 'dir' && changes)
      throw new HostRefusal('is-directory', 'it is a directory')
    if (seen.state === 'exists' && seen.thing.kind !== 'dir' && directory === true)
      throw new HostRefusal('not-directory', 'it is no directory')
    const mode = changes ? (read === true ? O_RDWR : O_WRONLY) : O_RDONLY
    const made = create === true ? O_CREAT | (exclusive === true ? O_EXCL : 0) : 0
    const fd = opened(seen, mode | made | (truncate === true ? O_TRUNC : 0), path)
    const stat = statOf(fstatSync(fd))
    this.#handles.set(this.#next, fd)
    return { ...stat, handle: this.#next++ }
  }

  #close(params: Params): Json {
    closeSync(this.#fd(params))
    this.#handles.delete(params.handle as number)
    return true
  }

  #read(params: Params): Json {
    const { at, length } = params
    const fd = this.#fd(params)
    const buffer = Buffer.alloc(whole(length, MAX_CHUNK))
    return buffer.subarray(0, readSync(fd, buffer, 0, buffer.length, whole(at, 2 ** 40))).toString('base64')
  }

  #write(params: Params): Json {
    const fd = this.#fd(params)
    const bytes = Buffer.from(textParam(params, 'data'), 'base64')
    const at = params.at === -1 ? fstatSync(fd).size : whole(params.at, 2 ** 40)
    if (at + bytes.length > MAX_SIZE)
      throw new HostRefusal('resource-exhausted', `a file has at most ${MAX_SIZE} bytes`)
    return writeSync(fd, bytes, 0, bytes.length, at)
  }

  #truncate(params: Params): Json {
    ftruncateSync(this.#fd(params), whole(params.size, MAX_SIZE))
    return true
  }

  #at(use: FileUse, params: Params, flags: number, action: (fd: number) => Json): Json {
    const path = textParam(params, 'path')
    const fd = opened(judgedPath(this.#parts, use, path), flags, path)
    try {
      return action(fd)
    } finally {
      closeSync(fd)
    }
  }

  #change(method: 'mkdir' | 'rmdir' | 'unlink', params: Params): Json {
    const path = textParam(params, 'path')
    const seen = judgedPath(this.#parts, WRITE, path)
    if (method === 'mkdir' && seen.state === 'exists') throw new HostRefusal('exists', 'it exists')
    if (method !== 'mkdir' && seen.state !== 'exists') throw notHere(path)
    return withParent(seen, path, (entry) => {
      if (method === 'mkdir') mkdirSync(entry)
      else if (method === 'rmdir') rmdirSync(entry)
      else unlinkSync(entry)
      return true
    })
  }

  #rename(params: Params): Json {
    const [path, to] = [textParam(params, 'path'), textParam(params, 'to')]
    const [from, target] = [judgedPath(this.#parts, WRITE, path), judgedPath(this.#parts, WRITE, to)]
    if (from.state !== 'exists') throw notHere(path)
    return withParent(from, path, (old) =>
      withParent(target, to, (entry) => {
        renameSync(old, entry)
        return true
      }),
    )
  }
}

function opened(seen: PathObservation, flags: number, path: string): number {
  try {
    return openChecked(seen, flags)
  } catch {
    throw notHere(path)
  }
}

/**
 * Runs the action on a path inside the opened parent directory, which is the directory that was checked.
 * PLATFORM: Node has no openat; on Linux, /proc/self/fd/<descriptor> refers to the opened directory.
 */
function withParent(seen: PathObservation, path: string, action: (entry: string) => Json): Json {
  const real = realOf(seen)
  if (process.platform !== 'linux' || real === undefined)
    throw new HostRefusal('unsupported', 'not supported on this system')
  const at = real.lastIndexOf('/')
  const fd = opened(observePath(real.slice(0, at) || '/'), O_RDONLY | O_DIRECTORY, path)
  try {
    return action(`/proc/self/fd/${fd}/${real.slice(at + 1)}`)
  } catch (error) {
    throw refusalOf(error, path)
  } finally {
    closeSync(fd)
  }
}

const CODES: Readonly<Record<string, string>> = {
  EEXIST: 'exists',
  ENOTEMPTY: 'not-empty',
  EISDIR: 'is-directory',
  ENOTDIR: 'not-directory',
}

function refusalOf(error: unknown, path: string): HostRefusal {
  if (error instanceof HostRefusal) return error
  const code = CODES[(error as NodeJS.ErrnoException).code ?? '']
  return code === undefined ? notHere(path) : new HostRefusal(code, 'it cannot be changed')
}

const statOf = (stat: Stats) => ({
  kind: stat.isDirectory() ? 'dir' : stat.isFile() ? 'file' : 'other',
  size: stat.size,
  mtimeMs: stat.mtimeMs,
  ino: stat.ino,
})

function namesIn(fd: number): Json {
  if (process.platform !== 'linux') throw new HostRefusal('unsupported', 'not supported on this system')
  return readdirSync(`/proc/self/fd/${fd}`, { withFileTypes: true })
    .slice(0, MAX_ENTRIES)
    .map((entry) => ({
      name: entry.name,
      kind: entry.isDirectory() ? 'dir' : entry.isFile() ? 'file' : 'other',
    }))
    .sort((a, b) => (a.name < b.name ? -1 : 1))
}

function whole(value: unknown, max: number): number {
  if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < 0 || value > max)
    throw new HostRefusal('invalid-input', 'a number is out of range')
  return value
}
