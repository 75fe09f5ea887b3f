import { SandboxError } from '../model/errors.ts'
import type { Json } from '../model/event.ts'
import type { Store, Tx } from '../store/sql.ts'
import { headOf, insertTrail, readHead, saveHead, type TrailRow } from '../store/trail/rows.ts'
import { beginTrail, loadKey, parseAnchors, parseAnchorText, readAnchors } from './anchor.ts'
import { canonical } from './canonical.ts'
import type { SigningKey } from './chain.ts'
import { damaged, makeDirs, pathsOf, replaceFile, syncDir, textOf, unwritable } from './files.ts'
import { createLock, type Lock } from './lock.ts'
import { exportTrail } from './read.ts'
import { StoreTrail, type StoreTrailParts } from './store-trail.ts'
import { rowOf } from './trail-row.ts'
import { verifyTrail } from './verify.ts'

const LOCK_WAIT_MS = 10_000
const IMPORT_ROWS = 4096

/** Where an audit log is stored: `sqlite` is the state directory's own store. */
export type TrailLocation = { readonly kind: Store['kind'] }

/** The kind of the store that has taken over the audit log of this state directory, if any. */
export function trailLocation(home: string): TrailLocation | undefined {
  const text = textOf(pathsOf(home).store)
  if (text === undefined) return undefined
  try {
    const { kind } = JSON.parse(text) as { readonly kind?: unknown }
    if (kind === 'sqlite' || kind === 'postgres') return { kind }
  } catch {
    // Reported below.
  }
  throw damaged('the location file of the audit log is unreadable')
}

/** Opens the audit log in a store. The first time it imports all segment files, or fails without importing any. */
export async function openStoreTrail(parts: Omit<StoreTrailParts, 'key'>): Promise<StoreTrail> {
  const { home, store } = parts
  try {
    makeDirs(home)
    const lock = createLock(pathsOf(home).lock)
    await acquire(lock)
    try {
      const now = parts.now?.() ?? new Date()
      const key = loadKey(home) ?? beginTrail(home, now.toISOString())
      await takeOver(home, store, key)
      return new StoreTrail({ ...parts, key })
    } finally {
      lock.release()
    }
  } catch (error) {
    throw unwritable(error, home)
  }
}

/**
 * The location file is written last: without it the segment files are authoritative, so their newer records are imported.
 * With it only the store is authoritative, and a store without our head was emptied.
 */
async function takeOver(home: string, store: Store, key: SigningKey): Promise<void> {
  const location = trailLocation(home)
  if (location !== undefined && location.kind !== store.kind) throw elsewhere(location.kind)
  if (location !== undefined) {
    if ((await readHead(store, key.id)) === undefined)
      throw damaged('the store no longer contains the audit log')
    return
  }
  await importSegments(home, store, key)
  replaceFile(pathsOf(home).store, `${canonical({ kind: store.kind })}\n`)
  syncDir(pathsOf(home).anchor)
}

/** Not damage: the configuration was changed. */
const elsewhere = (kind: Store['kind']): SandboxError =>
  kind === 'sqlite'
    ? new SandboxError(
        'invalid-config',
        'this state directory keeps its records in SQLite, not in PostgreSQL',
        {
          hint: 'move them with `ringfence migrate --database-url URL`, or leave the database URL empty',
        },
      )
    : new SandboxError(
        'invalid-config',
        'this state directory keeps its records in PostgreSQL, not in SQLite',
        {
          hint: 'configure that database: --database-url, RINGFENCE_DATABASE_URL or `database_url` in the configuration',
        },
      )

async function importSegments(home: string, store: Store, key: SigningKey): Promise<void> {
  const verdict = await verifyTrail(home)
  if (!verdict.ok) throw damaged(`record ${verdict.seq}: ${verdict.problem}`)
  const anchored = parseAnchors(readAnchors(home) ?? '', key, 'skipped')
  if (typeof anchored === 'string') throw damaged(`the signed head is not valid: ${anchored}`)
  await store.write(async (tx) => {
    const have = await countIn(tx, store, key)
    let rows: TrailRow[] = []
    for (const line of exportTrail(home)) {
      const row = rowOf(line)
      if (row.seq >= have) rows.push(row)
      if (rows.length < IMPORT_ROWS) continue
      await insertTrail(tx, key.id, rows)
      rows = []
    }
    await insertTrail(tx, key.id, rows)
    await saveHead(tx, key.id, canonical(anchored.anchor as unknown as Json))
  })
}

async function countIn(tx: Tx, store: Store, key: SigningKey): Promise<number> {
  const text = await headOf(tx, key.id, store.kind)
  if (text === undefined) return 0
  const anchor = parseAnchorText(text, key)
  if (typeof anchor === 'string') throw damaged(`the signed head is not valid: ${anchor}`)
  return anchor.head.count
}

async function acquire(lock: Lock): Promise<void> {
  const deadline = performance.now() + LOCK_WAIT_MS
  while (lock.tryAcquire() === undefined) {
    if (performance.now() > deadline)
      throw damaged(`process ${lock.holderPid()} holds the lock of the audit log`)
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
}
