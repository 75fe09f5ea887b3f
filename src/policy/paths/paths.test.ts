import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  type AllowedRoot,
  DEFAULT_BLOCKED,
  DEFAULT_PROTECTED,
  isBlockedPath,
  judgePath,
  PATH_OPS,
  type PathEvidence,
  type PathFacts,
  type PathOp,
  type PathPolicy,
  type PathRequest,
  screenPath,
} from './paths.ts'

const exists = (
  real: string,
  thing: Partial<{ kind: string; nlink: number }> = {},
  normal = real,
): PathEvidence => ({
  state: 'exists',
  normal,
  symlinks: [],
  real,
  thing: { kind: 'dir', nlink: 1, ...thing },
})
const file = (real: string, nlink = 1): PathEvidence => exists(real, { kind: 'file', nlink })
const missing = (ancestor: string, ...names: readonly string[]): PathEvidence => ({
  state: 'missing',
  normal: `${ancestor}/${names.join('/')}`,
  symlinks: [],
  ancestor,
  missing: names,
})
const unreadable = (normal: string): PathEvidence => ({ state: 'unreadable', normal, symlinks: [] })

const policy: PathPolicy = {
  allowed: [{ path: '/w', mode: 'rw' }],
  blocked: DEFAULT_BLOCKED,
  protected: DEFAULT_PROTECTED,
}
const verdict = (
  request: PathRequest,
  path: PathEvidence,
  more: Partial<PathFacts> = {},
  rules = policy,
): string =>
  judgePath(rules, request, { path, roots: rules.allowed.map((root) => exists(root.path)), ...more }).verdict

describe('screenPath', () => {
  it.each([
    ...['', 'a', './a', '../a', '~', '~/a', '$HOME/a', ' /w', 'C:\\x', '\\\\?\\C:\\x', 'file:///w'],
    ...['/w/..', '/w/../x', '/w/a/../b', '/w//..//x', '/w/.. /x', '/w/. ./x', '/w/..;a/x', '/w/..\\x'],
    ...['/w/․․/x', '/w/‥/x', '/w/．．/x', '/w/..／x', '/w/..∕x', '/w/..⁄x', '/w/..＼x', '/w/.\u200d./x'],
    ...[
      '/w/%2e%2e/x',
      '/w/%2E%2e%2fx',
      '/w/%252e%252e/x',
      '/w/%25252e%25252e/x',
      '/w/%u002e%u002e/x',
      '/w/%c0%ae%c0%ae/x',
    ],
    ...[
      '/w/%e0%80%ae%e0%80%ae/x',
      '/w/..%5cx',
      '/w/..%c0%afx',
      '/w/a%00',
      '/w/\0',
      '/w/a\nb',
      '/w/a\x7f',
      '/w/a\x1b[2J',
    ],
    ...['/w/a\u0085', '/w/a\u2028', '/w/\u202etxt', '/w/\ud800', `/${'a/'.repeat(3000)}`],
  ])('refuses %j', (path) => expect(screenPath(path).kind).toBe('refused'))

  it.each([
    ...[
      '/',
      '/w',
      '/w/',
      '/w//a',
      '/w/./a',
      '/w/a b',
      '/w/foo..',
      '/w/..foo',
      '/w/a..b',
      '/w/100%.txt',
      '/w/50%2e',
      '/w/a;b',
    ],
    ...['/w/é', '/w/日本語', '/w/größe', '/w/-rf', '/w/2024／05', '/w/a\\b', '/w/👩‍💻', '/w/a%20b', '/w/%41'],
  ])('takes %j', (path) => expect(screenPath(path)).toEqual({ kind: 'path', path }))

  it.each([
    ['/w/a%20b', '/w/a b'],
    ['%2Fw%2Fa', '/w/a'],
    ['/w/100%25', '/w/100%'],
    ['/w/a%2520b', '/w/a%20b'],
    ['/w/%C3%A9', '/w/é'],
  ])('decodes the parameter %s once', (raw, path) =>
    expect(screenPath(raw, 'http')).toEqual({ kind: 'path', path }),
  )

  it.each([
    '/w/%',
    '/w/%zz',
    '/w/%u002e',
    '/w/%c0%ae',
    '/w/%00',
    '/w/%2e%2e/x',
    '/w/%252e%252e/x',
    '/w/..%2fx',
    '/w/%0a',
  ])('refuses the parameter %s', (raw) => expect(screenPath(raw, 'http').kind).toBe('refused'))
})

describe('isBlockedPath', () => {
  it.each([
    ...[
      '/w/.ssh',
      '/w/.ssh/x',
      '/w/.SSH/x',
      '/w/.ssh /x',
      '/w/.ssh./x',
      '/w/.ssh.. /x',
      '/w/.ＳＳＨ/x',
      '/w/.ſsh/x',
    ],
    ...[
      '/w/.ss\u200dh/x',
      '/w/.s\u00adsh/x',
      '/w/.env::$DATA',
      '/w/.env:x',
      '/w/.config/gcloud/x',
      '/w/.Config/GCLOUD',
    ],
    ...[
      '/w/secrets',
      '/w/SECRETS./x',
      '/w/SECRET~1/x',
      '/w/%2essh/x',
      '/w/.ssh\\x',
      '/w/.ssh／x',
      '/w/Credentials/x',
      '/w/ .env',
    ],
  ])('finds %j', (path) => expect(isBlockedPath(DEFAULT_BLOCKED, path)).toBeDefined())

  it.each([
    ...[
      '/w/ssh',
      '/w/my-ssh-notes.txt',
      '/w/.sshx',
      '/w/x.ssh',
      '/w/.awsome',
      '/w/secret',
      '/w/secrets-manager',
      '/w/credentials.ts',
    ],
    ...[
      '/w/.envoy',
      '/w/.env.example',
      '/w/.config/x/gcloud',
      '/w/.config',
      '/w/gcloud',
      '/w/id_rsa.pub',
      '/w/secrets.d',
      '/',
    ],
  ])('passes %j', (path) => expect(isBlockedPath(DEFAULT_BLOCKED, path)).toBeUndefined())

  it('ignores empty patterns', () => expect(isBlockedPath(['', '/', '.'], '/w/a')).toBeUndefined())
})

describe('judgePath', () => {
  const read = (path: string): PathRequest => ({ path, op: 'read' })

  it('compares segments, not text', () => {
    expect(verdict(read('/w/a'), file('/w/a'))).toBe('allow')
    expect(verdict(read('/w-evil/a'), file('/w-evil/a'))).toBe('deny')
    expect(verdict(read('/W/a'), file('/W/a'))).toBe('deny')
    expect(verdict(read('/'), exists('/'))).toBe('deny')
  })

  it('judges the resolved path, whether it exists or not', () => {
    expect(verdict(read('/w/l'), exists('/out/s', { kind: 'file' }, '/w/l'))).toBe('deny')
    expect(verdict({ path: '/w/l/n', op: 'create' }, { ...missing('/out', 'n'), normal: '/w/l/n' })).toBe(
      'deny',
    )
    expect(verdict({ path: '/w/x/y/z', op: 'create' }, missing('/w', 'x', 'y', 'z'))).toBe('allow')
    expect(verdict(read('/w/x'), unreadable('/w/x'))).toBe('deny')
  })

  it('gives the same reason for missing paths and paths outside', () => {
    const roots = [exists('/w')]
    const reasons = [missing('/w', 'x'), file('/out/x'), missing('/out', 'x'), unreadable('/w/x')].map(
      (path) => judgePath(policy, read(path.normal), { path, roots }).reason,
    )
    expect(new Set(reasons).size).toBe(1)
  })

  it.each(['socket', 'fifo', 'device', 'other'])('refuses a %s for every use', (kind) => {
    for (const op of ['read', 'write', 'create', 'mount-ro', 'mount-rw'] as const) {
      expect(verdict({ path: '/w/x', op }, exists('/w/x', { kind })), op).toBe('deny')
    }
  })

  it('refuses a file with a hard link outside the roots', () => {
    expect(verdict(read('/w/x'), file('/w/x', 2))).toBe('deny')
    expect(verdict(read('/w/x'), file('/w/x', 2), { namesInside: 1 })).toBe('deny')
    expect(verdict(read('/w/x'), file('/w/x', 2), { namesInside: 2 })).toBe('allow')
    expect(verdict({ path: '/w/x', op: 'mount-ro' }, file('/w/x', 2))).toBe('deny')
    expect(verdict(read('/w/node_modules/p/x'), file('/w/node_modules/p/x', 2))).toBe('allow')
    expect(verdict({ path: '/w/node_modules/p/x', op: 'write' }, file('/w/node_modules/p/x', 2))).toBe('deny')
  })

  it.each<[PathOp, string, 'allow' | 'deny']>([
    ['create', '/w/.git/hooks/pre-commit', 'deny'],
    ['create', '/w/sub/.GIT/Hooks/x', 'deny'],
    ['create', '/w/.git', 'deny'],
    ['create', '/w/.git/refs/heads/x', 'allow'],
    ['create', '/w/.github/x', 'allow'],
    ['create', '/w/GIT~1/config', 'deny'],
    ['create', '/w/.vscode/tasks.json', 'deny'],
    ['create', '/w/.envrc', 'deny'],
    ['create', '/w/.envrc.sample', 'allow'],
    ['create', '/w/node_modules/p/.vscode/x', 'allow'],
    ['create', '/w/node_modules/p/.git/hooks/x', 'deny'],
    ['delete-recursive', '/w/.git', 'deny'],
    ['delete-recursive', '/w/src', 'allow'],
    ['delete-recursive', '/w', 'deny'],
    ['mount-rw', '/w/.git', 'deny'],
    ['mount-rw', '/w', 'allow'],
    ['mount-ro', '/w/.vscode', 'allow'],
  ])('%s %s → %s', (op, path, wanted) => {
    const evidence = op === 'create' ? missing('/w', ...path.slice(3).split('/')) : exists(path)
    expect(verdict({ path, op }, evidence)).toBe(wanted)
  })

  it('judges both names of a rename', () => {
    const rename = (to: string, place: PathEvidence) =>
      verdict({ path: '/w/a', op: 'rename', to }, exists('/w/a'), { to: place })
    expect(rename('/w/b', missing('/w', 'b'))).toBe('allow')
    expect(rename('/w/.git', missing('/w', '.git'))).toBe('deny')
    expect(rename('/out/b', missing('/out', 'b'))).toBe('deny')
    expect(rename('/w/.env', missing('/w', '.env'))).toBe('deny')
    expect(rename('b', missing('/w', 'b'))).toBe('deny')
    expect(verdict({ path: '/w/a', op: 'rename' }, exists('/w/a'))).toBe('deny')
    expect(verdict({ path: '/w', op: 'rename', to: '/w/x' }, exists('/w'), { to: missing('/w', 'x') })).toBe(
      'deny',
    )
  })

  it.each([
    '/',
    '/etc',
    '/etc/shadow',
    '/proc',
    '/proc/1',
    '/sys',
    '/dev',
    '/dev/shm',
    '/boot',
    '/run',
    '/run/x',
    '/var/run',
    '/var',
    '/var/lib/docker',
    '/home',
  ])('never mounts %s, even if a root allows it', (path) => {
    const careless: PathPolicy = { allowed: [{ path: '/', mode: 'rw' }], blocked: [], protected: [] }
    expect(verdict({ path, op: 'mount-ro' }, exists(path), {}, careless)).toBe('deny')
  })

  it('allows mounts with legitimate uses', () => {
    for (const path of [
      '/usr',
      '/etc/ssl/certs',
      '/opt/tools',
      '/run/media/disk',
      '/etcetera',
      '/home/u/p',
    ]) {
      const rules: PathPolicy = { allowed: [{ path, mode: 'ro' }], blocked: DEFAULT_BLOCKED, protected: [] }
      expect(verdict({ path, op: 'mount-ro' }, exists(path), {}, rules), path).toBe('allow')
      expect(verdict({ path, op: 'mount-rw' }, exists(path), {}, rules), path).toBe('deny')
    }
  })

  it('refuses a path through a kernel file system, wherever it resolves to', () => {
    const careless: PathPolicy = { allowed: [{ path: '/', mode: 'rw' }], blocked: [], protected: [] }
    const evidence = { ...file('/etc/hostname'), symlinks: [{ at: '/proc/self/root', target: '/' }] }
    expect(verdict(read('/w/p/etc/hostname'), evidence, {}, careless)).toBe('deny')
  })

  it.each(['/w/a:rw', '/w/a,b', '/w/a"b'])('refuses mount syntax in %s', (path) => {
    expect(verdict({ path, op: 'mount-ro' }, exists(path))).toBe('deny')
    expect(verdict(read(path), file(path))).toBe('allow')
  })

  it.each([
    ...[
      '',
      'w',
      '/',
      '//etc',
      '/etc',
      '/ETC',
      '/usr/bin',
      '/lib64',
      '/proc/self',
      '/sys/fs/cgroup',
      '/dev/shm',
      '/run/secrets',
    ],
    ...[
      '/newroot',
      '/oldroot/x',
      '/var/run',
      '/w/../etc',
      '/w/./x',
      '/w//x',
      '/w:ro',
      '/w,x',
      '/w\n',
      '/home/a/.ssh',
      '/w/.git/hooks',
    ],
  ])('refuses the target %j', (target) => {
    expect(verdict({ path: '/w/a', op: 'mount-rw', target }, exists('/w/a'))).toBe('deny')
  })

  it.each([
    '/workspace',
    '/workspace/',
    '/w/src',
    '/home/agent/p',
    '/mnt',
    '/data',
    '/opt/x',
    '/usr/src/app',
    '/etcetera',
    '/tmp/x',
  ])('takes the target %s', (target) =>
    expect(verdict({ path: '/w/a', op: 'mount-rw', target }, exists('/w/a'))).toBe('allow'),
  )
})

describe('properties', () => {
  const name = fc.constantFrom('a', 'b', 'ab', 'w', 'A', 'a.b')
  const path = fc.array(name, { maxLength: 4 }).map((names) => `/${names.join('/')}`)
  const root = fc.record({ path, mode: fc.constantFrom('ro', 'rw') }) satisfies fc.Arbitrary<AllowedRoot>
  const op = fc.constantFrom(...PATH_OPS)
  const inside = (place: string, top: string): boolean =>
    `${place}/`.startsWith(top === '/' ? '/' : `${top}/`)
  const judge = (allowed: readonly AllowedRoot[], request: PathRequest, evidence: PathEvidence) =>
    verdict(request, evidence, { to: missing('/w', 'fresh') }, { allowed, blocked: [], protected: [] })

  it('no path outside the roots is ever granted', () => {
    fc.assert(
      fc.property(fc.array(root, { maxLength: 4 }), path, path, op, (allowed, asked, real, use) => {
        const evidence = exists(real, { kind: 'file' }, asked)
        if (judge(allowed, { path: asked, op: use, to: '/w/fresh' }, evidence) === 'allow') {
          expect(allowed.some((entry) => inside(real, entry.path))).toBe(true)
        }
      }),
      { numRuns: 5000 },
    )
  })

  it('a change needs a writable root, and a longer read-only root overrides it', () => {
    fc.assert(
      fc.property(fc.array(root, { minLength: 1, maxLength: 4 }), path, (allowed, real) => {
        if (judge(allowed, { path: real, op: 'write' }, file(real)) !== 'allow') return
        const holding = allowed.filter((entry) => inside(real, entry.path))
        const longest = Math.max(...holding.map((entry) => entry.path.length))
        expect(
          holding.filter((entry) => entry.path.length === longest).every((entry) => entry.mode === 'rw'),
        ).toBe(true)
      }),
      { numRuns: 5000 },
    )
  })

  it('the order of roots does not matter', () => {
    const shuffled = fc
      .array(root, { maxLength: 5 })
      .chain((roots) =>
        fc.tuple(
          fc.constant(roots),
          fc.shuffledSubarray(roots, { minLength: roots.length, maxLength: roots.length }),
        ),
      )
    fc.assert(
      fc.property(shuffled, path, op, ([one, other], real, use) => {
        const request = { path: real, op: use, to: '/w/fresh' }
        expect(judge(one, request, file(real))).toBe(judge(other, request, file(real)))
      }),
      { numRuns: 3000 },
    )
  })

  it('more blocked names never allow more, and any text gets a verdict', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), fc.string(), (text, pattern) => {
        const screened = screenPath(`/w/${text}`)
        if (screened.kind === 'refused') return
        const evidence = file(screened.path)
        const before = verdict({ path: screened.path, op: 'read' }, evidence)
        const after = verdict(
          { path: screened.path, op: 'read' },
          evidence,
          {},
          { ...policy, blocked: [...policy.blocked, pattern] },
        )
        expect(before === 'deny' && after === 'allow').toBe(false)
      }),
      { numRuns: 2000 },
    )
  })
})
