import type { GuestHost } from './guest-host.ts'

type Open = {
  readonly kind: 'stream' | 'dir' | 'file'
  /** For a directory: the host path prefix of its entries. */
  readonly path: string
  /** For a preopened directory: its name in the guest. */
  readonly preopen?: string
  /** For a file: the host's handle. */
  readonly handle?: number
  readonly append?: boolean
  at: number
}
type Stat = { readonly kind: string; readonly size: number; readonly mtimeMs: number; readonly ino: number }
type Reply = { readonly ok: unknown } | { readonly code: string }

/**
 * The guest's file descriptors. Descriptor numbers and offsets are kept here; the host opens, reads and writes the files
 * and checks each path against the run's grants.
 *
 * The class text is part of the worker's source, so it may use only its argument and JavaScript globals.
 */
export class WasiDescriptors {
  readonly #host: GuestHost
  readonly #open = new Map<number, Open>()
  readonly #codes: Readonly<Record<string, number>> = {
    'capability-denied': 44,
    'path-traversal': 76,
    'resource-exhausted': 22,
    unsupported: 58,
    'invalid-input': 28,
    exists: 20,
    'not-empty': 55,
    'is-directory': 31,
    'not-directory': 54,
    'bad-handle': 8,
  }

  constructor(host: GuestHost) {
    this.#host = host
    for (const fd of [0, 1, 2]) this.#open.set(fd, { kind: 'stream', path: '', at: 0 })
    for (const [index, { name, base }] of host.preopens.entries())
      this.#open.set(3 + index, { kind: 'dir', path: base, preopen: name, at: 0 })
  }

  get functions(): Readonly<Record<string, unknown>> {
    return { ...this.#descriptorCalls(), ...this.#pathCalls() }
  }

  #descriptorCalls(): Record<string, unknown> {
    const plain = (fd: number): number => this.#checked(fd, () => 0)
    return {
      fd_advise: plain,
      fd_allocate: () => 58,
      fd_close: (fd: number) => this.#checked(fd, (open) => this.#close(fd, open)),
      fd_datasync: plain,
      fd_sync: plain,
      fd_fdstat_get: (fd: number, at: number) => this.#checked(fd, (open) => this.#status(open, at)),
      fd_fdstat_set_flags: plain,
      fd_fdstat_set_rights: plain,
      fd_filestat_get: (fd: number, at: number) => this.#checked(fd, (open) => this.#fileStatus(open, at)),
      fd_filestat_set_size: (fd: number, size: bigint) =>
        this.#file(fd, (open) =>
          this.#error(this.#ask('truncate', { handle: open.handle, size: Number(size) })),
        ),
      fd_filestat_set_times: plain,
      fd_prestat_get: (fd: number, at: number) => this.#preopened(fd, at),
      fd_prestat_dir_name: (fd: number, at: number, length: number) => this.#preopenName(fd, at, length),
      fd_pread: (fd: number, vectors: number, count: number, offset: bigint, read: number) =>
        this.#file(fd, (open) => this.#readAt(open, vectors, count, Number(offset), read)),
      fd_pwrite: (fd: number, vectors: number, count: number, offset: bigint, written: number) =>
        this.#file(fd, (open) => this.#writeAt(open, vectors, count, Number(offset), written)),
      fd_readdir: (fd: number, at: number, length: number, cookie: bigint, used: number) =>
        this.#checked(fd, (open) => this.#list(open, { at, length, cookie: Number(cookie), used })),
      fd_renumber: (from: number, to: number) =>
        this.#checked(from, (open) => this.#renumber(from, to, open)),
      fd_seek: (fd: number, offset: bigint, whence: number, at: number) =>
        this.#checked(fd, (open) => this.#seek(open, offset, whence, at)),
      fd_tell: (fd: number, at: number) => this.#checked(fd, (open) => this.#seek(open, 0n, 1, at)),
    }
  }

  #pathCalls(): Record<string, unknown> {
    const one = (method: string) => (fd: number, at: number, length: number) =>
      this.#named(fd, at, length, (path) => this.#error(this.#ask(method, { path })))
    return {
      path_create_directory: one('mkdir'),
      path_remove_directory: one('rmdir'),
      path_unlink_file: one('unlink'),
      path_filestat_get: (fd: number, _flags: number, at: number, length: number, to: number) =>
        this.#named(fd, at, length, (path) => {
          const reply = this.#ask('stat', { path })
          return 'ok' in reply ? this.#putStatus(reply.ok as Stat, to) : this.#error(reply)
        }),
      path_filestat_set_times: () => 0,
      path_link: () => 58,
      path_symlink: () => 58,
      path_readlink: () => 28,
      path_rename: (fd: number, at: number, length: number, toFd: number, toAt: number, toLength: number) =>
        this.#named(fd, at, length, (from) =>
          this.#named(toFd, toAt, toLength, (to) => this.#error(this.#ask('rename', { path: from, to }))),
        ),
      path_open: (
        fd: number,
        _dirflags: number,
        at: number,
        length: number,
        oflags: number,
        rights: bigint,
        _inherit: bigint,
        flags: number,
        result: number,
      ) => this.#named(fd, at, length, (path) => this.#openPath(path, { oflags, rights, flags, result })),
    }
  }

  /** Reads into the guest's buffers from the descriptor's offset. */
  read(fd: number, vectors: number, count: number, read: number): number {
    return this.#file(fd, (open) => {
      const error = this.#readAt(open, vectors, count, open.at, read)
      if (error === 0) open.at += this.#data(read, 4).getUint32(0, true)
      return error
    })
  }

  /** Writes the guest's buffers at the descriptor's offset, or at the end of a file opened for appending. */
  write(fd: number, vectors: number, count: number, written: number): number {
    return this.#file(fd, (open) => {
      const error = this.#writeAt(open, vectors, count, open.append ? -1 : open.at, written)
      if (error === 0) open.at += this.#data(written, 4).getUint32(0, true)
      return error
    })
  }

  #data(at: number, length: number): DataView {
    const bytes = this.#host.memory(at, length)
    return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  }

  #ask(method: string, params: Readonly<Record<string, unknown>>): Reply {
    return this.#host.ask(`wasi:${method}`, params) as Reply
  }

  #error(reply: Reply): number {
    return 'ok' in reply ? 0 : (this.#codes[reply.code] ?? 29)
  }

  #checked(fd: number, use: (open: Open) => number): number {
    this.#host.charge(100)
    const open = this.#open.get(fd)
    return open === undefined ? 8 : use(open)
  }

  #file(fd: number, use: (open: Open) => number): number {
    return this.#checked(fd, (open) => (open.kind === 'file' ? use(open) : open.kind === 'dir' ? 31 : 8))
  }

  #named(fd: number, at: number, length: number, use: (path: string) => number): number {
    return this.#checked(fd, (open) => {
      if (open.kind !== 'dir') return 54
      if (length >>> 0 > 4096) return 37
      this.#host.charge(length >>> 0)
      let name: string
      try {
        name = new TextDecoder('utf-8', { fatal: true }).decode(this.#host.memory(at, length).slice())
      } catch {
        return 25
      }
      // SECURITY: a path always stays below its directory by name; the host checks where it resolves to.
      return use(open.path === '' ? name.replace(/^\/+/, '') || '.' : `${open.path}/${name}`)
    })
  }

  #openPath(
    path: string,
    how: {
      readonly oflags: number
      readonly rights: bigint
      readonly flags: number
      readonly result: number
    },
  ): number {
    const { oflags, rights, flags, result } = how
    if (this.#open.size > 128) return 33
    const directory = (oflags & 2) !== 0
    const wanted = {
      path,
      write: (rights & 64n) !== 0n && !directory,
      read: (rights & 2n) !== 0n,
      create: (oflags & 1) !== 0,
      exclusive: (oflags & 4) !== 0,
      truncate: (oflags & 8) !== 0,
      directory,
    }
    const reply = this.#ask('open', wanted)
    if (!('ok' in reply)) return this.#error(reply)
    const { handle, kind } = reply.ok as { handle: number; kind: string }
    let fd = 3
    while (this.#open.has(fd)) fd++
    const isDir = kind === 'dir'
    this.#open.set(fd, { kind: isDir ? 'dir' : 'file', path, handle, append: (flags & 1) !== 0, at: 0 })
    this.#data(result, 4).setUint32(0, fd, true)
    return 0
  }

  #close(fd: number, open: Open): number {
    this.#open.delete(fd)
    return open.handle === undefined ? 0 : this.#error(this.#ask('close', { handle: open.handle }))
  }

  #renumber(from: number, to: number, open: Open): number {
    const other = this.#open.get(to)
    if (other === undefined) return 8
    if (from === to) return 0
    this.#close(to, other)
    this.#open.delete(from)
    this.#open.set(to, open)
    return 0
  }

  #status(open: Open, at: number): number {
    const view = this.#data(at, 24)
    for (let index = 0; index < 24; index += 8) view.setBigUint64(index, 0n, true)
    // Report streams as unknown file type: a C library then buffers its output instead of writing every line.
    view.setUint8(0, open.kind === 'dir' ? 3 : open.kind === 'file' ? 4 : 0)
    view.setUint16(2, open.append ? 1 : 0, true)
    // All rights except seeking for streams.
    view.setBigUint64(8, open.kind === 'stream' ? 0x1fff_ffdbn : 0x1fff_ffffn, true)
    view.setBigUint64(16, open.kind === 'dir' ? 0x1fff_ffffn : 0n, true)
    return 0
  }

  #fileStatus(open: Open, at: number): number {
    if (open.kind === 'stream') return this.#putStatus({ kind: 'stream', size: 0, mtimeMs: 0, ino: 0 }, at)
    const reply =
      open.handle === undefined
        ? this.#ask('stat', { path: open.path === '' ? '.' : open.path })
        : this.#ask('fstat', { handle: open.handle })
    return 'ok' in reply ? this.#putStatus(reply.ok as Stat, at) : this.#error(reply)
  }

  #putStatus({ kind, size, mtimeMs, ino }: Stat, at: number): number {
    const view = this.#data(at, 64)
    for (let index = 0; index < 64; index += 8) view.setBigUint64(index, 0n, true)
    view.setBigUint64(8, BigInt(ino), true)
    view.setUint8(16, kind === 'dir' ? 3 : kind === 'file' ? 4 : 0)
    view.setBigUint64(24, 1n, true)
    view.setBigUint64(32, BigInt(size), true)
    for (const field of [40, 48, 56]) view.setBigUint64(field, BigInt(Math.round(mtimeMs)) * 1_000_000n, true)
    return 0
  }

  #preopened(fd: number, at: number): number {
    const name = this.#open.get(fd)?.preopen
    if (name === undefined) return 8
    const view = this.#data(at, 8)
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
      const view = this.#data((vectors >>> 0) + index * 8, 8)
      return this.#host.memory(view.getUint32(0, true), view.getUint32(4, true))
    })
  }

  #readAt(open: Open, vectors: number, count: number, at: number, read: number): number {
    const buffers = this.#buffers(vectors, count)
    if (buffers === undefined || !(at >= 0)) return 28
    const wanted = Math.min(
      262_144,
      buffers.reduce((sum, buffer) => sum + buffer.length, 0),
    )
    const reply = this.#ask('read', { handle: open.handle, at, length: wanted })
    if (!('ok' in reply)) return this.#error(reply)
    const bytes = this.#host.fromBase64(reply.ok as string)
    let used = 0
    for (const buffer of buffers) {
      const part = bytes.subarray(used, used + buffer.length)
      buffer.set(part)
      used += part.length
    }
    this.#data(read, 4).setUint32(0, used, true)
    return 0
  }

  #writeAt(open: Open, vectors: number, count: number, at: number, written: number): number {
    const buffers = this.#buffers(vectors, count)
    if (buffers === undefined || at < -1) return 28
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
    const reply = this.#ask('write', { handle: open.handle, at, data: this.#host.toBase64(whole) })
    if (!('ok' in reply)) return this.#error(reply)
    this.#data(written, 4).setUint32(0, reply.ok as number, true)
    return 0
  }

  #seek(open: Open, offset: bigint, whence: number, at: number): number {
    if (open.kind !== 'file') return open.kind === 'stream' ? 70 : 8
    let base = 0
    if (whence === 1) base = open.at
    else if (whence === 2) {
      const reply = this.#ask('fstat', { handle: open.handle })
      if (!('ok' in reply)) return this.#error(reply)
      base = (reply.ok as Stat).size
    } else if (whence !== 0) return 28
    const position = base + Number(offset)
    if (!(position >= 0) || !Number.isSafeInteger(position)) return 28
    open.at = position
    this.#data(at, 8).setBigUint64(0, BigInt(position), true)
    return 0
  }

  #list(
    open: Open,
    where: { readonly at: number; readonly length: number; readonly cookie: number; readonly used: number },
  ): number {
    if (open.kind !== 'dir') return 54
    const reply = this.#ask('list', { path: open.path === '' ? '.' : open.path })
    if (!('ok' in reply)) return this.#error(reply)
    const entries = reply.ok as readonly { readonly name: string; readonly kind: string }[]
    const buffer = this.#host.memory(where.at, where.length)
    let used = 0
    for (const [index, { name, kind }] of entries.entries()) {
      if (index < where.cookie || used >= buffer.length) continue
      const bytes = new TextEncoder().encode(name)
      const record = new Uint8Array(24 + bytes.length)
      const view = new DataView(record.buffer)
      view.setBigUint64(0, BigInt(index + 1), true)
      view.setBigUint64(8, BigInt(index + 1), true)
      view.setUint32(16, bytes.length, true)
      view.setUint8(20, kind === 'dir' ? 3 : kind === 'file' ? 4 : 0)
      record.set(bytes, 24)
      // The last record may be truncated, which tells the caller to ask again.
      const part = record.subarray(0, buffer.length - used)
      buffer.set(part, used)
      used += part.length
    }
    this.#data(where.used, 4).setUint32(0, used, true)
    return 0
  }
}
