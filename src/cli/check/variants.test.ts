import { execFileSync } from 'node:child_process'
import { linkSync, mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { answerPathLine } from './path.ts'
import { answerUrlLine } from './url.ts'

/** Every technique of the corpora of addresses and paths in a different form, through the same functions as `--batch`. */

const PUBLIC = '93.184.215.14'
const GOOD = '1.1.1.1'

/** Every name resolves to a public address, so that the address itself has to be refused. */
async function verdictOf(url: string, more: object = {}): Promise<string> {
  const host = URL.canParse(url) ? new URL(url).hostname.replace(/\.$/, '') : ''
  const dns = { [host]: [PUBLIC], [`${host}.`]: [PUBLIC] }
  return (await answerUrlLine(JSON.stringify({ id: 1, url, dns, ...more }))).verdict
}

describe('addresses', () => {
  it.each([
    'http://0177.0.0.1/',
    'http://0x7f.0.0.1/',
    'http://127.1/',
    'http://0/',
    'http://00000177.1/',
    'http://017700000001/',
    'http://[::]/',
    'http://[::127.0.0.1]/',
    'http://[0:0:0:0:0:ffff:7f00:1]/',
    'http://[::ffff:0:127.0.0.1]/',
    'http://[64:ff9b:1::a00:1]/',
    'http://[2002:7f00:1::]/',
    'http://[2002:c0a8:0101::1]/',
    'http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/',
    'http://[fc00::1]/',
    'http://[fd12:3456::1]/',
    'http://[fe80::1%25eth0]/',
    'http://[fe80::1]/',
    'http://[fec0::1]/',
    'http://[ff02::1]/',
    'http://[100::1]/',
    'http://[2001:db8::1]/',
    'http://[3fff::1]/',
    'http://[5f00::1]/',
    'http://[2001:2::1]/',
    'http://[2001:20::1]/',
    'http://[::1]:8080/',
    'http://0.0.0.0:8000/',
    'http://10.255.255.255/',
    'http://100.64.0.1/',
    'http://100.127.255.255/',
    'http://169.254.1.1/',
    'http://172.31.255.255/',
    'http://192.0.0.1/',
    'http://192.0.2.5/',
    'http://192.88.99.1/',
    'http://192.168.0.1/',
    'http://198.18.0.1/',
    'http://198.19.255.255/',
    'http://198.51.100.7/',
    'http://203.0.113.7/',
    'http://224.0.0.1/',
    'http://239.255.255.255/',
    'http://240.0.0.1/',
    'http://255.255.255.255/',
    'http://168.63.129.16/',
    'http://100.100.100.200/',
    'http://169.254.169.123/',
    'http://192.0.0.192/',
    'http://[fd00:ec2::254]/',
    'http://[fd00:ec2::23]/',
    'http://[fd20:ce::254]/',
    'http://metadata/',
    'http://metadata.google.internal/',
    'http://METADATA.google.internal/',
    'http://instance-data/latest',
    'http://localhost/',
    'http://LOCALHOST/',
    'http://localhost./',
    'http://foo.localhost/',
    'http://router.lan/',
    'http://x.internal/',
    'http://x.local/',
    'http://intranet/',
    'http://x.home.arpa/',
    'http://db.corp/',
    'http://x.svc.cluster.local/',
    'http://host.docker.internal/',
    'http://gateway.docker.internal/',
    'http://kubernetes.default.svc/',
    'http://user@example.com/',
    'http://user:pw@example.com/',
    'http://@example.com/',
    'http://example.com@127.0.0.1/',
    'http://127.0.0.1#@example.com/',
    'http://127.0.0.1?@example.com/',
    'http://127.0.0.1\\@example.com/',
    'http:\\\\127.0.0.1\\',
    'http:/127.0.0.1/',
    'http:127.0.0.1',
    '//127.0.0.1/',
    'http://exa mple.com/',
    'http://example.com%00.evil/',
    'http://127.0.0.1%2f@example.com',
    'http://①②⑦.⓪.⓪.①/',
    'http://127。0。0。1/',
    'http://ⓛocalhost/',
    'http://example.com:0/',
    'http://example.com:25/',
    'http://example.com:22/',
    'http://example.com:6379/',
    'http://example.com:65536/',
    'http://example.com:99999/',
    'http://example.com:-1/',
    'http://example.com:080x/',
    'ftp://example.com/',
    'file:///etc/passwd',
    'gopher://example.com/',
    'data:text/html,x',
    'javascript:alert(1)',
    'blob:http://example.com/x',
    'ws://example.com/',
    'jar:http://example.com!/',
    'view-source:http://example.com',
    'HTTP+UNIX://x',
    'dict://example.com/',
    'ldap://example.com/',
    'about:blank',
    ' http://example.com/',
    'http://',
    'http:///example.com',
    '?',
    'http://[::1',
    'http://[g::1]/',
    'http://1.2.3.4.5/',
    'http://256.1.1.1/',
    'http://0x/',
    'http://example..com/',
    'http://-/',
    'http://.example.com/',
    'http://4294967296/',
  ])('blocks %j', async (url) => expect(await verdictOf(url)).toBe('block'))

  it.each([
    'http://example.com/',
    'https://example.com:8443/x?y#z',
    'https://EXAMPLE.com/',
    'http://8.8.8.8/',
    'http://1.1.1.1:8080/',
    'https://[2606:4700:4700::1111]/',
    'http://172.32.0.1/',
    'http://11.0.0.1/',
    'http://100.128.0.1/',
    'http://192.169.0.1/',
    'http://198.20.0.1/',
    'http://169.253.1.1/',
    'http://126.255.255.255/',
    'http://128.0.0.1/',
    'https://münchen.example/',
    'https://xn--mnchen-3ya.example/',
    'https://example.com./',
    'https://a.b.c.d.example.com/',
    'https://internal.example.com/',
    'https://localhost.example.com/',
    'https://metadata.example.com/',
    'https://example.com/127.0.0.1',
    'https://example.com/?u=http://127.0.0.1/',
    'https://example.com/#@127.0.0.1',
    'http://0x08.8.8.8/',
    'http://134744072/',
    'https://registry.npmjs.org/left-pad',
    'https://example.com:443/',
    'https://example.com/a%20b',
    'https://1password.com/',
    'https://3m.com/',
    'https://example.co.uk/',
    'http://[2001:4860:4860::8844]:8080/',
    'https://example.museum/',
  ])('allows %j', async (url) => expect(await verdictOf(url)).toBe('allow'))

  const list = ['github.com', '*.githubusercontent.com', 'api.example.com:8443', '@registries']
  it.each([
    ['allow', 'https://github.com/a'],
    ['allow', 'https://GITHUB.com./a'],
    ['allow', 'https://raw.githubusercontent.com/a'],
    ['allow', 'https://a.b.githubusercontent.com/'],
    ['allow', 'https://api.example.com:8443/'],
    ['allow', 'https://pypi.org/simple'],
    ['block', 'https://api.example.com/'],
    ['block', 'https://githubusercontent.com/'],
    ['block', 'https://evilgithub.com/'],
    ['block', 'https://github.com.evil.example/'],
    ['block', 'https://evil.example/github.com'],
    ['block', 'https://evil.example?github.com'],
    ['block', 'https://github.com@evil.example/'],
    ['block', 'https://gist.github.com/'],
    ['block', 'https://githubXcom/'],
    ['block', 'https://xgithubusercontent.com/'],
    ['block', 'http://140.82.121.4/'],
    ['block', 'https://github.com:22/'],
    ['block', 'https://g\u0131thub.com/'],
  ])('%s with a list of hosts: %s', async (verdict, url) =>
    expect(await verdictOf(url, { mode: 'fetch', allowlist: list })).toBe(verdict),
  )

  it.each([
    ['allow', 'github.com:443'],
    ['allow', 'api.example.com:8443'],
    ['block', 'github.com'],
    ['block', 'github.com:'],
    ['block', 'github.com:0'],
    ['block', 'github.com:443 '],
    ['block', 'github.com:443/'],
    ['block', 'http://github.com:443'],
    ['block', 'x@github.com:443'],
    ['block', 'github.com:443:80'],
    ['block', 'github.com\u0000:443'],
    ['block', 'github.com%00.evil.example:443'],
    ['block', '127.0.0.1:443'],
    ['block', '[::1]:443'],
    ['block', '0x7f.1:443'],
    ['block', '2130706433:443'],
    ['block', 'github.com:22'],
    ['block', 'github.com:+443'],
    ['block', 'github.com:0443'],
    ['block', 'evil.example:443'],
    ['block', ''],
  ])('%s as the target of a proxy: %j', async (verdict, url) =>
    expect(
      await verdictOf(url, {
        kind: 'proxy-target',
        allowlist: list,
        dns: { 'github.com': [PUBLIC], 'api.example.com': [PUBLIC] },
      }),
    ).toBe(verdict),
  )

  it.each<[string, readonly string[]]>([
    ['no answer', []],
    ['loopback', ['127.0.0.1']],
    ['private among public', [PUBLIC, '192.168.1.1']],
    ['private first', ['10.0.0.1', PUBLIC]],
    ['mapped', ['::ffff:10.0.0.1']],
    ['translated', ['64:ff9b::a00:1']],
    ['6to4', ['2002:a00:1::']],
    ['unspecified', ['0.0.0.0']],
    ['link-local', ['fe80::1']],
    ['unique local', ['fd00::1']],
    ['metadata', ['169.254.169.254']],
    ['text', ['localhost']],
    ['an empty text', ['']],
    ['a number', ['2130706433']],
    ['an octal number', ['0177.0.0.1']],
  ])('blocks a name that answers with %s', async (_, answers) => {
    expect(await verdictOf('https://name.example/', { dns: { 'name.example': answers } })).toBe('block')
  })

  it.each([
    'http://127.0.0.1/',
    '//127.0.0.1/',
    'http://[::1]/',
    'http://localhost/',
    'file:///etc/passwd',
    'gopher://127.0.0.1/',
    'http://x@good.example/',
    'http://inside.example/',
    'http://good.example:25/',
    'http://good.example\\@127.0.0.1/',
    'http:\\\\127.0.0.1',
    '/\\127.0.0.1/',
    'http://2130706433/',
    '\thttp://127.0.0.1/',
  ])('does not follow a redirect to %j', async (location) => {
    for (const status of [301, 302, 303, 307, 308]) {
      const answer = await answerUrlLine(
        JSON.stringify({
          id: 1,
          url: 'https://start.example/',
          dns: { 'start.example': [PUBLIC], 'good.example': [GOOD], 'inside.example': ['10.0.0.1'] },
          responses: { 'https://start.example/': { status, location } },
        }),
      )
      expect(answer).toMatchObject({ verdict: 'block', connects: [PUBLIC] })
    }
  })
})

type Setup = Readonly<Record<string, string | readonly [string, string]>>
type PathCase = readonly [expected: string, op: string, path: string, setup?: readonly Setup[], more?: object]

const PATHS: readonly PathCase[] = [
  ['allow', 'read', '$R/workspace/README.md'],
  ['allow', 'read', '$R/workspace//src/./a.ts'],
  ['deny', 'read', '$R/workspace/src/../README.md'],
  ['allow', 'write', '$R/workspace/src/a.ts'],
  ['allow', 'create', '$R/workspace/new/deep/file.txt'],
  ['allow', 'mount-rw', '$R/workspace'],
  ['allow', 'mount-ro', '$R/workspace/src', [], { target: '/data' }],
  ['allow', 'rename', '$R/workspace/src/a.ts', [], { to: '$R/workspace/src/b.ts' }],
  ['allow', 'delete-recursive', '$R/workspace/src'],
  ['allow', 'read', '$R/workspace/in', [{ symlink: ['src/a.ts', '$R/workspace/in'] }]],
  ['allow', 'read', '$R/workspace/.envoy', [{ file: '$R/workspace/.envoy' }]],
  ['allow', 'read', '$R/workspace/mysecrets/x', [{ file: '$R/workspace/mysecrets/x' }]],
  ['allow', 'read', '$R/workspace/été/ñ.txt', [{ file: '$R/workspace/été/ñ.txt' }]],
  ['allow', 'read', '$R/workspace/100%.txt', [{ file: '$R/workspace/100%.txt' }]],
  ['allow', 'read', '$R/workspace/my%20file', [{ file: '$R/workspace/my file' }], { via: 'http' }],
  ['allow', 'write', '$R/workspace/.git/index', [{ file: '$R/workspace/.git/index' }]],
  ['deny', 'read', '$R/workspaces/x'],
  ['deny', 'read', '$R/workspace-evil/x', [{ file: '$R/workspace-evil/x' }]],
  ['deny', 'read', '$R/work', [{ file: '$R/work' }]],
  ['deny', 'read', '$R/outside/secret.txt'],
  ['deny', 'read', '$R/workspace/../outside/secret.txt'],
  ['deny', 'read', '$R/workspace/src/../../outside/secret.txt'],
  ['deny', 'read', '$R/workspace/x/../../outside/secret.txt'],
  ['deny', 'mount-ro', '$R/workspace/..'],
  ['deny', 'mount-ro', '$R'],
  ['deny', 'mount-ro', '/'],
  ['deny', 'mount-ro', '/etc'],
  ['deny', 'mount-rw', '/home'],
  ['deny', 'mount-ro', '/usr'],
  ['deny', 'mount-ro', '/proc'],
  ['deny', 'mount-rw', '/var/run'],
  ['deny', 'read', 'workspace/README.md'],
  ['deny', 'read', './README.md'],
  ['deny', 'read', '~/x'],
  ['deny', 'read', '$HOME/x'],
  ['deny', 'read', 'file://$R/workspace/README.md'],
  ['deny', 'read', 'C:\\x'],
  ['deny', 'read', '\\\\host\\share'],
  ['deny', 'read', '$R/workspace/a\u0000b'],
  ['deny', 'create', '$R/workspace/a\nb'],
  ['deny', 'create', '$R/workspace/a\u202eb'],
  ['deny', 'read', '$R/workspace/%2e%2e/outside/secret.txt', [], { via: 'http' }],
  ['deny', 'read', '$R/workspace/%2E%2E%2Foutside/secret.txt', [], { via: 'http' }],
  ['deny', 'read', '$R/workspace/%252e%252e/outside/secret.txt', [], { via: 'http' }],
  ['deny', 'read', '$R/workspace/..%2foutside', [], { via: 'http' }],
  ['deny', 'read', '$R/workspace/%c0%ae%c0%ae/x', [], { via: 'http' }],
  ['deny', 'read', '$R/workspace/x%00.txt', [], { via: 'http' }],
  ['deny', 'read', '$R/workspace/%2essh/id', [{ file: '$R/workspace/.ssh/id' }], { via: 'http' }],
  ['deny', 'read', '$R/workspace/..%5coutside', [], { via: 'http' }],
  ['deny', 'read', '$R/workspace/out', [{ symlink: ['../outside/secret.txt', '$R/workspace/out'] }]],
  ['deny', 'read', '$R/workspace/out/secret.txt', [{ symlink: ['$R/outside', '$R/workspace/out'] }]],
  ['deny', 'create', '$R/workspace/out/new', [{ symlink: ['$R/outside', '$R/workspace/out'] }]],
  ['deny', 'create', '$R/workspace/out/a/b/c', [{ symlink: ['$R/outside', '$R/workspace/out'] }]],
  ['deny', 'write', '$R/workspace/late', [{ symlink: ['$R/outside/new.txt', '$R/workspace/late'] }]],
  [
    'deny',
    'create',
    '$R/workspace/one',
    [{ symlink: ['two', '$R/workspace/one'] }, { symlink: ['$R/outside/n', '$R/workspace/two'] }],
  ],
  ['deny', 'read', '$R/workspace/loop', [{ symlink: ['loop', '$R/workspace/loop'] }]],
  ['deny', 'mount-rw', '$R/workspace/m', [{ symlink: ['/', '$R/workspace/m'] }]],
  ['deny', 'rename', '$R/workspace/src/a.ts', [], { to: '$R/outside/b.ts' }],
  ['deny', 'rename', '$R/outside/secret.txt', [], { to: '$R/workspace/b' }],
  ['deny', 'rename', '$R/workspace/src/a.ts', [], { to: '$R/workspace/.vscode/x' }],
  ['deny', 'rename', '$R/workspace/src', [], { to: '$R/workspace/.git' }],
  ['deny', 'rename', '$R/workspace', [], { to: '$R/workspace2' }],
  ['deny', 'delete-recursive', '$R/workspace'],
  ['deny', 'delete-recursive', '$R/workspace/.git', [{ file: '$R/workspace/.git/config' }]],
  ['deny', 'read', '$R/workspace/.ssh/id', [{ file: '$R/workspace/.ssh/id' }]],
  ['deny', 'read', '$R/workspace/.SSH/id', [{ file: '$R/workspace/.SSH/id' }]],
  ['deny', 'read', '$R/workspace/.Ssh./id', [{ file: '$R/workspace/.Ssh./id' }]],
  ['deny', 'read', '$R/workspace/.env ', [{ file: '$R/workspace/.env ' }]],
  ['deny', 'read', '$R/workspace/．env', [{ file: '$R/workspace/．env' }]],
  ['deny', 'read', '$R/workspace/.ｅnv', [{ file: '$R/workspace/.ｅnv' }]],
  ['deny', 'read', '$R/workspace/.\u017f\u017fh/x', [{ file: '$R/workspace/.\u017f\u017fh/x' }]],
  ['deny', 'read', '$R/workspace/a/.config/gcloud/x', [{ file: '$R/workspace/a/.config/gcloud/x' }]],
  ['deny', 'create', '$R/workspace/secrets/x'],
  ['deny', 'mount-ro', '$R/workspace/Secrets', [{ mkdir: '$R/workspace/Secrets' }]],
  [
    'deny',
    'read',
    '$R/workspace/key',
    [{ file: '$R/workspace/id_rsa' }, { symlink: ['id_rsa', '$R/workspace/key'] }],
  ],
  ['deny', 'create', '$R/workspace/.git/hooks/pre-commit'],
  ['deny', 'write', '$R/workspace/.git/config', [{ file: '$R/workspace/.git/config' }]],
  ['deny', 'create', '$R/workspace/sub/.git/hooks/x'],
  ['deny', 'create', '$R/workspace/.GIT/HOOKS/x'],
  ['deny', 'create', '$R/workspace/.mcp.json'],
  [
    'deny',
    'write',
    '$R/workspace/h/x',
    [{ mkdir: '$R/workspace/.git/hooks' }, { symlink: ['.git/hooks', '$R/workspace/h'] }],
  ],
  ['deny', 'read', '$R/workspace/p', [{ fifo: '$R/workspace/p' }]],
  ['deny', 'read', '$R/workspace/hard', [{ hardlink: ['$R/outside/secret.txt', '$R/workspace/hard'] }]],
  ['deny', 'write', '$R/workspace/hard', [{ hardlink: ['$R/outside/secret.txt', '$R/workspace/hard'] }]],
  ['allow', 'write', '$R/workspace/hard', [{ hardlink: ['$R/workspace/README.md', '$R/workspace/hard'] }]],
  ['deny', 'read', '/proc/self/environ'],
  ['deny', 'read', '/proc/self/root/etc/passwd'],
  ['deny', 'read', '/proc/self/cwd/README.md'],
  ['deny', 'read', '/proc/1/root/etc/shadow'],
  ['deny', 'read', '/dev/stdin'],
  ['deny', 'read', '/dev/fd/3'],
  ['deny', 'read', '$R/workspace/fd', [{ symlink: ['/proc/self/fd', '$R/workspace/fd'] }]],
  ['deny', 'mount-ro', '$R/workspace/a:b', [{ mkdir: '$R/workspace/a:b' }]],
  ['deny', 'mount-ro', '$R/workspace/a,b', [{ mkdir: '$R/workspace/a,b' }]],
  ['deny', 'mount-ro', '$R/workspace/src', [], { target: '/' }],
  ['deny', 'mount-ro', '$R/workspace/src', [], { target: '/etc' }],
  ['deny', 'mount-rw', '$R/workspace/src', [], { target: '/usr/bin' }],
  ['deny', 'mount-ro', '$R/workspace/src', [], { target: '/proc/sys' }],
  ['deny', 'mount-ro', '$R/workspace/src', [], { target: 'data' }],
  ['deny', 'mount-ro', '$R/workspace/src', [], { target: '/data/../etc' }],
  ['deny', 'mount-ro', '$R/workspace/src', [], { target: '/home/x/.ssh' }],
  [
    'deny',
    'write',
    '$R/outside/data/x',
    [],
    { policy: { allowed: [{ path: '$R/outside/data', mode: 'ro' }] } },
  ],
  [
    'allow',
    'read',
    '$R/outside/data/x',
    [],
    { policy: { allowed: [{ path: '$R/outside/data', mode: 'ro' }] } },
  ],
  [
    'deny',
    'mount-rw',
    '$R/outside/data',
    [],
    { policy: { allowed: [{ path: '$R/outside/data', mode: 'ro' }] } },
  ],
  ['deny', 'read', '$R/workspace/README.md', [], { policy: { allowed: [] } }],
  ['deny', 'read', '$R/workspace/README.md', [], { policy: { allowed: ['workspace'] } }],
  [
    'deny',
    'write',
    '$R/workspace/src/a.ts',
    [],
    { policy: { allowed: ['$R/workspace', { path: '$R/workspace/src', mode: 'ro' }] } },
  ],
  [
    'allow',
    'write',
    '$R/workspace/src/a.ts',
    [],
    { policy: { allowed: [{ path: '$R/workspace', mode: 'ro' }, '$R/workspace/src'] } },
  ],
  [
    'allow',
    'read',
    '$R/ws/README.md',
    [{ symlink: ['workspace', '$R/ws'] }],
    { policy: { allowed: ['$R/ws'] } },
  ],
]

describe('paths', () => {
  const scratch = realpathSync(mkdtempSync(join(tmpdir(), 'rf-variants-')))
  afterAll(() => rmSync(scratch, { recursive: true, force: true }))
  const BASE: readonly Setup[] = [
    { file: '$R/workspace/src/a.ts' },
    { file: '$R/workspace/README.md' },
    { file: '$R/outside/data/x' },
    { file: '$R/outside/secret.txt' },
    { file: '$R/outside/.ssh/id_rsa' },
  ]
  const cases = PATHS.map(([expected, op, path, setup = [], more = {}]) => ({
    expected,
    op,
    path,
    setup,
    more,
  }))
  it.each(cases)('$expected: $op $path $setup $more', ({ expected, op, path, setup, more }) => {
    const root = mkdtempSync(join(scratch, 'r-'))
    const placed = <T>(value: T): T => JSON.parse(JSON.stringify(value).replaceAll('$R', root)) as T
    for (const step of [...BASE, ...setup]) build(placed(step))
    const policy = { allowed: ['$R/workspace'], blocked: BLOCKED, protected: PROTECTED }
    const answer = answerPathLine(JSON.stringify(placed({ id: 1, path, op, policy, ...more })))
    expect(answer.verdict, answer.reason).toBe(expected)
  })
})

const BLOCKED = ['.ssh', '.aws', '.env', '.config/gcloud', 'secrets', 'id_rsa']
const PROTECTED = ['.git/hooks', '.git/config', '.vscode', '.mcp.json', '.envrc']

function build(step: Setup): void {
  const [[kind, value] = ['', '']] = Object.entries(step)
  const path = value as string
  const [first, second] = value as readonly [string, string]
  if (kind === 'mkdir') mkdirSync(path, { recursive: true })
  else if (kind === 'file') {
    mkdirSync(dirname(path), { recursive: true })
    writeFileSync(path, 'x')
  } else if (kind === 'symlink') symlinkSync(first, second)
  else if (kind === 'hardlink') linkSync(first, second)
  else if (kind === 'fifo') execFileSync('mkfifo', [path])
  else throw new Error(`unknown step ${kind}`)
}
