import {
  closeSync,
  fchmodSync,
  mkdirSync,
  openSync,
  readSync,
  symlinkSync,
  utimesSync,
  writeSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { SandboxError } from '../../model/errors.ts'

const BLOCK = 512
const PIECE = 1 << 20

/**
 * Unpacks a layer that `tar.ts` wrote into an empty directory.
 * SECURITY: a name that leads elsewhere is refused, and so is everything that such an archive never holds.
 */
export function unpackLayer(archive: string, into: string): void {
  const fd = openSync(archive, 'r')
  const buffer = Buffer.alloc(PIECE)
  const long: { path?: string; linkpath?: string } = {}
  try {
    for (let at = 0; ; ) {
      const head = Buffer.alloc(BLOCK)
      if (readSync(fd, head, 0, BLOCK, at) < BLOCK || head[0] === 0) return
      const entry = entryOf(head)
      at += BLOCK
      if (entry.type === 'x') {
        const bytes = Buffer.alloc(entry.size)
        readSync(fd, bytes, 0, entry.size, at)
        Object.assign(long, recordsOf(bytes.toString('utf8')))
      } else {
        const name = long.path ?? entry.name
        place(into, { ...entry, name, link: long.linkpath ?? entry.link }, { fd, at, buffer })
        delete long.path
        delete long.linkpath
      }
      at += Math.ceil(entry.size / BLOCK) * BLOCK
    }
  } finally {
    closeSync(fd)
  }
}

type Entry = {
  readonly name: string
  readonly type: string
  readonly mode: number
  readonly size: number
  readonly modified: number
  readonly link: string
}
type From = { readonly fd: number; readonly at: number; readonly buffer: Buffer }

function entryOf(head: Buffer): Entry {
  const text = (at: number, width: number): string => {
    const field = head.subarray(at, at + width)
    const end = field.indexOf(0)
    return field.toString('utf8', 0, end < 0 ? width : end)
  }
  const number = (at: number, width: number): number => Number.parseInt(text(at, width), 8) || 0
  return {
    name: text(0, 100),
    mode: number(100, 8),
    size: number(124, 12),
    modified: number(136, 12),
    type: text(156, 1),
    link: text(157, 100),
  }
}

const recordsOf = (text: string): Record<string, string> =>
  Object.fromEntries(
    text
      .split('\n')
      .filter(Boolean)
      .map((line) => line.replace(/^\d+ /, '').split(/=(.*)/s, 2)),
  )

function place(into: string, entry: Entry, from: From): void {
  const { name, type } = entry
  if (name.startsWith('/') || name.split('/').includes('..') || !['0', '2', '5'].includes(type))
    throw new SandboxError('launch-failed', `the image holds \`${name}\`, which no image of ours has`)
  const path = join(into, name)
  if (type === '5') mkdirSync(path, { recursive: true, mode: entry.mode })
  else if (type === '2') symlinkSync(entry.link, path)
  else copyOut(path, entry, from)
}

function copyOut(path: string, { mode, size, modified }: Entry, { fd, at, buffer }: From): void {
  mkdirSync(dirname(path), { recursive: true })
  const out = openSync(path, 'wx', mode)
  try {
    for (let done = 0; done < size; ) {
      const got = readSync(fd, buffer, 0, Math.min(PIECE, size - done), at + done)
      if (got <= 0) throw new SandboxError('launch-failed', 'the image is cut off')
      writeSync(out, buffer, 0, got)
      done += got
    }
    fchmodSync(out, mode)
  } finally {
    closeSync(out)
  }
  utimesSync(path, modified, modified)
}
