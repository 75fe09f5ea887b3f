import { existsSync, mkdirSync, mkdtempSync, readdirSync, renameSync, rmdirSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { syncDir } from '../../audit/files.ts'
import { createLock } from '../../audit/lock.ts'
import { migrateStore } from '../../audit/migrate-store.ts'
import { trailLocation } from '../../audit/open-store-trail.ts'
import { SandboxError } from '../../model/errors.ts'
import { openStore } from '../../store/open.ts'
import { readArchive } from './archive.ts'
import { verifyHere } from './backup.ts'

/** What to restore, and where to. */
export type RestoreOptions = {
  readonly file: string
  readonly stateDir: string
  /** An empty PostgreSQL database for the records; empty: SQLite in the state directory. */
  readonly databaseUrl: string
  /** Replaces a state directory that is not empty; the old one is kept beside it. */
  readonly force: boolean
  /** A head of the audit log kept elsewhere: reveals a backup that was rolled back. */
  readonly against?: unknown
}

/** What was restored. */
export type RestoreReport = {
  readonly state_dir: string
  readonly created_at: string
  readonly version: string
  readonly records: number
  /** Where the old state directory is now. */
  readonly kept: string | null
}

/**
 * Unpacks a backup beside the state directory, compares every file with the list, verifies the audit log against its signed
 * head, and only then renames the directory into place: until then nothing has changed.
 */
export async function restore(options: RestoreOptions): Promise<RestoreReport> {
  const { file, stateDir } = options
  const release = assertReplaceable(options)
  let stage: string | undefined
  try {
    mkdirSync(dirname(stateDir), { recursive: true })
    stage = mkdtempSync(`${stateDir}.restore-`)
    const manifest = await readArchive(file, stage)
    const records = await verified(stage, options)
    await fillDatabase(stage, options.databaseUrl)
    const kept = swap(stage, stateDir)
    return { state_dir: stateDir, created_at: manifest.created_at, version: manifest.version, records, kept }
  } finally {
    if (stage) rmSync(stage, { recursive: true, force: true })
    release()
  }
}

const LOCK = 'server.lock'

/** Refuses while a server runs or records would be replaced; returns what releases the server's lock. */
function assertReplaceable({ stateDir, force }: RestoreOptions): () => void {
  if (!existsSync(stateDir)) return () => {}
  const lock = createLock(join(stateDir, LOCK))
  if (lock.tryAcquire() === undefined)
    throw new SandboxError('wrong-state', `a server (process ${lock.holderPid()}) uses \`${stateDir}\``, {
      hint: 'stop it first',
    })
  // The lock moves with an old directory.
  const release = (): void => {
    if (existsSync(stateDir)) rmSync(join(stateDir, LOCK), { force: true })
  }
  if (force || readdirSync(stateDir).every((name) => name.startsWith(LOCK))) return release
  release()
  throw new SandboxError('conflict', `the state directory \`${stateDir}\` is not empty`, {
    hint: 'set RINGFENCE_HOME to a new one, or use --force: the old one is then kept beside it',
  })
}

async function verified(stage: string, { against }: RestoreOptions): Promise<number> {
  const verdict = await verifyHere(stage, against === undefined ? {} : { against })
  if (verdict.ok) return verdict.records
  throw new SandboxError(
    'conflict',
    `the audit log in the backup does not verify: record ${verdict.seq}: ${verdict.problem}`,
    { hint: 'nothing was replaced; restore another backup' },
  )
}

/** INVARIANT: one transaction on an empty database; a failure leaves it empty. */
async function fillDatabase(stage: string, databaseUrl: string): Promise<void> {
  if (databaseUrl === '' || trailLocation(stage) === undefined) return
  const to = await openStore({ stateDir: stage, databaseUrl })
  try {
    await migrateStore(stage, () => openStore({ stateDir: stage }), to)
  } finally {
    await to.close()
  }
}

/** Two renames in one directory; the first is undone if the second fails. */
function swap(stage: string, stateDir: string): string | null {
  const old = existsSync(stateDir) ? `${stateDir}.before-${Date.now()}` : undefined
  try {
    if (old) renameSync(stateDir, old)
  } catch (error) {
    throw immovable(stateDir, error)
  }
  try {
    renameSync(stage, stateDir)
  } catch (error) {
    if (old) renameSync(old, stateDir)
    throw immovable(stateDir, error)
  }
  syncDir(dirname(stateDir))
  if (!old) return null
  for (const name of readdirSync(old)) if (name.startsWith(LOCK)) rmSync(join(old, name), { force: true })
  if (readdirSync(old).length > 0) return old
  rmdirSync(old)
  return null
}

const immovable = (stateDir: string, cause: unknown): SandboxError =>
  new SandboxError(
    'conflict',
    `the state directory \`${stateDir}\` cannot be replaced: ${(cause as NodeJS.ErrnoException).code}`,
    { hint: 'a mount point cannot be renamed: set RINGFENCE_HOME to a directory inside it', cause },
  )
