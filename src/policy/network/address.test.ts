import fc from 'fast-check'
import ipaddr from 'ipaddr.js'
import { describe, expect, it } from 'vitest'
import { type AddressClass, classify, classifyText, inRange, parseAddress, parseCidr } from './address.ts'

const bytesOf = (text: string): readonly number[] => {
  const bytes = parseAddress(text)
  if (bytes === undefined) throw new Error(`not an address: ${text}`)
  return bytes
}

describe('classifyText', () => {
  it.each<[AddressClass, readonly string[]]>([
    ['public', ['8.8.8.8', '1.1.1.1', '223.255.255.254', '128.0.0.1', '192.0.1.1', '168.63.129.17']],
    [
      'public',
      ['2001:4860:4860::8888', '2606:4700::1111', '2a00:1450:4001:82a::200e', '2001:200::1', '2003::1'],
    ],
    ['public', ['::ffff:8.8.8.8', '64:ff9b::8.8.8.8', '2001:470:1f0b::5efe:8.8.8.8']],
    ['unspecified', ['0.0.0.0', '0.255.255.255', '::', '::ffff:0.0.0.0', '::ffff:0:0:1', '::2']],
    [
      'loopback',
      ['127.0.0.1', '127.255.255.254', '::1', '::ffff:7f00:1', '::127.0.0.1', '::ffff:0:127.0.0.1'],
    ],
    [
      'loopback',
      ['64:ff9b::7f00:1', '64:ff9b:1::7f00:1', '2002:7f00:1::1', '2001:0:4136:e378:8000:63bf:80ff:fffe'],
    ],
    ['loopback', ['::5efe:7f00:1', '2001:470::200:5efe:127.0.0.1', '2001:470::5efe:127.0.0.1']],
    ['private', ['10.0.0.1', '172.16.0.1', '172.31.255.255', '192.168.0.1', '::a00:1', '2002:c0a8:101::']],
    ['shared', ['100.64.0.1', '100.127.255.255']],
    ['link-local', ['169.254.0.1', 'fe80::1', 'febf::1', '::ffff:169.254.1.1']],
    [
      'metadata',
      [
        '169.254.169.254',
        '169.254.170.2',
        '169.254.42.42',
        '100.100.100.200',
        '192.0.0.192',
        '168.63.129.16',
      ],
    ],
    [
      'metadata',
      [
        'fd00:ec2::254',
        'fd20:ce::254',
        'fd00:42::42',
        '::ffff:a9fe:a9fe',
        '::ffff:0:a9fe:a9fe',
        '2001::5601:5601',
      ],
    ],
    ['metadata', ['64:ff9b::169.254.169.254', '2002:a83f:8110::', '::168.63.129.16']],
    ['unique-local', ['fc00::1', 'fdff::1']],
    ['site-local', ['fec0::1']],
    ['multicast', ['224.0.0.251', '239.255.255.255', 'ff02::1', 'ff05::1:3']],
    ['broadcast', ['255.255.255.255']],
    ['documentation', ['192.0.2.1', '198.51.100.1', '203.0.113.9', '2001:db8::1', '3fff::1', '3fff:fff::1']],
    ['benchmark', ['198.18.0.1', '198.19.255.255', '2001:2::1']],
    ['transition', ['192.88.99.1', '2002:808:808::1', '2001:0:1::f7f7:f7f7', '64:ff9b:1::808:808']],
    [
      'reserved',
      [
        '192.0.0.1',
        '240.0.0.1',
        '192.31.196.1',
        '192.175.48.1',
        '100::1',
        '100:0:0:1::1',
        '4000::1',
        '5f00::1',
      ],
    ],
    [
      'reserved',
      ['2001:10::1', '2001:20::1', '2001:1ff:ffff::1', '2620:4f:8000::1', '::8.8.8.8', '::ffff:0:8.8.8.8'],
    ],
    [
      'reserved',
      [
        '',
        'example.com',
        '1.2.3',
        '1.2.3.4.5',
        '01.2.3.4',
        '256.1.1.1',
        '0x7f.0.0.1',
        'fe80::1%eth0',
        '[::1]',
      ],
    ],
    [
      'reserved',
      [
        '1::2::3',
        ':::',
        '1:2:3:4:5:6:7',
        '1:2:3:4:5:6:7:8:9',
        '::1.2.3',
        '12345::',
        '1.2.3.4::',
        '::1:2:3:4:5:6:7:8',
      ],
    ],
  ])('%s', (wanted, addresses) => {
    expect(addresses.map((text) => `${text} ${classifyText(text)}`)).toEqual(
      addresses.map((text) => `${text} ${wanted}`),
    )
  })
})

describe('parseCidr', () => {
  it.each(['10.0.0.0/8', '10.1.2.3', 'fd00::/8', '0.0.0.0/0'])('reads %s', (text) =>
    expect(parseCidr(text)).toBeDefined(),
  )
  it.each(['', '10.0.0.0/33', '10/8', '10.0.0.0/', '10.0.0.0/8/8', 'fd00::/129', 'x', '10.0.0.0/08'])(
    'refuses `%s`',
    (text) => expect(parseCidr(text)).toBeUndefined(),
  )
  it('matches inside one family only', () => {
    const range = parseCidr('10.0.0.0/9') as NonNullable<ReturnType<typeof parseCidr>>
    expect(
      ['10.127.1.1', '10.128.0.0', '::ffff:10.0.0.1'].map((text) => inRange(bytesOf(text), range)),
    ).toEqual([true, false, false])
  })
})

/** Intended differences from ipaddr.js; everything else must agree. */
const STRICTER: readonly { readonly range: string; readonly why: string }[] = [
  { range: '168.63.129.16/32', why: 'Azure wire server' },
  { range: '::/3', why: 'nothing below 2000::/3 is global unicast' },
  { range: '4000::/2', why: 'unallocated' },
  { range: '8000::/1', why: 'unallocated' },
  { range: '2001::/23', why: 'protocol assignments as a whole' },
  { range: '3ffe::/16', why: '6bone, given back' },
]

const within = (bytes: readonly number[], cidr: string): boolean =>
  inRange(bytes, parseCidr(cidr) as NonNullable<ReturnType<typeof parseCidr>>)

/** The class according to ipaddr.js, with the intended differences applied. */
function oracle(bytes: readonly number[]): boolean {
  // ipaddr.js does not know ISATAP, and refuses NAT64 of a public address, which is allowed here.
  const groups = bytes.length === 16 ? new ipaddr.IPv6([...bytes]).parts : []
  if ((groups[4] === 0 || groups[4] === 0x200) && groups[5] === 0x5efe && !oracle(bytes.slice(12)))
    return false
  if (within(bytes, '64:ff9b::/96')) return oracle(bytes.slice(12))
  const address = ipaddr.fromByteArray([...bytes])
  const plain = address.kind() === 'ipv6' && (address as ipaddr.IPv6).isIPv4MappedAddress()
  if (plain) return oracle(bytes.slice(12))
  return address.range() === 'unicast' && !STRICTER.some(({ range }) => within(bytes, range))
}

const PREFIXES = [
  ...[
    '0.0.0.0',
    '10.0.0.0',
    '100.64.0.0',
    '127.0.0.0',
    '168.63.129.16',
    '169.254.169.254',
    '172.16.0.0',
    '192.0.0.0',
  ],
  ...[
    '192.0.2.0',
    '192.31.196.0',
    '192.52.193.0',
    '192.88.99.0',
    '192.168.0.0',
    '192.175.48.0',
    '198.18.0.0',
  ],
  ...['198.51.100.0', '203.0.113.0', '224.0.0.0', '240.0.0.0', '255.255.255.255', '8.8.8.8'],
  ...[
    '::',
    '::1',
    '::ffff:0:0',
    '::ffff:0:0:0',
    '64:ff9b::',
    '64:ff9b:1::',
    '100::',
    '2000::',
    '2001::',
    '2001:2::',
  ],
  ...[
    '2001:10::',
    '2001:20::',
    '2001:db8::',
    '2002::',
    '2620:4f:8000::',
    '2606:4700::',
    '3fff::',
    '5f00::',
    'fc00::',
  ],
  ...['fe80::', 'fec0::', 'ff00::', '2001:470::5efe:0:0', '2001:470::200:5efe:0:0', '2a00:1450::'],
].map(bytesOf)

/** Random addresses near the edges of ranges: a known prefix whose last bits are replaced. */
function randomAddress(next: () => number): readonly number[] {
  const base = PREFIXES[next() % PREFIXES.length] as readonly number[]
  const keep = next() % (base.length * 8 + 1)
  return base.map((byte, index) => {
    const kept = Math.max(0, Math.min(8, keep - index * 8))
    const mask = (0xff00 >> kept) & 0xff
    return (byte & mask) | (next() & 0xff & ~mask)
  })
}

describe('a second implementation', () => {
  const count = process.env.RINGFENCE_FULL ? 1_000_000 : 20_000
  it(`agrees on ${count} random addresses`, () => {
    const seed = Date.now() & 0x7fffffff
    let state = seed | 1
    const next = (): number => {
      state ^= state << 13
      state ^= state >>> 17
      state ^= state << 5
      return state >>> 1
    }
    const wrong: string[] = []
    let open = 0
    for (let turn = 0; turn < count; turn++) {
      const bytes = randomAddress(next)
      const ours = classify(bytes) === 'public'
      if (ours) open++
      if (ours !== oracle(bytes)) wrong.push(`${ipaddr.fromByteArray([...bytes])} ours ${classify(bytes)}`)
    }
    expect(wrong.slice(0, 10), `seed ${seed}`).toEqual([])
    expect(open).toBeGreaterThan(count / 20)
  })

  it('accepts the same texts', () => {
    fc.assert(
      fc.property(fc.oneof(fc.ipV4(), fc.ipV6()), (text) => {
        // Normalised to WHATWG's form first: ipaddr.js reads a compatible `::1.2.3.4` as a mapped address.
        const plain = new URL(`http://${text.includes(':') ? `[${text}]` : text}/`).hostname.replace(
          /[[\]]/g,
          '',
        )
        expect(parseAddress(text)).toEqual(ipaddr.parse(plain).toByteArray())
      }),
    )
  })

  it('never classifies other text as a public address', () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom(...'0123456789abcdefx:.%[]/ ') }), (text) => {
        if (classifyText(text) === 'public') expect(ipaddr.isValid(text)).toBe(true)
      }),
      { numRuns: 2000 },
    )
  })
})
