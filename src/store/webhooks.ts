import type { Row, Store, Tx } from './sql.ts'

/** A webhook. `position` is the last record of the audit log that was delivered. */
export type WebhookRow = {
  readonly id: string
  readonly tenant: string
  /** The key that created it. */
  readonly keyId: string | null
  readonly url: string
  /** The secret that signs deliveries, encrypted; plain text only in rows of versions before the encryption. */
  readonly storedSecret: string
  /** Event names; empty means all. */
  readonly events: readonly string[]
  readonly position: number
  readonly failures: number
  readonly createdAt: number
}

const toWebhook = (row: Row): WebhookRow => ({
  id: row.id as string,
  tenant: row.tenant as string,
  keyId: (row.key_id as string | null) ?? null,
  url: row.url as string,
  storedSecret: row.secret as string,
  events: (row.events as string).split(' ').filter((name) => name !== ''),
  position: row.position as number,
  failures: row.failures as number,
  createdAt: row.created_at as number,
})

/** Adds a webhook. */
export async function insertWebhook(tx: Tx, row: WebhookRow): Promise<void> {
  await tx.run(
    `INSERT INTO webhooks (id, tenant, key_id, url, secret, events, position, failures, created_at)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    [
      row.id,
      row.tenant,
      row.keyId,
      row.url,
      row.storedSecret,
      row.events.join(' '),
      row.position,
      row.failures,
      row.createdAt,
    ],
  )
}

/** How many webhooks a tenant has. */
export async function countWebhooks(tx: Tx, tenant: string): Promise<number> {
  const [row] = await tx.run('SELECT COUNT(*) AS count FROM webhooks WHERE tenant = ?', [tenant])
  return Number(row?.count ?? 0)
}

/** Whether a webhook was not removed. */
export async function hasWebhook(store: Store, id: string): Promise<boolean> {
  return (await store.read('SELECT 1 AS found FROM webhooks WHERE id = ?', [id])).length > 0
}

/** Lists webhooks, of one tenant or all. */
export async function listWebhooks(store: Store, tenant?: string): Promise<WebhookRow[]> {
  const rows =
    tenant === undefined
      ? await store.read('SELECT * FROM webhooks ORDER BY created_at, id')
      : await store.read('SELECT * FROM webhooks WHERE tenant = ? ORDER BY created_at, id', [tenant])
  return rows.map(toWebhook)
}

/** Saves how far a webhook was delivered. */
export async function advanceWebhook(
  tx: Tx,
  id: string,
  progress: { readonly position: number; readonly failures: number },
): Promise<void> {
  await tx.run('UPDATE webhooks SET position = ?, failures = ? WHERE id = ? AND position <= ?', [
    progress.position,
    progress.failures,
    id,
    progress.position,
  ])
}

/** Records a failed delivery; earlier deliveries stay delivered. */
export async function noteWebhookFailure(tx: Tx, id: string, failures: number): Promise<void> {
  await tx.run('UPDATE webhooks SET failures = ? WHERE id = ?', [failures, id])
}

/** Removes a webhook. */
export async function removeWebhook(tx: Tx, id: string): Promise<void> {
  await tx.run('DELETE FROM webhooks WHERE id = ?', [id])
}

/** The new stored form of a webhook's secret. */
export type SecretChange = Pick<WebhookRow, 'id' | 'storedSecret'> & { readonly sealed: string }

/**
 * Replaces stored secrets, unless another server did so meanwhile, and removes the old forms from the database's files.
 * SQLite: the table is rewritten while deleted content is overwritten, then the write-ahead log is emptied. PostgreSQL: the
 * table gets a new file; PostgreSQL's own write-ahead log is left to it.
 */
export async function replaceWebhookSecrets(store: Store, changes: readonly SecretChange[]): Promise<void> {
  await store.write(async (tx) => {
    for (const { id, storedSecret, sealed } of changes)
      await tx.run('UPDATE webhooks SET secret = ? WHERE id = ? AND secret = ?', [sealed, id, storedSecret])
    if (store.kind === 'sqlite') for (const sql of REWRITE) await tx.run(sql)
  })
  if (store.kind === 'postgres') await store.read('VACUUM FULL webhooks')
  else await emptyLog(store)
}

const REWRITE = [
  'PRAGMA secure_delete = ON',
  'CREATE TEMP TABLE webhooks_copy AS SELECT * FROM webhooks',
  'DELETE FROM webhooks',
  'INSERT INTO webhooks SELECT * FROM webhooks_copy',
  'DROP TABLE webhooks_copy',
  'PRAGMA secure_delete = OFF',
]

const LOG_TRIES = 50
const LOG_PAUSE_MS = 20

/** Tries again, because another connection may be copying the log at this moment. */
async function emptyLog(store: Store): Promise<void> {
  for (let tries = 0; tries < LOG_TRIES; tries++) {
    const [row] = await store.read('PRAGMA wal_checkpoint(TRUNCATE)').catch(() => [])
    if (row?.busy === 0) return
    await new Promise((resolve) => setTimeout(resolve, LOG_PAUSE_MS))
  }
}
