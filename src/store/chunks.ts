import { type Row, rowsOf, type Tx } from './sql.ts'

/**
 * Pieces of archives in the object store. A row is there before its object is written and until after it is removed, so that
 * the database knows every object. INVARIANT: a chunk that is used, or was touched a short while ago, is never removed.
 */

/** What an uploader is to do: nothing, write the object, or wait because it is being removed. */
export type ChunkClaim = 'stored' | 'write' | 'wait'

/** Announces the use of a chunk. */
export async function claimChunk(tx: Tx, name: string, bytes: number): Promise<ChunkClaim> {
  const [row] = await tx.run(
    `INSERT INTO chunks (name, bytes, state, used_at) VALUES (?, ?, 'writing', ?)
     ON CONFLICT (name) DO UPDATE SET used_at = excluded.used_at WHERE chunks.state <> 'deleting' RETURNING state`,
    [name, bytes, Date.now()],
  )
  if (!row) return 'wait'
  return row.state === 'stored' ? 'stored' : 'write'
}

/** Notes that the object of a chunk is complete. */
export async function noteStored(tx: Tx, name: string): Promise<void> {
  await tx.run("UPDATE chunks SET state = 'stored', used_at = ? WHERE name = ? AND state = 'writing'", [
    Date.now(),
    name,
  ])
}

const ROWS = 1000

/** Records which chunks an archive needs; returns whether all of them are stored. */
export async function useChunks(tx: Tx, archive: string, names: readonly string[]): Promise<boolean> {
  const all = [...new Set(names)]
  for (let at = 0; at < all.length; at += ROWS) {
    const some = all.slice(at, at + ROWS)
    const marks = some.map(() => '?').join(',')
    const found = await tx.run(`SELECT name FROM chunks WHERE state = 'stored' AND name IN (${marks})`, some)
    if (found.length !== some.length) return false
    await tx.run(
      `INSERT INTO chunk_uses (chunk, archive) VALUES ${rowsOf(some.length, 2)} ON CONFLICT DO NOTHING`,
      some.flatMap((name) => [name, archive]),
    )
  }
  return true
}

/** An archive is gone. */
export async function releaseChunks(tx: Tx, archive: string): Promise<void> {
  await tx.run('DELETE FROM chunk_uses WHERE archive = ?', [archive])
}

/** Marks chunks that nothing has needed since `before`, and returns them with those that an earlier pass left. */
export async function condemnChunks(tx: Tx, before: number, limit: number): Promise<readonly string[]> {
  await tx.run(
    `UPDATE chunks SET state = 'deleting' WHERE name IN (
       SELECT name FROM chunks WHERE used_at < ? AND state <> 'deleting'
         AND NOT EXISTS (SELECT 1 FROM chunk_uses WHERE chunk = name) LIMIT ?)`,
    [before, limit],
  )
  const rows = await tx.run("SELECT name FROM chunks WHERE state = 'deleting' LIMIT ?", [limit])
  return rows.map(({ name }: Row) => name as string)
}

/** Forgets a chunk whose object is removed. */
export async function forgetChunk(tx: Tx, name: string): Promise<void> {
  await tx.run("DELETE FROM chunks WHERE name = ? AND state = 'deleting'", [name])
}
