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
/** How much of an unacknowledged tail is kept for inspection. */
const ASIDE_BYTES = 16 * 1024 * 1024

/** The files of the audit log in a state directory. Head, lock and key are outside the log's own directory. */
export const pathsOf = (home: string) => ({
  trail: `${home}/trail`,
  aside: `${home}/trail/aside`,
  anchor: `${home}/anchor`,
  head: `${home}/anchor/head.jsonl`,
  /** The record hashes, 32 bytes each: they let `verify` name the first record of a rewritten range. */
  leaves: `${home}/anchor/leaves.bin`,
  lock: `${home}/anchor/lock`,
  /** Marks that the audit log is in a store from now on. */
  store: `${home}/anchor/store.json`,
  keys: `${home}/keys`,
  key: `${home}/keys/trail.json`,
})

/** A position between two lines. */
export type Position = { readonly segment: number; readonly offset: number }

/** Before the first record. */
export const START: Position = { segment: 1, offset: 0 }
/** After the last record. */
export const END: Position = { segment: Number.POSITIVE_INFINITY, offset: Number.POSITIVE_INFINITY }

/** The file of a segment. */
export const segmentPath = (home: string, segment: number): string =>
  `${home}/trail/${String(segment).padStart(6, '0')}.jsonl`

/** The existing segments, in order. */
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
 * The lines between two positions, each with its newline; a last one without it is a torn write.
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

/** Whether there is a complete line beyond a position; a partial line is only a write that a crash interrupted. */
export function hasLineBeyond(home: string, position: Position): boolean {
  for (const line of readLines(home, position, END)) if (line.at(-1) === 10) return true
  return false
}

/** The text of a file; undefined if there is no such file. */
export function textOf(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return undefined
    throw error
  }
}

/** The size of a file, if it exists. */
export const sizeOf = (path: string): number | undefined => statSync(path, { throwIfNoEntry: false })?.size

/** Writes all bytes at an offset; repeats short writes. */
export function writeAll(fd: number, bytes: Uint8Array, at: number): void {
  for (let done = 0; done < bytes.length; ) done += writeSync(fd, bytes, done, bytes.length - done, at + done)
}

const writeAt = (fd: number, bytes: Uint8Array, from: number, at: number): Promise<number> =>
  new Promise((resolve, reject) =>
    write(fd, bytes, from, bytes.length - from, at, (error, size) => (error ? reject(error) : resolve(size))),
  )
const settle: (fd: number) => Promise<void> = promisify(fdatasync)

/** PLATFORM: on Linux, this flag writes and syncs in one call. */
const AT_ONCE = process.platform === 'linux' ? constants.O_DSYNC : 0

/** Opens a file for `writeSettled`. */
export const openSettled = (path: string, flags: number): number =>
  openSync(path, constants.O_WRONLY | constants.O_NOFOLLOW | AT_ONCE | flags, 0o600)

/** A write that takes longer than this must not hold the thread. Handing it to another thread costs a fraction of that. */
const QUICK_MS = 1

/** How long the last write of one kind took: a log grows, which takes longer than to overwrite a part of a file. */
export type LastWrite = { ms: number }

/** How a write is made: as the last one of its kind suggests, and never by this thread if nobody waits for it. */
type WritePace = { readonly last: LastWrite; readonly isAwaited: boolean }

/**
 * Writes all bytes at an offset and syncs them to disk. While such writes are quick this thread does it, which is the cheapest;
 * otherwise another one, so that other commands continue while one command's record is written.
 */
export async function writeSettled(
  fd: number,
  bytes: Uint8Array,
  at: number,
  { last, isAwaited }: WritePace,
): Promise<void> {
  const start = performance.now()
  try {
    if (AT_ONCE !== 0 && isAwaited && last.ms < QUICK_MS) writeAll(fd, bytes, at)
    else await writeElsewhere(fd, bytes, at)
  } finally {
    last.ms = performance.now() - start
  }
}

async function writeElsewhere(fd: number, bytes: Uint8Array, at: number): Promise<void> {
  for (let done = 0; done < bytes.length; ) done += await writeAt(fd, bytes, done, at + done)
  if (AT_ONCE === 0) await settle(fd)
}

/** Replaces a file atomically; the caller syncs the directory. */
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

/** Creates a file and syncs it to disk. */
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

/** Syncs a directory, so that renames and new files in it survive a power loss. */
export function syncDir(dir: string): void {
  const fd = openSync(dir, 'r')
  try {
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}

/** Creates the directories of an audit log with mode 0700. */
export function makeDirs(home: string): void {
  const { trail, anchor, keys } = pathsOf(home)
  for (const dir of [trail, anchor, keys]) mkdirSync(dir, { recursive: true, mode: 0o700 })
}

/** Truncates a file at `from`. The removed bytes were never acknowledged; a copy is kept if possible. */
export function moveAside(home: string, path: string, from: number): void {
  const { aside, trail } = pathsOf(home)
  try {
    mkdirSync(aside, { recursive: true, mode: 0o700 })
    const tail = tailOf(path, from)
    writeNew(`${aside}/${Date.now()}-${randomBytes(4).toString('hex')}.part`, tail)
  } catch {
    // A full disk must not prevent the repair of the audit log.
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

/** Translates errors of the operating system; everything else passes through. */
export function unwritable(error: unknown, home: string): unknown {
  const code = (error as NodeJS.ErrnoException | null)?.code
  if (error instanceof SandboxError || typeof code !== 'string') return error
  const hint = HINTS[code] ?? 'see `ringfence audit verify` and check the disk'
  return new SandboxError('trail-unwritable', `cannot use the audit log in \`${home}\`: ${code}`, {
    hint,
    cause: error,
  })
}

/** The audit log on disk contradicts the signed head, so nothing more is recorded. */
export const damaged = (problem: string): SandboxError =>
  new SandboxError('trail-unwritable', `the audit log was tampered with or damaged: ${problem}`, {
    hint: 'run `ringfence audit verify`; keep the state directory as evidence and start with a new one',
  })

/** Whether an error is a system error with this code. */
export const isErrno = (error: unknown, code: string): boolean =>
  (error as NodeJS.ErrnoException | null)?.code === code
