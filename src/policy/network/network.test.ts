import fc from 'fast-check'
import { describe, expect, it, test } from 'vitest'
import { type FetchWorld, MAX_REDIRECTS, walkFetch } from './fetch-walk.ts'
import { hostRuleFor, isCovered, parseHostRules } from './hosts.ts'
import { isSamePeer, judgeUrl, networkPolicyOf } from './network.ts'

const PUBLIC = '93.184.215.14'
const open = networkPolicyOf({})
const verdicts = (urls: readonly string[], answers: readonly string[] = [PUBLIC]): readonly string[] =>
  urls.map((url) => `${judgeUrl(open, url, answers).verdict} ${url}`)
const all = (verdict: string, urls: readonly string[]): readonly string[] =>
  urls.map((url) => `${verdict} ${url}`)

describe('judgeUrl', () => {
  it.each<[string, readonly string[]]>([
    [
      'schemes',
      [
        'ftp://e.org/',
        'file:///etc/passwd',
        'ws://e.org/',
        'javascript:1',
        'jar:http://e.org!/',
        '//e.org/',
        'e.org',
        '',
      ],
    ],
    [
      'user parts',
      [
        'http://a@e.org/',
        'http://a:b@e.org/',
        'http://@e.org/',
        'http://:@e.org/',
        'http://e.org@127.0.0.1/',
      ],
    ],
    [
      'characters',
      [
        'http://e.org/a b',
        'http://e.org\t/',
        ' http://e.org/',
        'http://e.org\n',
        'http:\\\\e.org',
        'http://e.org\\x',
        'http://e.org/\u00a0',
        'http://e.org/\ud800',
      ],
    ],
    [
      'shape',
      [
        'http:e.org',
        'http:/e.org',
        'http:///e.org',
        'http://',
        'http://?x',
        'http://.',
        'http://a..b/',
        'http://[::1',
        'http://e.org:1:2/',
      ],
    ],
    [
      'ports',
      [0, 1, 22, 25, 111, 587, 2049, 5060, 6000, 6379, 6667, 10_080, 11_211, 65_536].map(
        (port) => `http://e.org:${port}/`,
      ),
    ],
    [
      'IPv4 spellings',
      [
        '2130706433',
        '0x7f000001',
        '0177.0.0.1',
        '127.1',
        '127.0.1',
        '0x7f.1',
        '①②⑦.0.0.1',
        '127。0。0。1',
        '127.0.0.1.',
        '０',
      ].map((host) => `http://${host}/`),
    ],
    [
      'encoded hosts',
      [
        'http://%31%32%37.0.0.1/',
        'http://loc%61lhost/',
        'http://e.org%40127.0.0.1/',
        'http://127.0.0.1%00.e.org/',
      ],
    ],
    [
      'internal names',
      [
        'localhost',
        'LOCALHOST.',
        'a.localhost',
        'x.local',
        'x.internal',
        'nas.lan',
        'r.home.arpa',
        'intranet',
        'kubernetes.default.svc',
        'ｌocalhost',
      ].map((host) => `http://${host}/`),
    ],
    [
      'metadata names',
      [
        'metadata.google.internal.',
        'metadata',
        'metadata.goog',
        'instance-data',
        'metadata.packet.net',
        'METADATA.TENCENTYUN.COM',
      ].map((host) => `http://${host}/`),
    ],
  ])('blocks %s', (_, urls) => expect(verdicts(urls)).toEqual(all('block', urls)))

  it('allows ordinary addresses', () => {
    const urls = [
      ...[
        'https://example.com/',
        'HTTP://EXAMPLE.COM:8080/x?y#z',
        'https://example.com/?u=a@b',
        'https://example.com/@v/list',
      ],
      ...[
        'https://xn--bcher-kva.example/',
        'http://例え.テスト/',
        'http://0x7f.example.com/',
        'http://8.8.8.8/',
        'http://[2606:4700::1111]/',
      ],
    ]
    expect(verdicts(urls)).toEqual(all('allow', urls))
  })

  it.each<[string, readonly string[]]>([
    ['no answer', []],
    ['one private among public', [PUBLIC, '10.0.0.1']],
    ['one private IPv6', [PUBLIC, 'fe80::1']],
    ['an answer with a zone', [PUBLIC, 'fe80::1%eth0']],
    ['text', ['cname.example.com']],
  ])('blocks %s', (_, answers) => expect(judgeUrl(open, 'http://e.org/', answers).verdict).toBe('block'))
})

describe('host allowlist', () => {
  const rules = parseHostRules([
    'github.com',
    '*.githubusercontent.com',
    'api.e.org:8443',
    '@registries',
    '1.1.1.1',
  ])
  it.each([
    ['github.com', 443, true],
    ['raw.githubusercontent.com', 443, true],
    ['a.b.githubusercontent.com', 443, true],
    ['githubusercontent.com', 443, false],
    ['evilgithubusercontent.com', 443, false],
    ['github.com.evil.example', 443, false],
    ['evilgithub.com', 443, false],
    ['api.e.org', 8443, true],
    ['api.e.org', 443, false],
    ['registry.npmjs.org', 443, true],
    ['1.1.1.1', 443, true],
  ])('%s:%i → %s', (host, port, wanted) => expect(hostRuleFor(rules, host, port) !== undefined).toBe(wanted))

  it.each([
    '',
    '*.',
    'a*.com',
    '*com',
    'http://x.com',
    'x.com/y',
    'x.com:',
    'x.com:99999',
    'a b.com',
    '@unknown',
    '0x7f.1',
  ])('refuses the entry `%s`', (entry) => expect(() => parseHostRules([entry])).toThrow(/is not a host/))

  it('never allows metadata services, even if they are listed', () => {
    const policy = networkPolicyOf({
      allowHosts: ['*', 'metadata.google.internal', '169.254.169.254'],
      allowPrivate: ['169.254.0.0/16', '100.64.0.0/10', 'metadata.google.internal'],
    })
    for (const host of [
      'metadata.google.internal',
      '169.254.169.254',
      '100.100.100.200',
      '[::ffff:a9fe:a9fe]',
    ]) {
      expect(judgeUrl(policy, `http://${host}/`, [PUBLIC]).verdict, host).toBe('block')
    }
    expect(judgeUrl(policy, 'http://e.org/', ['169.254.169.254']).verdict).toBe('block')
  })

  it('allows private addresses that the operator lists, and only those', () => {
    const policy = networkPolicyOf({ allowPrivate: ['10.0.0.0/8', '192.168.1.0/24', 'n8n.local'] })
    const verdict = (url: string, answers: readonly string[] = []) => judgeUrl(policy, url, answers).verdict
    expect(verdict('http://10.1.2.3/')).toBe('allow')
    expect(verdict('http://192.168.1.100/')).toBe('allow')
    expect(verdict('http://192.168.2.1/')).toBe('block')
    expect(verdict('http://n8n.local/', ['172.16.0.9'])).toBe('allow')
    expect(verdict('http://other.local/', ['10.0.0.1'])).toBe('block')
    expect(verdict('http://n8n.local/', ['169.254.1.1'])).toBe('block')
  })
})

describe('proxy targets', () => {
  const policy = networkPolicyOf({ allowHosts: ['github.com', '*.githubusercontent.com', 'git.e.org:22'] })
  it.each([
    ['github.com:443', 'allow'],
    ['GitHub.COM:443', 'allow'],
    ['raw.githubusercontent.com:443', 'allow'],
    ['git.e.org:22', 'allow'],
    ['github.com:22', 'block'],
    ['github.com', 'block'],
    ['github.com:', 'block'],
    ['github.com:0443', 'block'],
    ['github.com:443/', 'block'],
    ['github.com:443@evil.example:443', 'block'],
    ['github.com:443\r\nHost: x', 'block'],
    ['github.com:70000', 'block'],
    ['github。com:443', 'block'],
    ['evil.example%2egithubusercontent.com:443', 'block'],
    ['.githubusercontent.com:443', 'block'],
    ['*.githubusercontent.com:443', 'block'],
    ['0x7f.1:443', 'block'],
    ['2852039166:80', 'block'],
    ['[::1]:443', 'block'],
    [`${'x'.repeat(64)}.githubusercontent.com:443`, 'block'],
    [`${'x.'.repeat(120)}githubusercontent.com:443`, 'block'],
  ])('%j → %s', (target, wanted) => {
    expect(judgeUrl(policy, target, [PUBLIC], 'proxy-target').verdict).toBe(wanted)
  })
})

describe('walkFetch', () => {
  const fetching = { url: 'http://a.example/', kind: 'url' } as const
  const world = (parts: Partial<FetchWorld>): FetchWorld => ({
    resolve: () => [PUBLIC],
    respond: () => ({ status: 200 }),
    ...parts,
  })

  it('connects only to the first address of the first lookup', async () => {
    let turn = 0
    const seen = await walkFetch(
      open,
      fetching,
      world({ resolve: () => (turn++ === 0 ? [PUBLIC, '1.1.1.1'] : ['8.8.8.8']) }),
    )
    expect(seen).toMatchObject({ verdict: 'allow', connects: [PUBLIC] })
  })

  it('blocks a name whose second answer is private, before any connection', async () => {
    let turn = 0
    const seen = await walkFetch(
      open,
      fetching,
      world({ resolve: () => (turn++ === 0 ? [PUBLIC] : ['127.0.0.1']) }),
    )
    expect(seen).toMatchObject({ verdict: 'block', connects: [] })
  })

  it('blocks when the resolver fails', async () => {
    const resolve = () => Promise.reject(new Error('ENOTFOUND'))
    expect(await walkFetch(open, fetching, world({ resolve }))).toMatchObject({
      verdict: 'block',
      connects: [],
    })
  })

  it.each([
    [MAX_REDIRECTS, 'allow'],
    [MAX_REDIRECTS + 1, 'block'],
  ])('%i redirects: %s', async (count, wanted) => {
    let left = count
    const respond = () => (left-- > 0 ? { status: 302, location: '/next' } : { status: 200 })
    expect((await walkFetch(open, fetching, world({ respond }))).verdict).toBe(wanted)
  })

  it.each([
    ['http://127.0.0.1/', 'block'],
    ['//0x7f.1/', 'block'],
    ['http:127.0.0.1', 'block'],
    ['\\\\127.0.0.1\\', 'block'],
    ['http://u@b.example/', 'block'],
    ['ftp://b.example/', 'block'],
    ['http://b.example:25/', 'block'],
    ['http://metadata.google.internal/', 'block'],
    ['https://b.example/', 'allow'],
    ['//b.example/x', 'allow'],
    ['../up', 'allow'],
    ['?q', 'allow'],
  ])('a redirect to %j is judged like a request: %s', async (location, wanted) => {
    const respond = (url: URL) => (url.href === fetching.url ? { status: 307, location } : { status: 200 })
    expect((await walkFetch(open, fetching, world({ respond }))).verdict).toBe(wanted)
  })

  it('checks every hop against the allowlist', async () => {
    const policy = networkPolicyOf({ allowHosts: ['a.example'] })
    const respond = () => ({ status: 302, location: 'http://b.example/' })
    expect(await walkFetch(policy, fetching, world({ respond }))).toMatchObject({
      verdict: 'block',
      connects: [PUBLIC],
    })
  })
})

it('recognises a peer in both spellings', () => {
  expect(isSamePeer(PUBLIC, `::ffff:${PUBLIC}`)).toBe(true)
  expect(isSamePeer('2606:4700:0::1111', '2606:4700::1111')).toBe(true)
  expect(isSamePeer(PUBLIC, '127.0.0.1')).toBe(false)
  expect(isSamePeer(PUBLIC, undefined)).toBe(false)
})

it('every text gets a verdict, and none reaches loopback', () => {
  fc.assert(
    fc.property(
      fc.oneof(fc.string({ unit: 'binary' }), fc.webUrl({ withFragments: true, withQueryParameters: true })),
      (url) => {
        expect(
          judgeUrl(open, url, ['127.0.0.1']).verdict === 'allow' && !/^https?:\/\/(\d|\[)/.test(url),
        ).toBe(false)
        expect(['allow', 'block']).toContain(judgeUrl(open, url, [PUBLIC], 'proxy-target').verdict)
      },
    ),
    { numRuns: 1000 },
  )
})

describe('addresses, ranges and denials in a list', () => {
  const verdict = (allowHosts: readonly string[], target: string, answers: readonly string[] = []) =>
    judgeUrl(networkPolicyOf({ allowHosts }), target, answers, 'proxy-target').verdict
  const cases: readonly (readonly [list: string[], target: string, wanted: string, answers?: string[]])[] = [
    [['1.1.1.1'], '1.1.1.1:443', 'allow'],
    [['1.1.1.1'], '8.8.8.8:443', 'block'],
    [['8.8.0.0/16'], '8.8.4.4:443', 'allow'],
    [['8.8.0.0/16'], '8.9.0.1:443', 'block'],
    [['8.8.0.0/16:443'], '8.8.4.4:80', 'block'],
    [['[2606:4700::/32]'], '[2606:4700::1111]:443', 'allow'],
    [['[2606:4700::/32]'], '[2606:4701::1]:443', 'block'],
    // A name is not looked up for a range.
    [['8.8.0.0/16'], 'dns.google:443', 'block', ['8.8.8.8']],
    // Neither allows private addresses, which only an operator can allow.
    [['0.0.0.0/0'], '10.0.0.1:443', 'block'],
    [['0.0.0.0/0'], '169.254.169.254:80', 'block'],
    [['*', '!evil.example'], 'evil.example:443', 'block', ['1.1.1.1']],
    [['*', '!evil.example'], 'good.example:443', 'allow', ['1.1.1.1']],
    [['*', '!*.evil.example'], 'a.evil.example:443', 'block', ['1.1.1.1']],
    [['*', '!8.8.8.8'], '8.8.8.8:443', 'block'],
    [['*', '!8.8.8.8'], '1.1.1.1:443', 'allow'],
    // A name that resolves to a denied address is denied too, even if only one of its addresses is denied.
    [['*', '!8.8.8.0/24'], 'dns.google:443', 'block', ['1.1.1.1', '8.8.8.8']],
    [['*', '!8.8.8.8:53'], '8.8.8.8:443', 'allow'],
    // Other ways to write the same address, and a name of an IPv6-only network.
    [['*', '!8.8.8.8'], '[::ffff:8.8.8.8]:443', 'block'],
    [['*', '!8.8.8.8'], '[64:ff9b::808:808]:443', 'block'],
    [['*', '!8.8.8.0/24'], 'dns.google:443', 'block', ['64:ff9b::808:808']],
    [['*', '!8.8.8.0/24'], 'dns.google:443', 'allow', ['64:ff9b::909:909']],
    [['*', '![::ffff:8.8.8.8]'], '8.8.8.8:443', 'block'],
    [['*', '![::ffff:8.8.8.0/120]'], '8.8.8.9:443', 'block'],
    [['*', '![64:ff9b::/96]'], '8.8.8.8:443', 'allow'],
    // A list that only denies allows nothing by itself.
    [['!8.8.8.8'], '1.1.1.1:443', 'block'],
  ]
  test.each(cases.map((row) => ({ row, name: `${row[0]}: ${row[1]} is ${row[2]}` })))('$name', ({ row }) => {
    const [list, target, wanted, answers] = row
    expect(verdict(list, target, answers)).toBe(wanted)
  })

  test('an operator’s list cannot deny, and covers ranges inside its own', () => {
    expect(() => parseHostRules(['!evil.example'])).toThrow(/is not a host/)
    expect(parseHostRules(['constructor'])).toEqual([{ kind: 'exact', host: 'constructor' }])
    const covered = (entry: string, outer: string): boolean =>
      parseHostRules([entry]).every((rule) => isCovered(rule, parseHostRules([outer])))
    expect(covered('8.8.8.8', '8.8.0.0/16')).toBe(true)
    expect(covered('8.8.8.0/24', '8.8.0.0/16')).toBe(true)
    expect(covered('8.0.0.0/8', '8.8.0.0/16')).toBe(false)
    expect(covered('8.8.8.0/24', '8.8.8.8')).toBe(false)
    expect(covered('8.8.8.8', '[::/0]')).toBe(false)
    expect(covered('8.8.8.8', '*')).toBe(true)
    expect(covered('*', '0.0.0.0/0')).toBe(false)
    expect(covered('example.com', '0.0.0.0/0')).toBe(false)
  })
})
