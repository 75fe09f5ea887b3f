import type { FileInfo, GuestFiles, WatchOptions } from '../backends/backend.ts'

type Bytes = AsyncIterable<Uint8Array> | Iterable<Uint8Array>
type Range = { readonly offset?: number; readonly length?: number }

/** Files as the sandbox sees them: each operation is on record first, and crosses the wall like a command. */
export class SandboxFiles {
  readonly #record: (operation: string, path: string) => Promise<void>
  readonly #inside: () => GuestFiles

  constructor(record: (operation: string, path: string) => Promise<void>, inside: () => GuestFiles) {
    this.#record = record
    this.#inside = inside
  }

  async read(path: string, range?: Range): Promise<Uint8Array> {
    const chunks: Uint8Array[] = []
    for await (const chunk of this.readStream(path, range)) chunks.push(chunk)
    return Buffer.concat(chunks)
  }

  async *readStream(path: string, range?: Range): AsyncGenerator<Uint8Array> {
    await this.#record('read', path)
    yield* this.#inside().read(path, range)
  }

  /** Replaces the file, creating missing directories on the way. */
  async write(path: string, data: Uint8Array | string | AsyncIterable<Uint8Array>): Promise<void> {
    await this.#record('write', path)
    await this.#inside().write(path, bytesOf(data))
  }

  /** The names in a directory. */
  async list(path: string): Promise<readonly string[]> {
    return (await this.entries(path)).map(({ name }) => name).sort()
  }

  async entries(path: string, depth = 1): Promise<readonly FileInfo[]> {
    await this.#record('list', path)
    return this.#inside().list(path, depth)
  }

  async stat(path: string): Promise<FileInfo> {
    await this.#record('stat', path)
    return this.#inside().stat(path)
  }

  async makeDir(path: string): Promise<void> {
    await this.#record('make-dir', path)
    await this.#inside().makeDir(path)
  }

  async move(from: string, to: string): Promise<void> {
    await this.#record('move', `${from} to ${to}`)
    await this.#inside().move(from, to)
  }

  /** With everything below it. */
  async remove(path: string): Promise<void> {
    await this.#record('remove', path)
    await this.#inside().remove(path)
  }

  /** Ends when the signal is aborted. */
  async watch(path: string, options: WatchOptions): Promise<void> {
    await this.#record('watch', path)
    await this.#inside().watch(path, options)
  }

  /** A directory as a tar stream. */
  async *pack(path: string): AsyncGenerator<Uint8Array> {
    await this.#record('pack', path)
    yield* this.#inside().pack(path)
  }

  /** Unpacks a tar stream into a directory. */
  async unpack(path: string, data: Bytes): Promise<void> {
    await this.#record('unpack', path)
    await this.#inside().unpack(path, data)
  }
}

const bytesOf = (data: Uint8Array | string | AsyncIterable<Uint8Array>): Bytes =>
  typeof data === 'string' ? [Buffer.from(data)] : data instanceof Uint8Array ? [data] : data
