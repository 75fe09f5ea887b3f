import { SandboxError } from '../model/errors.ts'
import { type CopiedTable, copyTables, countRows } from '../store/copy-tables.ts'
import type { Store } from '../store/sql.ts'
import { canonical } from './canonical.ts'
import { pathsOf, replaceFile, syncDir } from './files.ts'
import { trailLocation } from './open-store-trail.ts'
import { StoreTrailReader } from './store-read.ts'

export type Migration = {
  /** `false`: an earlier one had done it. */
  readonly copied: boolean
  readonly tables: readonly CopiedTable[]
  readonly records: number
}

/**
 * Moves the records of a state directory from SQLite to PostgreSQL: copied in one transaction, compared, the chain of the
 * audit log verified in its new place, and only then the note of where they live is changed. The SQLite file stays.
 */
export async function migrateStore(home: string, from: () => Promise<Store>, to: Store): Promise<Migration> {
  const place = trailLocation(home)
  if (place?.kind === 'postgres') return { copied: false, tables: [], records: await verified(home, to) }
  if (place === undefined)
    throw new SandboxError(
      'wrong-state',
      'no server has run on this state directory yet: there is nothing to move',
      {
        hint: 'start the server with the database URL; it takes the audit log over by itself',
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

/** A server that still writes would lose what came after the copy. */
async function compare(table: string, rows: number, source: Store, to: Store): Promise<void> {
  const [before, after] = [await countRows(source, table), await countRows(to, table)]
  if (before === rows && after === rows) return
  throw new SandboxError(
    'conflict',
    `\`${table}\` changed during the copy: ${rows} copied, ${before} there`,
    {
      hint: 'stop the server, empty the database and try again; the records still live in SQLite',
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
      hint: 'the records still live in SQLite; look at them with `ringfence audit verify`',
    },
  )
}
