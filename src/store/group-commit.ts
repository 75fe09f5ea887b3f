import { SandboxError } from '../model/errors.ts'
import type { Engine, Row, Store, Tx, Value } from './sql.ts'

type Waiting = {
  readonly work: (tx: Tx) => Promise<unknown>
  readonly resolve: (value: unknown) => void
  readonly reject: (error: unknown) => void
}

/** How many may share one transaction; more would hold the loop too long. */
const GROUP = 256

/** Whoever writes while a commit runs shares the next one, and so its one sync of the disk. */
export class GroupCommit implements Store {
  readonly #engine: Engine
  readonly #queue: Waiting[] = []
  #draining: Promise<void> | undefined
  #closed = false

  constructor(engine: Engine) {
    this.#engine = engine
  }

  get kind(): Engine['kind'] {
    return this.#engine.kind
  }

  read(sql: string, params: readonly Value[] = []): Promise<readonly Row[]> {
    return this.#engine.read(sql, params).catch(unusable)
  }

  async write<T>(work: (tx: Tx) => Promise<T>): Promise<T> {
    if (this.#closed) throw new SandboxError('store-unwritable', 'the store is closed')
    const done = new Promise<unknown>((resolve, reject) => {
      this.#queue.push({ work, resolve, reject })
    })
    this.#draining ??= this.#drain()
    return (await done) as T
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.#draining
    await this.#engine.close()
  }

  async #drain(): Promise<void> {
    while (this.#queue.length > 0) {
      // One turn of the loop gathers everybody who wants to write now.
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
      // Nobody is to blame for a store that does not answer, and to ask it again for each would take for ever.
      const isAway = known instanceof SandboxError && known.code === 'store-unwritable'
      if (group.length === 1 || isAway) {
        for (const { reject } of group) reject(known)
        return
      }
      // One of them is to blame; alone each gets its own answer.
      for (const one of group) await this.#commit([one])
    }
  }

  async #transaction(group: readonly Waiting[]): Promise<unknown[]> {
    const tx = await this.#engine.begin()
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
  // The first name that fits counts: these two are what SQLite says when its own working files find no room.
  SQLITE_IOERR_SHMSIZE: 'free some space; nothing runs without its record',
  SQLITE_IOERR_WRITE: 'free some space; nothing runs without its record',
  SQLITE_IOERR: 'look at the state of the disk',
  SQLITE_CANTOPEN: 'the state directory must be writable and files must be left to open; see `ulimit -n`',
  SQLITE_BUSY: 'another process holds the store; try again',
  SQLITE_CORRUPT: 'the store is damaged; keep it as evidence and start with another state directory',
  SQLITE_NOTADB: 'the store is damaged; keep it as evidence and start with another state directory',
  ENOSPC: 'free some space; nothing runs without its record',
  EROFS: 'the state directory must be writable; see RINGFENCE_HOME',
  EMFILE: 'too many open files; raise `ulimit -n`',
  ECONNREFUSED: 'the database does not answer; see --database-url',
  ENOENT: 'the database does not answer; see --database-url',
  ENOTFOUND: 'the host of the database is not known; see --database-url',
  ETIMEDOUT: 'the database does not answer; see --database-url',
  ERR_INVALID_URL: 'the address of the database is wrong: postgres://user@host/name; see --database-url',
  '3D000': 'there is no such database on that server: create it (`createdb NAME`), or see --database-url',
  '28': 'the database refused the user or password; see --database-url',
  '42501': 'the user of the database may not create tables in it',
}

/** What an engine says of the disk or the network becomes one of our errors; ours pass through. */
export function asUnusable(error: unknown): unknown {
  const code = (error as { readonly code?: unknown } | null)?.code
  if (error instanceof SandboxError || typeof code !== 'string') return error
  const known = Object.keys(HINTS).find((name) => code.startsWith(name))
  // Class 08: connection, 53: resources, 57: shutdown, 58: system.
  if (known === undefined && !/^(E[A-Z]+$|08|53|57|58)/.test(code)) return error
  return new SandboxError('store-unwritable', `the store cannot be used: ${code}`, {
    hint: HINTS[known ?? ''] ?? 'look at the disk and the database',
    retryAfterSecs: 5,
    cause: error,
  })
}

function unusable(error: unknown): never {
  throw asUnusable(error)
}
