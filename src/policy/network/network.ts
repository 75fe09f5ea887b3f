import type { UrlVerdict } from '../../model/decision.ts'
import { type AddressClass, classify, embeddedIpv4, inRange, parseAddress, parseCidr } from './address.ts'
import {
  allowedBy,
  canonicalHost,
  deniedBy,
  deniesAddress,
  type HostRule,
  hostRuleFor,
  isHostName,
  isInternalName,
  isMetadataName,
  parseHostRules,
} from './hosts.ts'

/** The operator's network policy, parsed once. */
export type NetworkPolicy = {
  /** Absent: every public host. Present, even if empty: only these hosts. */
  readonly hosts?: readonly HostRule[]
  /** Never reached, even if they are in `hosts`. */
  readonly denied?: readonly HostRule[]
  readonly privateHosts: readonly HostRule[]
  readonly privateRanges: readonly { readonly bytes: readonly number[]; readonly bits: number }[]
}

/** Parses `[network]` of the configuration. Without `allowHosts`, no allowlist applies. */
export function networkPolicyOf(given: {
  readonly allowHosts?: readonly string[] | undefined
  readonly allowPrivate?: readonly string[] | undefined
}): NetworkPolicy {
  const open = given.allowPrivate ?? []
  return {
    ...(given.allowHosts === undefined ? {} : { hosts: parseHostRules(allowedBy(given.allowHosts)) }),
    denied: parseHostRules(deniedBy(given.allowHosts ?? [])),
    privateHosts: parseHostRules(open.filter((entry) => parseCidr(entry) === undefined)),
    privateRanges: open.flatMap((entry) => parseCidr(entry) ?? []),
  }
}

/** The target of a request: a URL that a client fetches, or the `host:port` of a CONNECT or SOCKS request. */
export type TargetKind = 'url' | 'proxy-target'

/** A host and port after parsing. */
export type Target = {
  readonly kind: TargetKind
  /** Lower case, ASCII, without a trailing dot; an address in plain text without brackets. */
  readonly host: string
  readonly port: number
  /** The address, if the host is an address literal. */
  readonly literal?: readonly number[]
  readonly url?: URL
}

/** A value, or the verdict that blocks it. */
export type Checked<T> =
  | { readonly kind: 'ok'; readonly value: T }
  | { readonly kind: 'blocked'; readonly reason: string }

const blocked = (reason: string): { readonly kind: 'blocked'; readonly reason: string } => ({
  kind: 'blocked',
  reason,
})

// Ports of protocols that can mistake an HTTP request for their own (WHATWG fetch), and two line protocols with the
// same problem that are missing there: redis and memcached.
const BAD_PORTS = new Set([
  0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104,
  109, 110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515,
  526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049,
  3659, 4045, 4190, 5060, 5061, 6000, 6379, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10_080, 11_211,
])

// Classes that an operator may open by name; the other classes are never fetched from.
const OPENABLE: readonly AddressClass[] = [
  'private',
  'shared',
  'loopback',
  'unique-local',
  'site-local',
  'benchmark',
]

/**
 * Parses the text of a URL or of a proxy request's target; refuses text that two parsers could parse differently.
 */
export const parseTarget = (raw: string, kind: TargetKind): Checked<Target> =>
  kind === 'url' ? parseUrl(raw) : parseHostPort(raw)

function parseUrl(raw: string): Checked<Target> {
  if (raw.length > 65_536) return blocked('address is too long')
  // SECURITY: parsers drop or convert these (`\` becomes `/`, tabs vanish), so two parsers may see different hosts.
  if (/[\u0000-\u0020\u007f-\u009f\\]|\s|\p{Cs}/u.test(raw)) {
    return blocked('address holds control characters, blanks or backslashes')
  }
  if (!/^https?:/i.test(raw)) return blocked('only http and https are fetched')
  const [, authority] = /^https?:\/\/([^/?#]+)/i.exec(raw) ?? []
  if (authority === undefined) return blocked('address has no host')
  // Longer than any encoded name; parsing international names takes more than linear time.
  if (authority.length > 2048) return blocked('host is not a valid name')
  if (authority.includes('@')) return blocked('address holds a user name')
  if (!URL.canParse(raw)) return blocked('address cannot be parsed')
  const url = new URL(raw)
  const port = url.port === '' ? (url.protocol === 'https:' ? 443 : 80) : Number(url.port)
  const target = targetOf('url', url.hostname, port)
  return target.kind === 'ok' ? { kind: 'ok', value: { ...target.value, url } } : target
}

/** SECURITY: no URL parser here; a proxy that guesses at half-valid targets would connect to unchecked hosts. */
function parseHostPort(raw: string): Checked<Target> {
  const [, host, port] = /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+):([1-9]\d{0,4})$/i.exec(raw) ?? []
  if (raw.length > 320 || host === undefined || Number(port) > 65_535) {
    return blocked('target is not a plain host:port')
  }
  return targetOf('proxy-target', host, Number(port))
}

function targetOf(kind: TargetKind, hostText: string, port: number): Checked<Target> {
  const plain = hostText.startsWith('[') ? hostText.slice(1, -1) : hostText.toLowerCase().replace(/\.$/, '')
  const literal = parseAddress(plain)
  if (literal !== undefined) return { kind: 'ok', value: { kind, host: plain, port, literal } }
  if (!isHostName(plain)) return blocked('host is not a valid name')
  return { kind: 'ok', value: { kind, host: plain, port } }
}

/**
 * Judges a target before any DNS lookup: metadata first, then the port, the allowlist and the name or literal.
 */
export function judgeTarget(policy: NetworkPolicy, target: Target): UrlVerdict {
  const { host, port, literal } = target
  if (isMetadataName(host) || (literal && classify(literal) === 'metadata'))
    return block(`\`${host}\` serves cloud metadata`)
  const name = literal ? canonicalHost(literal) : host
  if (hostRuleFor(policy.denied ?? [], name, port, literal)) return block(`\`${host}\` is denied`)
  const rule = policy.hosts && hostRuleFor(policy.hosts, name, port, literal)
  // An operator may allow a port for tunnels (`github.com:22`); fetching from such a port stays refused.
  const named = target.kind === 'proxy-target' && rule?.port === port
  if (BAD_PORTS.has(port) && !named) return block(`port ${port} is refused`)
  if (policy.hosts !== undefined && rule === undefined) return block(`\`${host}\` is not an allowed host`)
  if (literal) return judgeAddress(policy, target, literal)
  const opened = hostRuleFor(policy.privateHosts, host, port) !== undefined
  if (isInternalName(host) && !opened) return block(`\`${host}\` is an internal name`)
  return { verdict: 'allow', reason: 'public name' }
}

/**
 * Whether the host list is the only objection to a target, so that a person may be asked about it.
 * SECURITY: nobody is asked about metadata services, internal names, private addresses, refused ports and denied hosts, even if
 * the operator opened them.
 */
export function isOnlyUnlisted(policy: NetworkPolicy, target: Target): boolean {
  if (judgeTarget(policy, target).verdict === 'allow') return false
  const { denied = [] } = policy
  return judgeTarget({ denied, privateHosts: [], privateRanges: [] }, target).verdict === 'allow'
}

/** The policy with one more host and port in its list. */
export const withTarget = (policy: NetworkPolicy, { host, port, literal }: Target): NetworkPolicy => ({
  ...policy,
  hosts: [...(policy.hosts ?? []), { kind: 'exact', host: literal ? canonicalHost(literal) : host, port }],
})

/** A target as an entry of a list of hosts. */
export const hostEntry = ({ host, port }: Pick<Target, 'host' | 'port'>): string =>
  host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`

function judgeAddress(policy: NetworkPolicy, target: Target, bytes: readonly number[]): UrlVerdict {
  if (deniesAddress(policy.denied ?? [], bytes, target.port))
    return block(`\`${target.host}\` leads to a denied address`)
  const kind = classify(bytes)
  if (kind === 'public') return { verdict: 'allow', reason: 'public address' }
  const named = target.literal ? canonicalHost(target.literal) : target.host
  const opened =
    policy.privateRanges.some((range) => inRange(bytes, range)) ||
    hostRuleFor(policy.privateHosts, named, target.port) !== undefined
  if (opened && OPENABLE.includes(kind))
    return { verdict: 'allow', reason: `${kind} address opened by the operator` }
  return block(`\`${target.host}\` leads to a ${kind} address`)
}

/** Judges all addresses of a name: there must be at least one, and all must be public. */
export function judgeAnswers(policy: NetworkPolicy, target: Target, answers: readonly string[]): UrlVerdict {
  if (answers.length === 0) return block(`\`${target.host}\` does not resolve`)
  for (const answer of answers) {
    const bytes = parseAddress(answer)
    if (bytes === undefined) return block(`\`${target.host}\` resolves to something that is no address`)
    const verdict = judgeAddress(policy, target, bytes)
    if (verdict.verdict === 'block') return verdict
  }
  return { verdict: 'allow', reason: 'all addresses are public' }
}

/** Judges one URL or proxy target with the resolved addresses of its name; a literal needs none. */
export function judgeUrl(
  policy: NetworkPolicy,
  raw: string,
  answers: readonly string[],
  kind: TargetKind = 'url',
): UrlVerdict {
  const parsed = parseTarget(raw, kind)
  if (parsed.kind === 'blocked') return block(parsed.reason)
  const verdict = judgeTarget(policy, parsed.value)
  if (verdict.verdict === 'block' || parsed.value.literal) return verdict
  return judgeAnswers(policy, parsed.value, answers)
}

/** Whether the peer of an open socket is the address that was judged. */
export function isSamePeer(judged: string, remote: string | undefined): boolean {
  const [a, b] = [parseAddress(judged), parseAddress(remote ?? '')].map((bytes) => bytes && unmapped(bytes))
  return a !== undefined && b !== undefined && canonicalHost(a) === canonicalHost(b)
}

/** One spelling for all addresses that lead to the same peer: an IPv6 address may carry an IPv4 one. */
export function peerOf(address: string): string {
  const bytes = parseAddress(address)
  return bytes === undefined ? address : canonicalHost(embeddedIpv4(bytes) ?? bytes)
}

/** PLATFORM: a dual-stack socket reports an IPv4 peer as `::ffff:1.2.3.4`. */
function unmapped(bytes: readonly number[]): readonly number[] {
  const mapped =
    bytes.length === 16 &&
    bytes.slice(0, 10).every((byte) => byte === 0) &&
    bytes[10] === 255 &&
    bytes[11] === 255
  return mapped ? bytes.slice(12) : bytes
}

/** A blocking verdict with its reason. */
export const block = (reason: string): UrlVerdict => ({ verdict: 'block', reason })
