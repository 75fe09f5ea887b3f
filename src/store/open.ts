import { mkdirSync } from 'node:fs'
import { SandboxError } from '../model/errors.ts'
import { asUnusable, GroupCommit } from './group-commit.ts'
import { migrate, needsUpgrade } from './migrations.ts'
import type { Engine, Store } from './sql.ts'

/** Where the store is. */
export type StoreOptions = {
  readonly stateDir: string
  /** Empty: embedded SQLite in the state directory. */
  readonly databaseUrl?: string | undefined
  /** The timeout of database statements. */
  readonly answerMs?: number | undefined
  /** How long the database keeps the locks of a transaction in which we do nothing. */
  readonly idleMs?: number | undefined
}

/** The path of the embedded store in a state directory. */
export const storeFile = (stateDir: string): string => `${stateDir}/ringfence.db`

/** Opens the store and upgrades its schema. */
export async function openStore(options: StoreOptions): Promise<Store> {
  try {
    const store = new GroupCommit(await engineOf(options))
    try {
      if (options.databaseUrl && (await needsUpgrade(store))) await upgrade(options)
      await migrate(store)
    } catch (error) {
      await store.close()
      throw error
    }
    return store
  } catch (error) {
    throw asUnusable(error)
  }
}

/** Building an index on a large table takes far longer than any other statement may. */
const UPGRADE_MS = 6 * 3_600_000

/** Upgrades PostgreSQL on a connection of its own without the usual timeout. */
async function upgrade(options: StoreOptions): Promise<void> {
  const store = new GroupCommit(await engineOf({ ...options, answerMs: UPGRADE_MS }))
  try {
    await migrate(store)
  } finally {
    await store.close()
  }
}

async function engineOf({ stateDir, databaseUrl, answerMs, idleMs }: StoreOptions): Promise<Engine> {
  if (!databaseUrl) {
    mkdirSync(stateDir, { recursive: true, mode: 0o700 })
    return (await import('./sqlite.ts')).openSqlite(storeFile(stateDir))
  }
  if (/^postgres(ql)?:\/\//.test(databaseUrl))
    return (await import('./postgres.ts')).openPostgres(databaseUrl, answerMs, idleMs)
  throw new SandboxError('invalid-config', 'database_url: only postgres:// is supported', {
    hint: 'leave it empty for the embedded store',
  })
}
