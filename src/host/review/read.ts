import { createHash } from 'node:crypto'
import { closeSync, constants, fstatSync, lstatSync, openSync, readSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { O_PATH } from '../files/walk-open.ts'

const { O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants

/** A path below a trusted directory; nothing below that directory is trusted. */
export type UntrustedPath = { readonly root: string; readonly relative: string }

/**
 * Runs the work with a path that refers to exactly this file. SECURITY: no symbolic link is followed; otherwise a user
 * who shares the directory, or a process that still runs in it, could redirect our reads and writes.
 */
export function at<T>({ root, relative }: UntrustedPath, work: (path: string, parent: number) => T): T {
  const parent = openParent(root, relative)
  try {
    return work(`/proc/self/fd/${parent}/${basename(relative)}`, parent)
  } finally {
    closeSync(parent)
  }
}

/** The same for asynchronous work. */
export async function whileAt<T>(
  { root, relative }: UntrustedPath,
  work: (path: string, parent: number) => Promise<T>,
): Promise<T> {
  const parent = openParent(root, relative)
  try {
    return await work(`/proc/self/fd/${parent}/${basename(relative)}`, parent)
  } finally {
    closeSync(parent)
  }
}

function openParent(root: string, relative: string): number {
  const names = dirname(relative)
    .split('/')
    .filter((name) => name !== '' && name !== '.')
  let directory = openSync(root, O_PATH | O_DIRECTORY)
  for (const name of names) {
    const outer = directory
    try {
      directory = openSync(`/proc/self/fd/${outer}/${name}`, O_PATH | O_DIRECTORY | O_NOFOLLOW)
    } catch {
      throw new Error(`\`${name}\` in the path is no longer a directory`)
    } finally {
      closeSync(outer)
    }
  }
  return directory
}

/** Opens a regular file for reading; the caller closes it. */
function openFile(untrusted: UntrustedPath): number {
  const fd = at(untrusted, (path) => openSync(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK))
  if (fstatSync(fd).isFile()) return fd
  closeSync(fd)
  throw new Error('it is no longer a regular file')
}

const SNIFFED = 8192

/** Whether the beginning of a file contains a NUL byte. */
export const isBinary = (untrusted: UntrustedPath): boolean => head(untrusted, SNIFFED).includes(0)

function head(untrusted: UntrustedPath, length: number): Buffer {
  const fd = openFile(untrusted)
  try {
    return piece(fd, 0, length)
  } finally {
    closeSync(fd)
  }
}

/** The content as text; undefined if it is longer than `most` or not text. */
export function textOf(untrusted: UntrustedPath, most: number): string | undefined {
  const bytes = head(untrusted, most + 1)
  if (bytes.length > most || bytes.includes(0)) return undefined
  return bytes.toString('utf8')
}

const PIECE = 1024 * 1024

function piece(fd: number, from: number, length: number): Buffer {
  const bytes = Buffer.alloc(length)
  return bytes.subarray(0, readSync(fd, bytes, 0, length, from))
}

/** Reads a file in chunks and yields to the event loop between them. */
export async function* pieces(untrusted: UntrustedPath): AsyncGenerator<Buffer, void> {
  const fd = openFile(untrusted)
  try {
    for (let from = 0; ; from += PIECE) {
      const bytes = piece(fd, from, PIECE)
      yield bytes
      if (bytes.length < PIECE) return
      await turn()
    }
  } finally {
    closeSync(fd)
  }
}

/** Compares two files of the same size. */
export async function sameContent(a: UntrustedPath, b: UntrustedPath): Promise<boolean> {
  const other = pieces(b)
  try {
    for await (const bytes of pieces(a)) {
      const { value } = await other.next()
      if (!value?.equals(bytes)) return false
    }
    return true
  } finally {
    await other.return()
  }
}

/** Above this size, hashing the whole content takes too long; a sparse file of a terabyte costs a guest nothing. */
const LONG = 64 * 1024 * 1024

/** A name that changes whenever the content changes. */
export async function contentName(untrusted: UntrustedPath): Promise<string> {
  const hash = createHash('sha256')
  const { size, ctimeNs, ino } = at(untrusted, (path) => lstatSync(path, { bigint: true }))
  // PLATFORM: no program can set a file's ctime, and every write changes it.
  if (size > LONG) hash.update(`${size} ${ctimeNs} ${ino}`)
  else for await (const bytes of pieces(untrusted)) hash.update(bytes)
  return hash.digest('hex')
}
