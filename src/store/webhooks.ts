import type { Row, Store, Tx } from './sql.ts'

/** A webhook. `position` is the last record of the audit log that was delivered. */
export type WebhookRow = {
  readonly id: string
  readonly tenant: string
  /** The key that created it. */
  readonly keyId: string | null
  readonly url: string
  /** SECURITY: stored in plain text, because every delivery is signed with it; it gives no access to this server. */
  readonly secret: string
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
  secret: row.secret as string,
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
      row.secret,
      row.events.join(' '),
      row.position,
      row.failures,
      row.createdAt,
    ],
  )
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
