import type { SettingList, TenantInfo } from '../model/api/operator.ts'
import type { Config } from '../model/config.ts'
import type { Json } from '../model/event.ts'
import { configSchema } from '../model/reference/config.ts'
import type { JsonSchema } from '../model/shape.ts'
import { tenantGrants } from '../policy/grants/tenancy.ts'
import type { ServerParts } from '../server/parts.ts'
import { countByTenant } from '../store/sandboxes.ts'
import type { Store } from '../store/sql.ts'
import type { Keys } from '../supervisor/access/keys.ts'
import type { Ringfence } from './compose.ts'

type OperatorParts = {
  readonly ringfence: Pick<Ringfence, 'current' | 'home' | 'policyFile'>
  readonly store: Store
  readonly keys: Keys
}

/** What an operator sees of tenants and settings. */
export const operatorViews = (parts: OperatorParts): Pick<ServerParts, 'tenants' | 'configuration'> => ({
  tenants: () => tenantViews(parts),
  configuration: () => settingViews(parts.ringfence),
})

/** Every tenant that has a key, a sandbox or a `[[tenant]]`, with what it may have. */
async function tenantViews({ ringfence, store, keys }: OperatorParts): Promise<TenantInfo[]> {
  const config = ringfence.current()
  const inForce = (await keys.list()).filter(({ revokedAt }) => revokedAt === null)
  const sandboxes = await countByTenant(store)
  const named = (config.tenant ?? []).map(({ name }) => name)
  const names = new Set([...named, ...inForce.map(({ tenant }) => tenant), ...sandboxes.keys()])
  return [...names].sort().map((name) => {
    const grants = tenantGrants(config, name, { home: ringfence.home, real: (path) => path })
    return {
      name,
      configured: named.includes(name),
      keys: inForce.filter(({ tenant }) => tenant === name).length,
      sandboxes: sandboxes.get(name) ?? 0,
      max_sandboxes: sandboxesOf(config, name),
      backends: grants.backends,
      network_modes: grants.networkModes,
      allow_hosts: grants.allowHosts ?? null,
      host_paths: grants.hostPaths.map(({ path, mode }) => ({ path, mode })),
      waive: grants.waive,
      public_ports: grants.publicPorts,
    }
  })
}

/**
 * Every setting with its value.
 * SECURITY: what may contain credentials of others is not shown, only that it is set.
 */
const settingViews = ({ current, policyFile }: Pick<Ringfence, 'current' | 'policyFile'>): SettingList => ({
  file: policyFile,
  items: settingsIn(configSchema(), current(), ''),
})

const HIDDEN = new Set(['server.database_url', 'mcp', 'secret', 'storage.url'])

type Tree = JsonSchema & {
  readonly properties?: Readonly<Record<string, Tree>>
  readonly items?: Tree
  readonly description?: string
  readonly default?: Json
}

function settingsIn(schema: Tree, values: unknown, at: string): SettingList['items'][number][] {
  return Object.entries(schema.properties ?? {}).flatMap(([key, one]) => {
    const name = at === '' ? key : `${at}.${key}`
    const value = (values as Record<string, unknown> | undefined)?.[key]
    if (one.properties && !HIDDEN.has(name)) return settingsIn(one, value, name)
    return [
      {
        name,
        value: value === undefined ? (one.default ?? null) : shown(name, one, value),
        configured: value !== undefined,
        description: one.description ?? '',
      },
    ]
  })
}

function shown(name: string, { items }: Tree, value: unknown): Json {
  if (HIDDEN.has(name)) return 'set'
  if (items?.properties) return entries((value as readonly unknown[]).length)
  return value as Json
}

const entries = (count: number): string => `${count} ${count === 1 ? 'entry' : 'entries'}`

/** SECURITY: by default no tenant gets more than half of the sandboxes, so that one tenant cannot use all of them. */
export function sandboxesOf({ server = {}, tenant: tenants }: Config, tenant: string): number {
  const own = tenants?.find(({ name }) => name === tenant)?.max_sandboxes
  return own ?? server.max_sandboxes_per_tenant ?? Math.ceil((server.max_sandboxes ?? SANDBOXES) / 2)
}
/** The default of `max_sandboxes`. */
export const SANDBOXES = 1000
