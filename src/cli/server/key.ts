import type { KeyInfo as Shown } from '../../client/types.ts'
import { compose, databaseUrl, newId } from '../../compose/compose.ts'
import { SandboxError } from '../../model/errors.ts'
import { visible } from '../../model/text/visible.ts'
import { openStore } from '../../store/open.ts'
import { type KeyInfo, Keys, SCOPES, type Scope } from '../../supervisor/access/keys.ts'
import { parseOptions, usage } from '../options/options.ts'
import { err } from '../terminal/output.ts'
import { namedServer, print, table } from './remote.ts'

const OPTIONS = {
  scope: { type: 'string', multiple: true },
  e2b: { type: 'boolean' },
  name: { type: 'string' },
  tenant: { type: 'string' },
} as const

type KeyStore = {
  readonly create: (options: {
    readonly name?: string
    readonly scopes?: readonly Scope[]
    readonly tenant?: string
    readonly e2b?: boolean
  }) => Promise<Shown & { readonly key: string }>
  readonly list: () => Promise<readonly Shown[]>
  readonly revoke: (id: string) => Promise<void>
  readonly close: () => Promise<void>
}

/** `ringfence key create|ls|revoke`: on the server at RINGFENCE_URL, or on the local state directory. */
export async function key(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('key', args, OPTIONS)
  const [action, id, ...rest] = positionals
  if (rest.length > 0) throw usage('key', `unexpected \`${rest[0]}\``)
  const keyStore = await keyStoreOf(values.config)
  try {
    switch (action) {
      case 'create':
        return await create(keyStore, values)
      case 'ls':
        return await list(keyStore, values.json)
      case 'revoke':
        if (id === undefined) throw usage('key', 'missing key id: `key revoke ID`')
        await keyStore.revoke(id)
        print(values.json, { id, revoked: true }, () => `revoked ${id}\n`)
        return 0
      default:
        throw usage(
          'key',
          action === undefined ? 'missing action: create, ls or revoke' : `unknown action \`${action}\``,
        )
    }
  } finally {
    await keyStore.close()
  }
}

type Values = {
  readonly scope?: string[] | undefined
  readonly e2b?: boolean | undefined
  readonly name?: string | undefined
  readonly tenant?: string | undefined
  readonly json?: boolean | undefined
}

async function create(keyStore: KeyStore, { scope, e2b, name, tenant, json }: Values): Promise<number> {
  const scopes = scope?.flatMap((one) => one.split(',')).map(scopeOf)
  const made = await keyStore.create({
    ...(scopes && { scopes }),
    ...(e2b && { e2b }),
    ...(name && { name }),
    ...(tenant && { tenant }),
  })
  print(json, made, () => `${visible(made.key)}\n`)
  if (!json) err(`${made.id}: ${made.scopes.join(', ')}; store the key now, it is not shown again\n`)
  return 0
}

function scopeOf(name: string): Scope {
  if (SCOPES.includes(name as Scope)) return name as Scope
  throw new SandboxError('invalid-input', `unknown scope \`${name}\``, {
    hint: `one of: ${SCOPES.join(', ')}`,
  })
}

async function list(keyStore: KeyStore, json: boolean | undefined): Promise<number> {
  const keys = await keyStore.list()
  print(json, keys, () =>
    table([
      ['ID', 'KEY', 'SCOPES', 'TENANT', 'NAME', 'CREATED', ''],
      ...keys.map((one) => [
        one.id,
        `${one.start}…`,
        one.scopes.join(','),
        one.tenant,
        one.name,
        one.created_at,
        one.revoked_at === null ? '' : 'revoked',
      ]),
    ]),
  )
  return 0
}

async function keyStoreOf(config: string | undefined): Promise<KeyStore> {
  const remote = namedServer()
  if (remote)
    return {
      create: (options) => remote.createKey(options),
      list: async () => (await remote.keys()).items,
      revoke: (id) => remote.revokeKey(id),
      close: async () => {},
    }
  const ringfence = await compose({ config })
  const store = await openStore({
    stateDir: ringfence.stateDir,
    databaseUrl: databaseUrl(ringfence.config, ringfence.env),
  })
  const keys = new Keys(store, newId)
  return {
    create: async (options) => {
      const { secret, key: made } = await keys.create(options)
      return { ...shown(made), key: secret }
    },
    list: async () => (await keys.list()).map(shown),
    revoke: (id) => keys.revoke(id),
    close: () => store.close(),
  }
}

const shown = (one: KeyInfo): Shown => ({
  id: one.id,
  name: one.name,
  start: one.start,
  scopes: one.scopes,
  tenant: one.tenant,
  created_at: new Date(one.createdAt).toISOString(),
  revoked_at: one.revokedAt === null ? null : new Date(one.revokedAt).toISOString(),
})
