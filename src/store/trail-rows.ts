import { type Row, rowsOf, type Store, type Tx, type Value } from './sql.ts'

/** One record of the trail at rest: the canonical line, and beside it what is searched for. */
export type TrailRow = {
  readonly seq: number
  readonly time: string
  readonly event: string
  readonly agentId: string | null
  readonly sandboxId: string | null
  readonly execId: string | null
  readonly line: string
}

/** Which records; every field that is given must match. */
export type TrailQuery = {
  readonly events?: readonly string[] | undefined
  readonly agentId?: string | undefined
  readonly sandboxId?: string | undefined
  readonly execId?: string | undefined
  /** ISO time, at or after. */
  readonly since?: string | undefined
  /** Only what belongs to this tenant's sandboxes. */
  readonly tenant?: string | undefined
  /** Records with a greater `seq`. */
  readonly after?: number | undefined
  /** Records with a smaller `seq`. */
  readonly before?: number | undefined
  readonly order?: 'asc' | 'desc' | undefined
  readonly limit: number
}

const COLUMNS = 8
/** A few lengths of statement only, so that each is prepared once. */
const ROWS = [128, 16, 4, 1] as const

/** Appends records; the caller holds the chain's head in the same transaction. */
export async function insertTrail(tx: Tx, chain: string, rows: readonly TrailRow[]): Promise<void> {
  for (let at = 0; at < rows.length; ) {
    const part = rows.slice(at, at + (ROWS.find((size) => size <= rows.length - at) ?? 1))
    const params = part.flatMap((row): Value[] => [
      chain,
      row.seq,
      row.time,
      row.event,
      row.agentId,
      row.sandboxId,
      row.execId,
      row.line,
    ])
    await tx.run(
      `INSERT INTO trail (chain, seq, time, event, agent_id, sandbox_id, exec_id, line)
       VALUES ${rowsOf(part.length, COLUMNS)}`,
      params,
    )
    at += part.length
  }
}

/** The signed head as the last commit left it; in a transaction it stays put until the end. */
export async function headOf(tx: Tx, chain: string, kind: Store['kind']): Promise<string | undefined> {
  const lock = kind === 'postgres' ? ' FOR UPDATE' : ''
  const rows = await tx.run(`SELECT anchor FROM trail_heads WHERE chain = ?${lock}`, [chain])
  return rows[0]?.anchor as string | undefined
}

export async function saveHead(tx: Tx, chain: string, anchor: string): Promise<void> {
  await tx.run(
    `INSERT INTO trail_heads (chain, anchor) VALUES (?, ?)
     ON CONFLICT (chain) DO UPDATE SET anchor = excluded.anchor`,
    [chain, anchor],
  )
}

export async function readHead(store: Store, chain: string): Promise<string | undefined> {
  const rows = await store.read('SELECT anchor FROM trail_heads WHERE chain = ?', [chain])
  return rows[0]?.anchor as string | undefined
}

/** The matching records of one chain. */
export async function queryTrail(store: Store, chain: string, query: TrailQuery): Promise<TrailRow[]> {
  const { clauses, params } = conditionsOf(query)
  const order = query.order === 'desc' ? 'DESC' : 'ASC'
  const rows = await store.read(
    `SELECT seq, time, event, agent_id, sandbox_id, exec_id, line FROM trail
     WHERE ${['chain = ?', ...clauses].join(' AND ')} ORDER BY seq ${order} LIMIT ?`,
    [chain, ...params, query.limit],
  )
  return rows.map(toRow)
}

function conditionsOf(query: TrailQuery): { readonly clauses: string[]; readonly params: Value[] } {
  const clauses: string[] = []
  const params: Value[] = []
  const add = (clause: string, ...values: readonly (Value | undefined)[]): void => {
    if (values.includes(undefined)) return
    clauses.push(clause)
    params.push(...(values as Value[]))
  }
  if (query.events) add(`event IN (${query.events.map(() => '?').join(',')})`, ...query.events)
  add('agent_id = ?', query.agentId)
  add('sandbox_id = ?', query.sandboxId)
  add('exec_id = ?', query.execId)
  add('time >= ?', query.since)
  add('seq > ?', query.after)
  add('seq < ?', query.before)
  // Looked up for each record: a list of everything that was ever theirs would only grow.
  add(
    `(EXISTS (SELECT 1 FROM sandboxes s WHERE s.id = trail.sandbox_id AND s.tenant = ?)
       OR EXISTS (SELECT 1 FROM former_sandboxes f WHERE f.id = trail.sandbox_id AND f.tenant = ?))`,
    query.tenant,
    query.tenant,
  )
  return { clauses, params }
}

const toRow = (row: Row): TrailRow => ({
  seq: row.seq as number,
  time: row.time as string,
  event: row.event as string,
  agentId: row.agent_id as string | null,
  sandboxId: row.sandbox_id as string | null,
  execId: row.exec_id as string | null,
  line: row.line as string,
})
