import { SandboxError } from '../model/errors.ts'
import { type Row, rowsOf, type Store, type Tx, type Value } from './sql.ts'

/** Copies everything of one store to another, empty one: all of it, or nothing. */

export type CopiedTable = { readonly table: string; readonly rows: number }

const PAGE = 500

/** Tables with records of a SQLite store; each store creates the schema's own bookkeeping itself. */
export async function tablesOf(sqlite: Store): Promise<readonly string[]> {
  const rows = await sqlite.read(
    `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name NOT LIKE 'libsql_%'
     AND name <> 'migrations' ORDER BY name`,
  )
  return rows.map(({ name }) => String(name))
}

/** The number of rows in a table. */
export async function countRows(store: Store | Tx, table: string): Promise<number> {
  const sql = `SELECT COUNT(*) AS count FROM ${table}`
  const rows = 'read' in store ? await store.read(sql) : await store.run(sql)
  return Number(rows[0]?.count ?? 0)
}

/** One transaction of the target. INVARIANT: it may run twice, so it only reads the source. */
export async function copyTables(from: Store, to: Store): Promise<readonly CopiedTable[]> {
  const tables = await tablesOf(from)
  return to.write(async (tx) => {
    const copied: CopiedTable[] = []
    for (const table of tables) {
      const there = await countRows(tx, table)
      if (there > 0) throw notEmpty(table, there)
    }
    for (const table of tables) copied.push({ table, rows: await copyTable(from, tx, table) })
    return copied
  })
}

async function copyTable(from: Store, tx: Tx, table: string): Promise<number> {
  let copied = 0
  for (let after = 0; ; ) {
    const page = await from.read(
      `SELECT rowid AS copied_rowid, * FROM ${table} WHERE rowid > ? ORDER BY rowid LIMIT ${PAGE}`,
      [after],
    )
    if (page.length === 0) return copied
    await insertRows(tx, table, page)
    copied += page.length
    after = Number(page.at(-1)?.copied_rowid)
  }
}

/** Inserts rows as they were read. */
export async function insertRows(tx: Tx, table: string, page: readonly Row[]): Promise<void> {
  const columns = Object.keys(page[0] as Row).filter((name) => name !== 'copied_rowid')
  const values = page.flatMap((row) => columns.map((name): Value => row[name] ?? null))
  await tx.run(
    `INSERT INTO ${table} (${columns.join(', ')}) VALUES ${rowsOf(page.length, columns.length)}`,
    values,
  )
}

const notEmpty = (table: string, rows: number): SandboxError =>
  new SandboxError('conflict', `the database is not empty: \`${table}\` has ${rows} rows`, {
    hint: 'nothing was copied; name an empty database',
  })
