import { chmodSync, closeSync, fdatasync, openSync } from 'node:fs'
import { promisify } from 'node:util'
import { Worker } from 'node:worker_threads'
import Database from 'libsql'
import { SandboxError } from '../model/errors.ts'
import type { Engine, Row, Tx, Value } from './sql.ts'

type Statement = {
  readonly reader: boolean
  all(...params: Value[]): Row[]
  run(...params: Value[]): unknown
}
type Connection = { prepare(sql: string): Statement; exec(sql: string): void; close(): void }

/** How long a write waits for another process (`ringfence key create` beside a running server). */
const BUSY_MS = 10_000

/** The limit of cached statements: ours are few and fixed; only lists of rows vary in length. */
const STATEMENTS = 512

/**
 * Embedded SQLite: one connection that writes and one that reads committed rows. Calls are synchronous; only the sync of a
 * group commit happens in another thread.
 */
export function openSqlite(file: string, sync: Sync = promisify(fdatasync)): Engine {
  // Created before SQLite would, so that it is never readable for other users.
  closeSync(openSync(file, 'a', 0o600))
  chmodSync(file, 0o600)
  const writer = connect(file)
  const reader = connect(file)
  const log = new WriteAheadLog(file, sync)
  const sweeper = new Sweeper(file)
  const tx: Tx = { run: async (sql, params = []) => writer.run(sql, params) }
  return {
    kind: 'sqlite',
    async read(sql, params = []) {
      const rows = reader.run(sql, params)
      await log.synced
      return rows
    },
    async begin(first) {
      log.assertIntact()
      if (log.isLong) await log.startAgain(() => sweeper.catchUp())
      await untilFree(() => writer.run('BEGIN IMMEDIATE', []))
      try {
        first?.check(writer.run(first.sql, []))
      } catch (error) {
        // An error of the disk has ended the transaction already.
        try {
          writer.run('ROLLBACK', [])
        } catch {}
        throw error
      }
      return tx
    },
    async commit() {
      writer.run('COMMIT', [])
      sweeper.committed()
      try {
        await log.sync()
      } catch (error) {
        await sweeper.stop()
        throw error
      }
    },
    rollback: async () => void writer.run('ROLLBACK', []),
    async close() {
      await sweeper.stop()
      // PLATFORM: libsql closes the files only when its objects are collected; until then everything must be in the main file.
      try {
        log.assertIntact()
        writer.run('PRAGMA wal_checkpoint(TRUNCATE)', [])
      } catch {}
      log.close()
      reader.close()
      writer.close()
    },
  }
}

/** After so many commits, of about 30 KB each, the file is used again from its beginning. */
const LONG_LOG = 500

/** Writes the contents of an open file to the disk. */
type Sync = (fd: number) => Promise<void>

/**
 * The file that SQLite appends commits to. We sync it ourselves, so that the event loop goes on meanwhile, and without the
 * file's times, which SQLite syncs too.
 * INVARIANT: nobody is told of a commit before its sync, nor reads it before, so what was acknowledged survives a power loss.
 */
class WriteAheadLog {
  readonly #fd: number
  readonly #sync: Sync
  #failure: Error | undefined
  #commits = 0
  /** The sync that is running, or the last one. */
  synced: Promise<void> = Promise.resolve()

  constructor(database: string, sync: Sync) {
    this.#fd = openSync(`${database}-wal`, 'r+')
    this.#sync = sync
  }

  get isLong(): boolean {
    return this.#commits >= LONG_LOG
  }

  /**
   * SQLite writes from the beginning of the file again once a checkpoint has caught up with the writer, which under load never
   * happens by itself: the writer waits for one. Syncing a file that grows takes twice as long.
   */
  async startAgain(checkpoint: () => Promise<void>): Promise<void> {
    this.#commits = 0
    await checkpoint()
  }

  async sync(): Promise<void> {
    this.#commits++
    const running = this.#sync(this.#fd).catch((error: Error) => {
      this.#failure = error
    })
    this.synced = running
    await running
    this.assertIntact()
  }

  /**
   * Throws after a failed sync, for ever: the kernel may have dropped what it could not write, and would report the next sync as a
   * success. The next start reads the log up to the first damaged page.
   */
  assertIntact(): void {
    if (!this.#failure) return
    throw new SandboxError('store-unwritable', `the disk did not store a commit: ${this.#failure.message}`, {
      hint: 'check the disk, then restart',
      cause: this.#failure,
    })
  }

  close(): void {
    closeSync(this.#fd)
  }
}

const CHECKPOINTS = `'use strict'
const { parentPort, workerData } = require('node:worker_threads')
const Database = require('node:module').createRequire(workerData.from)('libsql')
const database = new Database(workerData.file)
parentPort.on('message', (message) => {
  if (message === 'sweep') {
    try { database.prepare('PRAGMA wal_checkpoint(PASSIVE)').all() } catch {}
    parentPort.postMessage('swept')
    return
  }
  database.close()
  parentPort.close()
})
`
const SWEEP_MS = 500

/**
 * Checkpoints the write-ahead log in a thread of its own: that takes several syncs, which must not block the event loop.
 * It never blocks a writer.
 * PLATFORM: SQLite before 3.51.3 loses commits if a checkpoint of a log that is already copied begins while a commit starts the log
 * again (its "WAL-reset bug"). So one begins only if there was a commit after the last one's end, or while no commit can begin.
 */
class Sweeper {
  readonly #worker: Worker
  readonly #gone: Promise<void>
  readonly #timer: NodeJS.Timeout
  #isOver = false
  #hasNew = false
  #running: Promise<void> | undefined

  constructor(file: string) {
    this.#worker = new Worker(CHECKPOINTS, { eval: true, workerData: { file, from: import.meta.url } })
    // Without the thread the write-ahead log only grows until the next start.
    this.#worker.on('error', () => {})
    this.#gone = new Promise((resolve) =>
      this.#worker.once('exit', () => {
        this.#isOver = true
        resolve()
      }),
    )
    this.#worker.unref()
    this.#timer = setInterval(() => {
      if (this.#hasNew && !this.#running) void this.#sweep()
    }, SWEEP_MS).unref()
  }

  /** INVARIANT: is told of each commit before a checkpoint could have seen it. */
  committed(): void {
    this.#hasNew = true
  }

  /** Checkpoints everything that is committed; the caller sees to it that no commit begins before the end. */
  async catchUp(): Promise<void> {
    await this.#running
    await this.#sweep()
  }

  /** INVARIANT: the thread is asked to stop, never terminated: libsql crashes the whole process if it is interrupted. */
  async stop(): Promise<void> {
    clearInterval(this.#timer)
    await this.#running
    if (this.#isOver) return
    this.#isOver = true
    this.#worker.ref()
    this.#worker.postMessage('stop')
    await this.#gone
  }

  async #sweep(): Promise<void> {
    if (this.#isOver) return
    const swept = new Promise<void>((resolve) => this.#worker.once('message', () => resolve()))
    this.#worker.ref()
    this.#worker.postMessage('sweep')
    this.#running = Promise.race([swept, this.#gone])
    await this.#running
    this.#worker.unref()
    this.#running = undefined
    this.#hasNew = false
  }
}

function connect(file: string) {
  const database = new Database(file) as unknown as Connection
  // NORMAL: a commit does not sync, `WriteAheadLog` does; checkpoints still do. We wait for locks ourselves, off the event loop.
  for (const pragma of [
    'journal_mode = WAL',
    'synchronous = NORMAL',
    'busy_timeout = 0',
    'wal_autocheckpoint = 0',
  ])
    database.prepare(`PRAGMA ${pragma}`).all()
  const statements = new Map<string, Statement>()
  const prepared = (sql: string): Statement => {
    const known = statements.get(sql)
    if (known) return known
    if (statements.size >= STATEMENTS) statements.clear()
    const statement = database.prepare(sql)
    statements.set(sql, statement)
    return statement
  }
  return {
    run(sql: string, params: readonly Value[]): readonly Row[] {
      const statement = prepared(sql)
      if (statement.reader) return statement.all(...params)
      statement.run(...params)
      return []
    },
    close: () => database.close(),
  }
}

async function untilFree(attempt: () => unknown): Promise<void> {
  const deadline = performance.now() + BUSY_MS
  for (let pause = 1; ; pause = Math.min(pause * 2, 32)) {
    try {
      attempt()
      return
    } catch (error) {
      if (!isBusy(error)) throw error
      if (performance.now() > deadline)
        throw new SandboxError('store-unwritable', 'another process has locked the store', { cause: error })
    }
    await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random())))
  }
}

const isBusy = (error: unknown): boolean =>
  String((error as { readonly code?: unknown } | null)?.code).startsWith('SQLITE_BUSY')
