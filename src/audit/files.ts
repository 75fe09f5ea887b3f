import { randomBytes } from 'node:crypto'
import {
  closeSync,
  constants,
  fdatasync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  write,
  writeSync,
} from 'node:fs'
import { promisify } from 'node:util'
import { SandboxError } from '../model/errors.ts'

const CHUNK_BYTES = 1024 * 1024
/** How much of a tail that was never acknowledged is kept for a human to look at. */
const ASIDE_BYTES = 16 * 1024 * 1024

/** Where the trail of one state directory lies. Head, lock and key stand outside the log's own directory. */
export const pathsOf = (home: string) => ({
  trail: `${home}/trail`,
  aside: `${home}/trail/aside`,
  anchor: `${home}/anchor`,
  head: `${home}/anchor/head.jsonl`,
  /** The record hashes, 32 bytes each: they let `verify` name the first record of a rewritten stretch. */
  leaves: `${home}/anchor/leaves.bin`,
  lock: `${home}/anchor/lock`,
  /** Says that the trail lives in a store from now on. */
  store: `${home}/anchor/store.json`,
  keys: `${home}/keys`,
  key: `${home}/keys/trail.json`,
})

/** A place between two lines. */
export type Position = { readonly segment: number; readonly offset: number }

export const START: Position = { segment: 1, offset: 0 }
export const END: Position = { segment: Number.POSITIVE_INFINITY, offset: Number.POSITIVE_INFINITY }

export const segmentPath = (home: string, segment: number): string =>
  `${home}/trail/${String(segment).padStart(6, '0')}.jsonl`

/** The segments that exist, in order. */
export function segmentsIn(home: string): number[] {
  return namesIn(pathsOf(home).trail)
    .flatMap((name) => /^(\d{6,15})\.jsonl$/.exec(name)?.[1] ?? [])
    .map(Number)
    .sort((a, b) => a - b)
}

function namesIn(dir: string): string[] {
  try {
    return readdirSync(dir)
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return []
    throw error
  }
}

/**
 * The lines between two places, each with its newline; a last one without it is a torn write.
 * A line is a view that the next one overwrites.
 */
export function* readLines(home: string, from: Position, to: Position): Generator<Buffer, void> {
  for (const segment of segmentsIn(home)) {
    if (segment < from.segment || segment > to.segment) continue
    const start = segment === from.segment ? from.offset : 0
    const end = segment === to.segment ? to.offset : Number.POSITIVE_INFINITY
    yield* linesOfFile(segmentPath(home, segment), start, end)
  }
}

function* linesOfFile(path: string, start: number, end: number): Generator<Buffer, void> {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW)
  try {
    let buffer = Buffer.allocUnsafe(CHUNK_BYTES)
    let held = 0
    for (let at = start; at < end; ) {
      if (held === buffer.length) buffer = Buffer.concat([buffer], buffer.length * 2)
      const got = readSync(fd, buffer, held, Math.min(buffer.length - held, end - at), at)
      if (got === 0) break
      at += got
      held += got
      let begin = 0
      for (let stop = buffer.indexOf(10); stop >= 0 && stop < held; stop = buffer.indexOf(10, begin)) {
        yield buffer.subarray(begin, stop + 1)
        begin = stop + 1
      }
      held = buffer.copy(buffer, 0, begin, held)
    }
    if (held > 0) yield buffer.subarray(0, held)
  } finally {
    closeSync(fd)
  }
}

/** Whether a whole line lies beyond a place; half a line is only a write that a crash cut short. */
export function hasLineBeyond(home: string, place: Position): boolean {
  for (const line of readLines(home, place, END)) if (line.at(-1) === 10) return true
  return false
}

/** The file's text, or nothing when there is no such file. */
export function textOf(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return undefined
    throw error
  }
}

export const sizeOf = (path: string): number | undefined => statSync(path, { throwIfNoEntry: false })?.size

/** Writes all of the bytes at a place; a short write is not yet an error. */
export function writeAll(fd: number, bytes: Uint8Array, at: number): void {
  for (let done = 0; done < bytes.length; ) done += writeSync(fd, bytes, done, bytes.length - done, at + done)
}

const writeAt = (fd: number, bytes: Uint8Array, from: number, at: number): Promise<number> =>
  new Promise((resolve, reject) =>
    write(fd, bytes, from, bytes.length - from, at, (error, size) => (error ? reject(error) : resolve(size))),
  )
const settle: (fd: number) => Promise<void> = promisify(fdatasync)

/** PLATFORM: with it Linux writes and waits for the disk in one call. */
const AT_ONCE = process.platform === 'linux' ? constants.O_DSYNC : 0

/** Opens a file whose writes are to be settled. */
export const openSettled = (path: string, flags: number): number =>
  openSync(path, constants.O_WRONLY | constants.O_NOFOLLOW | AT_ONCE | flags, 0o600)

/**
 * Writes all of the bytes at a place of such a file and waits until they are on the disk. Not in this thread: others'
 * commands go on while one command's record settles.
 */
export async function writeSettled(fd: number, bytes: Uint8Array, at: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) done += await writeAt(fd, bytes, done, at + done)
  if (AT_ONCE === 0) await settle(fd)
}

/** Puts a file in place of another in one step; the caller syncs the directory. */
export function replaceFile(path: string, text: string): void {
  const fresh = `${path}.tmp`
  try {
    writeNew(fresh, text)
    renameSync(fresh, path)
  } catch (error) {
    rmSync(fresh, { force: true })
    throw error
  }
}

/** Writes a file of our own and waits until it is on the disk. */
function writeNew(path: string, content: string | Uint8Array): void {
  const { O_WRONLY, O_CREAT, O_TRUNC, O_NOFOLLOW } = constants
  const fd = openSync(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0o600)
  try {
    writeAll(fd, typeof content === 'string' ? Buffer.from(content) : content, 0)
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}

/** Makes renames and new files in a directory survive a power loss. */
export function syncDir(dir: string): void {
  const fd = openSync(dir, 'r')
  try {
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}

/** Makes the directories of a trail, each for its owner alone. */
export function makeDirs(home: string): void {
  const { trail, anchor, keys } = pathsOf(home)
  for (const dir of [trail, anchor, keys]) mkdirSync(dir, { recursive: true, mode: 0o700 })
}

/** Cuts a file at `from`. What stood there was never acknowledged to anyone; a copy is kept when it can be. */
export function moveAside(home: string, path: string, from: number): void {
  const { aside, trail } = pathsOf(home)
  try {
    mkdirSync(aside, { recursive: true, mode: 0o700 })
    const tail = tailOf(path, from)
    writeNew(`${aside}/${Date.now()}-${randomBytes(4).toString('hex')}.part`, tail)
  } catch {
    // A full disk must not keep the trail from coming back into order.
  }
  truncateSync(path, from)
  syncDir(trail)
}

function tailOf(path: string, from: number): Buffer {
  const fd = openSync(path, constants.O_RDONLY | constants.O_NOFOLLOW)
  try {
    const buffer = Buffer.alloc(Math.min(ASIDE_BYTES, (sizeOf(path) ?? from) - from))
    return buffer.subarray(0, readSync(fd, buffer, 0, buffer.length, from))
  } finally {
    closeSync(fd)
  }
}

const HINTS: Readonly<Record<string, string>> = {
  ENOSPC: 'free some space; nothing runs without its record',
  EDQUOT: 'free some space; nothing runs without its record',
  EROFS: 'the state directory is read-only; set RINGFENCE_HOME to one that can be written',
  EACCES: 'the state directory must belong to the user who runs ringfence; see RINGFENCE_HOME',
  EPERM: 'the state directory must belong to the user who runs ringfence; see RINGFENCE_HOME',
  EMFILE: 'too many open files; raise `ulimit -n`',
}

/** Translates what the operating system says; everything else passes through. */
export function unwritable(error: unknown, home: string): unknown {
  const code = (error as NodeJS.ErrnoException | null)?.code
  if (error instanceof SandboxError || typeof code !== 'string') return error
  const hint = HINTS[code] ?? 'see `ringfence audit verify` and the state of the disk'
  return new SandboxError('trail-unwritable', `cannot use the trail in \`${home}\`: ${code}`, {
    hint,
    cause: error,
  })
}

/** The trail on disk contradicts what was signed: a machine must not go on as if nothing had happened. */
export const damaged = (problem: string): SandboxError =>
  new SandboxError('trail-unwritable', `the trail was tampered with or damaged: ${problem}`, {
    hint: 'run `ringfence audit verify`; keep the state directory as evidence and start with a new one',
  })

export const isErrno = (error: unknown, code: string): boolean =>
  (error as NodeJS.ErrnoException | null)?.code === code
