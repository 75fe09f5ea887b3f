import Database from 'libsql'
import { SandboxError } from '../model/errors.ts'
import { insertRows, tablesOf } from './copy-tables.ts'
import { assertCurrent } from './migrations.ts'
import { openStore, storeFile } from './open.ts'
import { openPostgres } from './postgres.ts'
import type { Row, Tx } from './sql.ts'

/** Copies a store that may be in use to a new SQLite file: the rows of one moment, without changing the source. */

type Connection = {
  prepare(sql: string): { all(...params: string[]): Row[]; run(...params: string[]): unknown }
  close(): void
}

const BUSY_MS = 10_000
const PAGE = 500

/** Copies the SQLite store of a state directory into another directory. */
export async function copySqlite(stateDir: string, to: string): Promise<void> {
  const source = new Database(storeFile(stateDir)) as unknown as Connection
  try {
    source.prepare(`PRAGMA busy_timeout = ${BUSY_MS}`).all()
    await assertCurrent(async (sql) => source.prepare(sql).all())
    // One read transaction: writers continue meanwhile.
    source.prepare('VACUUM INTO ?').run(storeFile(to))
  } catch (error) {
    if (error instanceof SandboxError) throw error
    throw new SandboxError('store-unwritable', `the store cannot be copied: ${(error as Error).message}`, {
      cause: error,
    })
  } finally {
    source.close()
  }
}

/** Copies a PostgreSQL store into a SQLite file in a directory. */
export async function copyPostgres(url: string, to: string): Promise<void> {
  const source = await openPostgres(url)
  const target = await openStore({ stateDir: to })
  try {
    const from = await source.begin()
    // All tables as of one moment, however long the copy takes.
    await from.run('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ')
    await assertCurrent((sql) => from.run(sql))
    const tables = await tablesOf(target)
    await target.write(async (tx) => {
      for (const table of tables) await copyTable(from, tx, table)
    })
  } finally {
    await source.rollback()
    await source.close()
    await target.close()
  }
}

async function copyTable(from: Tx, to: Tx, table: string): Promise<void> {
  await from.run(`DECLARE copied CURSOR FOR SELECT * FROM ${table}`)
  for (;;) {
    const page = await from.run(`FETCH ${PAGE} FROM copied`)
    if (page.length === 0) break
    await insertRows(to, table, page)
  }
  await from.run('CLOSE copied')
}
