/**
 * Classifies an IP address, byte by byte. Not a library, because the best one misses ranges that matter here (Azure's
 * wire server, SIIT, ISATAP); the tests compare the results with that library on random addresses.
 */

/** Every class except `public` is refused unless an operator opens it by name; `metadata` cannot be opened. */
export type AddressClass =
  | 'public'
  | 'metadata'
  | 'unspecified'
  | 'loopback'
  | 'private'
  | 'shared'
  | 'link-local'
  | 'unique-local'
  | 'site-local'
  | 'multicast'
  | 'broadcast'
  | 'documentation'
  | 'benchmark'
  | 'transition'
  | 'reserved'

/** The addresses with this prefix. */
export type AddressRange = { readonly bytes: readonly number[]; readonly bits: number }
type Range = AddressRange & { readonly class: AddressClass }

const DECIMAL = /^(0|[1-9]\d{0,2})$/
const GROUP = /^[0-9a-f]{1,4}$/i

/** Four bytes of a dotted quad, strictly: no octal, no hexadecimal, no missing parts. */
function parseIpv4(text: string): readonly number[] | undefined {
  const parts = text.split('.')
  if (parts.length !== 4 || !parts.every((part) => DECIMAL.test(part) && Number(part) < 256)) return undefined
  return parts.map(Number)
}

/** Sixteen bytes of RFC 4291 text, with or without a dotted tail. Zone ids are refused. */
function parseIpv6(text: string): readonly number[] | undefined {
  const halves = text.split('::')
  if (halves.length > 2 || text.length > 45) return undefined
  const [head, tail] = halves.map((half, index) => groupsOf(half, index === halves.length - 1))
  if (head === undefined || (halves.length === 2 && tail === undefined)) return undefined
  if (tail === undefined) return head.length === 16 ? head : undefined
  const gap = 16 - head.length - tail.length
  return gap >= 2 ? [...head, ...Array<number>(gap).fill(0), ...tail] : undefined
}

function groupsOf(half: string, last: boolean): number[] | undefined {
  if (half === '') return []
  const bytes: number[] = []
  const groups = half.split(':')
  for (const [index, group] of groups.entries()) {
    if (last && index === groups.length - 1 && group.includes('.')) {
      const quad = parseIpv4(group)
      if (quad === undefined) return undefined
      bytes.push(...quad)
    } else if (GROUP.test(group)) {
      const value = Number.parseInt(group, 16)
      bytes.push(value >> 8, value & 255)
    } else return undefined
  }
  return bytes
}

/** The bytes of an address in text, 4 or 16 of them; brackets and zone ids are not part of an address. */
export const parseAddress = (text: string): readonly number[] | undefined =>
  text.includes(':') ? parseIpv6(text) : parseIpv4(text)

function range(text: string, kind: AddressClass): Range {
  const [address = '', bits] = text.split('/')
  const bytes = parseAddress(address)
  if (bytes === undefined) throw new Error(`bad range ${text}`)
  return { bytes, bits: bits === undefined ? bytes.length * 8 : Number(bits), class: kind }
}

/** Whether the address is in the range. IPv4 and IPv6 never match each other. */
export function inRange(bytes: readonly number[], { bytes: base, bits }: AddressRange): boolean {
  if (bytes.length !== base.length) return false
  const whole = bits >> 3
  for (let index = 0; index < whole; index++) if (bytes[index] !== base[index]) return false
  const rest = bits & 7
  return rest === 0 || ((bytes[whole] as number) ^ (base[whole] as number)) >> (8 - rest) === 0
}

/** A CIDR or a single address, for an operator's list; `undefined` if the text is neither. */
export function parseCidr(text: string): AddressRange | undefined {
  const [address = '', bits, ...more] = text.split('/')
  const bytes = parseAddress(address)
  if (bytes === undefined || more.length > 0) return undefined
  const width = bytes.length * 8
  if (bits === undefined) return { bytes, bits: width }
  return DECIMAL.test(bits) && Number(bits) <= width ? { bytes, bits: Number(bits) } : undefined
}

// The first match wins, so single metadata addresses come before the ranges that contain them.
const IPV4: readonly Range[] = [
  range('169.254.169.254', 'metadata'), // AWS, GCP, Azure, Oracle, DigitalOcean, OpenStack, Hetzner, IBM
  range('169.254.170.2', 'metadata'), // AWS ECS task credentials
  range('169.254.170.23', 'metadata'), // AWS EKS pod identity
  range('169.254.169.253', 'metadata'), // AWS resolver
  range('169.254.0.23', 'metadata'), // Tencent
  range('169.254.10.10', 'metadata'), // Tencent
  range('169.254.42.42', 'metadata'), // Scaleway
  range('169.254.169.250', 'metadata'), // Rancher
  range('100.100.100.200', 'metadata'), // Alibaba
  range('192.0.0.192', 'metadata'), // Oracle, classic
  // SECURITY: looks public but is served by the host of every Azure machine.
  range('168.63.129.16', 'metadata'),
  range('0.0.0.0/8', 'unspecified'),
  range('10.0.0.0/8', 'private'),
  range('100.64.0.0/10', 'shared'),
  range('127.0.0.0/8', 'loopback'),
  range('169.254.0.0/16', 'link-local'),
  range('172.16.0.0/12', 'private'),
  range('192.0.0.0/24', 'reserved'),
  range('192.0.2.0/24', 'documentation'),
  range('192.31.196.0/24', 'reserved'), // AS112 sinks
  range('192.52.193.0/24', 'reserved'), // AMT relays
  range('192.88.99.0/24', 'transition'), // 6to4 relays
  range('192.168.0.0/16', 'private'),
  range('192.175.48.0/24', 'reserved'), // AS112 sinks
  range('198.18.0.0/15', 'benchmark'),
  range('198.51.100.0/24', 'documentation'),
  range('203.0.113.0/24', 'documentation'),
  range('224.0.0.0/4', 'multicast'),
  range('255.255.255.255', 'broadcast'),
  range('240.0.0.0/4', 'reserved'),
]

const IPV6: readonly Range[] = [
  range('fd00:ec2::/32', 'metadata'), // AWS: ::254 metadata, ::253 resolver, ::23 pod identity
  range('fd20:ce::254', 'metadata'), // GCP
  range('fd00:42::42', 'metadata'), // Scaleway
  range('fd00:a9fe:a9fe::/48', 'metadata'), // Linode
  range('fd00:c1::a9fe:a9fe', 'metadata'), // Oracle
  range('fe80::a9fe:a9fe', 'metadata'), // OpenStack
  range('::', 'unspecified'),
  range('::1', 'loopback'),
  range('64:ff9b:1::/48', 'transition'), // NAT64, local use
  range('::/8', 'reserved'),
  range('100::/16', 'reserved'),
  range('fc00::/7', 'unique-local'),
  range('fe80::/10', 'link-local'),
  range('fec0::/10', 'site-local'),
  range('ff00::/8', 'multicast'),
  range('2001::/32', 'transition'), // Teredo
  range('2001:2::/48', 'benchmark'),
  range('2001::/23', 'reserved'), // protocol assignments, ORCHID, AS112, drone ids
  range('2001:db8::/32', 'documentation'),
  range('2002::/16', 'transition'), // 6to4
  range('2620:4f:8000::/48', 'reserved'), // AS112 sinks
  range('3ffe::/16', 'reserved'), // 6bone, given back
  range('3fff::/20', 'documentation'),
]
const GLOBAL_UNICAST = range('2000::/3', 'public')
const MAPPED = range('::ffff:0:0/96', 'transition')
const SIIT = range('::ffff:0:0:0/96', 'transition')
const COMPATIBLE = range('::/96', 'transition')
const NAT64 = range('64:ff9b::/96', 'transition')
const NAT64_LOCAL = range('64:ff9b:1::/48', 'transition')
const TEREDO = range('2001::/32', 'transition')
const SIX_TO_FOUR = range('2002::/16', 'transition')

/** The IPv4 address that an IPv6 one carries, or `undefined`. */
export function embeddedIpv4(bytes: readonly number[]): readonly number[] | undefined {
  const tail = bytes.slice(12)
  for (const prefix of [MAPPED, SIIT, NAT64, NAT64_LOCAL]) if (inRange(bytes, prefix)) return tail
  if (inRange(bytes, SIX_TO_FOUR)) return bytes.slice(2, 6)
  if (inRange(bytes, TEREDO)) return tail.map((byte) => byte ^ 255)
  // ISATAP: an interface id of 0000:5efe or 0200:5efe below any prefix.
  const isatap =
    ((bytes[8] as number) & 0xfd) === 0 && bytes[9] === 0 && bytes[10] === 0x5e && bytes[11] === 0xfe
  if (isatap) return tail
  return inRange(bytes, COMPATIBLE) && tail.some((byte, index) => (index < 3 ? byte !== 0 : byte > 1))
    ? tail
    : undefined
}

const classIn = (table: readonly Range[], bytes: readonly number[]): AddressClass | undefined =>
  table.find((entry) => inRange(bytes, entry))?.class

/** The class of an address; for one with an embedded IPv4 address, the class of that address. */
export function classify(bytes: readonly number[]): AddressClass {
  if (bytes.length === 4) return classIn(IPV4, bytes) ?? 'public'
  const inner = embeddedIpv4(bytes)
  const innerClass = inner === undefined ? 'public' : classify(inner)
  if (innerClass !== 'public') return innerClass
  // Dual-stack sockets and IPv6-only hosts write a public address in mapped or NAT64 form.
  if (inner !== undefined && (inRange(bytes, MAPPED) || inRange(bytes, NAT64))) return 'public'
  return classIn(IPV6, bytes) ?? (inRange(bytes, GLOBAL_UNICAST) ? 'public' : 'reserved')
}

/** The class of an address in text form; text that is not an address is `reserved`, never public. */
export function classifyText(text: string): AddressClass {
  const bytes = parseAddress(text)
  return bytes === undefined ? 'reserved' : classify(bytes)
}
