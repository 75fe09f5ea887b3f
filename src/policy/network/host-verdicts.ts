import { parseAddress } from './address.ts'
import { isDenial } from './hosts.ts'
import { judgeTarget, networkPolicyOf, parseTarget } from './network.ts'

/** What the policy says to one entry of a list of hosts. */
export type HostVerdict = {
  readonly host: string
  readonly verdict: 'allow' | 'deny'
  readonly reason: string
}

const BY_NAME = 'allowed by name; the addresses behind it are judged when it is connected to'
const BY_PATTERN =
  'every host that it matches is allowed by name; addresses are judged when they are connected to'

/** To be on the list is not to be reached: metadata services and private addresses stay closed whatever stands there. */
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

/** As a connection names it; without a port, HTTPS's. */
function withPort(host: string): string {
  if (/^\[[^\]]*\]:\d+$|^[^:]+:\d+$/.test(host)) return host
  return parseAddress(host)?.length === 16 ? `[${host}]:443` : `${host}:443`
}
