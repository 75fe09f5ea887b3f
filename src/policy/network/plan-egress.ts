import type { Config } from '../../model/config.ts'
import { SandboxError } from '../../model/errors.ts'
import { type Plan, type PlanFile, PROXY_PORT } from '../../model/plan.ts'
import type { NetworkMode, Spec } from '../../model/spec.ts'
import type { Facts, SandboxPolicy } from '../grants/grants.ts'
import { parseSecretGrant } from '../grants/secret-grant.ts'
import { allowedBy, deniedBy, isCovered, parseHostRules } from './hosts.ts'
import { certificateEnvironment, proxyEnvironment } from './proxy-environment.ts'

/** What network mode `fetch` adds to a plan. */

// On the sandbox's own /dev, which always exists.
const PRELOAD = '/dev/ringfence/proxy.cjs'
const BUNDLE = '/dev/ringfence/certificates.pem'

/** The hosts that a spec names. */
export const askedHosts = (spec: Spec): readonly string[] => [
  ...(spec.network?.allowHosts ?? []),
  ...(spec.secrets ?? []).map(hostOfSecret),
]

/** The network mode of a spec: naming hosts implies `fetch`. */
export const askedNetworkMode = (spec: Spec): NetworkMode =>
  spec.network?.mode ??
  (spec.network?.allowHosts?.length || spec.network?.unlisted === 'ask' || spec.secrets?.length
    ? 'fetch'
    : 'offline')

/**
 * The hosts that a spec may reach: those it names, else the operator's. If the operator has a list, a spec cannot request
 * hosts outside of it.
 */
export function allowedHosts(policy: SandboxPolicy, spec: Spec): readonly string[] {
  const asked = askedHosts(spec)
  const named = allowedBy(asked)
  parseHostRules(deniedBy(asked))
  if (named.length === 0) return [...(policy.defaultHosts ?? policy.allowHosts), ...asked]
  const outer = parseHostRules(policy.allowHosts)
  const beyond = named.find((entry) => parseHostRules([entry]).some((rule) => !isCovered(rule, outer)))
  if (policy.allowHosts.length > 0 && beyond !== undefined)
    throw new SandboxError('ssrf-blocked', `\`${beyond}\` is not among the hosts that the policy allows`, {
      hint: `allowed: ${policy.allowHosts.join(', ')}`,
    })
  return [...new Set(asked)]
}

/** Hosts that were approved permanently, for the sandboxes of one tenant or for those without a tenant. */
export const approvedHostsOf = (config: Config, tenant: string | undefined): readonly string[] =>
  (config.approved_host ?? []).filter((entry) => entry.tenant === tenant).map(({ host }) => host)

/** The hosts of a sandbox in mode `fetch`, and how other hosts are handled. */
export function reachableHosts(policy: SandboxPolicy, spec: Spec): Plan['network'] {
  const asked = spec.network?.unlisted
  // SECURITY: if the operator set `deny`, no spec can turn on questions.
  if (asked === 'ask' && policy.unlisted === 'deny')
    throw new SandboxError('forbidden', 'this policy does not ask about hosts that are not on the list', {
      hint: 'the operator can permit it: `unlisted = "ask"` in [network]',
    })
  const allowHosts = allowedHosts(policy, spec)
  if ((asked ?? policy.unlisted) !== 'ask') return { mode: 'fetch', allowHosts }
  const approved = policy.approvedHosts ?? []
  return { mode: 'fetch', allowHosts: [...new Set([...allowHosts, ...approved])], unlisted: 'ask' }
}

/** A secret is useless if its host cannot be reached. */
function hostOfSecret(text: string): string {
  const { host, port } = parseSecretGrant(text)
  return `${host}:${port}`
}

/** The variables that a sandbox in network mode `fetch` gets. */
export function egressEnvironment({ egress }: Facts): Record<string, string> {
  const preload = egress?.nodePreload === undefined ? {} : { nodePreload: PRELOAD }
  return {
    ...proxyEnvironment(PROXY_PORT, preload),
    ...(egress?.certificates === undefined ? {} : certificateEnvironment(BUNDLE)),
    ...egress?.placeholders,
  }
}

/** The files that a sandbox in network mode `fetch` gets. */
export function egressFiles({ egress }: Facts): readonly PlanFile[] {
  const { nodePreload, certificates } = egress ?? {}
  return [
    ...(nodePreload === undefined ? [] : [{ target: PRELOAD, text: nodePreload }]),
    ...(certificates === undefined ? [] : [{ target: BUNDLE, text: certificates }]),
  ]
}
