import { parseAddress } from './address.ts'
import { isDenial } from './hosts.ts'
import { judgeTarget, networkPolicyOf, parseTarget } from './network.ts'

/** The verdict on one entry of a list of hosts. */
export type HostVerdict = {
  readonly host: string
  readonly verdict: 'allow' | 'deny'
  readonly reason: string
}

const BY_NAME = 'allowed by name; the addresses behind it are judged when it is connected to'
const BY_PATTERN =
  'every host that it matches is allowed by name; addresses are judged when they are connected to'

/** A listed host is not always reachable: metadata services and private addresses stay blocked even if they are listed. */
export function hostVerdicts(
  allowHosts: readonly string[],
  allowPrivate: readonly string[],
): readonly HostVerdict[] {
  const policy = networkPolicyOf({ allowHosts, allowPrivate })
  return allowHosts.map((host): HostVerdict => {
    if (isDenial(host)) return { host, verdict: 'deny', reason: 'denied by this entry' }
    if (/^[@*]|\/\d+\]?$/.test(host.trim())) return { host, verdict: 'allow', reason: BY_PATTERN }
    const target = parseTarget(withPort(host.trim()), 'proxy-target')
    if (target.kind === 'blocked') return { host, verdict: 'deny', reason: target.reason }
    const { verdict, reason } = judgeTarget(policy, target.value)
    if (verdict !== 'allow') return { host, verdict: 'deny', reason }
    return { host, verdict, reason: target.value.literal ? reason : BY_NAME }
  })
}

/** The target as in a CONNECT request; without a port, HTTPS's port. */
function withPort(host: string): string {
  if (/^\[[^\]]*\]:\d+$|^[^:]+:\d+$/.test(host)) return host
  return parseAddress(host)?.length === 16 ? `[${host}]:443` : `${host}:443`
}
