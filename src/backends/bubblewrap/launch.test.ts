import { describe, expect, test } from 'vitest'
import { COMMAND_FIELDS, CONFIG_FIELDS, LAUNCH_OPERATIONS } from '../../host/guest/protocol.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan, RealPath } from '../../model/plan.ts'
import { parseSpec } from '../../model/spec.ts'
import { PROTECTION } from '../../policy/paths/protect.ts'
import { type EgressFacts, type Observed, pathsOf, planFor, sandboxPolicyOf } from '../../policy/plan.ts'
import { type LaunchContext, launchContents, launchEnvironment, launchVector } from './launch.ts'

/** Plans come from the policy, as everywhere; the host facts are made up. */

function there(path: string, kind: 'dir' | 'file' | 'socket' = 'dir'): Observed {
  const real = path as RealPath
  const ino = String(path.length * 100 + (path.at(-1)?.charCodeAt(0) ?? 0))
  return {
    state: 'exists',
    normal: path,
    symlinks: [],
    real,
    thing: { kind, nlink: 1 },
    fact: { real, kind, dev: '7', ino, uid: 1000, gid: 1001 },
    blockedInside: [],
    repositories: [],
  }
}

const SOCKETS = ['/srv/agent.sock', '/w/own.sock']
const observe = (path: string): Observed => there(path, SOCKETS.includes(path) ? 'socket' : 'dir')

function planned(input: Record<string, unknown>, uid = 1000, egress?: EgressFacts): Plan {
  const policy = sandboxPolicyOf({}, '/home/u')
  const spec = parseSpec(input)
  const paths = new Map(pathsOf(policy, spec).map((path) => [path, observe(path)]))
  const facts = {
    uid,
    home: '/home/u',
    stateDir: there('/w/state'),
    hostMemoryMb: 1000,
    cwd: '/',
    paths,
    egress,
  }
  const plan = planFor(policy, spec, facts)
  if (plan instanceof SandboxError) throw plan
  return plan
}

const CONTEXT: LaunchContext = {
  bwrap: '/usr/bin/bwrap',
  layout: {
    links: [{ path: '/bin', target: 'usr/bin' }],
    programs: ['/usr', '/opt/lib64'],
    etc: ['/etc/ld.so.cache'],
    certificates: ['/etc/ssl/certs'],
  },
  filter: 'c0ffee',
  uid: 1000,
  gid: 1001,
  control: 3,
  cgroups: [],
  agentHolds: { memory: false, pids: false },
  waitForGo: false,
}
const ROOT = { uid: 0, gid: 0 }

const AGENT: Readonly<Record<string, number>> = { ...COMMAND_FIELDS, ...CONFIG_FIELDS }

function split(words: readonly string[], arity: Readonly<Record<string, number>>): string[][] {
  const out: string[][] = []
  for (let at = 0; at < words.length; ) {
    const count = arity[words[at] as string]
    if (count === undefined || at + count >= words.length + 1)
      throw new Error(`no such operation: ${words[at]}`)
    out.push(words.slice(at, at + count + 1))
    at += count + 1
  }
  return out
}

/** The vector as its readers see it: the launcher's operations, bubblewrap's arguments, the agent's fields. */
function read(vector: readonly string[]) {
  const operations = split(vector, LAUNCH_OPERATIONS)
  const of = (name: string): string[][] =>
    operations.filter((one) => one[0] === name).map((one) => one.slice(1))
  const words = (name: string): string[] => of(name).flat()
  const fields = split(words('init'), AGENT)
  const field = (name: string): string[][] =>
    fields.filter((one) => one[0] === name).map((one) => one.slice(1))
  return { operations, of, bwrap: words('arg'), fields, field }
}

const launch = (
  input: Record<string, unknown>,
  context: Partial<LaunchContext> = {},
  argv: readonly [string, ...string[]] = ['true'],
) => read(launchVector(planned(input, context.uid ?? 1000), { argv }, { ...CONTEXT, ...context }))

const W = '/w'

describe('the whole vector', () => {
  test('for a workspace, as an ordinary user', () => {
    const plan = planned({ workspace: W, waive: ['fs.protect'], limits: { wallMs: 5 } })
    const a = (...words: string[]): string[] => words.flatMap((word) => ['arg', word])
    const i = (...words: string[]): string[] => words.flatMap((word) => ['init', word])
    const { dev, ino } = plan.mounts[0] as { dev: string; ino: string }
    const mask = plan.masks[0] as { dev: string; ino: string }
    expect(launchVector(plan, { argv: ['echo', 'a b'] }, CONTEXT)).toEqual([
      ...['bwrap', '/usr/bin/bwrap', 'control', '3', 'filter', 'c0ffee'],
      ...a(
        '--unshare-user',
        '--unshare-pid',
        '--unshare-ipc',
        '--unshare-uts',
        '--unshare-cgroup-try',
        '--unshare-net',
      ),
      ...a('--uid', '0', '--gid', '0'),
      ...a('--new-session', '--die-with-parent', '--as-pid-1', '--hostname', 'sandbox', '--cap-drop', 'ALL'),
      ...['CAP_SYS_ADMIN', 'CAP_SYS_RESOURCE', 'CAP_SETPCAP', 'CAP_SETFCAP'].flatMap((name) =>
        a('--cap-add', name),
      ),
      ...a(
        '--ro-bind',
        '/usr',
        '/usr',
        '--ro-bind',
        '/opt/lib64',
        '/opt/lib64',
        '--perms',
        '0755',
        '--dir',
        '/etc',
      ),
      ...a(
        '--symlink',
        'usr/bin',
        '/bin',
        '--proc',
        '/proc',
        '--dev',
        '/dev',
        '--perms',
        '1777',
        '--tmpfs',
        '/tmp',
      ),
      ...a('--perms', '0755', '--dir', '/var', '--symlink', '../tmp', '/var/tmp'),
      ...a('--ro-bind-try', '/etc/ld.so.cache', '/etc/ld.so.cache'),
      ...a('--perms', '0444'),
      ...[
        'file',
        '/etc/passwd',
        'agent:x:1000:1001::/tmp:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n',
      ],
      ...a('--perms', '0444'),
      ...['file', '/etc/group', 'agent:x:1001:\nnogroup:x:65534:\n'],
      ...a('--perms', '0444'),
      ...['file', '/etc/nsswitch.conf', 'passwd: files\ngroup: files\nhosts: files dns\n'],
      ...a('--perms', '0444'),
      ...['file', '/etc/hosts', '127.0.0.1 localhost sandbox\n::1 localhost\n'],
      ...['bind', 'rw', W, dev, ino, W],
      ...a('--remount-ro', '/'),
      ...i('argv', 'echo', 'argv', 'a b', 'report-network', 'net.offline', 'cwd', W, 'user', '1000', '1001'),
      ...i('mask', '/w/state', mask.dev, mask.ino),
      ...['kcore', 'keys', 'key-users', 'kallsyms', 'kmsg', 'timer_list', 'sched_debug'].flatMap((name) =>
        i('hide', `/proc/${name}`),
      ),
      ...['sys', 'sysrq-trigger', 'irq', 'bus', 'fs', 'acpi', 'scsi'].flatMap((name) =>
        i('readonly', `/proc/${name}`),
      ),
      ...i('writable', W, 'writable', '/tmp', 'writable', '/dev'),
      ...i(
        'host-mount',
        '/usr',
        'host-mount',
        '/opt/lib64',
        'host-mount',
        '/etc/ld.so.cache',
        'host-mount',
        W,
      ),
      ...i('rlimit', 'core', '0', 'socket-memory', '393216000'),
    ])
  })
})

describe('the network', () => {
  test.each([
    ['offline', true, false, true],
    ['loopback', true, false, true],
    ['fetch', true, true, true],
    ['full', false, true, false],
  ])('%s: unshared %s, certificates %s, hosts of its own %s', (mode, unshared, certificates, hosts) => {
    const { bwrap, of } = launch({ workspace: W, network: { mode } })
    expect(bwrap.includes('--unshare-net')).toBe(unshared)
    expect(bwrap.includes('/etc/ssl/certs')).toBe(certificates)
    expect(of('file').some(([path]) => path === '/etc/hosts')).toBe(hosts)
    expect(bwrap.includes('/etc/resolv.conf')).toBe(mode === 'full')
  })
})

describe('users', () => {
  test('user 0 keeps its number and needs no mapping', () => {
    const { bwrap, field, of } = launch({ workspace: W, waive: [] }, ROOT)
    expect(bwrap).not.toContain('--uid')
    expect(bwrap).not.toContain('CAP_SETFCAP')
    expect(field('user')).toEqual([])
    expect(of('file').find(([path]) => path === '/etc/passwd')?.[1]).toMatch(/^root:x:0:0:/)
  })

  test('another user is 0 during set-up and itself for the command', () => {
    const { bwrap, field, of } = launch({ workspace: W })
    expect(bwrap.join(' ')).toContain('--uid 0 --gid 0')
    expect(bwrap).toContain('CAP_SETFCAP')
    expect(field('user')).toEqual([['1000', '1001']])
    expect(of('user')).toEqual([])
  })

  test('root in another user’s workspace becomes that user before the set-up', () => {
    const plan = planned({ workspace: W }, 0)
    const { operations, of } = read(launchVector(plan, { argv: ['true'] }, CONTEXT))
    expect(of('user')).toEqual([['1000', '1001']])
    expect(operations.findIndex(([name]) => name === 'user')).toBeLessThan(
      operations.findIndex(([name]) => name === 'arg'),
    )
  })

  test.each([0, 1000])('user %i gets no capability except the agent’s', (uid) => {
    const { bwrap } = launch({ workspace: W }, { uid })
    const added = bwrap.filter((_, index) => bwrap[index - 1] === '--cap-add')
    expect(bwrap[bwrap.indexOf('--cap-drop') + 1]).toBe('ALL')
    expect(bwrap.indexOf('--cap-drop')).toBeLessThan(bwrap.indexOf('--cap-add'))
    expect(added.filter((name) => !/^CAP_(SYS_ADMIN|SYS_RESOURCE|SETPCAP|SETFCAP)$/.test(name))).toEqual([])
  })

  test('with its own network and a proxy, the agent may set up loopback', () => {
    const fetching = { workspace: W, network: { mode: 'fetch', allowHosts: ['example.com'] } } as const
    const { bwrap } = launch(fetching, { handoverFd: 4 })
    expect(bwrap).toContain('CAP_NET_ADMIN')
    expect(bwrap).toContain('--unshare-net')
    expect(launch(fetching, {}).bwrap).not.toContain('CAP_NET_ADMIN')
  })
})

describe('every sandbox', () => {
  test.each([{}, { workspace: W }, { preset: 'read-only', workspace: W }, { preset: 'danger-full-access' }])(
    '%o',
    (spec) => {
      const { bwrap, of, operations } = launch(spec, { cgroups: ['/sys/fs/cgroup/a', '/sys/fs/cgroup/b'] })
      for (const word of ['user', 'pid', 'ipc', 'uts', 'net']) expect(bwrap).toContain(`--unshare-${word}`)
      for (const word of ['--new-session', '--die-with-parent', '--as-pid-1', '--unshare-cgroup-try'])
        expect(bwrap).toContain(word)
      expect(of('filter')).toEqual([['c0ffee']])
      expect(of('cgroup')).toEqual([['/sys/fs/cgroup/a'], ['/sys/fs/cgroup/b']])
      // Cgroups are joined before bubblewrap mounts anything.
      expect(operations.map(([name]) => name).lastIndexOf('cgroup')).toBeLessThan(
        operations.findIndex(([name]) => name === 'arg'),
      )
      expect(bwrap.join(' ')).toContain('--proc /proc --dev /dev')
    },
  )

  test('the control channel is passed only if there is one', () => {
    expect(launch({}, { control: 3 }).of('control')).toEqual([['3']])
    expect(launch({}, { control: -1 }).of('control')).toEqual([])
  })

  test('the command waits for its permit only if one will come', () => {
    expect(launch({}, { waitForGo: true }).field('wait-for-go')).toEqual([[]])
    expect(launch({}, { waitForGo: false }).field('wait-for-go')).toEqual([])
  })

  test('a private root is read-only at the end, after every grant', () => {
    const { operations } = launch({ workspace: W, read: ['/data'] })
    const remount = operations.findIndex(([, word]) => word === '--remount-ro')
    const binds = operations.map(([name], index) => (name === 'bind' ? index : -1))
    expect(Math.max(...binds)).toBeLessThan(remount)
  })
})

describe('mounts', () => {
  const targets = (vector: ReturnType<typeof launch>): string[] =>
    vector.of('bind').map(([mode, real, , , target]) => `${mode} ${real} ${target}`)

  test('each carries the inode that was checked', () => {
    const plan = planned({ workspace: W, mounts: [{ source: '/data', target: '/d', mode: 'ro' }] })
    const binds = read(launchVector(plan, { argv: ['true'] }, CONTEXT)).of('bind')
    expect(binds).toEqual(
      plan.mounts.map(({ mode, real, dev, ino, target }) => [mode, real, dev, ino, target]),
    )
  })

  test.each<[string, Record<string, unknown>, string[], string[][]]>([
    ['side by side', { workspace: W, read: ['/wx'] }, ['rw /w /w', 'ro /wx /wx'], []],
    [
      'one below a writable mount',
      { workspace: W, read: ['/w/sub'] },
      ['rw /w /w', 'ro /w/sub /.ringfence/0'],
      [['/.ringfence/0', '/w/sub', 'ro']],
    ],
    [
      'outer before inner, whatever the order',
      { workspace: W, read: ['/w/a/b/c'], write: ['/w/a'] },
      ['rw /w /w', 'rw /w/a /.ringfence/0', 'ro /w/a/b/c /.ringfence/1'],
      [
        ['/.ringfence/0', '/w/a', 'rw'],
        ['/.ringfence/1', '/w/a/b/c', 'ro'],
      ],
    ],
    [
      'from another path to a path below',
      { workspace: W, mounts: [{ source: '/data', target: '/w/data', mode: 'ro' }] },
      ['rw /w /w', 'ro /data /.ringfence/0'],
      [['/.ringfence/0', '/w/data', 'ro']],
    ],
  ])('%s', (_, spec, binds, nested) => {
    const vector = launch(spec)
    expect(targets(vector)).toEqual(binds)
    expect(vector.field('nested')).toEqual(nested)
  })

  const belowWritable = (plan: Plan, vector: ReturnType<typeof launch>): string[] => {
    const writable = plan.mounts
      .filter(({ mode }) => mode === 'rw')
      .map(({ target }) => (target === '/' ? '' : target))
    const given = [
      ...vector.of('bind').map((bind) => bind[4] as string),
      ...vector.of('file').map(([path]) => path as string),
    ]
    return given.filter(
      (target) =>
        !target.startsWith('/.ringfence/') &&
        writable.some((root) => target.startsWith(`${root}/`) && target !== '/'),
    )
  }

  test.each<Record<string, unknown>>([
    { workspace: W, read: ['/w/sub', '/w/sub/x'] },
    { workspace: W, mounts: [{ source: '/data', target: '/w/data' }] },
    { workspace: W, deny: ['/w/sub'] },
    { preset: 'danger-full-access', workspace: W },
  ])('bubblewrap itself never creates a mount point below a writable mount: %o', (spec) => {
    const plan = planned(spec)
    expect(belowWritable(plan, read(launchVector(plan, { argv: ['true'] }, CONTEXT)))).toEqual([])
  })

  test('bubblewrap itself never creates a mount point for a socket below a writable mount', () => {
    const plan = planned({ workspace: W, unixSockets: ['/w/own.sock'] })
    const vector = read(launchVector(plan, { argv: ['true'] }, CONTEXT))
    expect(belowWritable(plan, vector)).toEqual([])
    expect(vector.field('nested')).toEqual([['/.ringfence/0', '/w/own.sock', 'rw']])
  })

  test('a socket is bound at its own path, while the root is still writable', () => {
    const vector = launch({ unixSockets: ['/srv/agent.sock'] })
    expect(targets(vector)).toEqual(['rw /srv/agent.sock /srv/agent.sock'])
    const names = vector.operations.map((operation) => operation.join(' '))
    expect(names.findIndex((name) => name.startsWith('bind'))).toBeLessThan(names.indexOf('arg --remount-ro'))
  })

  test('with the whole root granted, its sockets are already visible', () => {
    expect(targets(launch({ preset: 'danger-full-access', unixSockets: ['/srv/agent.sock'] }))).toEqual([
      'rw / /',
    ])
  })

  // SECURITY: the agent watches a grant by its path; behind a symlink the real path would be elsewhere and unwatched.
  test.each<[Record<string, unknown>, boolean]>([
    [{ workspace: W }, true],
    [{ workspace: '/var/tmp/w' }, false],
    [{ read: ['/var/tmp/w'] }, false],
    [{ mounts: [{ source: W, target: '/var/tmp' }] }, false],
    [{ workspace: '/var/tmpx' }, true],
  ])('no mount target is behind a symlink of the private root: %o', (spec, linked) => {
    const { bwrap } = launch(spec)
    expect(bwrap.join(' ').includes('--symlink ../tmp /var/tmp')).toBe(linked)
    expect(bwrap.join(' ').includes('--dir /var/tmp')).toBe(!linked)
  })

  test('only writable mounts are writable for Landlock', () => {
    const { field } = launch({ workspace: W, read: ['/data'], write: ['/out'] })
    expect(field('writable').flat()).toEqual([W, '/out', '/tmp', '/dev'])
    expect(launch({ preset: 'read-only', workspace: W }).field('writable').flat()).toEqual(['/tmp', '/dev'])
  })

  test('masks are passed to the agent with their inode, never to bubblewrap', () => {
    const plan = planned({ workspace: W, deny: ['/w/secret'] })
    const { field, bwrap } = read(launchVector(plan, { argv: ['true'] }, CONTEXT))
    expect(field('mask')).toEqual(plan.masks.map(({ target, dev, ino }) => [target, dev, ino]))
    expect(field('mask').map(([target]) => target)).toEqual(['/w/secret', '/w/state'])
    expect(bwrap.join('\n')).not.toContain('/w/secret')
  })
})

describe('danger-full-access', () => {
  test('is the host’s root with its own processes and devices, and nothing else', () => {
    const { of, bwrap, fields } = launch({ preset: 'danger-full-access', workspace: W })
    expect(of('bind').map(([mode, real, , , target]) => [mode, real, target])).toEqual([['rw', '/', '/']])
    expect(bwrap.slice(-4)).toEqual(['--proc', '/proc', '--dev', '/dev'])
    for (const word of ['--tmpfs', '--remount-ro', '--ro-bind']) expect(bwrap).not.toContain(word)
    expect(of('file')).toEqual([])
    expect(fields).toContainEqual(['whole-file-system'])
  })

  test('still protects names, hides the kernel and unshares the network', () => {
    const { field, bwrap } = launch({ preset: 'danger-full-access', workspace: W })
    expect(field('supervise')).toEqual([['']])
    expect(field('protect-root').flat().join().split('\n')).toEqual(PROTECTION.roots)
    expect(field('readonly').flat()).toContain('/proc/sys')
    expect(field('hide').flat()).toContain('/proc/kcore')
    expect(bwrap).toContain('--unshare-net')
  })
})

describe('protection', () => {
  test('is passed to the agent as a whole, with the directories it applies to', () => {
    const { field } = launch({ workspace: W, read: ['/data'], write: ['/out'] })
    expect(field('supervise').flat()).toEqual([W, '/out'])
    expect(field('protect-root').flat().join().split('\n')).toEqual(PROTECTION.roots)
    expect(field('protect-inner').flat().join().split('\n')).toEqual(PROTECTION.inner)
    expect(field('protect-name').flat().join().split('\n')).toEqual(PROTECTION.names)
    expect(field('protect-except').flat().join().split('\n')).toEqual(PROTECTION.exceptBelow)
  })

  test.each<[string, Record<string, unknown>, string[], string[]]>([
    ['nothing is writable', { preset: 'read-only', workspace: W }, [], []],
    ['it is waived', { workspace: W, waive: ['fs.protect'] }, [], []],
    [
      'it is waived, but disk is counted',
      { workspace: W, waive: ['fs.protect'], limits: { diskMb: 5 } },
      [W],
      [],
    ],
  ])('is passed only as far as needed when %s', (_, spec, guards, roots) => {
    const { field } = launch(spec)
    expect(field('supervise').flat()).toEqual(guards)
    expect(field('protect-root').flat()).toEqual(roots)
  })
})

describe('limits', () => {
  const held = { memory: true, pids: true }
  const none = { memory: false, pids: false }
  const fieldsOf = (limits: object, context: Partial<LaunchContext>): string[] =>
    launch({ workspace: W, limits }, context)
      .fields.filter(([name]) =>
        ['rlimit', 'memory', 'socket-memory', 'disk', 'processes', 'check-interval'].includes(name as string),
      )
      .map((field) => field.join(' '))

  test.each<[string, object, Partial<LaunchContext>, string[]]>([
    [
      'enforced by a cgroup',
      { memoryMb: 64, pids: 9 },
      { agentHolds: none },
      ['rlimit core 0', 'socket-memory 67108864', 'check-interval 25'],
    ],
    [
      'enforced by the agent',
      { memoryMb: 64, pids: 9 },
      { agentHolds: held },
      [
        'rlimit core 0',
        'processes 9',
        'rlimit nproc 9',
        'rlimit data 67108864',
        'memory 67108864',
        'check-interval 25',
      ],
    ],
    [
      'processes of user 0, which the kernel does not count',
      { memoryMb: 64, pids: 9 },
      { agentHolds: held, ...ROOT },
      ['rlimit core 0', 'processes 9', 'rlimit data 67108864', 'memory 67108864', 'check-interval 25'],
    ],
    [
      'memory enforced by the agent, processes by a cgroup',
      { memoryMb: 64, pids: 9 },
      { agentHolds: { memory: true, pids: false } },
      ['rlimit core 0', 'rlimit data 67108864', 'memory 67108864', 'check-interval 25'],
    ],
    [
      'disk, always enforced by the agent',
      { diskMb: 3 },
      { agentHolds: none },
      [
        'rlimit core 0',
        'socket-memory 393216000',
        'rlimit fsize 3145728',
        'disk 3145728',
        'check-interval 25',
      ],
    ],
    [
      'default limits, measured less often',
      {},
      { agentHolds: held },
      ['rlimit core 0', 'processes 1024', 'rlimit nproc 1024', 'rlimit data 786432000', 'memory 786432000'],
    ],
    [
      'time and output, enforced by the host',
      { wallMs: 5, idleMs: 6, outputBytes: 7, cpus: 1 },
      { agentHolds: none },
      ['rlimit core 0', 'socket-memory 393216000'],
    ],
  ])('%s', (_, limits, context, expected) => {
    expect(fieldsOf(limits, context)).toEqual(expected)
  })

  test('a disk limit is the size of /tmp too', () => {
    expect(launch({ workspace: W, limits: { diskMb: 3 } }).bwrap.join(' ')).toContain(
      '--perms 1777 --size 3145728 --tmpfs /tmp',
    )
  })
})

describe('data that other users of the host can read', () => {
  const SECRET = 'hunter2-s3cr3t'
  const command = {
    argv: ['curl', '-H', `Authorization: ${SECRET}`, '--as-pid-1'] as const,
    env: { TOKEN: SECRET },
    cwd: '/w/x',
  }
  const plan = planned({ workspace: W, env: { PASSWORD: SECRET }, deny: ['/w/hidden'] })
  const vector = launchVector(plan, command, CONTEXT)

  test('the command and its secrets are passed to the agent by descriptor only', () => {
    const { operations, field } = read(vector)
    const elsewhere = operations.filter(([name]) => name !== 'init').flat()
    for (const text of [SECRET, 'curl', 'Authorization', 'TOKEN', 'PASSWORD'])
      expect(elsewhere.join('\n')).not.toContain(text)
    expect(field('argv').flat()).toEqual(command.argv)
    expect(field('cwd')).toEqual([['/w/x']])
  })

  test('the environment is not part of the vector', () => {
    expect(vector.some((item) => item.includes('PASSWORD') || item.includes('TOKEN'))).toBe(false)
  })

  test.each<readonly [string, ...string[]]>([
    ['control', '7'],
    ['bind', 'rw', '/', '0', '0', '/'],
    ['arg', '--bind'],
    ['init'],
    ['--', '--ro-bind', '/', '/'],
    ['', ''],
  ])('words of a command are never taken for ours: %o', (...argv) => {
    const { field, operations } = launch(
      { workspace: W },
      {},
      argv as unknown as readonly [string, ...string[]],
    )
    expect(field('argv').flat()).toEqual(argv)
    expect(operations.filter(([name]) => name !== 'init')).toEqual(
      launch({ workspace: W }).operations.filter(([name]) => name !== 'init'),
    )
  })
})

describe('the launcher’s environment', () => {
  test('is the guest’s environment, the number of items, and each item by its index', () => {
    expect(launchEnvironment(['bwrap', '/b', ''], { PATH: '/bin', A: '' })).toEqual({
      PATH: '/bin',
      A: '',
      RINGFENCE_LAUNCH: '3',
      RINGFENCE_LAUNCH_0: 'bwrap',
      RINGFENCE_LAUNCH_1: '/b',
      RINGFENCE_LAUNCH_2: '',
    })
  })

  test('keeps Ringfence’s other variables', () => {
    expect(launchEnvironment([], { RINGFENCE: '1', RINGFENCE_AGENT_ID: 'a' })).toMatchObject({
      RINGFENCE: '1',
      RINGFENCE_AGENT_ID: 'a',
    })
  })

  // SECURITY: the launcher parses `01` as item 1, so a guest's variable could replace bubblewrap with another program.
  test.each([
    'RINGFENCE_LAUNCH',
    'RINGFENCE_LAUNCH_1',
    'RINGFENCE_LAUNCH_01',
    'RINGFENCE_LAUNCH_+1',
    'RINGFENCE_LAUNCH_99',
  ])('refuses a guest’s %s', (name) => {
    expect(() => launchEnvironment(['bwrap', '/b'], { [name]: '/tmp/evil' })).toThrow(SandboxError)
  })
})

describe('files of the plan', () => {
  const large = `${'é'.repeat(70_000)}\n`
  const facts = { placeholders: {}, certificates: large, nodePreload: 'preload' }
  const plan = planned({ workspace: W, network: { mode: 'fetch' } }, 1000, facts)

  test('are passed by descriptor, in the order of their sizes in the vector', () => {
    const { of } = read(launchVector(plan, { argv: ['true'] }, { ...CONTEXT, handoverFd: 4, contents: 5 }))
    expect(of('contents')).toEqual([['5']])
    const files = plan.files.map(({ target, text }) => [target, String(Buffer.byteLength(text))])
    expect(of('file-from-contents')).toEqual(files)
    expect(Buffer.from(launchContents(plan) ?? []).toString()).toBe(`preload${large}`)
  })

  // PLATFORM: execve refuses a variable of more than 128 KiB, independent of the total limit.
  test('are never in the environment', () => {
    const vector = launchVector(plan, { argv: ['true'] }, { ...CONTEXT, handoverFd: 4, contents: 5 })
    for (const item of Object.values(launchEnvironment(vector, plan.env)))
      expect(item.length).toBeLessThan(65_536)
  })
})
