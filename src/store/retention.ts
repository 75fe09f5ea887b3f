import type { Row, Store, Tx, Value } from './sql.ts'

/** An ended sandbox, with the fields that retention needs. */
export type EndedRow = {
  readonly id: string
  readonly instance: string
  /** JSON. */
  readonly spec: string
  readonly endedAt: number
}

/** Which ended sandboxes to list. */
export type EndedQuery = {
  readonly states: readonly string[]
  readonly instance: string
  /** Sandboxes of this instance that ended before this time. */
  readonly before: number
  /** Sandboxes of other instances on the same database that ended before this time. */
  readonly othersBefore: number
  /** The last row of the previous page. */
  readonly after?: Pick<EndedRow, 'endedAt' | 'id'> | undefined
  readonly limit: number
}

const LOCK = 7_219_005

const marks = (values: readonly unknown[]): string => values.map(() => '?').join(',')

const toEnded = (row: Row): EndedRow => ({
  id: row.id as string,
  instance: row.instance as string,
  spec: row.spec as string,
  endedAt: row.ended_at as number,
})

/** A page, oldest first, of sandboxes that ended before a time and have no pending and no newer approval. */
export async function endedBefore(store: Store, query: EndedQuery): Promise<readonly EndedRow[]> {
  const { states, instance, before, othersBefore, after, limit } = query
  const params: Value[] = [before, ...states, instance, othersBefore, before]
  if (after) params.push(after.endedAt, after.id)
  const rows = await store.read(
    `SELECT id, instance, spec, ended_at FROM sandboxes
     WHERE ended_at < ? AND state IN (${marks(states)}) AND (instance = ? OR ended_at < ?)
       AND NOT EXISTS (SELECT 1 FROM approvals WHERE approvals.sandbox_id = sandboxes.id
         AND (approvals.state = 'pending' OR approvals.answered_at >= ?))
       ${after ? 'AND (ended_at, id) > (?, ?)' : ''}
     ORDER BY ended_at, id LIMIT ?`,
    [...params, limit],
  )
  return rows.map(toEnded)
}

/** The number of approvals of these sandboxes. */
export async function countApprovals(store: Store, sandboxIds: readonly string[]): Promise<number> {
  const sql = `SELECT COUNT(*) AS n FROM approvals WHERE sandbox_id IN (${marks(sandboxIds)})`
  return Number((await store.read(sql, sandboxIds))[0]?.n ?? 0)
}

/**
 * Removes sandboxes with their idempotency keys and approvals. Their tenants are kept, so that a tenant can still read its
 * part of the audit log, which is never removed.
 * INVARIANT: removes only ended sandboxes without pending approvals, whatever the caller passes.
 */
export async function forgetSandboxes(
  tx: Tx,
  kind: Store['kind'],
  { ids, states }: { readonly ids: readonly string[]; readonly states: readonly string[] },
): Promise<void> {
  if (!(await alone(tx, kind))) return
  const rows = await tx.run(
    `SELECT id FROM sandboxes WHERE id IN (${marks(ids)}) AND state IN (${marks(states)})
       AND NOT EXISTS (SELECT 1 FROM approvals
         WHERE approvals.sandbox_id = sandboxes.id AND approvals.state = 'pending')`,
    [...ids, ...states],
  )
  const gone = rows.map(({ id }) => id as string)
  if (gone.length === 0) return
  const these = marks(gone)
  await tx.run(
    `INSERT INTO former_sandboxes (id, tenant) SELECT id, tenant FROM sandboxes WHERE id IN (${these})
     ON CONFLICT (id) DO NOTHING`,
    gone,
  )
  await tx.run(`DELETE FROM idempotency WHERE sandbox_id IN (${these})`, gone)
  await tx.run(`DELETE FROM approvals WHERE sandbox_id IN (${these})`, gone)
  await tx.run(`DELETE FROM sandboxes WHERE id IN (${these})`, gone)
}

/** Two servers on one database would wait for each other's rows; the second one leaves the work to the first. */
async function alone(tx: Tx, kind: Store['kind']): Promise<boolean> {
  if (kind === 'sqlite') return true
  const sql = 'SELECT CASE WHEN pg_try_advisory_xact_lock(?) THEN 1 ELSE 0 END AS got'
  return (await tx.run(sql, [LOCK]))[0]?.got === 1
}
