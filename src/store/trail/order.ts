import type { Row, Store, Value } from '../sql.ts'
import type { TrailQuery } from './query.ts'

/**
 * One order over the chains of all nodes. Each node appends to its own chain; the first reader of all of them gives every
 * new record the next position. INVARIANT: a position never changes, within a chain positions follow `seq`, and a record that
 * is committed later gets a later position, so that nobody who reads by position misses one.
 */

const BATCH = 5000
const LOCK = 'trail order'

/** Gives positions to the records that have none. */
export async function orderRecords(store: Store): Promise<void> {
  for (;;) {
    if (!(await hasUnordered(store))) return
    const rows = await store.write(
      (tx) =>
        tx.run(
          `INSERT INTO trail_order (position, chain, seq)
           SELECT (SELECT COALESCE(MAX(position), -1) FROM trail_order) + ROW_NUMBER() OVER (ORDER BY time, chain, seq),
             chain, seq
           FROM (SELECT t.time, t.chain, t.seq FROM trail_heads h
             JOIN LATERAL (SELECT MAX(o.seq) AS seq FROM trail_order o WHERE o.chain = h.chain) AS done ON TRUE
             JOIN LATERAL (SELECT time, chain, seq FROM trail WHERE chain = h.chain AND seq > COALESCE(done.seq, -1)
               ORDER BY seq LIMIT ${BATCH}) AS t ON TRUE) AS fresh
           RETURNING position`,
        ),
      [LOCK],
    )
    if (rows.length < BATCH) return
  }
}

async function hasUnordered(store: Store): Promise<boolean> {
  const rows = await store.read(
    `SELECT 1 AS found FROM trail_heads h
     WHERE EXISTS (SELECT 1 FROM trail t WHERE t.chain = h.chain
       AND t.seq > COALESCE((SELECT MAX(o.seq) FROM trail_order o WHERE o.chain = h.chain), -1)) LIMIT 1`,
  )
  return rows.length > 0
}

/** The last position; -1 if there is none. */
export async function lastPosition(store: Store): Promise<number> {
  const rows = await store.read('SELECT MAX(position) AS position FROM trail_order')
  return Number(rows[0]?.position ?? -1)
}

/** A record with its place among those of all nodes. */
export type OrderedRow = { readonly position: number; readonly chain: string; readonly line: string }

/** The matching records of all chains; `after` and `before` are positions. */
export async function queryOrdered(store: Store, query: TrailQuery): Promise<readonly OrderedRow[]> {
  const clauses: string[] = []
  const params: Value[] = []
  const add = (clause: string, ...values: readonly (Value | undefined)[]): void => {
    if (values.some((value) => value === undefined)) return
    clauses.push(clause)
    params.push(...(values as readonly Value[]))
  }
  add('t.sandbox_id = ?', query.sandboxId)
  add('t.tenant = ?', query.tenant)
  add('t.agent_id = ?', query.agentId)
  add('t.exec_id = ?', query.execId)
  add('t.time >= ?', query.since)
  add('o.position > ?', query.after)
  add('o.position < ?', query.before)
  if (query.events) add(`t.event IN (${query.events.map(() => '?').join(',') || 'NULL'})`, ...query.events)
  const where = clauses.length > 0 ? `WHERE ${clauses.join(' AND ')}` : ''
  const rows = await store.read(
    `SELECT o.position, t.chain, t.line FROM trail_order o JOIN trail t ON t.chain = o.chain AND t.seq = o.seq
     ${where} ORDER BY o.position ${query.order === 'desc' ? 'DESC' : 'ASC'} LIMIT ?`,
    [...params, query.limit],
  )
  return rows.map(toOrdered)
}

const toOrdered = (row: Row): OrderedRow => ({
  position: row.position as number,
  chain: row.chain as string,
  line: row.line as string,
})

/** The chains that have a head. */
export async function chainsIn(store: Store): Promise<readonly string[]> {
  return (await store.read('SELECT chain FROM trail_heads ORDER BY chain')).map(
    ({ chain }) => chain as string,
  )
}
