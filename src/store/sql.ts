/** The only query layer: plain SQL with `?` placeholders for both engines. */

export type Value = string | number | null
/** One row of a result. */
export type Row = Readonly<Record<string, Value>>

/** Runs statements inside one transaction. */
export interface Tx {
  run(sql: string, params?: readonly Value[]): Promise<readonly Row[]>
}

/** The first query of every transaction. It has no parameters; `check` throws to refuse the transaction. */
export type FirstQuery = { readonly sql: string; readonly check: (rows: readonly Row[]) => void }

/** A database engine; `GroupCommit` turns it into a store. */
export interface Engine {
  readonly kind: 'sqlite' | 'postgres'
  /** Sees committed rows only. */
  read(sql: string, params?: readonly Value[]): Promise<readonly Row[]>
  /**
   * `first`: a query to run with it, and `locks`: names to lock until its end, in one order for all; both at no further round trip.
   * An engine whose transactions are exclusive needs no locks.
   */
  begin(first?: FirstQuery, locks?: readonly string[]): Promise<Tx>
  /** Resolves when everything is on disk. */
  commit(): Promise<void>
  rollback(): Promise<void>
  close(): Promise<void>
}

/** The database of this server. */
export interface Store {
  readonly kind: Engine['kind']
  read(sql: string, params?: readonly Value[]): Promise<readonly Row[]>
  /**
   * Runs the work in a transaction that it may share with others, and resolves once it is on disk.
   * INVARIANT: the work may run a second time, alone, if another one made the shared transaction fail; so it must have no
   * side effects except through `tx`.
   * `locks`: names that no other transaction of the database holds meanwhile.
   */
  write<T>(work: (tx: Tx) => Promise<T>, locks?: readonly string[]): Promise<T>
  /** Runs this query first in every transaction from now on; what its check throws refuses all writes in it. */
  guardWrites(first: FirstQuery): void
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
