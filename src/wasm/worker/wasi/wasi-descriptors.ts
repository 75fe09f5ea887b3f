import type { FileStatus, GuestHost, OpenDescriptor, SystemReply } from '../guest-host.ts'

/**
 * The guest's file descriptors. Descriptor numbers, offsets, flags and rights are kept here; the host opens, reads and
 * writes the files and checks each path against the run's grants. Rights only restrict a descriptor further.
 *
 * The class text is part of the worker's source, so it may use only its argument and JavaScript globals.
 */
export class WasiDescriptors {
  readonly #host: GuestHost
  readonly #open = new Map<number, OpenDescriptor>()
  /** Rights that apply to directories, files and streams. */
  readonly #applicable = { dir: 0x0fbf_fe99n, file: 0x08e0_01ffn, stream: 0x1fff_ffdbn }
  readonly #types: Readonly<Record<string, number>> = { device: 2, dir: 3, file: 4, socket: 6, link: 7 }
  readonly #codes: Readonly<Record<string, number>> = {
    'capability-denied': 44,
    'path-traversal': 76,
    'resource-exhausted': 22,
    unsupported: 58,
    'invalid-input': 28,
    'bad-handle': 8,
    EACCES: 2,
    EBADF: 8,
    EBUSY: 10,
    EDQUOT: 19,
    EEXIST: 20,
    EINVAL: 28,
    EISDIR: 31,
    ELOOP: 32,
    EMFILE: 33,
    EMLINK: 34,
    ENAMETOOLONG: 37,
    ENOENT: 44,
    ENOSPC: 51,
    ENOTDIR: 54,
    ENOTEMPTY: 55,
    EPERM: 63,
    EROFS: 69,
    ETXTBSY: 74,
    EXDEV: 75,
  }

  constructor(host: GuestHost) {
    this.#host = host
    const nothing = { flags: 0, inheriting: 0n, at: 0 }
    for (const fd of [0, 1, 2])
      this.#open.set(fd, { ...nothing, kind: 'stream', stream: fd, rights: this.#applicable.stream })
    const { dir } = this.#applicable
    for (const [index, { name, base }] of host.preopens.entries()) {
      const inheriting = dir | this.#applicable.file
      this.#open.set(3 + index, {
        ...nothing,
        kind: 'dir',
        dir: base,
        preopen: name,
        rights: dir,
        inheriting,
      })
    }
  }

  get functions(): Readonly<Record<string, unknown>> {
    return { ...this.#statusCalls(), ...this.#dataCalls() }
  }

  #statusCalls(): Record<string, unknown> {
    const noSocket = (fd: number): number => this.use(fd, 0n, () => 57)
    return {
      fd_close: (fd: number) => this.use(fd, 0n, (open) => this.#close(fd, open)),
      fd_fdstat_get: (fd: number, at: number) => this.use(fd, 0n, (open) => this.#status(open, at)),
      fd_fdstat_set_flags: (fd: number, flags: number) =>
        this.use(fd, 8n, (open) => {
          if ((flags & ~31) !== 0) return 28
          open.flags = flags
          return 0
        }),
      fd_fdstat_set_rights: (fd: number, rights: bigint, inheriting: bigint) =>
        this.use(fd, 0n, (open) => this.#narrow(open, rights, inheriting)),
      fd_filestat_get: (fd: number, at: number) =>
        this.use(fd, 1n << 21n, (open) => this.#fileStatus(open, at)),
      fd_prestat_get: (fd: number, at: number) => this.#preopened(fd, at),
      fd_prestat_dir_name: (fd: number, at: number, length: number) => this.#preopenName(fd, at, length),
      fd_readdir: (fd: number, at: number, length: number, cookie: bigint, used: number) =>
        this.use(fd, 1n << 14n, (open) => this.#list(open, { at, length, cookie, used })),
      fd_renumber: (from: number, to: number) => this.use(from, 0n, (open) => this.#renumber(from, to, open)),
      sock_accept: noSocket,
      sock_recv: noSocket,
      sock_send: noSocket,
      sock_shutdown: noSocket,
    }
  }

  #dataCalls(): Record<string, unknown> {
    const sync = (right: bigint) => (fd: number) =>
      this.use(fd, right, (open) => (open.kind === 'stream' ? 0 : this.ask('sync', { handle: open.dir })))
    return {
      fd_advise: (fd: number, _offset: bigint, _length: bigint, advice: number) =>
        this.#file(fd, 128n, () => (advice >>> 0 > 5 ? 28 : 0)),
      fd_allocate: (fd: number, offset: bigint, length: bigint) =>
        this.#file(fd, 256n, ({ dir }) =>
          this.ask('allocate', { handle: dir, at: Number(offset), length: Number(length) }),
        ),
      fd_datasync: sync(1n),
      fd_sync: sync(16n),
      fd_filestat_set_size: (fd: number, size: bigint) =>
        this.#file(fd, 1n << 22n, ({ dir }) => this.ask('truncate', { handle: dir, size: Number(size) })),
      fd_filestat_set_times: (fd: number, atim: bigint, mtim: bigint, flags: number) =>
        this.use(fd, 1n << 23n, (open) => this.#setTimes(open, this.times(atim, mtim, flags))),
      fd_pread: (fd: number, vectors: number, count: number, offset: bigint, read: number) =>
        this.#file(fd, 2n, (open) => this.#readAt(open, vectors, count, Number(offset), read)),
      fd_pwrite: (fd: number, vectors: number, count: number, offset: bigint, written: number) =>
        this.#file(fd, 64n, (open) => {
          const done = this.#writeAt(open, vectors, count, Number(offset))
          return typeof done === 'number' ? done : this.#put(written, done.count)
        }),
      fd_seek: (fd: number, offset: bigint, whence: number, at: number) =>
        this.#file(fd, offset === 0n && whence === 1 ? 0n : 4n, (open) =>
          this.#seek(open, offset, whence, at),
        ),
      fd_tell: (fd: number, at: number) => this.#file(fd, 32n, (open) => this.#seek(open, 0n, 1, at)),
    }
  }

  /** The standard stream behind a descriptor, wherever `fd_renumber` moved it. */
  stream(fd: number): number | undefined {
    return this.#open.get(fd)?.stream
  }

  /** Whether an open descriptor has these rights; costs nothing. */
  allows(fd: number, rights: bigint): boolean {
    return ((this.#open.get(fd)?.rights ?? 0n) & rights) === rights
  }

  /** Reads into the guest's buffers from the descriptor's offset. */
  read(fd: number, vectors: number, count: number, read: number): number {
    return this.#file(fd, 2n, (open) => {
      const error = this.#readAt(open, vectors, count, open.at, read)
      if (error === 0) open.at += this.data(read, 4).getUint32(0, true)
      return error
    })
  }

  /** Writes the guest's buffers at the descriptor's offset, or at the end of a file opened for appending. */
  write(fd: number, vectors: number, count: number, written: number): number {
    return this.#file(fd, 64n, (open) => {
      const done = this.#writeAt(open, vectors, count, (open.flags & 1) === 1 ? -1 : open.at)
      if (typeof done === 'number') return done
      open.at = done.end
      return this.#put(written, done.count)
    })
  }

  /** The descriptor, if it is open and has every one of the rights; otherwise BADF or NOTCAPABLE. */
  use(fd: number, rights: bigint, action: (open: OpenDescriptor) => number): number {
    this.#host.charge(100)
    const open = this.#open.get(fd)
    if (open === undefined) return 8
    return (open.rights & rights) === rights ? action(open) : 76
  }

  /** A file, not a directory or stream. */
  #file(fd: number, rights: bigint, action: (open: OpenDescriptor) => number): number {
    const kind = this.#open.get(fd)?.kind
    if (kind === 'dir') return this.use(fd, 0n, () => 31)
    return kind === 'stream' ? this.use(fd, 0n, () => 70) : this.use(fd, rights, action)
  }

  /** A new descriptor with the lowest free number. */
  add(
    kind: 'dir' | 'file',
    dir: number,
    { rights, inheriting, flags }: Pick<OpenDescriptor, 'rights' | 'inheriting' | 'flags'>,
  ): number {
    let fd = 3
    while (this.#open.has(fd)) fd++
    const applicable = rights & this.#applicable[kind]
    this.#open.set(fd, { kind, dir, flags, rights: applicable, inheriting, at: 0 })
    return fd
  }

  get full(): boolean {
    return this.#open.size > 128
  }

  data(at: number, length: number): DataView {
    const bytes = this.#host.memory(at, length)
    return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  }

  /** Asks the host; passes its reply to `use`. Returns the error number, or 0. */
  ask(method: string, params: Readonly<Record<string, unknown>>, use?: (ok: unknown) => number): number {
    const reply = this.#host.ask(`wasi:${method}`, params) as SystemReply
    if (!('ok' in reply)) return this.#codes[reply.code] ?? 29
    return use === undefined ? 0 : use(reply.ok)
  }

  #put(at: number, value: number): number {
    this.data(at, 4).setUint32(0, value, true)
    return 0
  }

  #close(fd: number, open: OpenDescriptor): number {
    this.#open.delete(fd)
    return typeof open.dir === 'number' ? this.ask('close', { handle: open.dir }) : 0
  }

  #renumber(from: number, to: number, open: OpenDescriptor): number {
    const other = this.#open.get(to)
    if (other === undefined) return 8
    if (from === to) return 0
    this.#close(to, other)
    this.#open.delete(from)
    this.#open.set(to, open)
    return 0
  }

  #narrow(open: OpenDescriptor, rights: bigint, inheriting: bigint): number {
    const [base, below] = [BigInt.asUintN(64, rights), BigInt.asUintN(64, inheriting)]
    if ((base & ~open.rights) !== 0n || (below & ~open.inheriting) !== 0n) return 76
    open.rights = base
    open.inheriting = below
    return 0
  }

  #status(open: OpenDescriptor, at: number): number {
    const view = this.data(at, 24)
    for (let index = 0; index < 24; index += 8) view.setBigUint64(index, 0n, true)
    // Report streams as unknown file type: a C library then buffers its output instead of writing every line.
    view.setUint8(0, this.#types[open.kind] ?? 0)
    view.setUint16(2, open.flags, true)
    view.setBigUint64(8, open.rights, true)
    view.setBigUint64(16, open.inheriting, true)
    return 0
  }

  #fileStatus({ kind, dir }: OpenDescriptor, at: number): number {
    if (kind === 'stream') {
      for (let index = 0; index < 64; index += 8) this.data(at, 64).setBigUint64(index, 0n, true)
      return 0
    }
    const [method, params] =
      typeof dir === 'string' ? ['stat', { dir, path: '.', follow: true }] : ['fstat', { handle: dir }]
    return this.ask(method as string, params as Record<string, unknown>, (stat) => this.putStatus(stat, at))
  }

  putStatus(stat: unknown, at: number): number {
    const { kind, size, dev, ino, nlink, atim, mtim, ctim } = stat as FileStatus
    const view = this.data(at, 64)
    const fields = [dev, ino, this.#types[kind] ?? 0, nlink, size, atim, mtim, ctim]
    for (const [index, field] of fields.entries()) {
      view.setBigUint64(index * 8, BigInt.asUintN(64, BigInt(field)), true)
    }
    return 0
  }

  /** The wanted times in nanoseconds, `now`, or `undefined` if the flags contradict each other. */
  times(atim: bigint, mtim: bigint, flags: number): Record<string, string> | undefined {
    if ((flags & 3) === 3 || (flags & 12) === 12 || (flags & ~15) !== 0) return undefined
    const one = (value: bigint, set: number, now: number): string =>
      (flags & set) !== 0 ? String(BigInt.asUintN(64, value)) : (flags & now) !== 0 ? 'now' : ''
    return { atim: one(atim, 1, 2), mtim: one(mtim, 4, 8) }
  }

  #setTimes({ kind, dir }: OpenDescriptor, times: Record<string, string> | undefined): number {
    if (times === undefined) return 28
    if (kind === 'stream') return 58
    if (typeof dir === 'string') return this.ask('times', { dir, path: '.', follow: true, ...times })
    return this.ask('times', { handle: dir, ...times })
  }

  #preopened(fd: number, at: number): number {
    const name = this.#open.get(fd)?.preopen
    if (name === undefined) return 8
    const view = this.data(at, 8)
    view.setUint32(0, 0, true)
    view.setUint32(4, new TextEncoder().encode(name).length, true)
    return 0
  }

  #preopenName(fd: number, at: number, length: number): number {
    const name = this.#open.get(fd)?.preopen
    if (name === undefined) return 8
    const bytes = new TextEncoder().encode(name)
    if (bytes.length > length >>> 0) return 37
    this.#host.memory(at, bytes.length).set(bytes)
    return 0
  }

  #buffers(vectors: number, count: number): Uint8Array[] | undefined {
    if (count >>> 0 > 1024) return undefined
    return Array.from({ length: count }, (_, index) => {
      const view = this.data((vectors >>> 0) + index * 8, 8)
      return this.#host.memory(view.getUint32(0, true), view.getUint32(4, true))
    })
  }

  #readAt({ dir }: OpenDescriptor, vectors: number, count: number, at: number, read: number): number {
    const buffers = this.#buffers(vectors, count)
    if (buffers === undefined || !(at >= 0)) return 28
    const wanted = Math.min(
      262_144,
      buffers.reduce((sum, buffer) => sum + buffer.length, 0),
    )
    return this.ask('read', { handle: dir, at, length: wanted }, (text) => {
      const bytes = this.#host.fromBase64(text as string)
      let used = 0
      for (const buffer of buffers) {
        const part = bytes.subarray(used, used + buffer.length)
        buffer.set(part)
        used += part.length
      }
      return this.#put(read, used)
    })
  }

  /** Returns the number of bytes and the offset after them, or an error number. */
  #writeAt({ dir, flags }: OpenDescriptor, vectors: number, count: number, at: number) {
    const buffers = this.#buffers(vectors, count)
    if (buffers === undefined || !(at >= -1)) return 28
    const whole = new Uint8Array(
      Math.min(
        262_144,
        buffers.reduce((sum, buffer) => sum + buffer.length, 0),
      ),
    )
    let used = 0
    for (const buffer of buffers) {
      const part = buffer.subarray(0, whole.length - used)
      whole.set(part, used)
      used += part.length
    }
    let done: { count: number; end: number } | undefined
    // DSYNC, RSYNC and SYNC: the data is on disk before the call returns.
    const params = { handle: dir, at, data: this.#host.toBase64(whole), sync: (flags & 26) !== 0 }
    const error = this.ask('write', params, (ok) => {
      done = ok as { count: number; end: number }
      return 0
    })
    return done ?? error
  }

  #seek(open: OpenDescriptor, offset: bigint, whence: number, at: number): number {
    let base = whence === 1 ? open.at : 0
    if (whence === 2) {
      const error = this.ask('fstat', { handle: open.dir }, (stat) => {
        base = (stat as FileStatus).size
        return 0
      })
      if (error !== 0) return error
    }
    const position = base + Number(offset)
    if (whence >>> 0 > 2 || !(position >= 0) || !Number.isSafeInteger(position)) return 28
    open.at = position
    this.data(at, 8).setBigUint64(0, BigInt(position), true)
    return 0
  }

  #list(
    open: OpenDescriptor,
    where: { readonly at: number; readonly length: number; readonly cookie: bigint; readonly used: number },
  ): number {
    if (open.kind !== 'dir') return 54
    // A cookie is an index into the names that were read at the start: entries removed meanwhile shift nothing.
    if (where.cookie === 0n || open.entries === undefined) {
      const from = typeof open.dir === 'string' ? { dir: open.dir } : { handle: open.dir }
      const error = this.ask('list', from, (entries) => {
        open.entries = entries as NonNullable<OpenDescriptor['entries']>
        return 0
      })
      if (error !== 0) return error
    }
    const entries = open.entries ?? []
    const buffer = this.#host.memory(where.at, where.length)
    let used = 0
    const first = where.cookie < BigInt(entries.length) ? Number(where.cookie) : entries.length
    for (let index = first; index < entries.length && used < buffer.length; index++) {
      const { name, kind, ino } = entries[index] as { name: string; kind: string; ino: string }
      const bytes = new TextEncoder().encode(name)
      const record = new Uint8Array(24 + bytes.length)
      const view = new DataView(record.buffer)
      view.setBigUint64(0, BigInt(index + 1), true)
      view.setBigUint64(8, BigInt(ino), true)
      view.setUint32(16, bytes.length, true)
      view.setUint8(20, this.#types[kind] ?? 0)
      record.set(bytes, 24)
      // The last record may be truncated, which tells the caller to ask again.
      const part = record.subarray(0, buffer.length - used)
      buffer.set(part, used)
      used += part.length
    }
    return this.#put(where.used, used)
  }
}
