import { TAR_TYPES } from '../../host/guest/protocol.ts'
import { SandboxError } from '../../model/errors.ts'

/** One entry of an archive; its content follows. */
export type TarEntry = {
  readonly name: string
  /**
   * A file, a link, a directory; `same`: unchanged; `unread`: the content could not be read; `time`: when the tree was read;
   * `strange`: the name or link target is not UTF-8, so it cannot be used.
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

/** Limits on an archive. */
export type TarLimits = {
  readonly entries?: number
  readonly bytes?: number
  /** The mode bits that are kept; default: permissions only. */
  readonly modes?: number
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
  #left = 0

  constructor(source: AsyncIterable<Uint8Array>, limits: TarLimits = {}) {
    this.#source = source[Symbol.asyncIterator]()
    const unlimited = Number.POSITIVE_INFINITY
    this.#limits = { entries: unlimited, bytes: unlimited, modes: 0o777, ...limits }
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
      if (text(head, 156, 1) !== 'x') return this.#entry(head, size, long)
      if (size > MAX_RECORDS) throw hostile('a name that is too long')
      const records = await this.#take(size + padOf(size))
      if (!records) throw hostile('a truncated record')
      Object.assign(long, recordsOf(records.subarray(0, size)))
    }
  }

  #entry(head: Buffer, shown: number, long: Readonly<Record<string, Buffer>>): TarEntry {
    const kind = KINDS[text(head, 156, 1)]
    if (!kind) throw hostile('an unsupported entry type')
    const size = long.size === undefined ? shown : Number(long.size.toString('latin1'))
    if (!Number.isSafeInteger(size) || size < 0 || (size > 0 && kind !== 'file'))
      throw hostile('an invalid size')
    this.#bytes += size
    if (this.#bytes > this.#limits.bytes) throw hostile('too much data')
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
    // Data after the end is discarded, so that the sender can finish.
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

const text = (head: Buffer, at: number, width: number): string => bytesOf(head, at, width).toString('latin1')

function number(head: Buffer, at: number, width: number): number {
  const value = Number.parseInt(text(head, at, width) || '0', 8)
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
    if (['path', 'linkpath', 'size'].includes(name)) found[name] = record.subarray(equals + 1)
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
