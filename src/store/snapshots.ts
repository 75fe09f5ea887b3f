import type { Row, Store, Tx, Value } from './sql.ts'

/**
 * A template that a build created, a snapshot of a sandbox, an image that was pulled, the result of a build step, or the files with
 * which a sandbox or a volume moved to another node.
 */
export type SnapshotRow = {
  readonly id: string
  readonly kind: 'template' | 'snapshot' | 'image' | 'layer' | 'move' | 'volume'
  readonly tenant: string
  readonly name: string | null
  readonly sandboxId: string | null
  readonly backend: string
  /** All other fields, as JSON. */
  readonly data: string
  readonly createdAt: number
}

const COLUMNS = 'id, kind, tenant, name, sandbox_id, backend, data, created_at'

const toSnapshot = (row: Row): SnapshotRow => ({
  id: row.id as string,
  kind: row.kind as SnapshotRow['kind'],
  tenant: row.tenant as string,
  name: row.name as string | null,
  sandboxId: row.sandbox_id as string | null,
  backend: row.backend as string,
  data: row.data as string,
  createdAt: Number(row.created_at),
})

/** Adds or replaces a snapshot. */
export async function putSnapshot(tx: Tx, row: SnapshotRow): Promise<void> {
  await tx.run('DELETE FROM snapshots WHERE id = ?', [row.id])
  await tx.run(`INSERT INTO snapshots (${COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`, [
    row.id,
    row.kind,
    row.tenant,
    row.name,
    row.sandboxId,
    row.backend,
    row.data,
    row.createdAt,
  ])
}

/** Whether there is a snapshot of this id, of any tenant. */
export async function hasSnapshot(store: Store, id: string): Promise<boolean> {
  return (await store.read('SELECT 1 AS found FROM snapshots WHERE id = ?', [id])).length > 0
}

/** Removes a snapshot. */
export async function removeSnapshot(tx: Tx, id: string): Promise<void> {
  await tx.run('DELETE FROM snapshots WHERE id = ?', [id])
}

/** Which snapshots to list. */
export type SnapshotQuery = {
  readonly tenant: string
  readonly kind?: SnapshotRow['kind'] | undefined
  readonly except?: SnapshotRow['kind'] | undefined
  readonly idOrName?: string | undefined
  readonly sandboxId?: string | undefined
  readonly after?: { readonly createdAt: number; readonly id: string } | undefined
  readonly limit: number
}

/** A page, newest first. */
export async function listSnapshots(store: Store, query: SnapshotQuery): Promise<SnapshotRow[]> {
  const clauses = ['tenant = ?']
  const params: Value[] = [query.tenant]
  const add = (clause: string, ...values: Value[]): void => {
    clauses.push(clause)
    params.push(...values)
  }
  if (query.kind) add('kind = ?', query.kind)
  if (query.except) add('kind <> ?', query.except)
  if (query.idOrName !== undefined) add('(id = ? OR name = ?)', query.idOrName, query.idOrName)
  if (query.sandboxId !== undefined) add('sandbox_id = ?', query.sandboxId)
  if (query.after) add('(created_at, id) < (?, ?)', query.after.createdAt, query.after.id)
  const rows = await store.read(
    `SELECT ${COLUMNS} FROM snapshots WHERE ${clauses.join(' AND ')} ORDER BY created_at DESC, id DESC LIMIT ?`,
    [...params, query.limit],
  )
  return rows.map(toSnapshot)
}

/** Files with which sandboxes and volumes moved that nothing needs any more: the sandbox has ended, or there are later files. */
export async function uselessMoves(store: Store, before: number): Promise<readonly SnapshotRow[]> {
  const rows = await store.read(
    `SELECT ${COLUMNS} FROM snapshots AS one WHERE created_at < ? AND (kind = 'volume'
       AND NOT EXISTS (SELECT 1 FROM volumes WHERE archive = one.id) OR kind = 'move' AND (
       NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = one.sandbox_id AND state NOT IN ('destroyed', 'failed'))
       OR EXISTS (SELECT 1 FROM snapshots AS later WHERE later.sandbox_id = one.sandbox_id
         AND later.kind IN ('move', 'snapshot') AND later.created_at > one.created_at
         AND NOT EXISTS (SELECT 1 FROM sandboxes WHERE restore = one.id))))`,
    [before],
  )
  return rows.map(toSnapshot)
}

/** The digests of the images that templates, snapshots and builds of all tenants need. */
export async function imagesInUse(store: Store): Promise<ReadonlySet<string>> {
  const rows = await store.read(`SELECT data FROM snapshots WHERE data LIKE '%"image":"sha256:%'`)
  return new Set(rows.flatMap(({ data }) => (JSON.parse(String(data)) as { image?: string }).image ?? []))
}
