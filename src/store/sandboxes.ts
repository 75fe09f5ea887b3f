import type { Row, Store, Tx, Value } from './sql.ts'

/** A stored sandbox: its owner, its spec and its end. Times are milliseconds since the epoch. */
export type SandboxRow = {
  readonly id: string
  readonly tenant: string
  readonly keyId: string
  readonly state: string
  readonly reason: string | null
  readonly backend: string | null
  readonly level: string | null
  /** The spec, as JSON. */
  readonly spec: string
  readonly agentId: string | null
  readonly tokenHash: string
  readonly layers: string | null
  readonly instance: string
  readonly epoch: number
  readonly createdAt: number
  readonly expiresAt: number | null
  readonly endedAt: number | null
  /** 1 if a key with the scope `admin` created it: it does not count for its tenant. */
  readonly byOperator: number
  /** 1, and one more each time another server takes the sandbox over. */
  readonly generation: number
  /** How long it may be idle and how long it lives, as it was created; null: without end. */
  readonly idleMs: number | null
  readonly ttlMs: number | null
  /** The snapshot that it is opened from when it wakes here for the first time; null: its files are here. */
  readonly restore: string | null
}

/** Columns of a sandbox that change. */
export type SandboxChange = Partial<
  Pick<
    SandboxRow,
    | 'state'
    | 'reason'
    | 'backend'
    | 'level'
    | 'layers'
    | 'expiresAt'
    | 'endedAt'
    | 'spec'
    | 'instance'
    | 'epoch'
    | 'generation'
    | 'restore'
  >
>

const COLUMN: Readonly<Record<keyof SandboxRow, string>> = {
  id: 'id',
  tenant: 'tenant',
  keyId: 'key_id',
  state: 'state',
  reason: 'reason',
  backend: 'backend',
  level: 'level',
  spec: 'spec',
  agentId: 'agent_id',
  tokenHash: 'token_hash',
  layers: 'layers',
  instance: 'instance',
  epoch: 'epoch',
  createdAt: 'created_at',
  expiresAt: 'expires_at',
  endedAt: 'ended_at',
  byOperator: 'by_operator',
  generation: 'generation',
  idleMs: 'idle_ms',
  ttlMs: 'ttl_ms',
  restore: 'restore',
}
const FIELDS = Object.keys(COLUMN) as readonly (keyof SandboxRow)[]
const ALL = Object.values(COLUMN).join(', ')

const toSandbox = (row: Row): SandboxRow =>
  Object.fromEntries(FIELDS.map((field) => [field, row[COLUMN[field]] ?? null])) as unknown as SandboxRow

/** Adds a sandbox. */
export async function insertSandbox(tx: Tx, row: SandboxRow): Promise<void> {
  await tx.run(`INSERT INTO sandboxes (${ALL}, changed_at) VALUES (${FIELDS.map(() => '?').join(', ')}, ?)`, [
    ...FIELDS.map((field) => row[field]),
    Date.now(),
  ])
}

/** Who runs a sandbox: a server in one of its epochs. */
export type SandboxOwner = Pick<SandboxRow, 'instance' | 'epoch'>

/** Changes columns of a sandbox; returns whether it is still this owner's. */
export async function changeSandbox(
  tx: Tx,
  id: string,
  change: SandboxChange,
  owner: SandboxOwner,
): Promise<boolean> {
  const fields = Object.keys(change) as (keyof SandboxChange)[]
  const sets = [...fields.map((field) => `${COLUMN[field]} = ?`), 'changed_at = ?'].join(', ')
  const values = fields.map((field) => change[field] ?? null)
  const rows = await tx.run(
    `UPDATE sandboxes SET ${sets} WHERE id = ? AND instance = ? AND epoch = ? RETURNING id`,
    [...values, Date.now(), id, owner.instance, owner.epoch],
  )
  return rows.length > 0
}

/** Removes a sandbox. */
export async function removeSandbox(tx: Tx, id: string): Promise<void> {
  await tx.run('DELETE FROM sandboxes WHERE id = ?', [id])
}

/** Finds a sandbox by its id. */
export async function findSandbox(store: Store, id: string): Promise<SandboxRow | undefined> {
  const rows = await store.read(`SELECT ${ALL} FROM sandboxes WHERE id = ?`, [id])
  return rows[0] && toSandbox(rows[0])
}

const MOST_AT_ONCE = 500

/** The existing sandboxes among these ids, in no particular order. */
export async function findSandboxes(store: Store, ids: readonly string[]): Promise<SandboxRow[]> {
  const found: SandboxRow[] = []
  for (let at = 0; at < ids.length; at += MOST_AT_ONCE) {
    const some = ids.slice(at, at + MOST_AT_ONCE)
    const marks = some.map(() => '?').join(',')
    found.push(
      ...(await store.read(`SELECT ${ALL} FROM sandboxes WHERE id IN (${marks})`, some)).map(toSandbox),
    )
  }
  return found
}

/** Which sandboxes to list. */
export type SandboxQuery = {
  readonly tenant?: string | undefined
  readonly states?: readonly string[] | undefined
  readonly agentId?: string | undefined
  /** The last row of the previous page. */
  readonly after?: { readonly createdAt: number; readonly id: string } | undefined
  readonly limit: number
}

/** A page, newest first; the cost does not grow with the number of older rows. */
export async function listSandboxes(store: Store, query: SandboxQuery): Promise<SandboxRow[]> {
  const clauses: string[] = []
  const params: Value[] = []
  const add = (clause: string, ...values: Value[]): void => {
    clauses.push(clause)
    params.push(...values)
  }
  if (query.tenant !== undefined) add('tenant = ?', query.tenant)
  if (query.agentId !== undefined) add('agent_id = ?', query.agentId)
  if (query.states) add(`state IN (${query.states.map(() => '?').join(',')})`, ...query.states)
  if (query.after) add('(created_at, id) < (?, ?)', query.after.createdAt, query.after.id)
  const where = clauses.length > 0 ? `WHERE ${clauses.join(' AND ')}` : ''
  const rows = await store.read(
    `SELECT ${ALL} FROM sandboxes ${where} ORDER BY created_at DESC, id DESC LIMIT ?`,
    [...params, query.limit],
  )
  return rows.map(toSandbox)
}

/** Sandboxes that an earlier run of an instance did not end. */
export async function unfinishedOf(
  store: Store,
  instance: string,
  epoch: number,
  ended: readonly string[],
): Promise<SandboxRow[]> {
  const rows = await store.read(
    `SELECT ${ALL} FROM sandboxes
     WHERE instance = ? AND epoch < ? AND state NOT IN (${ended.map(() => '?').join(',')})`,
    [instance, epoch, ...ended],
  )
  return rows.map(toSandbox)
}

/** A create request that was already answered. */
export type IdempotencyRow = { readonly request: string; readonly sandboxId: string }

/** Finds the answer to an idempotency key. */
export async function findIdempotency(
  store: Store,
  tenant: string,
  name: string,
): Promise<IdempotencyRow | undefined> {
  const rows = await store.read('SELECT request, sandbox_id FROM idempotency WHERE tenant = ? AND name = ?', [
    tenant,
    name,
  ])
  const row = rows[0]
  return row && { request: row.request as string, sandboxId: row.sandbox_id as string }
}

/** The sandbox that an idempotency key stands for. */
export async function sandboxAnswering(tx: Tx, tenant: string, name: string): Promise<string> {
  const sql = 'SELECT sandbox_id FROM idempotency WHERE tenant = ? AND name = ?'
  return String((await tx.run(sql, [tenant, name]))[0]?.sandbox_id)
}

/** Remembers the answer to an idempotency key; returns whether it is the first one. */
export async function saveIdempotency(
  tx: Tx,
  tenant: string,
  name: string,
  { request, sandboxId }: IdempotencyRow,
): Promise<boolean> {
  const rows = await tx.run(
    `INSERT INTO idempotency (tenant, name, request, sandbox_id, created_at) VALUES (?, ?, ?, ?, ?)
     ON CONFLICT (tenant, name) DO NOTHING RETURNING sandbox_id`,
    [tenant, name, request, sandboxId, Date.now()],
  )
  return rows.length > 0
}

/** How many sandboxes of a key and of a tenant have not ended, on all servers of this database. */
export async function countLive(
  tx: Tx,
  { keyId, tenant }: Pick<SandboxRow, 'keyId' | 'tenant'>,
): Promise<{ readonly ofKey: number; readonly ofTenant: number }> {
  const [row] = await tx.run(
    `SELECT (SELECT COUNT(*) FROM sandboxes WHERE key_id = ? AND state NOT IN ('destroyed', 'failed')) AS of_key,
       (SELECT COUNT(*) FROM sandboxes WHERE tenant = ? AND by_operator = 0
          AND state NOT IN ('destroyed', 'failed')) AS of_tenant`,
    [keyId, tenant],
  )
  return { ofKey: Number(row?.of_key ?? 0), ofTenant: Number(row?.of_tenant ?? 0) }
}

/** The ids of all sandboxes that have not ended, on all servers of this database. */
export async function liveSandboxIds(store: Store): Promise<readonly string[]> {
  const rows = await store.read("SELECT id FROM sandboxes WHERE state NOT IN ('destroyed', 'failed')")
  return rows.map((row) => row.id as string)
}

/** The sandboxes of a tenant that have not ended and may have volumes, on all servers of this database. */
export async function liveWithVolumes(
  store: Store,
  tenant: string,
): Promise<readonly Pick<SandboxRow, 'id' | 'spec'>[]> {
  const rows = await store.read(
    `SELECT id, spec FROM sandboxes WHERE tenant = ? AND state NOT IN ('destroyed', 'failed') AND spec LIKE '%"volumes"%'`,
    [tenant],
  )
  return rows.map(({ id, spec }) => ({ id: id as string, spec: spec as string }))
}

/** How many sandboxes of each tenant have not ended, on all servers of this database. */
export async function countByTenant(store: Store): Promise<ReadonlyMap<string, number>> {
  const rows = await store.read(
    "SELECT tenant, COUNT(*) AS live FROM sandboxes WHERE state NOT IN ('destroyed', 'failed') GROUP BY tenant",
  )
  return new Map(rows.map((row) => [row.tenant as string, Number(row.live)]))
}

/** Lets a failed create be retried with the same idempotency key. */
export async function forgetIdempotency(tx: Tx, sandboxId: string): Promise<void> {
  await tx.run('DELETE FROM idempotency WHERE sandbox_id = ?', [sandboxId])
}
