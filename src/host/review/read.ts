import { createHash } from 'node:crypto'
import { closeSync, constants, fstatSync, lstatSync, openSync, readSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { O_PATH } from '../files/walk-open.ts'

const { O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = constants

/** Something below a directory that is trusted itself, while nothing below it is. */
export type UntrustedPath = { readonly root: string; readonly relative: string }

/**
 * Works on a path that names exactly this place. SECURITY: no link is followed on the way. Whoever shares the directory,
 * or still runs in it, could otherwise have us read or write something else.
 */
export function at<T>({ root, relative }: UntrustedPath, work: (place: string, parent: number) => T): T {
  const parent = openParent(root, relative)
  try {
    return work(`/proc/self/fd/${parent}/${basename(relative)}`, parent)
  } finally {
    closeSync(parent)
  }
}

/** The same for work that takes its time. */
export async function whileAt<T>(
  { root, relative }: UntrustedPath,
  work: (place: string, parent: number) => Promise<T>,
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
  let place = openSync(root, O_PATH | O_DIRECTORY)
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

/** Opens a plain file for reading; the caller closes it. */
function openFile(place: UntrustedPath): number {
  const fd = at(place, (path) => openSync(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK))
  if (fstatSync(fd).isFile()) return fd
  closeSync(fd)
  throw new Error('it is no plain file any more')
}

const SNIFFED = 8192

export const isBinary = (place: UntrustedPath): boolean => head(place, SNIFFED).includes(0)

function head(place: UntrustedPath, length: number): Buffer {
  const fd = openFile(place)
  try {
    return piece(fd, 0, length)
  } finally {
    closeSync(fd)
  }
}

/** A text as a person reads it; nothing when it is longer than that or no text. */
export function textOf(place: UntrustedPath, most: number): string | undefined {
  const bytes = head(place, most + 1)
  if (bytes.length > most || bytes.includes(0)) return undefined
  return bytes.toString('utf8')
}

const PIECE = 1024 * 1024

function piece(fd: number, from: number, length: number): Buffer {
  const bytes = Buffer.alloc(length)
  return bytes.subarray(0, readSync(fd, bytes, 0, length, from))
}

/** The pieces of a file; others get their turn between them. */
export async function* pieces(place: UntrustedPath): AsyncGenerator<Buffer, void> {
  const fd = openFile(place)
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

/** Of two files that are as long as each other. */
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

/** From here on reading all of a file only to name its content takes too long; a terabyte of nothing costs a guest nothing. */
const LONG = 64 * 1024 * 1024

/** Another name whenever the content is another. */
export async function contentName(place: UntrustedPath): Promise<string> {
  const hash = createHash('sha256')
  const { size, ctimeNs, ino } = at(place, (path) => lstatSync(path, { bigint: true }))
  // PLATFORM: no program can set a file's change time, and every write moves it.
  if (size > LONG) hash.update(`${size} ${ctimeNs} ${ino}`)
  else for await (const bytes of pieces(place)) hash.update(bytes)
  return hash.digest('hex')
}
