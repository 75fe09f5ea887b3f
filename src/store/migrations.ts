import { SandboxError } from '../model/errors.ts'
import type { Engine, Store, Tx } from './sql.ts'

/** One step of the schema; statements that differ between the engines are listed by engine. */
type Step = string | Readonly<Record<Engine['kind'], readonly string[]>> | ((tx: Tx) => Promise<void>)
/** The steps to one version of the schema. */
export type Migration = readonly Step[]

// Protects the append-only log from our own mistakes; the signed head reveals forgery.
const REFUSE_CHANGES = {
  sqlite: ['UPDATE', 'DELETE'].map(
    (verb) => `CREATE TRIGGER trail_no_${verb.toLowerCase()} BEFORE ${verb} ON trail
         BEGIN SELECT RAISE(ABORT, 'the trail is append-only'); END`,
  ),
  postgres: [
    `CREATE TRIGGER trail_append_only BEFORE UPDATE OR DELETE ON trail
         FOR EACH ROW EXECUTE FUNCTION trail_refuse()`,
  ],
}
const APPEND_ONLY: Step = {
  sqlite: REFUSE_CHANGES.sqlite,
  postgres: [
    `CREATE FUNCTION trail_refuse() RETURNS trigger LANGUAGE plpgsql AS
         $body$ BEGIN RAISE EXCEPTION 'the trail is append-only'; END $body$`,
    ...REFUSE_CHANGES.postgres,
  ],
}

const TABLES: Migration = [
  `CREATE TABLE sandboxes (
     id TEXT PRIMARY KEY, tenant TEXT NOT NULL, key_id TEXT NOT NULL, state TEXT NOT NULL, reason TEXT,
     backend TEXT, level TEXT, spec TEXT NOT NULL, agent_id TEXT, token_hash TEXT NOT NULL, layers TEXT,
     instance TEXT NOT NULL, epoch BIGINT NOT NULL,
     created_at BIGINT NOT NULL, expires_at BIGINT, ended_at BIGINT, changed_at BIGINT NOT NULL)`,
  'CREATE INDEX sandboxes_page ON sandboxes (created_at, id)',
  'CREATE INDEX sandboxes_tenant ON sandboxes (tenant, created_at, id)',
  'CREATE INDEX sandboxes_owner ON sandboxes (instance, state)',
  `CREATE TABLE keys (
     id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, name TEXT NOT NULL, start TEXT NOT NULL, scopes TEXT NOT NULL,
     tenant TEXT NOT NULL, created_at BIGINT NOT NULL, revoked_at BIGINT)`,
  `CREATE TABLE approvals (
     id TEXT PRIMARY KEY, tenant TEXT NOT NULL, sandbox_id TEXT NOT NULL, exec_id TEXT, agent_id TEXT,
     command TEXT NOT NULL, cwd TEXT NOT NULL, decision TEXT NOT NULL, state TEXT NOT NULL, answered_by TEXT,
     asked_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, answered_at BIGINT, instance TEXT NOT NULL)`,
  'CREATE INDEX approvals_page ON approvals (asked_at, id)',
  'CREATE INDEX approvals_state ON approvals (state, instance)',
  `CREATE TABLE webhooks (
     id TEXT PRIMARY KEY, tenant TEXT NOT NULL, url TEXT NOT NULL, secret TEXT NOT NULL, events TEXT NOT NULL,
     position BIGINT NOT NULL, failures BIGINT NOT NULL, created_at BIGINT NOT NULL)`,
  `CREATE TABLE idempotency (
     tenant TEXT NOT NULL, name TEXT NOT NULL, request TEXT NOT NULL, sandbox_id TEXT NOT NULL,
     created_at BIGINT NOT NULL, PRIMARY KEY (tenant, name))`,
  `CREATE TABLE snapshots (
     id TEXT PRIMARY KEY, kind TEXT NOT NULL, tenant TEXT NOT NULL, name TEXT, sandbox_id TEXT, backend TEXT NOT NULL,
     data TEXT NOT NULL, created_at BIGINT NOT NULL)`,
  'CREATE INDEX snapshots_tenant ON snapshots (tenant, created_at, id)',
  `CREATE TABLE trail (
     chain TEXT NOT NULL, seq BIGINT NOT NULL, time TEXT NOT NULL, event TEXT NOT NULL, agent_id TEXT,
     sandbox_id TEXT, exec_id TEXT, line TEXT NOT NULL, PRIMARY KEY (chain, seq))`,
  'CREATE INDEX trail_sandbox ON trail (sandbox_id, seq)',
  'CREATE INDEX trail_agent ON trail (agent_id, seq)',
  'CREATE INDEX trail_event ON trail (event, seq)',
  'CREATE TABLE trail_heads (chain TEXT PRIMARY KEY, anchor TEXT NOT NULL)',
  APPEND_ONLY,
]

/** Console: sessions, sign-in links and the reason of an answer. */
const CONSOLE: Migration = [
  'CREATE TABLE console_links (hash TEXT PRIMARY KEY, key_id TEXT NOT NULL, expires_at BIGINT NOT NULL)',
  `CREATE TABLE console_sessions (
     hash TEXT PRIMARY KEY, page_hash TEXT NOT NULL, key_id TEXT NOT NULL, created_at BIGINT NOT NULL,
     expires_at BIGINT NOT NULL)`,
  'ALTER TABLE approvals ADD COLUMN reason TEXT',
]

/** Retention: the tenants of removed sandboxes, because the audit log is read by tenant, and indexes on old records. */
const RETENTION: Migration = [
  'CREATE TABLE former_sandboxes (id TEXT PRIMARY KEY, tenant TEXT NOT NULL)',
  'CREATE INDEX sandboxes_ended ON sandboxes (ended_at, id) WHERE ended_at IS NOT NULL',
  'CREATE INDEX approvals_sandbox ON approvals (sandbox_id)',
  'CREATE INDEX idempotency_sandbox ON idempotency (sandbox_id)',
]

/** A webhook ends with the key that created it. Webhooks of older versions have no key, and stay until they are removed. */
const WEBHOOK_KEYS: Migration = ['ALTER TABLE webhooks ADD COLUMN key_id TEXT']

/**
 * The tenant of each record. New records contain it; for those of older versions the column is filled from the sandboxes.
 * The append-only triggers are restored in the same transaction.
 */
const TRAIL_TENANTS: Migration = [
  'ALTER TABLE trail ADD COLUMN tenant TEXT',
  {
    sqlite: ['DROP TRIGGER IF EXISTS trail_no_update', 'DROP TRIGGER IF EXISTS trail_no_delete'],
    postgres: ['DROP TRIGGER IF EXISTS trail_append_only ON trail'],
  },
  fillTenants,
  REFUSE_CHANGES,
  'CREATE INDEX trail_tenant ON trail (tenant, seq) WHERE tenant IS NOT NULL',
]

/** Approvals of hosts: the host as JSON, and how far the answer reaches. */
const HOST_APPROVALS: Migration = [
  'ALTER TABLE approvals ADD COLUMN host TEXT',
  'ALTER TABLE approvals ADD COLUMN scope TEXT',
]

/** Named directories that outlive sandboxes. */
const VOLUMES: Migration = [
  `CREATE TABLE volumes (
     id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, size_mb BIGINT NOT NULL, read_only BIGINT NOT NULL,
     created_at BIGINT NOT NULL)`,
  'CREATE UNIQUE INDEX volumes_name ON volumes (tenant, name)',
]

/**
 * Several servers on one database: the nodes with their leases, the secrets of the cluster (encrypted with its key), tokens
 * that let one machine join, and the order of the records of all chains. Only PostgreSQL uses them.
 */
const CLUSTER: Migration = [
  `CREATE TABLE nodes (
     id TEXT PRIMARY KEY, epoch BIGINT NOT NULL, state TEXT NOT NULL, schedule TEXT NOT NULL, role TEXT NOT NULL,
     name TEXT NOT NULL, url TEXT NOT NULL, fingerprint TEXT NOT NULL, chain TEXT NOT NULL, version TEXT NOT NULL,
     lease_ms BIGINT NOT NULL, lease_until BIGINT NOT NULL, joined_at BIGINT NOT NULL, facts TEXT NOT NULL,
     fenced_by TEXT, settled BIGINT NOT NULL)`,
  'CREATE INDEX nodes_lease ON nodes (state, lease_until)',
  'CREATE TABLE cluster_secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL)',
  'CREATE TABLE join_tokens (hash TEXT PRIMARY KEY, bundle TEXT NOT NULL, expires_at BIGINT NOT NULL)',
  'CREATE TABLE trail_order (position BIGINT PRIMARY KEY, chain TEXT NOT NULL, seq BIGINT NOT NULL)',
  'CREATE UNIQUE INDEX trail_order_record ON trail_order (chain, seq)',
  "CREATE INDEX sandboxes_key_live ON sandboxes (key_id) WHERE state NOT IN ('destroyed', 'failed')",
  "CREATE INDEX sandboxes_tenant_live ON sandboxes (tenant) WHERE state NOT IN ('destroyed', 'failed')",
  'ALTER TABLE sandboxes ADD COLUMN by_operator BIGINT NOT NULL DEFAULT 0',
  'ALTER TABLE volumes ADD COLUMN instance TEXT',
]

/** Sandboxes that other servers take over: how often, what they need to start again, and from which files. */
const TAKEOVERS: Migration = [
  'ALTER TABLE sandboxes ADD COLUMN generation BIGINT NOT NULL DEFAULT 1',
  'ALTER TABLE sandboxes ADD COLUMN idle_ms BIGINT',
  'ALTER TABLE sandboxes ADD COLUMN ttl_ms BIGINT',
  'ALTER TABLE sandboxes ADD COLUMN restore TEXT',
  'CREATE INDEX snapshots_sandbox ON snapshots (sandbox_id, created_at)',
]

/** Archives in an object store: their chunks, and which archive needs which. */
const ARCHIVES: Migration = [
  'CREATE TABLE chunks (name TEXT PRIMARY KEY, bytes BIGINT NOT NULL, state TEXT NOT NULL, used_at BIGINT NOT NULL)',
  'CREATE INDEX chunks_used ON chunks (state, used_at)',
  'CREATE TABLE chunk_uses (chunk TEXT NOT NULL, archive TEXT NOT NULL, PRIMARY KEY (chunk, archive))',
  'CREATE INDEX chunk_uses_archive ON chunk_uses (archive)',
]

/**
 * Several versions of the program on one database: each version of the schema says from which one on a program can use it.
 * Migrations only add tables, and columns that older programs need not know.
 */
const SIDE_BY_SIDE: Migration = ['ALTER TABLE migrations ADD COLUMN oldest BIGINT']

/**
 * Volumes that change their node: how often a volume was opened for writing, and the copy of its files with the number that it was
 * made at. The copy is complete and current exactly when both numbers are equal.
 */
const VOLUME_MOVES: Migration = [
  'ALTER TABLE volumes ADD COLUMN version BIGINT NOT NULL DEFAULT 0',
  'ALTER TABLE volumes ADD COLUMN archive TEXT',
  'ALTER TABLE volumes ADD COLUMN archived BIGINT',
]

/** In order. A released migration is never changed. */
export const MIGRATIONS: readonly Migration[] = [
  TABLES,
  CONSOLE,
  RETENTION,
  WEBHOOK_KEYS,
  TRAIL_TENANTS,
  HOST_APPROVALS,
  VOLUMES,
  CLUSTER,
  TAKEOVERS,
  ARCHIVES,
  SIDE_BY_SIDE,
  VOLUME_MOVES,
]

/** The version of the schema that `oldest` came with. */
const SINCE = MIGRATIONS.indexOf(SIDE_BY_SIDE) + 1
/** Programs of this version of the schema and later ones work with the newest schema. Raise it with a migration that does not only add. */
const OLDEST = 8

/** In steps, because each statement must finish within the store's timeout. */
const FILL_ROWS = 10_000

async function fillTenants(tx: Tx): Promise<void> {
  const [last] = await tx.run('SELECT MAX(seq) AS seq FROM trail')
  for (let from = 0; from <= Number(last?.seq ?? -1); from += FILL_ROWS)
    await tx.run(
      `UPDATE trail SET tenant = COALESCE(
         (SELECT s.tenant FROM sandboxes s WHERE s.id = trail.sandbox_id),
         (SELECT f.tenant FROM former_sandboxes f WHERE f.id = trail.sandbox_id))
       WHERE sandbox_id IS NOT NULL AND seq >= ? AND seq < ?
         AND chain IN (SELECT chain FROM trail_heads)`,
      [from, from + FILL_ROWS],
    )
}

const LOCK = 7_219_004

/**
 * Upgrades the schema. Each migration and its version number are one transaction, so a crash leaves it complete or not
 * applied, and the next start continues from there.
 */
export async function migrate(store: Store, migrations = MIGRATIONS, afterStep = () => {}): Promise<void> {
  const have = await schemaVersion(store, migrations)
  for (let version = have + 1; version <= migrations.length; version++)
    await apply(store, version, migrations[version - 1] as Migration, afterStep)
}

/** Throws unless a store that is only read has this version's schema, or a newer one that this version can use. */
export async function assertCurrent(
  read: (sql: string) => Promise<readonly { readonly version?: unknown; readonly oldest?: unknown }[]>,
): Promise<void> {
  const [row] = await read('SELECT MAX(version) AS version FROM migrations')
  const have = Number(row?.version ?? 0)
  if (have === MIGRATIONS.length || (have > MIGRATIONS.length && (await isUsable(read)))) return
  throw new SandboxError('wrong-state', `the store has the schema ${row?.version} of another version`, {
    hint: 'use the version of ringfence that wrote it, or start this version’s server once to upgrade it',
  })
}

/** Whether a store with data needs an upgrade; that may take as long as the data is large. */
export async function needsUpgrade(store: Store): Promise<boolean> {
  const have = await schemaVersion(store)
  return have > 0 && have < MIGRATIONS.length
}

/** The version of the schema; 0 for an empty store. */
async function schemaVersion(store: Store, migrations = MIGRATIONS): Promise<number> {
  await store.write(async (tx) => {
    await exclusive(store, tx)
    await tx.run('CREATE TABLE IF NOT EXISTS migrations (version BIGINT PRIMARY KEY, at BIGINT NOT NULL)')
  })
  const have = Number((await store.read('SELECT MAX(version) AS version FROM migrations'))[0]?.version ?? 0)
  if (have > migrations.length && !(await isUsable((sql) => store.read(sql), migrations.length)))
    throw new SandboxError('store-unwritable', `the store was created by a newer version (schema ${have})`, {
      hint: 'use that version, or another state directory',
    })
  return have
}

/** Whether a program of this version can use a newer schema. */
async function isUsable(
  read: (sql: string) => Promise<readonly { readonly oldest?: unknown }[]>,
  own = MIGRATIONS.length,
): Promise<boolean> {
  // Every schema that is newer than this one has the column. A row without a value says nothing, so it is not usable.
  const newer = await read(`SELECT oldest FROM migrations WHERE version > ${own}`)
  return newer.every(({ oldest }) => oldest !== null && oldest !== undefined && Number(oldest) <= own)
}

async function apply(store: Store, version: number, steps: Migration, afterStep: () => void): Promise<void> {
  await store.write(async (tx) => {
    await exclusive(store, tx)
    const done = await tx.run('SELECT 1 AS done FROM migrations WHERE version = ?', [version])
    if (done.length > 0) return
    for (const step of steps) {
      if (typeof step === 'function') await step(tx)
      else for (const sql of typeof step === 'string' ? [step] : step[store.kind]) await tx.run(sql)
      afterStep()
    }
    await tx.run('INSERT INTO migrations (version, at) VALUES (?, ?)', [version, Date.now()])
    if (version >= SINCE)
      await tx.run('UPDATE migrations SET oldest = ? WHERE version = ?', [OLDEST, version])
  })
}

/** Serializes servers that start at the same time; in SQLite, write transactions are exclusive anyway. */
async function exclusive(store: Store, tx: Tx): Promise<void> {
  if (store.kind === 'postgres') await tx.run('SELECT pg_advisory_xact_lock(?)', [LOCK])
}
