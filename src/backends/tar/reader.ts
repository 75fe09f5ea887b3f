import { TAR_TYPES } from '../../host/guest/protocol.ts'
import { SandboxError } from '../../model/errors.ts'

/** One entry of an archive; its content follows. */
export type TarEntry = {
  readonly name: string
  /**
   * A file, a link, a directory; `same`: unchanged; `unread`: the content could not be read; `time`: when the tree was read;
   * `strange`: the name or link target is not UTF-8, so it cannot be used. In the archive of an image also `hardlink`, and
   * `special` for devices and pipes.
   */
  readonly kind: 'file' | 'link' | 'dir' | 'same' | 'unread' | 'time' | 'strange' | 'hardlink' | 'special'
  readonly mode: number
  readonly size: number
  readonly modified: number
  readonly uid: number
  readonly gid: number
  readonly link: string
}

const BLOCK = 512
const MAX_RECORDS = 16 * 1024
/** Programs fill up their last blocks after the end of an archive. */
const MAX_TRAILING_BYTES = 16 * 1024 * 1024
const KINDS: Readonly<Record<string, TarEntry['kind']>> = {
  '0': 'file',
  '2': 'link',
  '5': 'dir',
  ...TAR_TYPES,
}
/** What programs that make images write beside these. */
const IMAGE_KINDS: Readonly<Record<string, TarEntry['kind']>> = {
  '\0': 'file',
  '': 'file',
  '0': 'file',
  '7': 'file',
  '1': 'hardlink',
  '2': 'link',
  '5': 'dir',
  '3': 'special',
  '4': 'special',
  '6': 'special',
}
/** GNU's long names, which come as the content of an entry before. */
const GNU_NAMES: Readonly<Record<string, string>> = { L: 'path', K: 'linkpath' }

/** Limits on an archive. */
export type TarLimits = {
  readonly entries?: number
  readonly bytes?: number
  /** All names and link targets together: whoever remembers them needs as much memory. */
  readonly nameBytes?: number
  /** The mode bits that are kept; default: permissions only. */
  readonly modes?: number
  /** The layer of an image, in which other programs' forms of entries are read too. */
  readonly image?: boolean
}

/**
 * Reads an archive as a stream. SECURITY: a guest may have written it. An archive with a name that is not a plain relative
 * path is rejected as a whole; lengths are limited before anything is buffered.
 */
export class TarReader {
  readonly #source: AsyncIterator<Uint8Array>
  readonly #limits: Required<TarLimits>
  #rest: Buffer = Buffer.alloc(0)
  #entries = 0
  #bytes = 0
  #nameBytes = 0
  #left = 0

  constructor(source: AsyncIterable<Uint8Array>, limits: TarLimits = {}) {
    this.#source = source[Symbol.asyncIterator]()
    const unlimited = Number.POSITIVE_INFINITY
    const defaults = {
      entries: unlimited,
      bytes: unlimited,
      nameBytes: unlimited,
      modes: 0o777,
      image: false,
    }
    this.#limits = { ...defaults, ...limits }
  }

  /** The next entry; skips the unread content of the previous one. */
  async next(): Promise<TarEntry | undefined> {
    for await (const _ of this.content());
    const long: Record<string, Buffer> = {}
    for (;;) {
      const head = await this.#take(BLOCK)
      if (!head || head.every((byte) => byte === 0)) return this.#end()
      if (++this.#entries > this.#limits.entries) throw hostile('too many entries')
      const size = number(head, 124, 12)
      const type = text(head, 156, 1)
      const isGnuName = this.#limits.image && type in GNU_NAMES
      if (type !== 'x' && !isGnuName && !(this.#limits.image && type === 'g'))
        return this.#entry(head, size, long)
      if (size > MAX_RECORDS) throw hostile('a name that is too long')
      const records = await this.#take(size + padOf(size))
      if (!records) throw hostile('a truncated record')
      // Records for all entries describe nothing that is used here.
      if (isGnuName) long[GNU_NAMES[type] as string] = bytesOf(records, 0, size)
      else if (type === 'x') Object.assign(long, recordsOf(records.subarray(0, size)))
    }
  }

  #entry(head: Buffer, shown: number, long: Readonly<Record<string, Buffer>>): TarEntry {
    const { image } = this.#limits
    const kind = (image ? IMAGE_KINDS : KINDS)[text(head, 156, 1)]
    if (!kind) throw hostile('an unsupported entry type')
    const said = long.size === undefined ? shown : Number(long.size.toString('latin1'))
    // Some programs give the size of its file to a hard link, whose content does not follow.
    const size = kind === 'hardlink' ? 0 : said
    if (!Number.isSafeInteger(size) || size < 0 || (size > 0 && kind !== 'file'))
      throw hostile('an invalid size')
    this.#bytes += size
    if (this.#bytes > this.#limits.bytes) throw hostile('too much data')
    this.#left = size
    const path = long.path ?? (image ? ustarName(head) : bytesOf(head, 0, 100))
    const target = long.linkpath ?? bytesOf(head, 157, 100)
    this.#nameBytes += path.length + target.length
    if (this.#nameBytes > this.#limits.nameBytes) throw hostile('names that are too long in total')
    const name = (image ? plainName : (one: string) => one)(path.toString('utf8').replace(/\/$/, ''))
    if (!(image && name === '')) assertPlain(name)
    const rest = {
      mode: number(head, 100, 8) & this.#limits.modes,
      size,
      modified: number(head, 136, 12),
      uid: idOf(long.uid, head, 108),
      gid: idOf(long.gid, head, 116),
    }
    return {
      name,
      kind: isText(path) && isText(target) ? kind : 'strange',
      link: target.toString('utf8'),
      ...rest,
    }
  }

  /** The content of the last entry. */
  async *content(): AsyncGenerator<Buffer> {
    const padding = padOf(this.#left)
    while (this.#left > 0) {
      if (this.#rest.length === 0 && !(await this.#more())) throw hostile('a truncated file')
      const piece = this.#rest.subarray(0, this.#left)
      this.#rest = this.#rest.subarray(piece.length)
      this.#left -= piece.length
      yield piece
    }
    if (padding > 0 && !(await this.#take(padding))) throw hostile('a truncated file')
  }

  /** Aborts: the sender is told to stop. */
  async close(): Promise<void> {
    await this.#source.return?.()
  }

  async #end(): Promise<undefined> {
    // Data after the end is discarded, so that the sender can finish. SECURITY: it may have been compressed, so it may be endless.
    this.#rest = Buffer.alloc(0)
    for (let trailing = 0; await this.#more(); this.#rest = Buffer.alloc(0)) {
      trailing += this.#rest.length
      if (trailing > MAX_TRAILING_BYTES) throw hostile('too much data after its end')
    }
    return undefined
  }

  async #take(length: number): Promise<Buffer | undefined> {
    while (this.#rest.length < length) if (!(await this.#more())) return undefined
    const taken = this.#rest.subarray(0, length)
    this.#rest = this.#rest.subarray(length)
    return taken
  }

  async #more(): Promise<boolean> {
    const { value, done } = await inTime(this.#source.next())
    if (done) return false
    this.#rest = this.#rest.length === 0 ? Buffer.from(value) : Buffer.concat([this.#rest, value])
    return true
  }
}

/** SECURITY: a guest that stops sending must not block us forever. */
const SILENCE_MS = 30_000

async function inTime<T>(next: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(hostile('no end: the sender stopped')), SILENCE_MS)
  })
  try {
    return await Promise.race([next, late])
  } finally {
    clearTimeout(timer)
  }
}

const padOf = (size: number): number => (BLOCK - (size % BLOCK)) % BLOCK

function bytesOf(head: Buffer, at: number, width: number): Buffer {
  const field = head.subarray(at, at + width)
  const end = field.indexOf(0)
  return field.subarray(0, end < 0 ? width : end)
}

/** The old field for the beginning of a long name. */
function ustarName(head: Buffer): Buffer {
  const prefix = text(head, 257, 6) === 'ustar' ? bytesOf(head, 345, 155) : Buffer.alloc(0)
  const name = bytesOf(head, 0, 100)
  return prefix.length === 0 ? name : Buffer.concat([prefix, Buffer.from('/'), name])
}

/** `./usr/bin` and `/usr/bin` are the same entry of an image as `usr/bin`; the root itself has an empty name. */
const plainName = (name: string): string =>
  name
    .split('/')
    .filter((part) => part !== '' && part !== '.')
    .join('/')

const idOf = (said: Buffer | undefined, head: Buffer, at: number): number =>
  said === undefined ? number(head, at, 8) : Number(said.toString('latin1'))

const text = (head: Buffer, at: number, width: number): string => bytesOf(head, at, width).toString('latin1')

function number(head: Buffer, at: number, width: number): number {
  // GNU's form for numbers that do not fit: a set bit, then bytes.
  if ((head[at] ?? 0) === 0x80) {
    const value = Number(
      head.subarray(at + 1, at + width).reduce((sum, byte) => sum * 256n + BigInt(byte), 0n),
    )
    if (!Number.isSafeInteger(value)) throw hostile('an invalid number')
    return value
  }
  const value = Number.parseInt(text(head, at, width).trim() || '0', 8)
  if (!Number.isSafeInteger(value) || value < 0) throw hostile('an invalid number')
  return value
}

/** SECURITY: a name that is not UTF-8 would turn into another one. */
const isText = (bytes: Buffer): boolean => Buffer.from(bytes.toString('utf8'), 'utf8').equals(bytes)

function recordsOf(bytes: Buffer): Record<string, Buffer> {
  const found: Record<string, Buffer> = {}
  for (let at = 0; at < bytes.length; ) {
    const space = bytes.indexOf(0x20, at)
    const length = Number.parseInt(bytes.toString('latin1', at, space), 10)
    if (space < 0 || !(length > space - at) || at + length > bytes.length) throw hostile('an invalid record')
    const record = bytes.subarray(space + 1, at + length - 1)
    const equals = record.indexOf('=')
    const name = record.toString('latin1', 0, Math.max(equals, 0))
    if (['path', 'linkpath', 'size', 'uid', 'gid'].includes(name)) found[name] = record.subarray(equals + 1)
    at += length
  }
  return found
}

function assertPlain(name: string): void {
  const bad = name === '' || name.length > 4096 || name.includes('\0')
  if (bad || name.split('/').some((part) => part === '' || part === '.' || part === '..'))
    throw hostile('a name that leads outside')
}

const hostile = (what: string): SandboxError =>
  new SandboxError('path-traversal', `the archive contains ${what}`)
