import { SandboxError } from '../model/errors.ts'
import type { Engine, FirstQuery, Row, Store, Tx, Value } from './sql.ts'

type Waiting = {
  readonly work: (tx: Tx) => Promise<unknown>
  readonly locks: readonly string[]
  readonly resolve: (value: unknown) => void
  readonly reject: (error: unknown) => void
}

/** How many writes may share one transaction; more would block the event loop too long. */
const GROUP = 256

/** Writes that arrive during a commit share the next transaction, and so its single sync. */
export class GroupCommit implements Store {
  readonly #engine: Engine
  readonly #queue: Waiting[] = []
  #draining: Promise<void> | undefined
  #closed = false
  #first: FirstQuery | undefined

  constructor(engine: Engine) {
    this.#engine = engine
  }

  get kind(): Engine['kind'] {
    return this.#engine.kind
  }

  read(sql: string, params: readonly Value[] = []): Promise<readonly Row[]> {
    return this.#engine.read(sql, params).catch(unusable)
  }

  async write<T>(work: (tx: Tx) => Promise<T>, locks: readonly string[] = []): Promise<T> {
    if (this.#closed) throw new SandboxError('store-unwritable', 'the store is closed')
    const done = new Promise<unknown>((resolve, reject) => {
      this.#queue.push({ work, locks, resolve, reject })
    })
    this.#draining ??= this.#drain()
    return (await done) as T
  }

  guardWrites(first: FirstQuery): void {
    this.#first = first
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#draining
    await this.#engine.close()
  }

  async #drain(): Promise<void> {
    while (this.#queue.length > 0) {
      // One turn of the event loop collects all pending writes.
      await new Promise<void>((resolve) => setImmediate(resolve))
      await this.#commit(this.#queue.splice(0, GROUP))
    }
    this.#draining = undefined
  }

  async #commit(group: readonly Waiting[]): Promise<void> {
    try {
      const results = await this.#transaction(group)
      for (const [index, { resolve }] of group.entries()) resolve(results[index])
    } catch (error) {
      const known = asUnusable(error)
      // If the store does not answer, no single write caused it, and retrying each one would take too long.
      const isAway = known instanceof SandboxError && known.code === 'store-unwritable'
      if (group.length === 1 || isAway) {
        for (const { reject } of group) reject(known)
        return
      }
      // One of them caused the failure; each one runs alone and gets its own result.
      for (const one of group) await this.#commit([one])
    }
  }

  async #transaction(group: readonly Waiting[]): Promise<unknown[]> {
    // All at once and first: two groups that took them one by one could wait for each other.
    const locks = [...new Set(group.flatMap((one) => one.locks))]
    const tx = await this.#engine.begin(this.#first, locks)
    try {
      const results: unknown[] = []
      for (const { work } of group) results.push(await work(tx))
      await this.#engine.commit()
      return results
    } catch (error) {
      await this.#engine.rollback().catch(() => {})
      throw error
    }
  }
}

const HINTS: Readonly<Record<string, string>> = {
  SQLITE_FULL: 'free some space; nothing runs without its record',
  SQLITE_READONLY: 'the state directory must be writable; see RINGFENCE_HOME',
  // The first prefix that matches counts: SQLite reports these two if there is no space for its own working files.
  SQLITE_IOERR_SHMSIZE: 'free some space; nothing runs without its record',
  SQLITE_IOERR_WRITE: 'free some space; nothing runs without its record',
  SQLITE_IOERR: 'check the disk',
  SQLITE_CANTOPEN:
    'the state directory must be writable and file descriptors must be available; see `ulimit -n`',
  SQLITE_BUSY: 'another process has locked the store; try again',
  SQLITE_CORRUPT: 'the store is corrupt; keep it as evidence and start with another state directory',
  SQLITE_NOTADB: 'the store is corrupt; keep it as evidence and start with another state directory',
  ENOSPC: 'free some space; nothing runs without its record',
  EROFS: 'the state directory must be writable; see RINGFENCE_HOME',
  EMFILE: 'too many open files; raise `ulimit -n`',
  ECONNREFUSED: 'the database does not respond; see --database-url',
  ENOENT: 'the database does not respond; see --database-url',
  ENOTFOUND: 'the host name of the database cannot be resolved; see --database-url',
  ETIMEDOUT: 'the database does not respond; see --database-url',
  ERR_INVALID_URL: 'the database URL is not valid: use postgres://user@host/name; see --database-url',
  '3D000': 'the database does not exist on that server: create it (`createdb NAME`), or see --database-url',
  '28': 'the database rejected the user or password; see --database-url',
  '42501': 'the database user has no permission to create tables',
}

/** Translates errors of the disk, the network or a caller's text to a SandboxError; other errors pass through. */
export function asUnusable(error: unknown): unknown {
  const code = (error as { readonly code?: unknown } | null)?.code
  if (error instanceof SandboxError || typeof code !== 'string') return error
  // PLATFORM: PostgreSQL stores no NUL character, and reports it even if the text is only looked for.
  if (code === '22021')
    return new SandboxError('invalid-input', 'the text contains a NUL character', { cause: error })
  const known = Object.keys(HINTS).find((name) => code.startsWith(name))
  // Class 08: connection, 53: resources, 57: shutdown, 58: system.
  if (known === undefined && !/^(E[A-Z]+$|08|53|57|58)/.test(code)) return error
  return new SandboxError('store-unwritable', `the store cannot be used: ${code}`, {
    hint: HINTS[known ?? ''] ?? 'check the disk and the database',
    retryAfterSecs: 5,
    cause: error,
  })
}

function unusable(error: unknown): never {
  throw asUnusable(error)
}
