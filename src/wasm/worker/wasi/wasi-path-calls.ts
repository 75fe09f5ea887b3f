import type { DescriptorTable, GuestHost } from '../guest-host.ts'

/**
 * The `path_*` calls of WASI: decodes the guest's paths, checks the rights of the directory descriptor, and asks the host,
 * which resolves every path and checks it against the run's grants.
 *
 * The class text is part of the worker's source, so it may use only its arguments and JavaScript globals.
 */
export class WasiPathCalls {
  readonly #host: GuestHost
  readonly #table: DescriptorTable

  constructor(host: GuestHost, table: DescriptorTable) {
    this.#host = host
    this.#table = table
  }

  get functions(): Readonly<Record<string, unknown>> {
    const one = (method: string, right: bigint) => (fd: number, at: number, length: number) =>
      this.#named(fd, right, at, length, (path) => this.#table.ask(method, path))
    return {
      path_create_directory: one('mkdir', 1n << 9n),
      path_remove_directory: one('rmdir', 1n << 25n),
      path_unlink_file: one('unlink', 1n << 26n),
      path_filestat_get: (fd: number, flags: number, at: number, length: number, to: number) =>
        this.#named(fd, 1n << 18n, at, length, (path) =>
          this.#table.ask('stat', { ...path, follow: (flags & 1) === 1 }, (stat) =>
            this.#table.putStatus(stat, to),
          ),
        ),
      path_filestat_set_times: (
        fd: number,
        lookup: number,
        at: number,
        length: number,
        atim: bigint,
        mtim: bigint,
        flags: number,
      ) =>
        this.#named(fd, 1n << 20n, at, length, (path) => {
          const times = this.#table.times(atim, mtim, flags)
          if (times === undefined) return 28
          return this.#table.ask('times', { ...path, follow: (lookup & 1) === 1, ...times })
        }),
      path_readlink: (fd: number, at: number, length: number, to: number, size: number, used: number) =>
        this.#named(fd, 1n << 15n, at, length, (path) => this.#readlink(path, to, size, used)),
      ...this.#pairCalls(),
      path_open: (
        fd: number,
        lookup: number,
        at: number,
        length: number,
        oflags: number,
        rights: bigint,
        inheriting: bigint,
        flags: number,
        result: number,
      ) => this.#open(fd, { at, length }, { lookup, oflags, rights, inheriting, flags, result }),
    }
  }

  /** Calls with two paths. */
  #pairCalls(): Record<string, unknown> {
    type Path = { readonly dir: unknown; readonly path: string }
    const to = ({ dir, path }: Path) => ({ toDir: dir, to: path })
    return {
      path_rename: (fd: number, at: number, length: number, toFd: number, toAt: number, toLength: number) =>
        this.#named(fd, 1n << 16n, at, length, (from) =>
          this.#named(toFd, 1n << 17n, toAt, toLength, (target) =>
            this.#table.ask('rename', { ...from, ...to(target) }, (checked) => {
              // The host checked every file of the tree.
              this.#host.charge(1000 * (checked as number))
              return 0
            }),
          ),
        ),
      path_link: (
        fd: number,
        lookup: number,
        at: number,
        length: number,
        toFd: number,
        toAt: number,
        toLength: number,
      ) =>
        this.#named(fd, 1n << 11n, at, length, (from) =>
          this.#named(toFd, 1n << 12n, toAt, toLength, (target) =>
            (lookup & 1) === 1 ? 28 : this.#table.ask('link', { ...from, ...to(target) }),
          ),
        ),
      path_symlink: (textAt: number, textLength: number, fd: number, at: number, length: number) =>
        this.#named(fd, 1n << 24n, at, length, (path) =>
          this.#text(textAt, textLength, (target) => this.#table.ask('symlink', { ...path, target })),
        ),
    }
  }

  /** Decodes a text; the error number if it is too long, not UTF-8, or contains NUL. */
  #text(at: number, length: number, use: (text: string) => number): number {
    if (length >>> 0 > 4096) return 37
    this.#host.charge(length >>> 0)
    // Outside of the `try`: an address outside of the memory is a trap.
    const bytes = this.#host.memory(at, length).slice()
    let text: string
    try {
      text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes)
    } catch {
      return 25
    }
    return text.includes('\0') ? 28 : use(text)
  }

  #named(
    fd: number,
    right: bigint,
    at: number,
    length: number,
    use: (path: { readonly dir: unknown; readonly path: string }) => number,
  ): number {
    // NOTDIR comes before the rights: a file has none of the rights of directories.
    if (this.#table.use(fd, 0n, (open) => (open.kind === 'dir' ? 0 : 54)) === 54) return 54
    return this.#table.use(fd, right, ({ dir }) => this.#text(at, length, (path) => use({ dir, path })))
  }

  #readlink(path: Record<string, unknown>, to: number, size: number, used: number): number {
    return this.#table.ask('readlink', path, (text) => {
      const bytes = new TextEncoder().encode(text as string).subarray(0, size >>> 0)
      this.#host.memory(to, bytes.length).set(bytes)
      this.#table.data(used, 4).setUint32(0, bytes.length, true)
      return 0
    })
  }

  #open(
    fd: number,
    name: { readonly at: number; readonly length: number },
    how: {
      readonly lookup: number
      readonly oflags: number
      readonly rights: bigint
      readonly inheriting: bigint
      readonly flags: number
      readonly result: number
    },
  ): number {
    const [create, directory, exclusive, truncate] = [1, 2, 4, 8].map((bit) => (how.oflags & bit) !== 0)
    const needed = (1n << 13n) | (create ? 1n << 10n : 0n) | (truncate ? 1n << 19n : 0n)
    return this.#named(fd, needed, name.at, name.length, (path) =>
      this.#table.use(fd, 0n, (open) => {
        if (this.#table.full) return 33
        if ((how.flags & ~31) !== 0) return 28
        const wanted = BigInt.asUintN(64, how.rights)
        // Reading and writing must be inherited; other rights are dropped where they are not.
        if ((wanted & 66n & ~open.inheriting) !== 0n) return 76
        const [read, write] = [(wanted & 2n) !== 0n, (wanted & 64n) !== 0n]
        const asked = { read, write, create, exclusive, truncate, directory, follow: (how.lookup & 1) === 1 }
        return this.#table.ask('open', { ...path, ...asked }, (ok) => {
          const { handle, kind } = ok as { handle: number; kind: string }
          // Without write access to the file, its size cannot be changed either.
          const rights = wanted & open.inheriting & (write ? -1n : ~0x40_0100n)
          const inheriting = BigInt.asUintN(64, how.inheriting) & open.inheriting
          const { flags } = how
          const opened = this.#table.add(kind === 'dir' ? 'dir' : 'file', handle, {
            rights,
            inheriting,
            flags,
          })
          this.#table.data(how.result, 4).setUint32(0, opened, true)
          return 0
        })
      }),
    )
  }
}
