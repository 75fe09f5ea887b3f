import type { TaggedValue } from '../component/types.ts'
import type { FileStatus, GuestHost, SystemReply } from '../guest-host.ts'
import type {
  Functions,
  InputStream,
  OutputStream,
  ResourceToken,
  StreamFailure,
  Wasi2Resources,
} from './wasi2-types.ts'

/** `dir`: the host's handle, or the path of a preopened directory. */
type Descriptor = {
  readonly dir: number | string
  readonly kind: 'dir' | 'file'
  readonly flags: Readonly<Record<string, boolean>>
}
type Flags = Readonly<Record<string, boolean>>
type Listing = { readonly entries: readonly { readonly name: string; readonly kind: string }[]; at: number }

/**
 * `wasi:filesystem` for components. The host opens, reads and writes the files and checks each path against the run's grants, with
 * the same functions as for WASI preview 1.
 *
 * The class text is part of the worker's source, so it may use only its arguments and JavaScript globals.
 */
export class Wasi2Files {
  readonly #host: GuestHost
  readonly #resources: Wasi2Resources
  readonly #codes: Readonly<Record<string, string>> = {
    'capability-denied': 'no-entry',
    'path-traversal': 'not-permitted',
    'resource-exhausted': 'file-too-large',
    unsupported: 'unsupported',
    'invalid-input': 'invalid',
    'bad-handle': 'bad-descriptor',
    EACCES: 'access',
    EBADF: 'bad-descriptor',
    EBUSY: 'busy',
    EDQUOT: 'quota',
    EEXIST: 'exist',
    EINVAL: 'invalid',
    EISDIR: 'is-directory',
    ELOOP: 'loop',
    EMFILE: 'insufficient-memory',
    EMLINK: 'too-many-links',
    ENAMETOOLONG: 'name-too-long',
    ENOENT: 'no-entry',
    ENOSPC: 'insufficient-space',
    ENOTDIR: 'not-directory',
    ENOTEMPTY: 'not-empty',
    EPERM: 'not-permitted',
    EROFS: 'read-only',
    ETXTBSY: 'text-file-busy',
    EXDEV: 'cross-device',
  }
  readonly #kinds: Readonly<Record<string, string>> = {
    device: 'character-device',
    dir: 'directory',
    file: 'regular-file',
    socket: 'socket',
    link: 'symbolic-link',
  }

  constructor(host: GuestHost, resources: Wasi2Resources) {
    this.#host = host
    this.#resources = resources
  }

  get functions(): Functions {
    return {
      'wasi:filesystem/preopens': {
        'get-directories': () =>
          this.#host.preopens.map(({ name, base }) => [this.#descriptor(base, 'dir', { read: true }), name]),
      },
      'wasi:filesystem/types': {
        ...this.#streamCalls(),
        ...this.#fileCalls(),
        ...this.#directoryCalls(),
        ...this.#pathCalls(),
        '[method]directory-entry-stream.read-directory-entry': (self: unknown) => this.#nextEntry(self),
        'filesystem-error-code': (error: unknown): TaggedValue => {
          const { code } = this.#resources.get<StreamFailure>('error', error)
          return code === undefined ? { tag: 'none' } : { tag: 'some', value: { tag: code } }
        },
      },
    }
  }

  /** Closes the host's file when the component drops its descriptor. */
  drop(value: unknown): void {
    if (!this.#resources.is('descriptor', value)) return
    const { dir } = this.#of(value)
    if (typeof dir === 'number') this.#host.ask('wasi:close', { handle: dir })
  }

  #descriptor(dir: number | string, kind: Descriptor['kind'], flags: Flags): ResourceToken {
    return this.#resources.make('descriptor', { dir, kind, flags })
  }

  #of(self: unknown): Descriptor {
    return this.#resources.get('descriptor', self)
  }

  /** Asks the host: a `result` of the component. */
  #ask(
    method: string,
    params: Readonly<Record<string, unknown>>,
    use?: (ok: unknown) => unknown,
  ): TaggedValue {
    for (const text of [params.path, params.to, params.target])
      if (text !== undefined && (typeof text !== 'string' || text.length > 4096 || text.includes('\0')))
        return this.#error('invalid')
    const reply = this.#host.ask(`wasi:${method}`, params) as SystemReply
    if (!('ok' in reply)) return this.#error(this.#codes[reply.code] ?? 'io')
    return { tag: 'ok', value: use?.(reply.ok) }
  }

  #error(code: string): TaggedValue {
    return { tag: 'error', value: { tag: code } }
  }

  /** The parameters that name an open file. */
  #file(self: unknown, action: (handle: number) => TaggedValue): TaggedValue {
    const { dir, kind } = this.#of(self)
    return kind === 'dir' || typeof dir === 'string' ? this.#error('is-directory') : action(dir)
  }

  #streamCalls(): Functions[string] {
    const output = (self: unknown, from: bigint | 'end'): TaggedValue =>
      this.#file(self, (handle) => {
        let at = from === 'end' ? -1 : Number(from)
        const write: OutputStream['write'] = (bytes) => {
          const done = this.#writeAt(handle, at, bytes)
          if (done.tag === 'error') return this.#failure(done)
          if (at !== -1) at += bytes.length
          return undefined
        }
        return { tag: 'ok', value: this.#resources.make('output-stream', { write }) }
      })
    return {
      '[method]descriptor.read-via-stream': (self: unknown, from: bigint) =>
        this.#file(self, (handle) => {
          let at = Number(from)
          const read: InputStream['read'] = (length) => {
            const { tag, value } = this.#readAt(handle, at, length)
            if (tag === 'error') return this.#failure({ tag, value })
            at += (value as Uint8Array).length
            return (value as Uint8Array).length === 0 && length > 0 ? undefined : (value as Uint8Array)
          }
          return { tag: 'ok', value: this.#resources.make('input-stream', { read }) }
        }),
      '[method]descriptor.write-via-stream': (self: unknown, from: bigint) => output(self, from),
      '[method]descriptor.append-via-stream': (self: unknown) => output(self, 'end'),
    }
  }

  #failure({ value }: TaggedValue): StreamFailure {
    const code = (value as TaggedValue).tag
    return { failed: `the file system reports ${code}`, code }
  }

  #readAt(handle: number, at: number, length: number): TaggedValue {
    const params = { handle, at, length: Math.min(length, 262_144) }
    return this.#ask('read', params, (text) => this.#host.fromBase64(text as string))
  }

  #writeAt(handle: number, at: number, bytes: Uint8Array): TaggedValue {
    const data = this.#host.toBase64(bytes)
    return this.#ask('write', { handle, at, data }, (done) => BigInt((done as { count: number }).count))
  }

  #fileCalls(): Functions[string] {
    const sync = (self: unknown): TaggedValue => {
      const { dir } = this.#of(self)
      return typeof dir === 'string' ? { tag: 'ok' } : this.#ask('sync', { handle: dir })
    }
    return {
      '[method]descriptor.advise': () => ({ tag: 'ok' }),
      '[method]descriptor.sync-data': sync,
      '[method]descriptor.sync': sync,
      '[method]descriptor.get-flags': (self: unknown) => ({ tag: 'ok', value: this.#of(self).flags }),
      '[method]descriptor.get-type': (self: unknown) => ({
        tag: 'ok',
        value: { tag: this.#kinds[this.#of(self).kind] },
      }),
      '[method]descriptor.set-size': (self: unknown, size: bigint) =>
        this.#file(self, (handle) => this.#ask('truncate', { handle, size: Number(size) })),
      '[method]descriptor.read': (self: unknown, length: bigint, at: bigint) =>
        this.#file(self, (handle) => {
          const { tag, value } = this.#readAt(handle, Number(at), Number(length))
          if (tag === 'error') return { tag, value }
          return { tag, value: [value, (value as Uint8Array).length === 0 && length > 0n] }
        }),
      '[method]descriptor.write': (self: unknown, bytes: Uint8Array, at: bigint) =>
        this.#file(self, (handle) => this.#writeAt(handle, Number(at), bytes.subarray(0, 262_144))),
      '[method]descriptor.set-times': (self: unknown, atim: TaggedValue, mtim: TaggedValue) =>
        this.#ask('times', { ...this.#self(self), ...this.#times(atim, mtim) }),
      '[method]descriptor.stat': (self: unknown) => this.#stat(this.#self(self)),
      '[method]descriptor.metadata-hash': (self: unknown) => this.#identity(this.#self(self)),
      '[method]descriptor.is-same-object': (self: unknown, other: unknown) => {
        const [a, b] = [this.#identity(this.#self(self)), this.#identity(this.#self(other))]
        const key = ({ tag, value }: TaggedValue): string =>
          tag === 'ok' ? `${(value as Flags).upper} ${(value as Flags).lower}` : 'missing'
        return a.tag === 'ok' && key(a) === key(b)
      },
    }
  }

  /** An open file by its handle, a preopened directory by its path. */
  #self(self: unknown): Readonly<Record<string, unknown>> {
    const { dir } = this.#of(self)
    return typeof dir === 'string' ? { dir, path: '.', follow: true } : { handle: dir }
  }

  #times(atim: TaggedValue, mtim: TaggedValue): Readonly<Record<string, string>> {
    const one = ({ tag, value }: TaggedValue): string => {
      if (tag !== 'timestamp') return tag === 'now' ? 'now' : ''
      const { seconds, nanoseconds } = value as { seconds: bigint; nanoseconds: number }
      return String(seconds * 1_000_000_000n + BigInt(nanoseconds))
    }
    return { atim: one(atim), mtim: one(mtim) }
  }

  #askStat(where: Readonly<Record<string, unknown>>, use: (stat: FileStatus) => unknown): TaggedValue {
    return this.#ask(where.handle === undefined ? 'stat' : 'fstat', where, (stat) => use(stat as FileStatus))
  }

  #stat(where: Readonly<Record<string, unknown>>): TaggedValue {
    const time = (text: string): TaggedValue => {
      const ns = BigInt(text)
      const value = { seconds: ns / 1_000_000_000n, nanoseconds: Number(ns % 1_000_000_000n) }
      return { tag: 'some', value }
    }
    return this.#askStat(where, ({ kind, size, nlink, atim, mtim, ctim }) => ({
      type: { tag: this.#kinds[kind] ?? 'unknown' },
      'link-count': BigInt(nlink),
      size: BigInt(size),
      'data-access-timestamp': time(atim),
      'data-modification-timestamp': time(mtim),
      'status-change-timestamp': time(ctim),
    }))
  }

  #identity(where: Readonly<Record<string, unknown>>): TaggedValue {
    return this.#askStat(where, ({ dev, ino }) => ({ upper: BigInt(dev), lower: BigInt(ino) }))
  }

  #directoryCalls(): Functions[string] {
    return {
      '[method]descriptor.read-directory': (self: unknown) => {
        const { dir, kind } = this.#of(self)
        if (kind !== 'dir') return this.#error('not-directory')
        return this.#ask('list', typeof dir === 'string' ? { dir } : { handle: dir }, (list) => {
          const entries = (list as Listing['entries']).filter(({ name }) => name !== '.' && name !== '..')
          return this.#resources.make('directory-entry-stream', { entries, at: 0 })
        })
      },
      '[method]descriptor.open-at': (self: unknown, path: Flags, name: string, open: Flags, flags: Flags) =>
        this.#open(this.#of(self), { name, follow: path['symlink-follow'] === true, open, flags }),
      '[method]descriptor.create-directory-at': (self: unknown, path: string) =>
        this.#at('mkdir', self, path),
      '[method]descriptor.remove-directory-at': (self: unknown, path: string) =>
        this.#at('rmdir', self, path),
      '[method]descriptor.unlink-file-at': (self: unknown, path: string) => this.#at('unlink', self, path),
      '[method]descriptor.readlink-at': (self: unknown, path: string) =>
        this.#at('readlink', self, path, (text) => text),
    }
  }

  #nextEntry(self: unknown): TaggedValue {
    const listing = this.#resources.get<Listing>('directory-entry-stream', self)
    const entry = listing.entries[listing.at++]
    if (entry === undefined) return { tag: 'ok', value: { tag: 'none' } }
    const { name, kind } = entry
    const value = { type: { tag: this.#kinds[kind] ?? 'unknown' }, name }
    return { tag: 'ok', value: { tag: 'some', value } }
  }

  #open(
    { dir, kind }: Descriptor,
    how: { readonly name: string; readonly follow: boolean; readonly open: Flags; readonly flags: Flags },
  ): TaggedValue {
    if (kind !== 'dir') return this.#error('not-directory')
    const { create, directory, exclusive, truncate } = how.open
    // Writing to a directory means to change its entries, which needs no access to the directory itself.
    const write = how.flags.write === true && directory !== true
    const params = { create, directory, exclusive, truncate, write, read: how.flags.read, follow: how.follow }
    return this.#ask('open', { dir, path: how.name, ...params }, (ok) => {
      const opened = ok as { handle: number; kind: Descriptor['kind'] }
      return this.#descriptor(opened.handle, opened.kind, how.flags)
    })
  }

  #at(
    method: string,
    self: unknown,
    path: string,
    use?: (ok: unknown) => unknown,
    more: Readonly<Record<string, unknown>> = {},
  ): TaggedValue {
    const { dir, kind } = this.#of(self)
    return kind === 'dir' ? this.#ask(method, { dir, path, ...more }, use) : this.#error('not-directory')
  }

  #pathCalls(): Functions[string] {
    const follow = (flags: Flags) => ({ follow: flags['symlink-follow'] === true })
    const pair = (method: string, self: unknown, path: string, to: unknown, toPath: string): TaggedValue =>
      this.#at(method, self, path, (checked) => this.#host.charge(1000 * (Number(checked) || 1)), {
        toDir: this.#of(to).dir,
        to: toPath,
      })
    const statAt = (self: unknown, flags: Flags, path: string): Readonly<Record<string, unknown>> => ({
      dir: this.#of(self).dir,
      path,
      ...follow(flags),
    })
    return {
      '[method]descriptor.stat-at': (self: unknown, flags: Flags, path: string) =>
        this.#stat(statAt(self, flags, path)),
      '[method]descriptor.metadata-hash-at': (self: unknown, flags: Flags, path: string) =>
        this.#identity(statAt(self, flags, path)),
      '[method]descriptor.set-times-at': (
        self: unknown,
        flags: Flags,
        path: string,
        atim: TaggedValue,
        mtim: TaggedValue,
      ) => this.#at('times', self, path, undefined, { ...follow(flags), ...this.#times(atim, mtim) }),
      '[method]descriptor.link-at': (
        self: unknown,
        flags: Flags,
        path: string,
        to: unknown,
        toPath: string,
      ) => (flags['symlink-follow'] === true ? this.#error('invalid') : pair('link', self, path, to, toPath)),
      '[method]descriptor.rename-at': (self: unknown, path: string, to: unknown, toPath: string) =>
        pair('rename', self, path, to, toPath),
      '[method]descriptor.symlink-at': (self: unknown, target: string, path: string) =>
        this.#at('symlink', self, path, undefined, { target }),
    }
  }
}
