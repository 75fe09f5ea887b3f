import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { SandboxError } from '../../model/errors.ts'
import type { Plan, RealPath } from '../../model/plan.ts'
import { parseSpec } from '../../model/spec.ts'
import { PROTECTION, protectedBy } from '../../policy/paths/protect.ts'
import { type Observed, pathsOf, planFor, sandboxPolicyOf } from '../../policy/plan.ts'
import { seatbelt } from './backend.ts'
import { profileOf, quoted, type SeatbeltContext, seatbeltArgs, seatbeltEnvironment } from './launch.ts'
import { type Attempt, allows, parse } from './testkit/sbpl.ts'

/** Not run on macOS: the evaluator in testkit/ interprets the profile. The host is made up. */

function there(path: string): Observed {
  const real = path as RealPath
  const kind = path.endsWith('.sock') ? 'socket' : path.endsWith('.txt') ? 'file' : 'dir'
  const fact = { real, kind, dev: '7', ino: '1', uid: 501, gid: 20 } as const
  return {
    state: 'exists',
    normal: path,
    symlinks: [],
    real,
    thing: { kind, nlink: 1 },
    fact,
    blockedInside: [],
    repositories: [],
  }
}

function planned(input: Record<string, unknown>): Plan {
  const policy = sandboxPolicyOf({}, '/Users/u')
  const spec = parseSpec(input)
  const paths = new Map(pathsOf(policy, spec).map((path) => [path, there(path)]))
  const facts = {
    uid: 501,
    home: '/Users/u',
    stateDir: there('/Users/u/state'),
    hostMemoryMb: 1000,
    cwd: '/',
    paths,
  }
  const egress = { certificates: '', nodePreload: 'preload', placeholders: {} }
  const plan = planFor(policy, spec, { ...facts, egress } as Parameters<typeof planFor>[2])
  if (plan instanceof SandboxError) throw plan
  return plan
}

const CONTEXT: SeatbeltContext = { scratch: '/private/tmp/rf-1', proxyPort: undefined }
const W = '/Users/u/project'
const profile = (spec: Record<string, unknown>, context = CONTEXT): string =>
  profileOf(planned({ workspace: W, ...spec }), context)
const can = (source: string, operation: string, path: string): boolean => allows(source, { operation, path })

describe('the profile', () => {
  test('for a workspace, as exact text', () => {
    const source = profileOf(planned({ workspace: W, waive: ['fs.protect'] }), CONTEXT)
    expect(source).toMatchInlineSnapshot(`
      "(version 1)
      (deny default)
      (allow process-fork)
      (allow process-exec*
        (subpath "/usr")
        (subpath "/bin")
        (subpath "/sbin")
        (subpath "/System")
        (subpath "/Library/Apple")
        (subpath "/opt/homebrew")
        (subpath "/private/var/db/dyld")
        (subpath "/private/tmp/rf-1"))
      (allow signal (target same-sandbox))
      (allow process-info* (target same-sandbox))
      (allow sysctl-read)
      (allow pseudo-tty)
      (allow ipc-posix-sem)
      (allow mach-lookup
        (global-name "com.apple.system.opendirectoryd.libinfo")
        (global-name "com.apple.system.notification_center")
        (global-name "com.apple.system.logger")
        (global-name "com.apple.logd"))
      (allow file-read*
        (subpath "/usr")
        (subpath "/bin")
        (subpath "/sbin")
        (subpath "/System")
        (subpath "/Library/Apple")
        (subpath "/opt/homebrew")
        (subpath "/private/var/db/dyld")
        (subpath "/private/etc/localtime")
        (subpath "/private/etc/shells")
        (subpath "/private/var/db/timezone"))
      (allow file-read* file-write-data file-ioctl
        (subpath "/dev/null")
        (subpath "/dev/zero")
        (subpath "/dev/random")
        (subpath "/dev/urandom")
        (subpath "/dev/tty")
        (subpath "/dev/ptmx")
        (subpath "/dev/fd"))
      (allow file-read* file-write*
        (subpath "/private/tmp/rf-1"))
      (allow file-read-metadata
        (literal "/")
        (literal "/Users")
        (literal "/Users/u")
        (literal "/private")
        (literal "/private/tmp"))
      (allow file-read* process-exec*
        (subpath "/Users/u/project"))
      (allow file-write*
        (subpath "/Users/u/project"))
      (allow network-bind network-inbound
        (subpath "/Users/u/project"))
      (allow network-outbound
        (subpath "/Users/u/project"))
      "
    `)
  })

  test('parses as lists, and starts by denying everything', () => {
    for (const preset of ['read-only', 'workspace-write', 'danger-full-access'])
      for (const mode of ['offline', 'loopback', 'full'])
        expect(parse(profile({ preset, network: { mode } })).slice(0, 2)).toEqual([
          ['version', '1'],
          ['deny', 'default'],
        ])
  })

  test('the command follows the profile and cannot be parsed as an option', () => {
    expect(seatbeltArgs('P', { argv: ['-x', 'y'] })).toEqual(['-p', 'P', '--', '-x', 'y'])
  })
})

describe('strings', () => {
  const NASTY = ['a"b', 'a\\b', 'a\\"b', 'a")(allow default)("', 'ünï 文', 'a b', 'a;b', "a'b", '(x)', 'a\\']
  test.each(NASTY)('%j stays one string', (name) => {
    expect(parse(`(literal ${quoted(name)})`)).toEqual([['literal', { text: name }]])
    // The policy grants no such path, but the profile would handle it.
    const source = profile({}, { ...CONTEXT, scratch: `/private/tmp/${name}` })
    expect(can(source, 'file-write-create', `/private/tmp/${name}/f`)).toBe(true)
    expect(can(source, 'file-write-create', '/private/tmp/a/f')).toBe(false)
    expect(can(source, 'file-write-create', '/Users/u/other')).toBe(false)
    expect(allows(source, { operation: 'network-outbound', remote: '1.2.3.4:80' })).toBe(false)
  })

  test.each(['a\nb', 'a\0b', 'a\u007fb', 'a\u0085b'])('%j is refused', (name) => {
    expect(() => quoted(name)).toThrow('control character')
  })

  test('any text is restored by parsing', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme' }), (text) => {
        if (/\p{Cc}/u.test(text)) expect(() => quoted(text)).toThrow()
        else expect(parse(`(x ${quoted(text)})`)).toEqual([['x', { text }]])
      }),
    )
  })
})

describe('files', () => {
  const READABLE = [
    '/usr/bin/git',
    '/bin/sh',
    '/System/Library/x',
    '/dev/null',
    `${W}/src/a.ts`,
    '/private/tmp/rf-1/t',
  ]
  const CLOSED = [
    '/Users/u/.ssh/id_rsa',
    '/Users/u/.aws/credentials',
    '/Users/u/Library/Keychains/login.keychain-db',
    '/Users/u/project2/x',
    '/Users/u/projec',
    '/private/etc/master.passwd',
    '/private/tmp/other',
    '/Users/other/x',
    '/Library/Preferences/x',
    '/Volumes/usb/x',
  ]

  test('the workspace and the system are readable, nothing else is', () => {
    const source = profile({})
    for (const path of READABLE) expect([path, can(source, 'file-read-data', path)]).toEqual([path, true])
    for (const path of CLOSED) expect([path, can(source, 'file-read-data', path)]).toEqual([path, false])
    // Directories above are walked, not listed.
    expect(can(source, 'file-read-metadata', '/Users/u')).toBe(true)
    expect(can(source, 'file-read-data', '/Users/u')).toBe(false)
  })

  test.each([
    ['read-only', { [`${W}/f`]: false, '/usr/f': false, '/private/tmp/rf-1/f': true, '/Users/u/x': false }],
    [
      'workspace-write',
      { [`${W}/f`]: true, '/usr/f': false, '/private/tmp/rf-1/f': true, '/Users/u/x': false },
    ],
    ['danger-full-access', { [`${W}/f`]: true, '/Users/u/x': true, '/Users/u/state/key': false }],
  ])('writing under %s', (preset, wanted) => {
    const source = profile({ preset })
    for (const [path, allowed] of Object.entries(wanted))
      for (const operation of [
        'file-write-create',
        'file-write-data',
        'file-write-unlink',
        'file-write-mode',
      ])
        expect([operation, path, can(source, operation, path)]).toEqual([operation, path, allowed])
  })

  test('grants and denials: the longest path wins', () => {
    const source = profile({
      read: ['/Users/u/data', `${W}/fixed`],
      write: ['/Users/u/out', '/Users/u/data/results'],
      deny: [`${W}/hidden`],
    })
    expect(can(source, 'file-read-data', '/Users/u/data/x')).toBe(true)
    expect(can(source, 'file-write-data', '/Users/u/data/x')).toBe(false)
    expect(can(source, 'file-write-data', '/Users/u/out/x')).toBe(true)
    expect(can(source, 'file-write-data', '/Users/u/data/results/x')).toBe(true)
    expect(can(source, 'file-write-data', `${W}/fixed/x`)).toBe(false)
    expect(can(source, 'file-read-data', `${W}/hidden/x`)).toBe(false)
    expect(can(source, 'file-write-data', `${W}/hidden/x`)).toBe(false)
  })

  test('plans that a profile cannot express are refused', () => {
    const mounts = [{ source: '/Users/u/data', target: '/elsewhere', mode: 'ro' }]
    expect(() => profile({ mounts })).toThrow('cannot mount')
  })
})

describe('protected names', () => {
  const source = profile({})
  const writes = (relative: string): boolean => can(source, 'file-write-create', `${W}/${relative}`)

  test('match the policy, at every depth and in any case', () => {
    const names = [...PROTECTION.roots, ...PROTECTION.inner, ...PROTECTION.names]
    for (const name of names)
      for (const path of [
        name,
        `a/b/${name}`,
        name.toUpperCase(),
        ...(PROTECTION.roots.includes(name) ? [] : [`${name}/x`]),
      ])
        expect([path, writes(path)]).toEqual([path, false])
  })

  test('policy and profile agree on random paths, or the profile is stricter', () => {
    const segment = fc.constantFrom(
      'a',
      '.git',
      'hooks',
      'config',
      '.envrc',
      'node_modules',
      '.vscode',
      'x.ts',
      'objects',
    )
    fc.assert(
      fc.property(fc.array(segment, { minLength: 1, maxLength: 5 }), (segments) => {
        const path = segments.join('/')
        if (protectedBy(PROTECTION, path) !== undefined) expect([path, writes(path)]).toEqual([path, false])
      }),
      { numRuns: 2000 },
    )
  })

  test.each([
    'src/a.ts',
    '.gitignore',
    '.git/index',
    '.git/objects/ab/cd',
    '.git/refs/heads/x',
    'node_modules/p/.vscode/s.json',
    '.github/CODEOWNERS',
    'my.envrc',
  ])('do not restrict ordinary work: %s', (path) => expect(writes(path)).toBe(true))

  test('can be read', () => {
    expect(can(source, 'file-read-data', `${W}/.git/config`)).toBe(true)
  })

  test('a granted repository is protected inside', () => {
    const granted = profile({ write: ['/Users/u/other/.git'] })
    expect(can(granted, 'file-write-data', '/Users/u/other/.git/hooks/x')).toBe(false)
    expect(can(granted, 'file-write-data', '/Users/u/other/.git/index')).toBe(true)
  })
})

describe('the network', () => {
  const out = (source: string, remote: string): boolean =>
    allows(source, { operation: 'network-outbound', remote })
  const ADDRESSES = [
    '1.2.3.4:443',
    '127.0.0.1:22',
    '127.0.0.1:5000',
    '[::1]:5432',
    '10.0.0.1:80',
    '169.254.169.254:80',
  ]
  const reached = (source: string): string[] => ADDRESSES.filter((address) => out(source, address))

  test('offline connects to nothing and cannot listen', () => {
    const source = profile({})
    expect(reached(source)).toEqual([])
    expect(allows(source, { operation: 'network-bind', local: '127.0.0.1:8000' })).toBe(false)
  })

  test('loopback connects to and serves only loopback', () => {
    const source = profile({ network: { mode: 'loopback' } })
    expect(reached(source)).toEqual(['127.0.0.1:22', '127.0.0.1:5000', '[::1]:5432'])
    expect(allows(source, { operation: 'network-bind', local: '127.0.0.1:8000' })).toBe(true)
    expect(allows(source, { operation: 'network-bind', local: '0.0.0.0:8000' })).toBe(false)
  })

  test('fetch connects only to the proxy’s port', () => {
    const plan = planned({ workspace: W, network: { mode: 'fetch', allowHosts: ['example.com'] } })
    const source = profileOf(plan, { ...CONTEXT, proxyPort: 5000 })
    expect(reached(source)).toEqual(['127.0.0.1:5000'])
    expect(reached(profileOf(plan, CONTEXT))).toEqual([])
    const env = seatbeltEnvironment(plan, { argv: ['x'] }, { ...CONTEXT, proxyPort: 5000 })
    expect(env.HTTP_PROXY).toBe('http://127.0.0.1:5000')
    expect(JSON.stringify(env)).not.toContain('3128')
    expect(env.TMPDIR).toBe(CONTEXT.scratch)
  })

  test('full connects to everything', () => {
    expect(reached(profile({ network: { mode: 'full' } }))).toEqual(ADDRESSES)
  })

  test('unix sockets: its own, those granted by name, and no other', () => {
    const source = profile({ unixSockets: ['/private/var/run/agent.sock'] })
    const dial = (path: string): boolean => can(source, 'network-outbound', path)
    expect(dial('/private/var/run/agent.sock')).toBe(true)
    expect(dial('/private/var/run/docker.sock')).toBe(false)
    expect(dial(`${W}/own.sock`)).toBe(true)
    expect(can(source, 'network-bind', `${W}/own.sock`)).toBe(true)
  })
})

describe('processes and services', () => {
  const source = profile({})
  test.each<readonly [string, Attempt, boolean]>([
    ['signal its own processes', { operation: 'signal', target: 'same-sandbox' }, true],
    ['signal other processes', { operation: 'signal', target: 'others' }, false],
    ['inspect other processes', { operation: 'process-info-pidinfo', target: 'others' }, false],
    ['user names', { operation: 'mach-lookup', service: 'com.apple.system.opendirectoryd.libinfo' }, true],
    ['the pasteboard', { operation: 'mach-lookup', service: 'com.apple.pasteboard.1' }, false],
    ['the keychain', { operation: 'mach-lookup', service: 'com.apple.SecurityServer' }, false],
    [
      'start programs elsewhere',
      { operation: 'mach-lookup', service: 'com.apple.coreservices.launchservicesd' },
      false,
    ],
    ['run a program of the workspace', { operation: 'process-exec', path: `${W}/run.sh` }, true],
    ['run a program from elsewhere', { operation: 'process-exec', path: '/Users/u/Downloads/x' }, false],
    ['shared memory', { operation: 'ipc-posix-shm-read-data', path: 'x' }, false],
    ['kernel devices', { operation: 'iokit-open' }, false],
    ['change settings', { operation: 'sysctl-write' }, false],
  ])('%s', (_, attempt, allowed) => expect(allows(source, attempt)).toBe(allowed))
})

describe('the backend', () => {
  test('reports what it needs on other systems, and opens nothing', async () => {
    const backend = seatbelt({ platform: 'linux', probePlan: () => planned({}) })
    expect(await backend.probe()).toMatchObject({ available: false, reason: 'needs macOS' })
    await expect(backend.open(planned({}))).rejects.toMatchObject({ code: 'backend-unavailable' })
  })
})
