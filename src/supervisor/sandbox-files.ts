import { setTimeout as sleep } from 'node:timers/promises'
import type { FileInfo, FileMetadata, GuestFiles, PackOptions, WatchOptions } from '../backends/backend.ts'
import { SandboxError } from '../model/errors.ts'
import { assertEntries, wholeOf } from '../model/files/whole.ts'

type Bytes = AsyncIterable<Uint8Array> | Iterable<Uint8Array>
type Range = { readonly offset?: number; readonly length?: number }

/** How long a pause waits for file operations in progress; a longer transfer continues after it. */
const SETTLE_MS = 2000

/** File operations in the sandbox: each is recorded first, and runs inside the isolation like a command. */
export class SandboxFiles {
  readonly #record: (operation: string, path: string) => Promise<void>
  readonly #inside: () => GuestFiles
  readonly #state: { readonly underWay: Set<Promise<unknown>>; held: boolean }

  constructor(
    record: (operation: string, path: string) => Promise<void>,
    inside: () => GuestFiles,
    of?: SandboxFiles,
  ) {
    this.#record = record
    this.#inside = inside
    this.#state = of ? of.#state : { underWay: new Set(), held: false }
  }

  /** The same files; what is created belongs to this user of a sandbox with a root user. */
  ownedBy(user: string): SandboxFiles {
    const inside = (): GuestFiles => this.#inside().ownedBy?.(user) ?? this.#inside()
    return new SandboxFiles(this.#record, inside, this)
  }

  /** At most 64 MiB; a range with an explicit length may be longer. */
  async read(path: string, range?: Range): Promise<Uint8Array> {
    const whole = await wholeOf(`\`${path}\``, this.readStream(path, range), range?.length)
    return Buffer.from(whole.buffer, whole.byteOffset, whole.length)
  }

  async *readStream(path: string, range?: Range): AsyncGenerator<Uint8Array> {
    yield* this.#stream('read', path, (inside) => inside.read(path, range))
  }

  /** Replaces the file with its metadata, and creates missing parent directories. */
  async write(
    path: string,
    data: Uint8Array | string | AsyncIterable<Uint8Array>,
    metadata?: FileMetadata,
  ): Promise<void> {
    await this.#run('write', path, (inside) => inside.write(path, bytesOf(data), metadata))
  }

  /** The names in a directory. */
  async list(path: string): Promise<readonly string[]> {
    return (await this.entries(path)).map(({ name }) => name).sort()
  }

  /** At most 50,000 entries. */
  async entries(path: string, depth = 1): Promise<readonly FileInfo[]> {
    const found = await this.#run('list', path, (inside) => inside.list(path, depth))
    assertEntries(path, found.length)
    return found
  }

  async stat(path: string): Promise<FileInfo> {
    return this.#run('stat', path, (inside) => inside.stat(path))
  }

  async makeDir(path: string): Promise<void> {
    await this.#run('make-dir', path, (inside) => inside.makeDir(path))
  }

  async move(from: string, to: string): Promise<void> {
    await this.#run('move', `${from} to ${to}`, (inside) => inside.move(from, to))
  }

  /** Removes a file, or a directory with everything below it. */
  async remove(path: string): Promise<void> {
    await this.#run('remove', path, (inside) => inside.remove(path))
  }

  /** Reports changes until the signal aborts. */
  async watch(path: string, options: WatchOptions): Promise<void> {
    await this.#record('watch', path)
    await this.#inside().watch(path, options)
  }

  /** Reads a directory as a tar stream. */
  async *pack(path: string, options?: PackOptions): AsyncGenerator<Uint8Array> {
    yield* this.#stream('pack', path, (inside) => inside.pack(path, options))
  }

  /** Unpacks a tar stream into a directory. */
  async unpack(path: string, data: Bytes): Promise<void> {
    await this.#run('unpack', path, (inside) => inside.unpack(path, data))
  }

  /** Rejects new operations and waits briefly for those in progress, which would hang in a paused sandbox. */
  async hold(): Promise<void> {
    this.#state.held = true
    await Promise.race([Promise.all(this.#state.underWay), sleep(SETTLE_MS, undefined, { ref: false })])
  }

  release(): void {
    this.#state.held = false
  }

  async #run<T>(operation: string, path: string, work: (inside: GuestFiles) => Promise<T>): Promise<T> {
    const ends = this.#begin()
    try {
      await this.#record(operation, path)
      return await work(this.#inside())
    } finally {
      ends()
    }
  }

  async *#stream(
    operation: string,
    path: string,
    work: (inside: GuestFiles) => AsyncIterable<Uint8Array>,
  ): AsyncGenerator<Uint8Array> {
    const ends = this.#begin()
    try {
      await this.#record(operation, path)
      yield* work(this.#inside())
    } finally {
      ends()
    }
  }

  #begin(): () => void {
    if (this.#state.held)
      throw new SandboxError('wrong-state', 'the sandbox is paused', { hint: 'resume it first' })
    let ends = (): void => {}
    const done = new Promise<void>((resolve) => {
      ends = resolve
    })
    this.#state.underWay.add(done)
    return () => {
      this.#state.underWay.delete(done)
      ends()
    }
  }
}

const bytesOf = (data: Uint8Array | string | AsyncIterable<Uint8Array>): Bytes =>
  typeof data === 'string' ? [Buffer.from(data)] : data instanceof Uint8Array ? [data] : data
