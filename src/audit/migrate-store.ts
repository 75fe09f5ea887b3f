import { SandboxError } from '../model/errors.ts'
import { type CopiedTable, copyTables, countRows } from '../store/copy-tables.ts'
import type { Store } from '../store/sql.ts'
import { canonical } from './canonical.ts'
import { pathsOf, replaceFile, syncDir } from './files.ts'
import { trailLocation } from './open-store-trail.ts'
import { StoreTrailReader } from './store-read.ts'

/** What a migration copied. */
export type Migration = {
  /** `false`: an earlier migration already copied the records. */
  readonly copied: boolean
  readonly tables: readonly CopiedTable[]
  readonly records: number
}

/**
 * Moves the records of a state directory from SQLite to PostgreSQL: copies them in one transaction, compares them, verifies
 * the audit log in the new store, and only then changes the location file. The SQLite file stays.
 */
export async function migrateStore(home: string, from: () => Promise<Store>, to: Store): Promise<Migration> {
  const location = trailLocation(home)
  if (location?.kind === 'postgres') return { copied: false, tables: [], records: await verified(home, to) }
  if (location === undefined)
    throw new SandboxError(
      'wrong-state',
      'no server has run on this state directory yet: there is nothing to move',
      {
        hint: 'start the server with the database URL; it imports the audit log',
      },
    )
  const source = await from()
  try {
    const tables = await copyTables(source, to)
    for (const { table, rows } of tables) await compare(table, rows, source, to)
    const records = await verified(home, to)
    replaceFile(pathsOf(home).store, `${canonical({ kind: to.kind })}\n`)
    syncDir(pathsOf(home).anchor)
    return { copied: true, tables, records }
  } finally {
    await source.close()
  }
}

/** Detects a server that still writes: records after the copy would be lost. */
async function compare(table: string, rows: number, source: Store, to: Store): Promise<void> {
  const [before, after] = [await countRows(source, table), await countRows(to, table)]
  if (before === rows && after === rows) return
  throw new SandboxError(
    'conflict',
    `\`${table}\` changed during the copy: ${rows} copied, ${before} there`,
    {
      hint: 'stop the server, empty the database and try again; the records are still in SQLite',
    },
  )
}

async function verified(home: string, store: Store): Promise<number> {
  const verdict = await new StoreTrailReader(home, store).verify({})
  if (verdict.ok) return verdict.records
  throw new SandboxError(
    'trail-unwritable',
    `the copy does not verify: record ${verdict.seq}: ${verdict.problem}`,
    {
      hint: 'the records are still in SQLite; check them with `ringfence audit verify`',
    },
  )
}
