import { migrateStore } from '../../audit/migrate-store.ts'
import { compose, databaseUrl } from '../../compose/compose.ts'
import { visibleJson } from '../../model/text/visible.ts'
import { openStore } from '../../store/open.ts'
import { lockStateDirectory } from '../../supervisor/instance.ts'
import { parseOptions, usage } from '../options/options.ts'
import { out } from '../terminal/output.ts'

/** `ringfence migrate --database-url URL`: moves the records from SQLite to PostgreSQL. */
export async function migrate(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('migrate', args, {
    'database-url': { type: 'string' },
  } as const)
  if (positionals.length > 0) throw usage('migrate', `unexpected \`${positionals[0]}\``)
  const { config, env, stateDir, close } = await compose({ config: values.config })
  await close()
  const url = values['database-url'] ?? databaseUrl(config, env)
  if (url === '') throw usage('migrate', 'missing target: --database-url postgres://user@host/name')
  // SECURITY: a server that runs meanwhile would write records, or revoke keys, that the copy does not have.
  const release = lockStateDirectory(stateDir)
  try {
    return await moveTo(url, stateDir, values.json ?? false)
  } finally {
    release()
  }
}

async function moveTo(url: string, stateDir: string, json: boolean): Promise<number> {
  const to = await openStore({ stateDir, databaseUrl: url })
  try {
    const done = await migrateStore(stateDir, () => openStore({ stateDir }), to)
    const rows = done.tables.reduce((sum, table) => sum + table.rows, 0)
    const text = done.copied
      ? `moved ${rows} rows of ${done.tables.length} tables; the audit log of ${done.records} records verifies\n`
      : `nothing to do: the records are already in PostgreSQL; the audit log of ${done.records} records verifies\n`
    out(json ? `${visibleJson(done)}\n` : text)
    return 0
  } finally {
    await to.close()
  }
}
