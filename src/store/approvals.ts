import type { Row, Store, Tx, Value } from './sql.ts'

/** The state of an approval. */
export type ApprovalState = 'pending' | 'approved' | 'rejected' | 'expired'

/** An approval request, and its answer. */
export type ApprovalRow = {
  readonly id: string
  readonly tenant: string
  readonly sandboxId: string
  /** The command that waited; null in records of earlier versions. */
  readonly execId: string | null
  readonly agentId: string | null
  readonly command: string
  readonly cwd: string
  /** JSON. */
  readonly decision: string
  readonly state: ApprovalState
  readonly answeredBy: string | null
  /** The reason that the person gave. */
  readonly reason: string | null
  readonly askedAt: number
  readonly expiresAt: number
  readonly answeredAt: number | null
  readonly instance: string
  /** The host that is asked for, as JSON; null for a command. */
  readonly host: string | null
  /** How far a yes about a host reaches. */
  readonly scope: string | null
}

const toApproval = (row: Row): ApprovalRow => ({
  id: row.id as string,
  tenant: row.tenant as string,
  sandboxId: row.sandbox_id as string,
  execId: row.exec_id as string | null,
  agentId: row.agent_id as string | null,
  command: row.command as string,
  cwd: row.cwd as string,
  decision: row.decision as string,
  state: row.state as ApprovalState,
  answeredBy: row.answered_by as string | null,
  reason: row.reason as string | null,
  askedAt: row.asked_at as number,
  expiresAt: row.expires_at as number,
  answeredAt: row.answered_at as number | null,
  instance: row.instance as string,
  host: row.host as string | null,
  scope: row.scope as string | null,
})

/** Adds an approval. */
export async function insertApproval(tx: Tx, row: ApprovalRow): Promise<void> {
  await tx.run(
    `INSERT INTO approvals (id, tenant, sandbox_id, agent_id, command, cwd, decision, state, answered_by,
       asked_at, expires_at, answered_at, instance, exec_id, host)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    [
      row.id,
      row.tenant,
      row.sandboxId,
      row.agentId,
      row.command,
      row.cwd,
      row.decision,
      row.state,
      row.answeredBy,
      row.askedAt,
      row.expiresAt,
      row.answeredAt,
      row.instance,
      row.execId,
      row.host,
    ],
  )
}

/** Records an answer; returns whether it counts, because only a pending request can be answered. */
export async function answerApproval(
  tx: Tx,
  id: string,
  answer: {
    readonly state: ApprovalState
    readonly by: string | null
    readonly at: number
    readonly reason?: string | undefined
    readonly scope?: string | undefined
  },
): Promise<boolean> {
  const rows = await tx.run(
    `UPDATE approvals SET state = ?, answered_by = ?, answered_at = ?, reason = ?, scope = ?
     WHERE id = ? AND state = 'pending' RETURNING id`,
    [answer.state, answer.by, answer.at, answer.reason ?? null, answer.scope ?? null, id],
  )
  return rows.length > 0
}

/** Pending requests of an earlier run of this instance. */
export async function pendingApprovals(store: Store, instance: string): Promise<ApprovalRow[]> {
  const sql = "SELECT * FROM approvals WHERE state = 'pending' AND instance = ? ORDER BY asked_at, id"
  return (await store.read(sql, [instance])).map(toApproval)
}

/** Finds an approval by its id. */
export async function findApproval(store: Store, id: string): Promise<ApprovalRow | undefined> {
  const rows = await store.read('SELECT * FROM approvals WHERE id = ?', [id])
  return rows[0] && toApproval(rows[0])
}

/** Lists approvals, newest first. */
export async function listApprovals(
  store: Store,
  query: {
    readonly tenant?: string | undefined
    readonly state?: string | undefined
    readonly limit: number
  },
): Promise<ApprovalRow[]> {
  const clauses: string[] = []
  const params: Value[] = []
  if (query.tenant !== undefined) {
    clauses.push('tenant = ?')
    params.push(query.tenant)
  }
  if (query.state !== undefined) {
    clauses.push('state = ?')
    params.push(query.state)
  }
  const where = clauses.length > 0 ? `WHERE ${clauses.join(' AND ')}` : ''
  const rows = await store.read(`SELECT * FROM approvals ${where} ORDER BY asked_at DESC, id DESC LIMIT ?`, [
    ...params,
    query.limit,
  ])
  return rows.map(toApproval)
}
