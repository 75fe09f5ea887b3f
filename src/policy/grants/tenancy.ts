import type { Config, TenantConfig } from '../../model/config.ts'
import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/files/path.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import { ownedTargets, type Plan } from '../../model/plan.ts'
import type { Limits, NetworkMode, Spec } from '../../model/spec.ts'
import { allowedBy, type HostRule, isCovered, parseHostRules } from '../network/hosts.ts'
import { approvedHostsOf, askedHosts, askedNetworkMode } from '../network/plan-egress.ts'
import type { PathEvidence } from '../paths/paths.ts'
import { segmentsOf } from '../paths/text.ts'
import type { Capability } from './capability.ts'
import type { SandboxPolicy } from './grants.ts'
import { assertLent } from './secret-lending.ts'

/**
 * The host resources that a server key may use. The operator (a key with the scope `admin`) may use everything that the
 * policy permits; a tenant gets only the host resources that `[[tenant]]` grants by name. Every sandbox on a server passes
 * these checks: the gate calls them before planning, and again with the plan.
 */

const LIMITED = ['cpus', 'memoryMb', 'diskMb', 'pids'] as const
type Limited = (typeof LIMITED)[number]

/** `real` is the path with symlinks resolved, if it exists. */
type HostPathGrant = {
  readonly path: string
  readonly real?: string | undefined
  readonly mode: 'ro' | 'rw'
}

/** The grants of one tenant. */
export type TenantGrants = {
  readonly tenant: string
  readonly backends: readonly string[]
  readonly networkModes: readonly NetworkMode[]
  /** `undefined`: the operator's list applies. */
  readonly allowHosts: readonly string[] | undefined
  /** Hosts that the tenant's sandboxes with `unlisted = ask` reach without asking. */
  readonly approvedHosts: readonly string[]
  readonly hostPaths: readonly HostPathGrant[]
  readonly waive: readonly Guarantee[]
  readonly images: readonly string[]
  readonly publicPorts: boolean
  readonly max: Readonly<Partial<Pick<Limits, Limited>>>
  readonly secrets: NonNullable<Config['secret']>
  /** Addresses of the operator's proxies that the tenant's sandboxes may name. */
  readonly upstreams: readonly string[]
}

/** SECURITY: a closed list. A backend that is added later must be granted by name. */
const ISOLATING = ['bubblewrap', 'seatbelt', 'docker', 'gvisor', 'microvm']
const ISOLATED_MODES: readonly NetworkMode[] = ['offline', 'loopback', 'fetch']

/** The grants of a tenant, including tenants that the configuration does not name. `real` resolves symlinks. */
export function tenantGrants(
  config: Config,
  tenant: string,
  { home, real }: { readonly home: string; readonly real: (path: string) => string | undefined },
): TenantGrants {
  const own: Partial<TenantConfig> = config.tenant?.find(({ name }) => name === tenant) ?? {}
  const { max_cpus: cpus, max_memory_mb: memoryMb, max_disk_mb: diskMb, max_pids: pids } = own
  return {
    tenant,
    backends: own.backends ?? ISOLATING,
    networkModes: own.network_modes ?? ISOLATED_MODES,
    allowHosts: own.allow_hosts,
    approvedHosts: approvedHostsOf(config, tenant),
    hostPaths: (own.host_paths ?? []).map(({ path, mode }) => {
      const absolute = plain(path.replace(/^~(?=\/|$)/, home))
      return { path: absolute, real: real(absolute), mode }
    }),
    waive: own.waive ?? [],
    images: own.images ?? [],
    publicPorts: own.public_ports ?? true,
    max: {
      ...(cpus && { cpus }),
      ...(memoryMb && { memoryMb }),
      ...(diskMb && { diskMb }),
      ...(pids && { pids }),
    },
    secrets: config.secret ?? [],
    upstreams: (config.network?.upstream ?? [])
      .filter(({ tenants }) => tenants?.includes(tenant))
      .map(({ address }) => address),
  }
}

/** The operator's policy, narrowed by the tenant's grants. */
export function narrowed(policy: SandboxPolicy, grants: TenantGrants): SandboxPolicy {
  const outer = parseHostRules(policy.allowHosts)
  const isPermitted = (host: string): boolean =>
    outer.length === 0 || parseHostRules([host]).every((rule) => isCovered(rule, outer))
  return {
    ...policy,
    networkModes: policy.networkModes.filter((mode) => grants.networkModes.includes(mode)),
    allowPrivate: privateFor(grants, policy.allowPrivate),
    ...(grants.allowHosts && { defaultHosts: grants.allowHosts.filter(isPermitted) }),
    approvedHosts: grants.approvedHosts,
    max: {
      ...policy.max,
      ...Object.fromEntries(
        Object.entries(grants.max).map(([name, most]) => [name, Math.min(most, policy.max[name as Limited])]),
      ),
    },
    ceilings: grants.max,
    backends: grants.backends,
    engineImages: grants.images,
    publicPorts: grants.publicPorts,
  }
}

/**
 * The private addresses that a tenant may reach: those opened by the operator that the tenant's `allow_hosts`, or a secret
 * lent to it, name. SECURITY: `*` names none: permission for any public host does not include the operator's network.
 */
export function privateFor(grants: TenantGrants, opened: readonly string[]): readonly string[] {
  const lent = grants.secrets.filter(({ tenants }) => tenants?.includes(grants.tenant))
  const named = [...(grants.allowHosts ?? []), ...lent.flatMap(({ hosts }) => hosts.map(withoutScheme))]
  const outer = opened.flatMap(ruleOf)
  const covered = named.filter((name) =>
    ruleOf(name).some((rule) => rule.kind !== 'any' && isCovered(rule, outer)),
  )
  return [...new Set([...opened.filter((entry) => named.includes(entry)), ...covered])]
}

const withoutScheme = (url: string): string => url.replace(/^https?:\/\//, '')

/** An entry as a host rule; address ranges are compared as text only. */
function ruleOf(entry: string): readonly HostRule[] {
  try {
    return parseHostRules([entry]).filter(({ kind }) => kind !== 'range')
  } catch {
    return []
  }
}

/** Throws `forbidden` if a spec requests host resources that the tenant was not granted. Does not access the host. */
export function assertSpecPermitted(grants: TenantGrants, spec: Spec): void {
  assertBackend(grants, spec.backend)
  assertNetwork(grants, spec)
  assertWaivers(grants, spec.waive ?? [])
  assertLimits(grants, spec.limits ?? {})
  assertLent(grants.secrets, spec, grants.tenant)
  assertUpstream(grants, spec.network?.upstream)
  for (const { path, mode } of hostPathsOf(spec)) assertHostPath(grants, path, mode)
  if (spec.publicPorts && !grants.publicPorts)
    throw refused(grants, 'open ports to the public', '`public_ports = true`')
}

/** SECURITY: the operator pays for a proxy and logs in there, so it is lent by name, like a secret. */
function assertUpstream({ tenant, upstreams }: TenantGrants, address: string | undefined): void {
  if (address === undefined || upstreams.includes(address)) return
  throw new SandboxError(
    'forbidden',
    `tenant \`${tenant}\` may not use the proxy \`${address.slice(0, 128)}\``,
    {
      hint: `the operator can lend it: \`tenants = ["${tenant}"]\` in its [[network.upstream]] table`,
    },
  )
}

/**
 * The same for symlinks in a granted path, which a tenant may have created. SECURITY: a link that leaves the grants gets
 * the same error whether its target exists or not, and the error names only the requested path.
 */
export function assertLinksPermitted(
  grants: TenantGrants,
  spec: Spec,
  seen: ReadonlyMap<string, PathEvidence>,
): void {
  for (const { path, mode } of hostPathsOf(spec)) {
    const found = seen.get(path)
    if (!found || found.symlinks.length === 0) continue
    const real = found.state === 'exists' ? found.real : undefined
    if (real === undefined || !grants.hostPaths.some((grant) => covers(grant, real, mode)))
      throw refusedPath(grants, path, mode)
  }
}

/** The same for a plan, with real paths and resolved hosts. `backend`: the chosen backend, if any. */
export function assertPlanPermitted(grants: TenantGrants, plan: Plan, backend = plan.backend): void {
  assertBackend(grants, plan.backend)
  assertMode(grants, plan.network.mode)
  assertHosts(
    grants,
    plan.network.allowHosts.filter((host) => !grants.approvedHosts.includes(host)),
  )
  assertWaivers(grants, plan.waived)
  const foreign = plan.mounts.filter(({ target }) => !ownedTargets(plan).includes(target))
  for (const { real, mode } of foreign) assertHostPath(grants, real, mode)
  for (const { real } of plan.unixSockets) assertHostPath(grants, real, 'rw')
  if (backend === undefined || backend === 'docker') assertImage(grants, plan)
}

/** Throws `forbidden` if a skill's capabilities reach beyond its own workspace. */
export function assertCapabilitiesPermitted(grants: TenantGrants, capabilities: readonly Capability[]): void {
  for (const one of capabilities) {
    if (one.kind === 'NetConnect')
      assertNetwork(grants, { network: { mode: 'fetch', allowHosts: [hostIn(one)] } })
    if ('root' in one && one.root !== 'workspace')
      assertHostPath(grants, fixedPath(one), one.kind === 'FileWrite' ? 'rw' : 'ro')
  }
}

const hostIn = ({ text }: Capability): string =>
  text.replace(/^\s*NetConnect\s*\(\s*["']?|["']?\s*\)\s*$/g, '')

/** The directory that a pattern cannot leave. */
function fixedPath(one: Extract<Capability, { root: string }>): string {
  const fixed: string[] = []
  for (const token of one.pattern) {
    if (token.kind !== 'is' || /[*?]/.test(token.text)) break
    fixed.push(token.text)
  }
  return `/${fixed.join('/')}`
}

function assertBackend(grants: TenantGrants, backend: string | undefined): void {
  if (backend === undefined || grants.backends.includes(backend)) return
  const more = backend === 'native' ? ' and `allow_native = true` in [backends]' : ''
  throw refused(
    grants,
    `use the backend \`${backend}\``,
    listed('backends', [...grants.backends, backend]),
    more,
  )
}

function assertNetwork(grants: TenantGrants, spec: Spec): void {
  assertMode(grants, askedNetworkMode(spec))
  assertHosts(grants, askedHosts(spec))
}

function assertMode(grants: TenantGrants, mode: NetworkMode): void {
  if (!grants.networkModes.includes(mode))
    throw refused(
      grants,
      `use the network mode \`${mode}\``,
      listed('network_modes', [...grants.networkModes, mode]),
    )
}

function assertHosts(grants: TenantGrants, hosts: readonly string[]): void {
  if (!grants.allowHosts) return
  const outer = parseHostRules(grants.allowHosts)
  const named = allowedBy(hosts)
  const beyond = named.find((host) => parseHostRules([host]).some((rule) => !isCovered(rule, outer)))
  if (beyond !== undefined)
    throw refused(grants, `reach \`${beyond}\``, listed('allow_hosts', [...grants.allowHosts, beyond]))
}

/** Throws `forbidden` if a sandbox created by another key reaches more of the operator's network than the tenant may. */
export function assertPrivatePermitted(grants: TenantGrants, { privateHosts: hosts }: Plan): void {
  const own = privateFor(grants, hosts)
  const beyond = hosts.find((host) => !own.includes(host))
  if (beyond !== undefined)
    throw refused(
      grants,
      `reach \`${beyond}\``,
      listed('allow_hosts', [...(grants.allowHosts ?? []), beyond]),
    )
}

function assertWaivers(grants: TenantGrants, names: readonly Guarantee[]): void {
  const name = names.find((one) => !grants.waive.includes(one))
  // `native` waives the whole sandbox, so a tenant that may use it may waive any guarantee.
  if (name !== undefined && !grants.backends.includes('native'))
    throw refused(grants, `waive \`${name}\``, listed('waive', [...grants.waive, name]))
}

/** SECURITY: a plan made for the operator may run any engine image, and every user of the sandbox can read the image. */
function assertImage(grants: TenantGrants, { image, engineImages }: Plan): void {
  if (image !== undefined && engineImages && !grants.images.includes(image))
    throw refused(grants, `use the image \`${image}\``, `\`images = ["${image}"]\``)
}

const SETTING = {
  cpus: 'max_cpus',
  memoryMb: 'max_memory_mb',
  diskMb: 'max_disk_mb',
  pids: 'max_pids',
} as const

function assertLimits(grants: TenantGrants, limits: Limits): void {
  for (const name of LIMITED) {
    const [asked, most] = [limits[name], grants.max[name]]
    if (asked !== undefined && most !== undefined && asked > most)
      throw refused(grants, `have ${name} ${asked}, only ${most}`, `\`${SETTING[name]}\``)
  }
}

function assertHostPath(grants: TenantGrants, path: string, mode: 'ro' | 'rw'): void {
  if (!grants.hostPaths.some((grant) => covers(grant, path, mode))) throw refusedPath(grants, path, mode)
}

function refusedPath(grants: TenantGrants, path: string, mode: 'ro' | 'rw'): SandboxError {
  const setting = `\`host_paths = [{ path = "${path}", mode = "${mode}" }]\``
  return refused(grants, `${mode === 'ro' ? 'read' : 'write'} the host path \`${path}\``, setting)
}

function covers(grant: HostPathGrant, path: string, mode: 'ro' | 'rw'): boolean {
  if (mode === 'rw' && grant.mode === 'ro') return false
  // SECURITY: `..` may refer to another directory after a symlink; a path that the text alone cannot decide is refused.
  if (!path.startsWith('/') || path.split('/').includes('..')) return false
  return [grant.path, grant.real].some((dir) => dir !== undefined && isWithin(plain(path), dir))
}

/** An absolute path without empty and `.` segments. */
const plain = (path: string): string => `/${segmentsOf(path).join('/')}`

/** Every host path that a spec names, with its mode. */
function hostPathsOf(spec: Spec): readonly { readonly path: string; readonly mode: 'ro' | 'rw' }[] {
  const each = (paths: readonly string[] | undefined, mode: 'ro' | 'rw') =>
    (paths ?? []).map((path) => ({ path, mode }))
  return [
    ...each(spec.preset === 'danger-full-access' ? ['/'] : [], 'rw'),
    ...each(spec.workspace === undefined ? [] : [spec.workspace], spec.preset === 'read-only' ? 'ro' : 'rw'),
    ...each(spec.read, 'ro'),
    ...each(spec.write, 'rw'),
    // The error would disclose whether the path exists on the host.
    ...each(spec.deny, 'ro'),
    ...each(spec.unixSockets, 'rw'),
    ...(spec.mounts ?? []).map(({ source, mode = 'rw' }) => ({ path: source, mode })),
  ]
}

/** The complete list to configure: a list in the configuration replaces the default. */
const listed = (setting: string, names: readonly string[]): string =>
  `\`${setting} = [${names.map((name) => `"${name}"`).join(', ')}]\``

const refused = ({ tenant }: TenantGrants, what: string, setting: string, more = ''): SandboxError =>
  new SandboxError('forbidden', `tenant \`${tenant}\` may not ${what}`, {
    hint: `the operator can permit it: ${setting} in [[tenant]] with name = "${tenant}"${more}`,
  })
