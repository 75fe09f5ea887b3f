import type { Row, Store, Tx } from './sql.ts'

/** A stored API key: its hash, never the key itself. */
export type KeyRow = {
  readonly id: string
  readonly hash: string
  readonly name: string
  /** The first characters, to tell keys apart. */
  readonly start: string
  readonly scopes: readonly string[]
  readonly tenant: string
  readonly createdAt: number
  readonly revokedAt: number | null
}

const toKey = (row: Row): KeyRow => ({
  id: row.id as string,
  hash: row.hash as string,
  name: row.name as string,
  start: row.start as string,
  scopes: (row.scopes as string).split(' '),
  tenant: row.tenant as string,
  createdAt: row.created_at as number,
  revokedAt: row.revoked_at as number | null,
})

/** Adds a key. */
export async function insertKey(tx: Tx, key: KeyRow): Promise<void> {
  await tx.run(
    `INSERT INTO keys (id, hash, name, start, scopes, tenant, created_at, revoked_at)
     VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
    [key.id, key.hash, key.name, key.start, key.scopes.join(' '), key.tenant, key.createdAt, key.revokedAt],
  )
}

/** Finds a key by the hash of its secret. */
export async function findKeyByHash(store: Store, hash: string): Promise<KeyRow | undefined> {
  const rows = await store.read('SELECT * FROM keys WHERE hash = ?', [hash])
  return rows[0] && toKey(rows[0])
}

/** Finds a key by its id. */
export async function findKey(store: Store, id: string): Promise<KeyRow | undefined> {
  const rows = await store.read('SELECT * FROM keys WHERE id = ?', [id])
  return rows[0] && toKey(rows[0])
}

/** Lists all keys. */
export async function listKeys(store: Store): Promise<KeyRow[]> {
  return (await store.read('SELECT * FROM keys ORDER BY created_at, id')).map(toKey)
}

/** Revokes a key; returns whether it exists. Revoking again keeps the first time. */
export async function revokeKey(tx: Tx, id: string, at: number): Promise<boolean> {
  const rows = await tx.run('SELECT id FROM keys WHERE id = ?', [id])
  await tx.run('UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL', [at, id])
  return rows.length > 0
}
