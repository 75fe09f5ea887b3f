import type { Row, Store, Tx } from './sql.ts'

/** A stored console session: hashes only. It acts with the rights of its key. */
export type SessionRow = {
  readonly hash: string
  /** The hash of the secret that only our own page can send. */
  readonly pageHash: string
  readonly keyId: string
  readonly createdAt: number
  readonly expiresAt: number
}

const toSession = (row: Row): SessionRow => ({
  hash: row.hash as string,
  pageHash: row.page_hash as string,
  keyId: row.key_id as string,
  createdAt: row.created_at as number,
  expiresAt: row.expires_at as number,
})

/** A single-use sign-in link. */
export type LinkRow = { readonly hash: string; readonly keyId: string; readonly expiresAt: number }

/** Adds a one-time sign-in link. */
export async function insertLink(tx: Tx, { hash, keyId, expiresAt }: LinkRow): Promise<void> {
  await tx.run('DELETE FROM console_links WHERE expires_at <= ?', [Date.now()])
  await tx.run('INSERT INTO console_links (hash, key_id, expires_at) VALUES (?, ?, ?)', [
    hash,
    keyId,
    expiresAt,
  ])
}

/** Removes the link and returns it; of two concurrent calls only one gets it. */
export async function takeLink(tx: Tx, hash: string): Promise<LinkRow | undefined> {
  const [row] = await tx.run('DELETE FROM console_links WHERE hash = ? RETURNING hash, key_id, expires_at', [
    hash,
  ])
  return row && { hash: row.hash as string, keyId: row.key_id as string, expiresAt: row.expires_at as number }
}

/** Adds a console session. */
export async function insertSession(tx: Tx, row: SessionRow): Promise<void> {
  await tx.run('DELETE FROM console_sessions WHERE expires_at <= ?', [Date.now()])
  await tx.run(
    'INSERT INTO console_sessions (hash, page_hash, key_id, created_at, expires_at) VALUES (?, ?, ?, ?, ?)',
    [row.hash, row.pageHash, row.keyId, row.createdAt, row.expiresAt],
  )
}

/** Finds a session by its hash. */
export async function findSession(store: Store, hash: string): Promise<SessionRow | undefined> {
  const rows = await store.read('SELECT * FROM console_sessions WHERE hash = ?', [hash])
  return rows[0] && toSession(rows[0])
}

/** Moves the expiry of a session. */
export async function extendSession(tx: Tx, hash: string, expiresAt: number): Promise<void> {
  await tx.run('UPDATE console_sessions SET expires_at = ? WHERE hash = ?', [expiresAt, hash])
}

/** Removes a session. */
export async function removeSession(tx: Tx, hash: string): Promise<void> {
  await tx.run('DELETE FROM console_sessions WHERE hash = ?', [hash])
}
