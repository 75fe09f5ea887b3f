import type { Store, Tx } from './sql.ts'

/** Secrets that all nodes share, each encrypted with the cluster's key, and tokens to join with. */

export async function readSecret(store: Store, name: string): Promise<string | undefined> {
  const [row] = await store.read('SELECT value FROM cluster_secrets WHERE name = ?', [name])
  return row?.value as string | undefined
}

/** All secrets whose names begin like this. */
export async function readSecrets(store: Store, prefix: string): Promise<ReadonlyMap<string, string>> {
  const rows = await store.read('SELECT name, value FROM cluster_secrets WHERE name LIKE ? ORDER BY name', [
    `${prefix}%`,
  ])
  return new Map(rows.map(({ name, value }) => [name as string, value as string]))
}

/** Adds a secret; returns whether there was none of this name. */
export async function addSecret(tx: Tx, name: string, value: string): Promise<boolean> {
  const rows = await tx.run(
    'INSERT INTO cluster_secrets (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING RETURNING name',
    [name, value],
  )
  return rows.length > 0
}

/** A token that lets one machine join, by the hash of its secret. */
export type JoinTokenRow = { readonly hash: string; readonly bundle: string; readonly expiresAt: number }

/** Adds a token. */
export async function insertJoinToken(tx: Tx, { hash, bundle, expiresAt }: JoinTokenRow): Promise<void> {
  await tx.run('DELETE FROM join_tokens WHERE expires_at <= ?', [Date.now()])
  await tx.run('INSERT INTO join_tokens (hash, bundle, expires_at) VALUES (?, ?, ?)', [
    hash,
    bundle,
    expiresAt,
  ])
}

/** Removes a token and returns it; of two concurrent calls only one gets it. */
export async function takeJoinToken(tx: Tx, hash: string): Promise<JoinTokenRow | undefined> {
  const [row] = await tx.run('DELETE FROM join_tokens WHERE hash = ? RETURNING hash, bundle, expires_at', [
    hash,
  ])
  return (
    row && {
      hash: row.hash as string,
      bundle: row.bundle as string,
      expiresAt: row.expires_at as number,
    }
  )
}
