import { type Row, rowsOf, type Store, type Tx, type Value } from '../sql.ts'

/** One stored record of the audit log: the canonical line, and the columns that queries use. */
export type TrailRow = {
  readonly seq: number
  readonly time: string
  readonly event: string
  readonly agentId: string | null
  readonly sandboxId: string | null
  readonly execId: string | null
  readonly tenant: string | null
  readonly line: string
}

const COLUMNS = 9
/** A few fixed sizes, so that each statement is prepared once. */
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
      row.tenant,
      row.line,
    ])
    await tx.run(
      `INSERT INTO trail (chain, seq, time, event, agent_id, sandbox_id, exec_id, tenant, line)
       VALUES ${rowsOf(part.length, COLUMNS)}`,
      params,
    )
    at += part.length
  }
}

/** The signed head of the last commit; locked until the end of the transaction. */
export async function headOf(tx: Tx, chain: string, kind: Store['kind']): Promise<string | undefined> {
  const lock = kind === 'postgres' ? ' FOR UPDATE' : ''
  const rows = await tx.run(`SELECT anchor FROM trail_heads WHERE chain = ?${lock}`, [chain])
  return rows[0]?.anchor as string | undefined
}

/** Saves the signed head of a log. */
export async function saveHead(tx: Tx, chain: string, anchor: string): Promise<void> {
  await tx.run(
    `INSERT INTO trail_heads (chain, anchor) VALUES (?, ?)
     ON CONFLICT (chain) DO UPDATE SET anchor = excluded.anchor`,
    [chain, anchor],
  )
}

/** Reads the signed head of a log. */
export async function readHead(store: Store, chain: string): Promise<string | undefined> {
  const rows = await store.read('SELECT anchor FROM trail_heads WHERE chain = ?', [chain])
  return rows[0]?.anchor as string | undefined
}

/** Ids in one statement. */
const NAMES = 256

/** The tenant of each sandbox, also after its record was pruned; unknown ids are absent. */
export async function tenantsOfSandboxes(
  run: (sql: string, params: readonly Value[]) => Promise<readonly Row[]>,
  ids: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const tenants = new Map<string, string>()
  for (let at = 0; at < ids.length; at += NAMES) {
    const some = ids.slice(at, at + NAMES)
    const marks = some.map(() => '?').join(',')
    const sql = `SELECT id, tenant FROM former_sandboxes WHERE id IN (${marks})
      UNION ALL SELECT id, tenant FROM sandboxes WHERE id IN (${marks})`
    for (const row of await run(sql, [...some, ...some])) tenants.set(row.id as string, row.tenant as string)
  }
  return tenants
}

/** The number of the last record. */
export async function lastSeqOf(store: Store, chain: string): Promise<number> {
  const rows = await store.read('SELECT MAX(seq) AS seq FROM trail WHERE chain = ?', [chain])
  return Number(rows[0]?.seq ?? -1)
}
