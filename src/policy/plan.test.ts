import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { Config } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import { isPlan, type PathFact, type Plan, type RealPath } from '../model/plan.ts'
import { parseSpec } from '../model/spec.ts'
import { type Facts, type Observed, pathsOf, planFor, sandboxPolicyOf } from './plan.ts'

/** Made-up host facts: no test here reads the real host. */

type Kind = PathFact['kind']
type Made = { readonly kind?: Kind; readonly uid?: number; readonly blockedInside?: readonly Observed[] }

const inodes = new Map<string, string>()
const inodeOf = (path: string): string => {
  if (!inodes.has(path)) inodes.set(path, String(1000 + inodes.size))
  return inodes.get(path) as string
}

function there(path: string, { kind = 'dir', uid = 1000, blockedInside = [] }: Made = {}): Observed {
  const real = path as RealPath
  return {
    state: 'exists',
    normal: path,
    symlinks: [],
    real,
    thing: { kind, nlink: 1 },
    fact: { real, kind, dev: '7', ino: inodeOf(path), uid, gid: uid },
    blockedInside,
    repositories: [],
  }
}

/** A symlink at `path` itself (`at` absent) or at a directory on the way. */
function linked(path: string, real: string, at = path): Observed {
  return { ...there(real), normal: path, symlinks: [{ at, target: real }] }
}

const missing = (path: string): Observed => ({
  state: 'missing',
  normal: path,
  symlinks: [],
  ancestor: '/',
  missing: path.slice(1).split('/'),
  fact: undefined,
  blockedInside: [],
  repositories: [],
})

const unreadable = (path: string): Observed => ({
  state: 'unreadable',
  normal: path,
  symlinks: [],
  fact: undefined,
  blockedInside: [],
  repositories: [],
})

const HOME = '/home/u'
const STATE = '/home/u/p/state'
const HOST: Readonly<Record<string, Observed>> = Object.fromEntries(
  [
    there('/', { uid: 0 }),
    there('/home', { uid: 0 }),
    there('/etc', { uid: 0 }),
    there('/etc/shadow', { uid: 0, kind: 'file' }),
    there('/proc', { uid: 0 }),
    there('/run/user/1000', { uid: 1000 }),
    there(HOME),
    there('/home/u/p', {
      blockedInside: [there('/home/u/p/secrets'), there('/home/u/p/credentials', { kind: 'file' })],
    }),
    there('/home/u/p/sub'),
    there('/home/u/p/sub/deep'),
    there('/home/u/p/notes.txt', { kind: 'file' }),
    there('/home/u/pp'),
    there('/home/u/q'),
    there('/home/u/.ssh'),
    there('/home/u/.ssh/id', { kind: 'file' }),
    there('/home/u/.SSH'),
    there('/opt/data', { uid: 0 }),
    there('/opt/a:b', { uid: 0 }),
    there(STATE),
    there('/home/u/p/state/keys'),
    there('/tmp/agent.sock', { kind: 'socket' }),
    there(`${STATE}/broker/socket`, { kind: 'socket' }),
    there('/run/docker.sock', { kind: 'socket' }),
    linked('/home/u/link', '/home/u/p'),
    linked('/home/u/via/p', '/home/u/p/sub', '/home/u/via'),
    missing('/home/u/nothing'),
    unreadable('/home/u/closed'),
  ].map((observed) => [observed.normal, observed]),
)

const observe = (path: string): Observed => HOST[path.startsWith('/') ? path : `/${path}`] ?? missing(path)

type Case = { readonly config?: Config; readonly facts?: Partial<Facts> }

function judge(spec: unknown, { config = {}, facts = {} }: Case = {}): Plan | SandboxError {
  const policy = sandboxPolicyOf(config, HOME)
  const parsed = parseSpec(spec)
  const paths = new Map(pathsOf(policy, parsed).map((path) => [path, observe(path)]))
  return planFor(policy, parsed, {
    uid: 1000,
    home: HOME,
    stateDir: observe(STATE),
    hostMemoryMb: 4000,
    cwd: '/',
    paths,
    ...facts,
  })
}

function planned(spec: unknown, more?: Case): Plan {
  const plan = judge(spec, more)
  if (plan instanceof SandboxError) throw plan
  return plan
}

const codeOf = (spec: unknown, more?: Case): string => {
  const plan = judge(spec, more)
  return plan instanceof SandboxError ? plan.code : 'planned'
}

const shown = (plan: Plan): string[] =>
  plan.mounts.map(({ mode, real, target }) => `${mode} ${real} ${target}`).sort()
const masked = (plan: Plan): string[] => plan.masks.map((mask) => mask.target).sort()
const W = '/home/u/p'

describe('limits stay within the policy', () => {
  const config: Config = { policy: { max_cpus: 2, max_memory_mb: 1024, max_disk_mb: 100, max_pids: 50 } }
  test.each([
    [{ cpus: 2, memoryMb: 1024, diskMb: 100, pids: 50 }, 'planned'],
    [{ cpus: 2.01 }, 'resource-limit-exceeded'],
    [{ memoryMb: 1025 }, 'resource-limit-exceeded'],
    [{ diskMb: 101 }, 'resource-limit-exceeded'],
    [{ pids: 51 }, 'resource-limit-exceeded'],
    [{ wallMs: 2 ** 31 - 1, idleMs: 1, outputBytes: 2 ** 40 }, 'planned'],
  ])('%o: %s', (limits, code) => {
    expect(codeOf({ limits }, { config })).toBe(code)
  })

  test.each([
    ['three quarters of the memory', 4000, {}, { pids: 1024, memoryMb: 3000 }],
    ['but at least 512 MB', 100, {}, { pids: 1024, memoryMb: 512 }],
    ['and never more than the policy allows', 4000, config, { pids: 50, memoryMb: 1024 }],
  ])('the default limits protect the host: %s', (_, hostMemoryMb, given, limits) => {
    expect(planned({}, { config: given, facts: { hostMemoryMb } }).limits).toEqual(limits)
  })

  test('requested limits replace the default', () => {
    expect(planned({ limits: { pids: 3, wallMs: 9 } }).limits).toEqual({ pids: 3, memoryMb: 3000, wallMs: 9 })
  })
})

test('a mount over a private directory of isolated commands is refused; a mount below it is not', () => {
  const facts = { paths: new Map([there('/srv/data')].map((fact) => ['/srv/data', fact])) }
  const mounting = (target: string) =>
    judge({ isolation: 'command', mounts: [{ source: '/srv/data', target }] }, { facts })
  expect(mounting('/tmp')).toMatchObject({ message: 'isolated commands each have a `/tmp` of their own' })
  expect(mounting('/tmp/data')).toMatchObject({ isolation: 'command' })
})

describe('network modes', () => {
  const offlineOnly: Config = { policy: { allowed_network_modes: ['offline'] } }
  test.each([
    [{}, {}, 'offline'],
    [{ mode: 'loopback' }, {}, 'loopback'],
    [{ mode: 'full' }, {}, 'full'],
    [{ allowHosts: ['example.com'] }, {}, 'fetch'],
    [{ allowHosts: [] }, {}, 'offline'],
    [{ mode: 'offline' }, offlineOnly, 'offline'],
    [{ mode: 'full' }, offlineOnly, 'invalid-network-mode'],
    [{ mode: 'loopback' }, offlineOnly, 'invalid-network-mode'],
    [{ allowHosts: ['example.com'] }, offlineOnly, 'invalid-network-mode'],
    [{}, { policy: { allowed_network_modes: [] } }, 'invalid-network-mode'],
  ] as const)('%o with %o: %s', (network, config, expected) => {
    const plan = judge({ network }, { config: config as Config })
    expect(plan instanceof SandboxError ? plan.code : plan.network.mode).toBe(expected)
  })

  test('the hosts are passed on', () => {
    expect(planned({ network: { mode: 'fetch', allowHosts: ['a.b'] } }).network.allowHosts).toEqual(['a.b'])
  })
})

describe('mounts', () => {
  const prefixes = (...allowed: string[]): Case => ({
    config: { policy: { allowed_host_prefixes: allowed } },
  })
  test.each<[string, unknown, string, Case?]>([
    ['the workspace', { workspace: W }, 'planned'],
    ['a relative workspace', { workspace: 'p' }, 'path-not-absolute'],
    ['a relative read path', { read: ['p'] }, 'path-not-absolute'],
    ['a relative write path', { write: ['./p'] }, 'path-not-absolute'],
    ['a relative source', { mounts: [{ source: 'p', target: '/data' }] }, 'path-not-absolute'],
    ['a relative target', { mounts: [{ source: W, target: 'data' }] }, 'forbidden-host-path'],
    ['a target with `..`', { mounts: [{ source: W, target: '/data/../etc' }] }, 'forbidden-host-path'],
    ['a target over the programs', { mounts: [{ source: W, target: '/usr' }] }, 'forbidden-host-path'],
    ['the root as target', { mounts: [{ source: W, target: '/' }] }, 'forbidden-host-path'],
    ['the root', { workspace: '/' }, 'forbidden-host-path'],
    ['the root for reading', { read: ['/'] }, 'forbidden-host-path'],
    ['all homes', { read: ['/home'] }, 'forbidden-host-path'],
    ['all of /etc', { read: ['/etc'] }, 'forbidden-host-path'],
    ['/etc/shadow', { read: ['/etc/shadow'] }, 'forbidden-host-path'],
    ['/proc', { read: ['/proc'] }, 'forbidden-host-path'],
    ['sockets of the session', { write: ['/run/user/1000'] }, 'forbidden-host-path'],
    ['a symlink', { workspace: '/home/u/link' }, 'forbidden-host-path'],
    ['a directory reached over a symlink', { read: ['/home/u/via/p'] }, 'planned'],
    ['the home directory itself', { workspace: HOME }, 'forbidden-host-path'],
    ['a missing path', { workspace: '/home/u/nothing' }, 'invalid-input'],
    ['an unreadable path', { workspace: '/home/u/closed' }, 'invalid-input'],
    ['a blocked name', { read: ['/home/u/.ssh'] }, 'forbidden-host-path'],
    ['below a blocked name', { read: ['/home/u/.ssh/id'] }, 'forbidden-host-path'],
    ['a blocked name in another case', { read: ['/home/u/.SSH'] }, 'forbidden-host-path'],
    ['mount syntax', { read: ['/opt/a:b'] }, 'forbidden-host-path'],
    ['inside the prefixes', { workspace: W }, 'planned', prefixes('~/p', '/opt')],
    ['the prefix itself', { workspace: W }, 'planned', prefixes(W)],
    ['outside the prefixes', { workspace: '/home/u/q' }, 'forbidden-host-path', prefixes('~/p')],
    ['a name with the same beginning', { workspace: '/home/u/pp' }, 'forbidden-host-path', prefixes('~/p')],
    ['above the prefixes', { workspace: W }, 'forbidden-host-path', prefixes('/home/u/p/sub')],
    ['no prefix at all', { workspace: W }, 'forbidden-host-path', prefixes()],
    [
      'a blocked pattern of the operator',
      { read: ['/home/u/q'] },
      'forbidden-host-path',
      { config: { policy: { blocked_host_patterns: ['q'] } } },
    ],
    ['a socket', { unixSockets: ['/tmp/agent.sock'] }, 'planned'],
    ['the broker’s socket', { unixSockets: [`${STATE}/broker/socket`] }, 'forbidden-host-path'],
    ['a directory for a socket', { unixSockets: [W] }, 'invalid-input'],
    ['an engine’s socket', { unixSockets: ['/run/docker.sock'] }, 'forbidden-host-path'],
    ['a missing socket', { unixSockets: ['/tmp/none.sock'] }, 'forbidden-host-path'],
  ])('%s', (_, spec, code, more) => {
    expect(codeOf(spec, more)).toBe(code)
  })

  /** The refusal without the path that the caller passed. */
  const wordsOf = (path: string): string => {
    const plan = judge({ workspace: path }, prefixes('~/p'))
    return plan instanceof SandboxError
      ? `${plan.code}: ${plan.message.replace(path, '…')} (${plan.hint})`
      : 'planned'
  }

  // SECURITY: otherwise a caller could probe which paths exist on the host.
  test.each(['/home/u/nothing', '/home/u/closed', '/opt/data'])(
    'outside the prefixes %s gives the same error as any other path',
    (path) => {
      expect(wordsOf(path)).toBe(wordsOf('/home/u/q'))
    },
  )

  test('outside the prefixes a symlink gives the same error as any other path', () => {
    expect(wordsOf('/home/u/link')).toBe(wordsOf('/home/u/q'))
  })

  test.each([
    ['workspace-write', [`rw ${W} ${W}`]],
    ['read-only', [`ro ${W} ${W}`]],
    ['danger-full-access', ['rw / /']],
  ])('the preset %s sets its mounts', (preset, mounts) => {
    expect(shown(planned({ preset, workspace: W }))).toEqual(mounts)
  })

  test.each([
    ['write', { write: ['/home/u/q'] }],
    ['a mount', { mounts: [{ source: '/home/u/q', target: '/data', mode: 'rw' }] }],
    ['a mount without a mode', { mounts: [{ source: '/home/u/q', target: '/data' }] }],
  ])('the read-only preset refuses write grants: %s', (_, more) => {
    expect(codeOf({ preset: 'read-only', workspace: W, ...more })).toBe('invalid-input')
  })

  test('a mount has the inode that was checked', () => {
    const ino = inodeOf(W)
    expect(planned({ workspace: W }).mounts).toEqual([
      { real: W, kind: 'dir', dev: '7', ino, uid: 1000, gid: 1000, target: W, mode: 'rw' },
    ])
  })

  test.each<[string, unknown, string | string[]]>([
    ['the same twice', { read: ['/home/u/q', '/home/u/q'] }, ['ro /home/u/q /home/u/q']],
    [
      'for reading and for writing: the stricter',
      { read: ['/home/u/q'], write: ['/home/u/q'] },
      ['ro /home/u/q /home/u/q'],
    ],
    ['the workspace for reading', { workspace: W, read: [W] }, [`ro ${W} ${W}`]],
    [
      'two sources for one target',
      {
        mounts: [
          { source: W, target: '/data' },
          { source: '/home/u/q', target: '/data' },
        ],
      },
      'invalid-input',
    ],
    [
      'one source for two targets',
      {
        mounts: [
          { source: W, target: '/a', mode: 'ro' },
          { source: W, target: '/b' },
        ],
      },
      [`ro ${W} /a`, `rw ${W} /b`],
    ],
    [
      'one inside the other',
      { write: [W], read: ['/home/u/p/sub'] },
      ['ro /home/u/p/sub /home/u/p/sub', `rw ${W} ${W}`],
    ],
  ])('%s', (_, spec, expected) => {
    const plan = judge(spec)
    expect(plan instanceof SandboxError ? plan.code : shown(plan)).toEqual(expected)
  })

  test('a trailing slash does not change the target', () => {
    const mounts = [
      { source: W, target: '/data' },
      { source: '/home/u/q', target: '/data/' },
    ]
    expect(codeOf({ mounts })).toBe('invalid-input')
  })

  test.each([STATE, '/home/u/p/state/keys'])('the state directory is never granted: %s', (path) => {
    expect(codeOf({ workspace: '/home/u/q', write: [path] })).toBe('forbidden-host-path')
    expect(codeOf({ workspace: '/home/u/q', read: [path] })).toBe('forbidden-host-path')
  })

  test('a preset does not open paths outside the operator’s prefixes', () => {
    const config: Config = { policy: { allowed_host_prefixes: [W] } }
    expect(codeOf({ preset: 'danger-full-access', workspace: W }, { config })).toBe('forbidden-host-path')
  })

  test('a mount inside a mounted root is refused, not dropped', () => {
    expect(codeOf({ preset: 'danger-full-access', mounts: [{ source: W, target: '/data' }] })).toBe(
      'invalid-input',
    )
  })
})

describe('masks', () => {
  test.each<[string, unknown, string[]]>([
    [
      'blocked names at the top, and our state',
      { workspace: W },
      ['/home/u/p/credentials', '/home/u/p/secrets', STATE],
    ],
    [
      'a denied file',
      { workspace: W, deny: ['/home/u/p/notes.txt'] },
      ['/home/u/p/credentials', '/home/u/p/notes.txt', '/home/u/p/secrets', STATE],
    ],
    [
      'where the mount is shown',
      { mounts: [{ source: W, target: '/data' }], deny: ['/home/u/p/sub'] },
      ['/data/credentials', '/data/secrets', '/data/state', '/data/sub'],
    ],
    [
      'in every mount that shows it',
      {
        workspace: '/home/u/q',
        mounts: [
          { source: W, target: '/a' },
          { source: W, target: '/b', mode: 'ro' },
        ],
      },
      ['/a/credentials', '/a/secrets', '/a/state', '/b/credentials', '/b/secrets', '/b/state'],
    ],
    ['not paths outside every mount', { workspace: '/home/u/q', deny: ['/home/u/p/sub'] }, []],
    ['nor missing paths', { workspace: '/home/u/q', deny: ['/home/u/nothing'] }, []],
    [
      'under the whole root',
      { preset: 'danger-full-access', deny: ['/home/u/p/sub'] },
      ['/home/u/p/state', '/home/u/p/sub'],
    ],
  ])('%s', (_, spec, targets) => {
    expect(masked(planned(spec))).toEqual(targets.sort())
  })

  test('a mask has the inode that was checked', () => {
    const mask = planned({ workspace: W }).masks.find(({ target }) => target === STATE)
    expect(mask).toMatchObject({ real: STATE, dev: '7', ino: inodeOf(STATE) })
  })

  test.each(['notes.txt', './notes.txt'])('a relative denied path is refused, not ignored: %s', (path) => {
    expect(codeOf({ workspace: W, deny: [path] })).toBe('path-not-absolute')
  })

  test.each([W, HOME])('denying a granted path is refused: %s', (path) => {
    expect(codeOf({ workspace: W, deny: [path] })).not.toBe('planned')
  })

  const inside = [
    '/home/u/p/sub',
    '/home/u/p/sub/deep',
    '/home/u/p/notes.txt',
    STATE,
    '/home/u/q',
    '/home/u/nothing',
  ]
  const outside = ['/home/u/q', '/opt/data', '/home/u/p/sub', '/home/u/p/notes.txt']

  /** Denying a granted path is a separate error. */
  const contradict = (deny: readonly string[], granted: readonly string[]): boolean =>
    deny.some((path) => [W, ...granted].some((grant) => `${grant}/`.startsWith(`${path}/`)))

  test('more denied paths never show more', () => {
    const lists = fc.subarray(inside)
    fc.assert(
      fc.property(lists, lists, fc.subarray(outside), (deny, more, read) => {
        fc.pre(!contradict([...deny, ...more], read))
        const before = masked(planned({ workspace: W, read, deny }))
        const after = masked(planned({ workspace: W, read, deny: [...deny, ...more] }))
        expect(after).toEqual(expect.arrayContaining(before))
      }),
    )
  })

  test('the order of lists does not matter', () => {
    const lists = fc
      .subarray(outside)
      .chain((list) => fc.tuple(fc.constant(list), fc.shuffledSubarray(list, { minLength: list.length })))
    fc.assert(
      fc.property(lists, lists, fc.subarray(inside), ([read, read2], [write, write2], deny) => {
        fc.pre(!contradict(deny, [...read, ...write]))
        const one = planned({ workspace: W, read, write, deny })
        const other = planned({ workspace: W, read: read2, write: write2, deny: deny.toReversed() })
        expect(shown(other)).toEqual(shown(one))
        expect(masked(other)).toEqual(masked(one))
        expect([...other.needs].sort()).toEqual([...one.needs].sort())
      }),
    )
  })
})

describe('needs and waivers', () => {
  const WALL = [
    'fs.read',
    'fs.write',
    'env.clean',
    'proc.hidden',
    'ipc.private',
    'kernel.filtered',
    'cleanup',
  ]
  const LIMITED = ['limit.memory', 'limit.pids']
  test.each<[string, unknown, string[]]>([
    ['nothing granted', {}, [...WALL, 'net.offline', ...LIMITED]],
    ['a writable mount', { workspace: W }, [...WALL, 'net.offline', 'fs.protect', ...LIMITED]],
    ['only reading', { preset: 'read-only', workspace: W }, [...WALL, 'net.offline', ...LIMITED]],
    ['a loopback', { network: { mode: 'loopback' } }, [...WALL, 'net.loopback', ...LIMITED]],
    ['some hosts', { network: { mode: 'fetch' } }, [...WALL, 'net.fetch', ...LIMITED]],
    ['the whole network', { network: { mode: 'full' } }, [...WALL, ...LIMITED]],
    [
      'the whole file system',
      { preset: 'danger-full-access' },
      [...WALL.slice(2), 'net.offline', 'fs.protect', ...LIMITED],
    ],
    [
      'every limit',
      { limits: { cpus: 1, diskMb: 1, wallMs: 1, idleMs: 1, outputBytes: 1, fuel: 1 } },
      [
        ...WALL,
        'net.offline',
        ...LIMITED,
        'limit.cpu',
        'limit.disk',
        'limit.wall',
        'limit.idle',
        'limit.output',
        'limit.fuel',
      ],
    ],
    [
      'without what is waived',
      { workspace: W, waive: ['fs.protect', 'limit.memory'] },
      [...WALL, 'net.offline', 'limit.pids'],
    ],
    [
      'native with requested limits',
      { backend: 'native', workspace: W, limits: { wallMs: 5 } },
      ['limit.wall'],
    ],
    ['native without limits', { backend: 'native', workspace: W }, []],
    [
      'native with a limit that it cannot enforce',
      { backend: 'native', limits: { memoryMb: 64 } },
      ['limit.memory'],
    ],
  ])('%s', (_, spec, needs) => {
    expect([...planned(spec).needs].sort()).toEqual([...needs].sort())
  })

  test('a waiver is recorded in the plan', () => {
    expect(planned({ waive: ['limit.pids'] }).waived).toEqual(['limit.pids'])
    expect(planned({ backend: 'native', workspace: W }).waived).toEqual([
      ...WALL,
      'net.offline',
      'fs.protect',
    ])
    expect(planned({}).waived).toEqual([])
  })

  test('native gets only limits that were requested', () => {
    expect(planned({ backend: 'native', limits: { wallMs: 5 } }).limits).toEqual({ wallMs: 5 })
  })

  test.each([
    [{}, true],
    [{ preset: 'read-only' }, false],
    [{ waive: ['fs.protect'] }, false],
    [{ waive: ['fs.write'] }, true],
  ])('protection with %o: %s', (more, held) => {
    expect(planned({ workspace: W, ...more }).protection !== undefined).toBe(held)
  })

  test.each([
    [{}, 'os'],
    [{ minIsolation: 'microvm' }, 'microvm'],
    [{ backend: 'native' }, 'native'],
    [{ backend: 'native', minIsolation: 'os' }, 'os'],
    [{ backend: 'mock' }, 'os'],
  ])('the minimum isolation level with %o: %s', (spec, level) => {
    expect(planned(spec).minLevel).toBe(level)
  })
})

describe('working directory and user', () => {
  test.each([
    [{ workspace: W }, '/', W],
    [{ workspace: W }, '/home/u/p/sub', '/home/u/p/sub'],
    [{ workspace: W }, '/home/u/pp', W],
    [{}, '/home/u/p', '/tmp'],
  ])('%o from %s starts in %s', (spec, cwd, expected) => {
    expect(planned(spec, { facts: { cwd } }).cwd).toBe(expected)
  })

  test.each([
    [0, W, { uid: 1000, gid: 1000 }],
    [0, '/opt/data', undefined],
    [1000, W, undefined],
    [2000, W, undefined],
    [0, undefined, { uid: 65_534, gid: 65_534 }],
    [1000, undefined, undefined],
  ])('user %i with %s runs as %o', (uid, workspace, expected) => {
    expect(planned(workspace ? { workspace } : {}, { facts: { uid } }).runAs).toEqual(expected)
  })

  test('the environment contains only defaults and declared variables', () => {
    const { env } = planned({ env: { A: '1', HOME: '/home/u/p' } })
    expect(env).toEqual({
      PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin',
      HOME: '/home/u/p',
      TMPDIR: '/tmp',
      LANG: 'C.UTF-8',
      USER: 'agent',
      RINGFENCE: '1',
      A: '1',
    })
  })
})

describe('a plan', () => {
  const everything = {
    workspace: W,
    read: ['/opt/data'],
    deny: ['/home/u/p/sub'],
    unixSockets: ['/tmp/agent.sock'],
    network: { mode: 'fetch', allowHosts: ['a.b'] },
    env: { A: '1' },
    limits: { pids: 5 },
    waive: ['limit.memory'],
    agentId: 'me',
  }

  test('is deeply frozen', () => {
    const loose: string[] = []
    const visit = (value: unknown, at: string): void => {
      if (typeof value !== 'object' || value === null) return
      if (!Object.isFrozen(value)) loose.push(at)
      for (const [name, inner] of Object.entries(value)) visit(inner, `${at}.${name}`)
    }
    visit(planned(everything), 'plan')
    expect(loose).toEqual([])
  })

  test('cannot be forged by a similar object', () => {
    const plan = planned(everything)
    expect(isPlan(plan)).toBe(true)
    for (const copy of [
      { ...plan },
      structuredClone(plan),
      JSON.parse(JSON.stringify(plan)),
      Object.create(plan),
      new Proxy(plan, {}),
    ])
      expect(isPlan(copy)).toBe(false)
    for (const thing of [undefined, null, 'plan', 5, {}, () => plan]) expect(isPlan(thing)).toBe(false)
  })

  test('is a value: the same spec and facts give the same plan', () => {
    expect(planned(everything)).toEqual(planned(everything))
  })

  test('is never created if the policy refuses', () => {
    expect(isPlan(judge({ workspace: '/' }))).toBe(false)
  })
})

describe('the paths that need facts', () => {
  const policy = sandboxPolicyOf({ policy: { allowed_host_prefixes: ['~', '~/x', '/y', '~other'] } }, HOME)
  test('are all paths that the spec and the policy name, once each', () => {
    const spec = parseSpec({
      workspace: '/a',
      read: ['/b', '/a'],
      write: ['/c'],
      deny: ['/d'],
      unixSockets: ['/e'],
      mounts: [{ source: '/f', target: '/t' }],
      preset: 'danger-full-access',
    })
    expect([...pathsOf(policy, spec)].sort()).toEqual(
      ['/', '/a', '/b', '/c', '/d', '/e', '/f', HOME, `${HOME}/x`, '/y', '~other'].sort(),
    )
  })
})
