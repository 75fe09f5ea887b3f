import { setTimeout as sleep } from 'node:timers/promises'
import type { FileInfo, GuestFiles, WatchOptions } from '../backends/backend.ts'
import { SandboxError } from '../model/errors.ts'
import { wholeOf } from '../model/whole.ts'

type Bytes = AsyncIterable<Uint8Array> | Iterable<Uint8Array>
type Range = { readonly offset?: number; readonly length?: number }

/** How long a pause waits for files that are under way; a longer transfer goes on after it. */
const SETTLE_MS = 2000

/** Files as the sandbox sees them: each operation is on record first, and crosses the wall like a command. */
export class SandboxFiles {
  readonly #record: (operation: string, path: string) => Promise<void>
  readonly #inside: () => GuestFiles
  readonly #underWay = new Set<Promise<unknown>>()
  #held = false

  constructor(record: (operation: string, path: string) => Promise<void>, inside: () => GuestFiles) {
    this.#record = record
    this.#inside = inside
  }

  /** At most 64 MiB; a range with a length of its own may be longer. */
  async read(path: string, range?: Range): Promise<Uint8Array> {
    return Buffer.concat(await wholeOf(`\`${path}\``, this.readStream(path, range), range?.length))
  }

  async *readStream(path: string, range?: Range): AsyncGenerator<Uint8Array> {
    yield* this.#stream('read', path, (inside) => inside.read(path, range))
  }

  /** Replaces the file, creating missing directories on the way. */
  async write(path: string, data: Uint8Array | string | AsyncIterable<Uint8Array>): Promise<void> {
    await this.#run('write', path, (inside) => inside.write(path, bytesOf(data)))
  }

  /** The names in a directory. */
  async list(path: string): Promise<readonly string[]> {
    return (await this.entries(path)).map(({ name }) => name).sort()
  }

  async entries(path: string, depth = 1): Promise<readonly FileInfo[]> {
    return this.#run('list', path, (inside) => inside.list(path, depth))
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

  /** With everything below it. */
  async remove(path: string): Promise<void> {
    await this.#run('remove', path, (inside) => inside.remove(path))
  }

  /** Ends when the signal is aborted. */
  async watch(path: string, options: WatchOptions): Promise<void> {
    await this.#record('watch', path)
    await this.#inside().watch(path, options)
  }

  /** A directory as a tar stream. */
  async *pack(path: string): AsyncGenerator<Uint8Array> {
    yield* this.#stream('pack', path, (inside) => inside.pack(path))
  }

  /** Unpacks a tar stream into a directory. */
  async unpack(path: string, data: Bytes): Promise<void> {
    await this.#run('unpack', path, (inside) => inside.unpack(path, data))
  }

  /** Takes nothing new, and waits a moment for what is under way: whoever asked would hang on a sandbox that stands still. */
  async hold(): Promise<void> {
    this.#held = true
    await Promise.race([Promise.all(this.#underWay), sleep(SETTLE_MS, undefined, { ref: false })])
  }

  release(): void {
    this.#held = false
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
    if (this.#held)
      throw new SandboxError('wrong-state', 'the sandbox is paused', { hint: 'resume it first' })
    let ends = (): void => {}
    const done = new Promise<void>((resolve) => {
      ends = resolve
    })
    this.#underWay.add(done)
    return () => {
      this.#underWay.delete(done)
      ends()
    }
  }
}

const bytesOf = (data: Uint8Array | string | AsyncIterable<Uint8Array>): Bytes =>
  typeof data === 'string' ? [Buffer.from(data)] : data instanceof Uint8Array ? [data] : data
