import { isIPv6 } from 'node:net'
import { SandboxError } from '../../model/errors.ts'
import { boolean, list, number, object, optional, record, type Shape, text } from '../../model/shape.ts'
import type { Spec } from '../../model/spec.ts'

/** E2B's network options as a list of hosts for the proxy; there is no other way out. */

const hosts = () => optional(list(text({ max: 1024 }), 1024))

const ruleShape = object({
  transform: optional(
    object({ headers: optional(record(text({ empty: true, max: 8192 }), /^[^\s]{1,128}$/)) }),
  ),
})

/** `null` means none. */
const egressProxyShape: Shape<{ readonly address: string } | null> = {
  schema: {},
  parse: (value, path) => (value === null ? null : proxyShape.parse(value, path)),
}
const proxyShape = object({
  address: text({ max: 512 }),
  username: optional(text({ max: 255, empty: true })),
  password: optional(text({ max: 255, empty: true })),
})

/** SECURITY: credentials would have to be kept with the sandbox; the operator has those of the proxies that may be used. */
export function upstreamOf({ egressProxy }: E2bNetwork): string | undefined {
  if (!egressProxy) return undefined
  const { address, username, password } = proxyShape.parse(egressProxy, 'network.egressProxy')
  if (username !== undefined || password !== undefined)
    refuse('credentials in `egressProxy`', 'leave them out; the operator sets them in [[network.upstream]]')
  return address
}

const egressFields = {
  allowOut: hosts(),
  denyOut: hosts(),
  rules: optional(record(list(ruleShape, 16), /^[^\s]{1,253}$/)),
  egressProxy: optional(egressProxyShape),
}
/** E2B's network options of a create. */
export const networkShape = object({
  ...egressFields,
  allowPublicTraffic: optional(boolean()),
  maskRequestHost: optional(text({ max: 1024 })),
  httpsPorts: optional(list(number({ integer: true, min: 1, max: 65_535 }), 64)),
})
/** E2B's network options of an update. */
export const networkUpdateShape = object({ ...egressFields, allow_internet_access: optional(boolean()) })

/** Parsed network options. */
export type E2bNetwork = ReturnType<typeof networkShape.parse>

/** What the operator permits, as far as lists of hosts are concerned. */
export type HostCeiling = {
  /** Hosts that may be named; empty: any public one. */
  readonly allowHosts: readonly string[]
  /** The hosts of this tenant; absent: as above. */
  readonly defaultHosts?: readonly string[]
}

/** `[e2b] internet`: what a sandbox reaches whose creator names no hosts. */
export type Internet = 'closed' | 'registries' | 'open'

const ALL_TRAFFIC = ['0.0.0.0/0', '::/0']

const refuse = (what: string, hint: string): never => {
  throw new SandboxError('unsupported', `${what} is not supported`, { hint })
}

/** Refuses by name what nothing here would honour. */
function refuseUnbuilt(network: E2bNetwork): void {
  if (network.httpsPorts?.length) refuse('`httpsPorts`', 'leave it out')
}

/** The headers that `rules` set, by host. */
export const headersOf = ({ rules = {} }: E2bNetwork): NonNullable<NonNullable<Spec['network']>['headers']> =>
  Object.entries(rules)
    .map(([host, list]) => ({
      host: entryOf(host),
      headers: Object.assign({}, ...list.map(({ transform }) => transform?.headers ?? {})) as Record<
        string,
        string
      >,
    }))
    .filter(({ headers }) => Object.keys(headers).length > 0)

const SECRET_NAME = /\$\{e2b\.(?:secrets|identity\.tokens)\.([^}]*)\}/g

/** The secrets that the values of headers name, each for the host of its header. */
export function secretsIn(headers: ReturnType<typeof headersOf>): readonly string[] {
  const named = headers.flatMap(({ host, headers: own }) =>
    Object.values(own).flatMap((value) =>
      [...value.matchAll(SECRET_NAME)].map(([, name = '']) => ({ name, host })),
    ),
  )
  const wrong = named.find(({ name }) => !/^[A-Za-z_]\w*$/.test(name))
  if (wrong)
    throw new SandboxError(
      'invalid-input',
      `\`${wrong.name.slice(0, 64)}\` is not the name of a secret here`,
      {
        hint: 'the operator declares secrets with [[secret]]; a name has letters, digits and `_`',
      },
    )
  return [...new Set(named.map(({ name, host }) => `${name}=${name}@${host}`))]
}

/** An entry as our lists write it: an IPv6 address stands in brackets. */
const entryOf = (host: string): string => (isIPv6(host.split('/')[0] ?? '') ? `[${host}]` : host)

const named = (entries: readonly string[] = []): readonly string[] =>
  entries.filter((host) => !ALL_TRAFFIC.includes(host)).map(entryOf)
const hasAll = (entries: readonly string[] = []): boolean =>
  entries.some((host) => ALL_TRAFFIC.includes(host))

/** The hosts of a sandbox that names none. */
export function defaultHosts(ceiling: HostCeiling, internet: Internet | undefined): readonly string[] {
  const outer = ceiling.defaultHosts ?? ceiling.allowHosts
  if (internet === 'closed') return []
  if (internet === undefined) return outer
  const wanted = internet === 'open' ? '*' : '@registries'
  const isUnlimited = ceiling.defaultHosts === undefined && outer.length === 0
  if (isUnlimited || outer.includes('*') || outer.includes(wanted)) return [wanted]
  return internet === 'open' ? outer : []
}

/**
 * The hosts that a sandbox may reach; an empty list: none. As with E2B, what is allowed by name is reached even if it is
 * denied too. SECURITY: unlike E2B, `allowOut` alone also closes the rest.
 */
export function hostsOf(
  network: E2bNetwork,
  internet: boolean | undefined,
  defaults: readonly string[],
): readonly string[] {
  refuseUnbuilt(network)
  const allowed = named(network.allowOut)
  if (internet === false) return []
  if (hasAll(network.denyOut)) return hasAll(network.allowOut) ? defaults : allowed
  if (allowed.length > 0 && !hasAll(network.allowOut)) return allowed
  const denied = named(network.denyOut).filter((host) => !allowed.includes(host))
  const open = [...new Set([...defaults, ...allowed])]
  return open.length === 0 ? [] : [...open, ...denied.map((host) => `!${host}`)]
}

/** Mode `fetch` wherever the policy has it, so that the list can be changed while the sandbox runs. */
export function networkOf(
  modes: readonly string[],
  allowHosts: readonly string[],
  headers: ReturnType<typeof headersOf> = [],
  upstream?: string,
): NonNullable<Spec['network']> {
  if (modes.includes('fetch'))
    return {
      mode: 'fetch',
      ...(allowHosts.length > 0 ? { allowHosts } : {}),
      ...(headers.length > 0 ? { headers } : {}),
      ...(upstream === undefined ? {} : { upstream }),
    }
  if (allowHosts.length > 0 || headers.length > 0 || upstream !== undefined)
    throw new SandboxError('invalid-network-mode', 'network mode `fetch` is not permitted', {
      hint: 'an operator can add it to `[policy] allowed_network_modes`',
    })
  return { mode: modes.includes('loopback') ? 'loopback' : 'offline' }
}
