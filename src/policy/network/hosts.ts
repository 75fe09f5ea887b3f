import { SandboxError } from '../../model/errors.ts'
import { type AddressRange, embeddedIpv4, inRange, parseCidr } from './address.ts'

/** Host names: which are never reached, which are local, and how an operator's list matches them. */

/** One entry of a host allowlist, parsed. */
export type HostRule = {
  readonly kind: 'exact' | 'below' | 'any' | 'range'
  readonly host: string
  /** The addresses, for a rule that names an address or a range. */
  readonly range?: AddressRange
  /** Absent: every port that is not refused in general. */
  readonly port?: number
}

const PRESETS: Readonly<Record<string, readonly string[]>> = {
  '@registries': [
    'registry.npmjs.org',
    'registry.yarnpkg.com',
    'npm.jsr.io',
    'jsr.io',
    'pypi.org',
    'files.pythonhosted.org',
    'conda.anaconda.org',
    'repo.anaconda.com',
    'crates.io',
    'index.crates.io',
    'static.crates.io',
    'static.rust-lang.org',
    'proxy.golang.org',
    'sum.golang.org',
    'rubygems.org',
    'index.rubygems.org',
    'repo.maven.apache.org',
    'repo1.maven.org',
    'plugins.gradle.org',
    'services.gradle.org',
    'packagist.org',
    'repo.packagist.org',
    'api.nuget.org',
    'hex.pm',
    'repo.hex.pm',
    'deb.debian.org',
    'security.debian.org',
    'archive.ubuntu.com',
    'security.ubuntu.com',
    'dl-cdn.alpinelinux.org',
  ],
  '@github': ['github.com', 'api.github.com', 'codeload.github.com', '*.githubusercontent.com', 'ghcr.io'],
}

/** Names of cloud metadata services. SECURITY: refused before any allowlist, independent of the addresses they resolve to. */
const METADATA_NAMES = new Set([
  'metadata',
  'metadata.google.internal',
  'metadata.goog',
  'metadata.aws.internal',
  'metadata.ec2.internal',
  'instance-data',
  'instance-data.ec2.internal',
  'metadata.azure.internal',
  'metadata.azure.com',
  'metadata.packet.net',
  'metadata.platformequinix.com',
  'metadata.tencentyun.com',
  'metadata.oraclecloud.com',
  'metadata.softlayer.local',
  'api.service.softlayer.com',
  'api.metadata.cloud.ibm.com',
  'metadata.scaleway.com',
  'metadata.vultr.com',
  'metadata.hetzner.cloud',
  'metadata.digitalocean.com',
  'metadata.exoscale.com',
  'metadata.linode.com',
  'rancher-metadata',
  'rancher-metadata.rancher.internal',
])

/** Top-level labels that never name a public host: reserved names and names for internal use. */
const INTERNAL_SUFFIXES = [
  'localhost',
  'localdomain',
  'localdomain4',
  'localdomain6',
  'local',
  'internal',
  'intranet',
  'intra',
  'private',
  'corp',
  'home',
  'lan',
  'svc',
  'consul',
  'docker',
  'invalid',
  'onion',
  'home.arpa',
  'in-addr.arpa',
  'ip6.arpa',
  'ts.net',
]

const LABEL = /^[a-z0-9_-]{1,63}$/
// SECURITY: inet_aton parses a name that ends in a number as an address (`0x7f.1`, `2852039166`).
const NUMERIC = /^(\d+|0x[0-9a-f]*)$/

/** Whether this is a plain host name: lower case, ASCII, no trailing dot, not a number in disguise. */
export function isHostName(host: string): boolean {
  const labels = host.split('.')
  return (
    host.length <= 253 && labels.every((label) => LABEL.test(label)) && !NUMERIC.test(labels.at(-1) ?? '')
  )
}

const isSubdomain = (host: string, parent: string): boolean => host.endsWith(`.${parent}`)

/** Whether the name belongs to a cloud's metadata service. */
export const isMetadataName = (host: string): boolean =>
  METADATA_NAMES.has(host) || isSubdomain(host, 'metadata.google.internal')

/** Whether the name refers to this machine or network. A name without a dot always does. */
export const isInternalName = (host: string): boolean =>
  !host.includes('.') || INTERNAL_SUFFIXES.some((suffix) => host === suffix || isSubdomain(host, suffix))

/** A sandbox's own list may also deny, with `!` before an entry; an operator's list only allows. */
export const isDenial = (entry: string): boolean => entry.trim().startsWith('!')

/** The entries of a list that deny, without their `!`. */
export const deniedBy = (entries: readonly string[]): readonly string[] =>
  entries.filter(isDenial).map((entry) => entry.trim().slice(1))

/** The entries of a list that allow. */
export const allowedBy = (entries: readonly string[]): readonly string[] =>
  entries.filter((entry) => !isDenial(entry))

/**
 * Parses a host list: `host`, `*.host`, `host:port`, `1.2.3.4`, `1.2.3.0/24`, `[2001:db8::/32]`, `*`, or a preset. An
 * invalid entry is an error. SECURITY: a range matches only connections to an address. To match names with it, every name
 * would have to be resolved, and a DNS lookup can exfiltrate data.
 */
export const parseHostRules = (entries: readonly string[]): readonly HostRule[] =>
  entries.flatMap((entry) => presetOf(entry).map(parseHostRule))

const presetOf = (entry: string): readonly string[] =>
  (Object.hasOwn(PRESETS, entry) && PRESETS[entry]) || [entry]

function parseHostRule(entry: string): HostRule {
  const [, text = '', portText] = /^(\[[^\]]*\]|[^:]*)(?::(\d{1,5}))?$/.exec(entry.trim().toLowerCase()) ?? []
  const port = portText === undefined ? {} : { port: Number(portText) }
  if (text === '*') return { kind: 'any', host: '', ...port }
  const range = parseCidr(text.startsWith('[') ? text.slice(1, -1) : text)
  if (range !== undefined) return { ...addressRule(range), ...port }
  const wildcard = text.startsWith('*.')
  const host = asciiHost(wildcard ? text.slice(2) : text)
  if (host === undefined || (port.port ?? 1) > 65_535) {
    throw new SandboxError('invalid-config', `\`${entry}\` is not a host`, {
      hint: 'write `example.com`, `*.example.com`, `example.com:8443`, `1.2.3.0/24`, `@registries` or `@github`',
    })
  }
  return { kind: wildcard ? 'below' : 'exact', host, ...port }
}

function addressRule(range: AddressRange): HostRule {
  const isSingle = range.bits === range.bytes.length * 8
  return isSingle
    ? { kind: 'exact', host: canonicalHost(range.bytes), range }
    : { kind: 'range', host: `${canonicalHost(range.bytes)}/${range.bits}`, range }
}

function asciiHost(text: string): string | undefined {
  const host = URL.canParse(`http://${text}/`) ? new URL(`http://${text}/`).hostname.replace(/\.$/, '') : ''
  return isHostName(host) && !/[/?#@\\%]/.test(text) ? host : undefined
}

/** One canonical spelling per address, so that lists can be compared as text. */
export const canonicalHost = (bytes: readonly number[]): string =>
  bytes.length === 4 ? bytes.join('.') : bytes.map((byte) => byte.toString(16).padStart(2, '0')).join('')

/** Whether some rule of the outer list admits everything that this rule admits. */
export const isCovered = (rule: HostRule, outer: readonly HostRule[]): boolean =>
  outer.some(
    (by) =>
      (by.port === undefined || by.port === rule.port) &&
      (by.kind === 'any' ||
        (by.kind === rule.kind && by.host === rule.host) ||
        (by.kind === 'range' && rule.range !== undefined && isInside(rule.range, by.range)) ||
        (by.kind === 'below' && rule.kind !== 'any' && isSubdomain(rule.host, by.host))),
  )

const isInside = (range: AddressRange, outer: AddressRange | undefined): boolean =>
  outer !== undefined && outer.bits <= range.bits && inRange(range.bytes, outer)

/**
 * The rule that matches this host and port, or `undefined`. Wildcards match whole labels, never the apex. `literal`: the
 * address, if the host is an address literal.
 */
export function hostRuleFor(
  rules: readonly HostRule[],
  host: string,
  port: number,
  literal?: readonly number[],
): HostRule | undefined {
  return rules.find((rule) => (rule.port === undefined || rule.port === port) && matches(rule, host, literal))
}

function matches({ kind, host: named, range }: HostRule, host: string, literal?: readonly number[]): boolean {
  if (kind === 'any') return true
  if (kind === 'range') return literal !== undefined && range !== undefined && inRange(literal, range)
  return kind === 'exact' ? host === named : isSubdomain(host, named)
}

/**
 * Whether a list of denials names this address, for an address that a name leads to. SECURITY: an IPv6 address that carries
 * an IPv4 one (mapped, NAT64) leads there, and a denial may be written in the mapped form as well.
 */
export function deniesAddress(rules: readonly HostRule[], bytes: readonly number[], port: number): boolean {
  const carried = embeddedIpv4(bytes) ?? bytes
  return rules.some(
    ({ range, port: only }) =>
      range !== undefined &&
      (inRange(bytes, range) || inRange(carried, range) || inRange(carried, carriedRange(range))) &&
      (only === undefined || only === port),
  )
}

const MAPPED: AddressRange = { bytes: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0, 0], bits: 96 }

/** A range of mapped addresses as the IPv4 addresses that they are; other ranges as they are. */
const carriedRange = (range: AddressRange): AddressRange =>
  range.bits >= MAPPED.bits && inRange(range.bytes, MAPPED)
    ? { bytes: range.bytes.slice(12), bits: range.bits - MAPPED.bits }
    : range
