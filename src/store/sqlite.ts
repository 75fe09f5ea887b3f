import { chmodSync, closeSync, openSync } from 'node:fs'
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
 * Embedded SQLite: one connection that writes and one that reads committed rows. Calls are synchronous; a group commit
 * blocks the event loop for one sync.
 */
export function openSqlite(file: string): Engine {
  // Created before SQLite would, so that it is never readable for other users.
  closeSync(openSync(file, 'a', 0o600))
  chmodSync(file, 0o600)
  const writer = connect(file)
  const reader = connect(file)
  const sweeper = startSweeper(file)
  const tx: Tx = { run: async (sql, params = []) => writer.run(sql, params) }
  return {
    kind: 'sqlite',
    read: async (sql, params = []) => reader.run(sql, params),
    async begin(first) {
      await untilFree(() => writer.run('BEGIN IMMEDIATE', []))
      if (first) first.check(writer.run(first.sql, []))
      return tx
    },
    commit: async () => void writer.run('COMMIT', []),
    rollback: async () => void writer.run('ROLLBACK', []),
    async close() {
      await sweeper.stop()
      // PLATFORM: libsql closes the files only when its objects are collected; until then everything must be in the main file.
      try {
        writer.run('PRAGMA wal_checkpoint(TRUNCATE)', [])
      } catch {}
      reader.close()
      writer.close()
    },
  }
}

/**
 * Checkpoints the write-ahead log in a thread of its own: that takes several syncs, which must not block the event loop.
 * It never blocks a writer.
 */
const SWEEPER = `'use strict'
const { parentPort, workerData } = require('node:worker_threads')
const Database = require('node:module').createRequire(workerData.from)('libsql')
const database = new Database(workerData.file)
const timer = setInterval(() => {
  try { database.prepare('PRAGMA wal_checkpoint(PASSIVE)').all() } catch {}
}, workerData.everyMs)
parentPort.once('message', () => {
  clearInterval(timer)
  database.close()
  parentPort.close()
})
`
const SWEEP_MS = 500

function startSweeper(file: string): { readonly stop: () => Promise<void> } {
  const workerData = { file, from: import.meta.url, everyMs: SWEEP_MS }
  const worker = new Worker(SWEEPER, { eval: true, workerData })
  // Without the thread the write-ahead log only grows until the next start.
  worker.on('error', () => {})
  const gone = new Promise<void>((resolve) => worker.once('exit', () => resolve()))
  worker.unref()
  // INVARIANT: the thread is asked to stop, never terminated: libsql crashes the whole process if it is interrupted.
  const stop = (): Promise<void> => {
    worker.ref()
    worker.postMessage('stop')
    return gone
  }
  return { stop }
}

function connect(file: string) {
  const database = new Database(file) as unknown as Connection
  // FULL: an acknowledged commit survives a power loss. We wait for locks ourselves, off the event loop.
  for (const pragma of [
    'journal_mode = WAL',
    'synchronous = FULL',
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
