import { SandboxError } from '../../model/errors.ts'
import { parseAddress } from './address.ts'

/** Host names: which are never reached, which mean this network, and how an operator's list matches them. */

/** One entry of a host allowlist, parsed. */
export type HostRule = {
  readonly kind: 'exact' | 'below' | 'any'
  readonly host: string
  /** Absent: every port that is not refused anyway. */
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

/** Names of cloud metadata services. SECURITY: refused before any allowlist, whatever they resolve to. */
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

/** Last labels that never name a public host: reserved ones and the ones that networks use inside. */
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
// SECURITY: inet_aton reads a name that ends in a number as an address (`0x7f.1`, `2852039166`).
const NUMERIC = /^(\d+|0x[0-9a-f]*)$/

/** Is this a host name in its plain form: lower case, ASCII, no trailing dot, not a number in disguise? */
export function isHostName(host: string): boolean {
  const labels = host.split('.')
  return (
    host.length <= 253 && labels.every((label) => LABEL.test(label)) && !NUMERIC.test(labels.at(-1) ?? '')
  )
}

const isSubdomain = (host: string, parent: string): boolean => host.endsWith(`.${parent}`)

/** Does the name belong to a cloud's metadata service? */
export const isMetadataName = (host: string): boolean =>
  METADATA_NAMES.has(host) || isSubdomain(host, 'metadata.google.internal')

/** Does the name mean something on this machine or network? A name without a dot always does. */
export const isInternalName = (host: string): boolean =>
  !host.includes('.') || INTERNAL_SUFFIXES.some((suffix) => host === suffix || isSubdomain(host, suffix))

/**
 * Parses an operator's host list: `host`, `*.host`, `host:port`, `*`, or a preset. A wrong entry is an error.
 */
export const parseHostRules = (entries: readonly string[]): readonly HostRule[] =>
  entries.flatMap((entry) => (PRESETS[entry] ?? [entry]).map(parseHostRule))

function parseHostRule(entry: string): HostRule {
  const [, text = '', portText] = /^(\[[^\]]*\]|[^:]*)(?::(\d{1,5}))?$/.exec(entry.trim().toLowerCase()) ?? []
  const port = portText === undefined ? {} : { port: Number(portText) }
  if (text === '*') return { kind: 'any', host: '', ...port }
  const literal = text.startsWith('[') ? text.slice(1, -1) : text
  const bytes = parseAddress(literal)
  if (bytes !== undefined) return { kind: 'exact', host: canonicalHost(bytes), ...port }
  const wildcard = text.startsWith('*.')
  const host = asciiHost(wildcard ? text.slice(2) : text)
  if (host === undefined || (port.port ?? 1) > 65_535) {
    throw new SandboxError('invalid-config', `\`${entry}\` is not a host`, {
      hint: 'write `example.com`, `*.example.com`, `example.com:8443`, `@registries` or `@github`',
    })
  }
  return { kind: wildcard ? 'below' : 'exact', host, ...port }
}

function asciiHost(text: string): string | undefined {
  const host = URL.canParse(`http://${text}/`) ? new URL(`http://${text}/`).hostname.replace(/\.$/, '') : ''
  return isHostName(host) && !/[/?#@\\%]/.test(text) ? host : undefined
}

/** One spelling for each address, so that lists compare text. */
export const canonicalHost = (bytes: readonly number[]): string =>
  bytes.length === 4 ? bytes.join('.') : bytes.map((byte) => byte.toString(16).padStart(2, '0')).join('')

/** Does some rule of the outer list admit everything that this one admits? */
export const isCovered = (rule: HostRule, outer: readonly HostRule[]): boolean =>
  outer.some(
    (by) =>
      (by.port === undefined || by.port === rule.port) &&
      (by.kind === 'any' ||
        (by.kind === rule.kind && by.host === rule.host) ||
        (by.kind === 'below' && rule.kind !== 'any' && isSubdomain(rule.host, by.host))),
  )

/** The rule that admits this host and port, or `undefined`. Wildcards match whole labels, never the apex. */
export function hostRuleFor(rules: readonly HostRule[], host: string, port: number): HostRule | undefined {
  return rules.find(
    (rule) =>
      (rule.port === undefined || rule.port === port) &&
      (rule.kind === 'any' || (rule.kind === 'exact' ? host === rule.host : isSubdomain(host, rule.host))),
  )
}
