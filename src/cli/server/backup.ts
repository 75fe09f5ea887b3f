import { resolve } from 'node:path'
import { compose, databaseUrl } from '../../compose/compose.ts'
import { visibleJson } from '../../model/text/visible.ts'
import { VERSION } from '../../model/version.ts'
import { backup as write } from '../../supervisor/backup/backup.ts'
import { restore as read } from '../../supervisor/backup/restore.ts'
import { headFrom } from '../audit.ts'
import { parseOptions, usage } from '../options/options.ts'
import { out } from '../terminal/output.ts'

const DATABASE = { 'database-url': { type: 'string' } } as const

/** `ringfence backup FILE`: writes the records, the audit log and the keys to one file. */
export async function backup(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('backup', args, DATABASE)
  const file = onlyFile('backup', positionals)
  const host = await hostOf(values)
  const done = await write({ ...host, file, version: VERSION })
  const missing =
    done.left_out.length > 0 ? `not in the backup: ${done.left_out.join(', ')} in ${host.stateDir}\n` : ''
  const said = `wrote ${done.file}: ${done.files} files, ${done.bytes} bytes; the audit log of ${done.records} records verifies\n`
  out(values.json ? `${visibleJson(done)}\n` : `${said}${missing}`)
  return 0
}

/** `ringfence restore FILE`: verifies a backup and makes it the state directory. */
export async function restore(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('restore', args, {
    ...DATABASE,
    force: { type: 'boolean' },
    against: { type: 'string' },
  } as const)
  const file = onlyFile('restore', positionals)
  const host = await hostOf(values)
  const against = values.against === undefined ? {} : { against: headFrom(values.against) }
  const done = await read({ ...host, file, force: values.force === true, ...against })
  const kept = done.kept === null ? '' : `the old state directory is kept as ${done.kept}\n`
  const said = `restored ${done.state_dir} as of ${done.created_at}; the audit log of ${done.records} records verifies\n`
  out(values.json ? `${visibleJson(done)}\n` : `${said}${kept}`)
  return 0
}

function onlyFile(command: string, positionals: readonly string[]): string {
  const [file, more] = positionals
  if (file === undefined) throw usage(command, 'missing FILE')
  if (more !== undefined) throw usage(command, `unexpected \`${more}\``)
  return resolve(file)
}

async function hostOf(values: {
  readonly config?: string | undefined
  readonly 'database-url'?: string | undefined
}) {
  const { config, env, stateDir, close } = await compose({ config: values.config })
  await close()
  return { stateDir, databaseUrl: values['database-url'] ?? databaseUrl(config, env) }
}
