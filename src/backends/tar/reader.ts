import { TAR_TYPES } from '../../host/guest/protocol.ts'
import { SandboxError } from '../../model/errors.ts'

/** One entry of an archive; what follows it is its content. */
export type TarEntry = {
  readonly name: string
  /**
   * A file, a link, a directory; one that did not change; one whose content cannot be told; when it was all looked at; one
   * whose name or link is no text, and which therefore has none that could be used.
   */
  readonly kind: 'file' | 'link' | 'dir' | 'same' | 'unread' | 'time' | 'strange'
  readonly mode: number
  readonly size: number
  readonly modified: number
  readonly link: string
}

const BLOCK = 512
const MAX_RECORDS = 16 * 1024
const KINDS: Readonly<Record<string, TarEntry['kind']>> = {
  '0': 'file',
  '2': 'link',
  '5': 'dir',
  ...TAR_TYPES,
}

export type TarLimits = {
  readonly entries?: number
  readonly bytes?: number
  /** The bits of a mode that are taken over; permissions alone unless said otherwise. */
  readonly modes?: number
}

/**
 * Reads an archive while it comes. SECURITY: a guest may have written it. Names are plain relative paths or the archive is refused as a
 * whole; lengths are bounded before anything is kept.
 */
export class TarReader {
  readonly #source: AsyncIterator<Uint8Array>
  readonly #limits: Required<TarLimits>
  #rest: Buffer = Buffer.alloc(0)
  #entries = 0
  #bytes = 0
  #left = 0

  constructor(source: AsyncIterable<Uint8Array>, limits: TarLimits = {}) {
    this.#source = source[Symbol.asyncIterator]()
    const unlimited = Number.POSITIVE_INFINITY
    this.#limits = { entries: unlimited, bytes: unlimited, modes: 0o777, ...limits }
  }

  /** The next entry; what was not read of the one before is passed over. */
  async next(): Promise<TarEntry | undefined> {
    for await (const _ of this.content());
    const long: Record<string, Buffer> = {}
    for (;;) {
      const head = await this.#take(BLOCK)
      if (!head || head.every((byte) => byte === 0)) return this.#end()
      if (++this.#entries > this.#limits.entries) throw hostile('too many entries')
      const size = number(head, 124, 12)
      if (text(head, 156, 1) !== 'x') return this.#entry(head, size, long)
      if (size > MAX_RECORDS) throw hostile('a name that is too long')
      const records = await this.#take(size + padOf(size))
      if (!records) throw hostile('a cut record')
      Object.assign(long, recordsOf(records.subarray(0, size)))
    }
  }

  #entry(head: Buffer, shown: number, long: Readonly<Record<string, Buffer>>): TarEntry {
    const kind = KINDS[text(head, 156, 1)]
    if (!kind) throw hostile('something that is no file')
    const size = long.size === undefined ? shown : Number(long.size.toString('latin1'))
    if (!Number.isSafeInteger(size) || size < 0 || (size > 0 && kind !== 'file'))
      throw hostile('a wrong size')
    this.#bytes += size
    if (this.#bytes > this.#limits.bytes) throw hostile('more than fits')
    this.#left = size
    const path = long.path ?? bytesOf(head, 0, 100)
    const target = long.linkpath ?? bytesOf(head, 157, 100)
    const name = path.toString('utf8').replace(/\/$/, '')
    assertPlain(name)
    const rest = { mode: number(head, 100, 8) & this.#limits.modes, size, modified: number(head, 136, 12) }
    return {
      name,
      kind: isText(path) && isText(target) ? kind : 'strange',
      link: target.toString('utf8'),
      ...rest,
    }
  }

  /** The bytes of the entry that came last. */
  async *content(): AsyncGenerator<Buffer> {
    const padding = padOf(this.#left)
    while (this.#left > 0) {
      if (this.#rest.length === 0 && !(await this.#more())) throw hostile('a cut file')
      const piece = this.#rest.subarray(0, this.#left)
      this.#rest = this.#rest.subarray(piece.length)
      this.#left -= piece.length
      yield piece
    }
    if (padding > 0 && !(await this.#take(padding))) throw hostile('a cut file')
  }

  /** Gives up: the other side is told to stop. */
  async close(): Promise<void> {
    await this.#source.return?.()
  }

  async #end(): Promise<undefined> {
    // Whatever comes after the end is nothing; the other side still has to get rid of it.
    while (await this.#more()) this.#rest = Buffer.alloc(0)
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

/** SECURITY: a guest that stops whoever sends its files must not hold us up for ever. */
const SILENCE_MS = 30_000

async function inTime<T>(next: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(hostile('nothing any more')), SILENCE_MS)
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

const text = (head: Buffer, at: number, width: number): string => bytesOf(head, at, width).toString('latin1')

function number(head: Buffer, at: number, width: number): number {
  const value = Number.parseInt(text(head, at, width) || '0', 8)
  if (!Number.isSafeInteger(value) || value < 0) throw hostile('a wrong number')
  return value
}

/** SECURITY: a name that is not UTF-8 would come out as another one. */
const isText = (bytes: Buffer): boolean => Buffer.from(bytes.toString('utf8'), 'utf8').equals(bytes)

function recordsOf(bytes: Buffer): Record<string, Buffer> {
  const found: Record<string, Buffer> = {}
  for (let at = 0; at < bytes.length; ) {
    const space = bytes.indexOf(0x20, at)
    const length = Number.parseInt(bytes.toString('latin1', at, space), 10)
    if (space < 0 || !(length > space - at) || at + length > bytes.length) throw hostile('a wrong record')
    const record = bytes.subarray(space + 1, at + length - 1)
    const equals = record.indexOf('=')
    const name = record.toString('latin1', 0, Math.max(equals, 0))
    if (['path', 'linkpath', 'size'].includes(name)) found[name] = record.subarray(equals + 1)
    at += length
  }
  return found
}

function assertPlain(name: string): void {
  const bad = name === '' || name.length > 4096 || name.includes('\0')
  if (bad || name.split('/').some((part) => part === '' || part === '.' || part === '..'))
    throw hostile('a name that leads elsewhere')
}

const hostile = (what: string): SandboxError =>
  new SandboxError('path-traversal', `the archive holds ${what}`)
