/** The one query layer: plain SQL with `?` placeholders that both engines understand. */

export type Value = string | number | null
export type Row = Readonly<Record<string, Value>>

/** What runs inside one transaction. */
export interface Tx {
  run(sql: string, params?: readonly Value[]): Promise<readonly Row[]>
}

/** What an engine must be able to do; `GroupCommit` makes a store of it. */
export interface Engine {
  readonly kind: 'sqlite' | 'postgres'
  /** Committed rows only. */
  read(sql: string, params?: readonly Value[]): Promise<readonly Row[]>
  begin(): Promise<Tx>
  /** Resolves when everything is on the disk. */
  commit(): Promise<void>
  rollback(): Promise<void>
  close(): Promise<void>
}

/** Records at rest. */
export interface Store {
  readonly kind: Engine['kind']
  read(sql: string, params?: readonly Value[]): Promise<readonly Row[]>
  /**
   * Runs the work in a transaction that it may share with others, and resolves once it is on the disk.
   * INVARIANT: the work may be run a second time, alone, when another one spoiled the shared transaction; so it
   * changes nothing but what it does through `tx`.
   */
  write<T>(work: (tx: Tx) => Promise<T>): Promise<T>
  close(): Promise<void>
}

/** `?` → `$1`, `$2`, …: none of our statements has a question mark in a literal. */
export function numbered(sql: string): string {
  let count = 0
  return sql.replace(/\?/g, () => `$${++count}`)
}

/** `(?,?),(?,?)` for several rows in one statement. */
export const rowsOf = (rows: number, columns: number): string =>
  Array.from({ length: rows }, () => `(${Array.from({ length: columns }, () => '?').join(',')})`).join(',')
