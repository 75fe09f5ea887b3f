import { bytesOf, type Tree, type TreeEntry } from '../images/tree.ts'

const BLOCK = 512

/**
 * Writes a tree as a tar stream, the same bytes for the same tree: sorted, without owners, directories without times.
 * SECURITY: every path is relative, so that nothing is unpacked outside the target directory.
 */
export function* tarOf(tree: Tree): Generator<Buffer> {
  for (const path of [...tree.keys()].sort()) {
    const entry = tree.get(path) as TreeEntry
    yield* entryOf(path.slice(1), entry)
  }
  yield Buffer.alloc(BLOCK * 2)
}

function* entryOf(name: string, entry: TreeEntry): Generator<Buffer> {
  if (entry.kind === 'dir') yield* header({ name: `${name}/`, type: '5', mode: entry.mode })
  else if (entry.kind === 'link') yield* header({ name, type: '2', mode: 0o777, link: entry.target })
  else {
    const bytes = bytesOf(entry.content)
    yield* header({ name, type: '0', mode: entry.mode, size: bytes.length, modified: entry.modified })
    yield bytes
    yield padding(bytes.length)
  }
}

/** The header of a file entry; the caller writes the content and the padding. */
export function* tarFile(name: string, size: number): Generator<Buffer> {
  yield* header({ name, type: '0', mode: 0o644, size })
}

/** The zeros after content of this size. */
export const padding = (size: number): Buffer => Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK)

/** The header of one entry. */
export type Header = {
  readonly name: string
  readonly type: string
  readonly mode: number
  readonly size?: number
  readonly modified?: number
  readonly link?: string
}

const FITS = 100
/** The largest size that eleven octal digits hold. */
const LARGEST = 8 ** 11 - 1

/** The header of one entry, preceded by records for fields that do not fit. */
export function* header(fields: Header): Generator<Buffer> {
  const { name, size = 0, link = '' } = fields
  const long = [
    ...(size > LARGEST ? [record('size', String(size))] : []),
    ...(Buffer.byteLength(name) > FITS ? [record('path', name)] : []),
    ...(Buffer.byteLength(link) > FITS ? [record('linkpath', link)] : []),
  ].join('')
  if (long) {
    const bytes = Buffer.from(long)
    yield block({ name: 'long', type: 'x', mode: 0o644, size: bytes.length })
    yield bytes
    yield padding(bytes.length)
  }
  yield block({ ...fields, size: size > LARGEST ? 0 : size })
}

/** `17 path=a/long/name`: the length includes itself. */
function record(key: string, value: string): string {
  const rest = Buffer.byteLength(` ${key}=${value}\n`)
  let length = rest + String(rest).length
  if (rest + String(length).length !== length) length = rest + String(length).length
  return `${length} ${key}=${value}\n`
}

function block({ name, type, mode, size = 0, modified = 0, link = '' }: Header): Buffer {
  const bytes = Buffer.alloc(BLOCK)
  const octal = (value: number, at: number, width: number): void => {
    bytes.write(`${value.toString(8).padStart(width - 1, '0')}\0`, at, 'latin1')
  }
  bytes.write(name, 0, FITS)
  octal(mode, 100, 8)
  octal(0, 108, 8)
  octal(0, 116, 8)
  octal(size, 124, 12)
  octal(modified, 136, 12)
  bytes.write('        ', 148, 'latin1')
  bytes.write(type, 156, 'latin1')
  bytes.write(link, 157, FITS)
  bytes.write('ustar\x0000', 257, 'latin1')
  octal(
    bytes.reduce((sum, byte) => sum + byte, 0),
    148,
    7,
  )
  return bytes
}
