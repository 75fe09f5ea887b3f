import { existsSync, mkdirSync } from 'node:fs'
import { ClusterKey, createJoinToken, initCluster, redeemJoinToken } from '../../cluster/identity.ts'
import { clusterKeyFile, compose, databaseUrl } from '../../compose/compose.ts'
import { SandboxError } from '../../model/errors.ts'
import { openStore } from '../../store/open.ts'
import type { Store } from '../../store/sql.ts'
import { numberOption, parseOptions, usage } from '../options/options.ts'
import { err } from '../terminal/output.ts'
import { print } from './remote.ts'

const OPTIONS = { 'database-url': { type: 'string' }, minutes: { type: 'string' } } as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']
type Call = {
  readonly values: Values
  readonly store: Store
  readonly keyFile: string
  readonly token?: string
}
type Action = (call: Call) => Promise<number>

const ACTIONS: Readonly<Record<string, Action>> = { init, token, join }

const MINUTES = 60

/** `ringfence cluster init|token|join`: on the database, with the key of this machine's state directory. */
export async function cluster(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('cluster', args, OPTIONS)
  const [name, given, ...rest] = positionals
  const action = name !== undefined && Object.hasOwn(ACTIONS, name) ? ACTIONS[name] : undefined
  if (!action)
    throw usage(
      'cluster',
      `${name === undefined ? 'missing action' : `unknown action \`${name}\``}: init, token, join`,
    )
  if (rest.length > 0 || (given !== undefined && name !== 'join'))
    throw usage('cluster', `unexpected \`${rest[0] ?? given}\``)
  const { config, env, stateDir } = await compose({ config: values.config })
  const url = values['database-url'] ?? databaseUrl(config, env)
  if (!url)
    throw new SandboxError('invalid-config', 'a cluster needs PostgreSQL', {
      hint: 'give --database-url, RINGFENCE_DATABASE_URL or `database_url` in [server]',
    })
  mkdirSync(stateDir, { recursive: true, mode: 0o700 })
  const store = await openStore({ stateDir, databaseUrl: url })
  try {
    const keyFile = clusterKeyFile(config, stateDir)
    return await action({ values, store, keyFile, ...(given === undefined ? {} : { token: given }) })
  } finally {
    await store.close()
  }
}

function assertNoKey(keyFile: string): void {
  if (existsSync(keyFile))
    throw new SandboxError('conflict', `this machine already has a cluster key: \`${keyFile}\``, {
      hint: 'it is a member already; to leave that cluster, stop the server and remove the file',
    })
}

async function init({ values, store, keyFile }: Call): Promise<number> {
  assertNoKey(keyFile)
  const key = ClusterKey.create()
  await initCluster(store, key)
  key.save(keyFile)
  print(values.json, { key_file: keyFile }, () => `the cluster is ready; its key is in ${keyFile}\n`)
  if (!values.json)
    err(
      'keep a copy of the key in a safe place, and run `ringfence cluster token` for each further machine\n',
    )
  return 0
}

async function token({ values, store, keyFile }: Call): Promise<number> {
  const key = ClusterKey.load(keyFile)
  if (!key)
    throw new SandboxError('invalid-config', 'this machine has not joined the cluster', {
      hint: 'run it on a machine that has',
    })
  const minutes = numberOption('--minutes', values.minutes) ?? MINUTES
  const made = await createJoinToken(store, key, minutes * 60_000)
  print(values.json, { token: made, expires_in_secs: minutes * 60 }, () => `${made}\n`)
  if (!values.json) err(`works once, within ${minutes} minutes: ringfence cluster join TOKEN\n`)
  return 0
}

async function join({ values, store, keyFile, token: given }: Call): Promise<number> {
  if (given === undefined) throw usage('cluster', 'missing token: `cluster join TOKEN`')
  assertNoKey(keyFile)
  const key = await redeemJoinToken(store, given)
  key.save(keyFile)
  print(values.json, { key_file: keyFile }, () => `joined; the cluster's key is in ${keyFile}\n`)
  return 0
}
