import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import type { ExecResult } from '../../src/model/command.ts'
import type { Guarantee } from '../../src/model/guarantee.ts'
import { contentOf, exists, SECRET, type World } from './world.ts'

/**
 * Each guarantee as attacks. A backend that claims it must survive every one; the same attack must succeed on
 * `native`, or it proves nothing. A guarantee without a proof does not compile.
 */
export type Attack = {
  readonly name: string
  /** A bash script; it runs in the workspace. */
  readonly script: (world: World, workspace: string) => string
  /** More than a workspace and the probe: limits, network. Limits are left out in the control run. */
  readonly spec?: Readonly<Record<string, unknown>>
  readonly limits?: Readonly<Record<string, number>>
  /** Did the attacker get what it wanted? Looked at from the host. */
  readonly succeeded: (result: ExecResult, world: World, workspace: string) => boolean | Promise<boolean>
  /** Why the kernel itself stops it here even without a wall, so that the control says nothing. */
  readonly notApplicable?: () => string | undefined
}

const stdout = (result: ExecResult): string => Buffer.from(result.stdout).toString('utf8')
const says = (word: string) => (result: ExecResult) => stdout(result).includes(word)
const isRoot = process.getuid?.() === 0
const rootOnly = () => (isRoot ? undefined : 'an ordinary user may not do this on the host either')
const x64Only = () => (process.arch === 'x64' ? undefined : 'only x86-64 has a second system call table')
const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

const READS: readonly Attack[] = [
  {
    name: 'read a file outside every grant',
    script: ({ outside }) => outside.map((dir) => `cat ${dir}/secret`).join('\n'),
    succeeded: says(SECRET),
  },
  {
    name: 'read through a symlink planted in the workspace',
    script: ({ outside }) => outside.map((dir, i) => `ln -s ${dir} link${i}; cat link${i}/secret`).join('\n'),
    succeeded: says(SECRET),
  },
  {
    name: 'read through /proc/self/root and /proc/1/root',
    script: ({ outside }) =>
      outside.map((dir) => `cat /proc/self/root${dir}/secret /proc/1/root${dir}/secret`).join('\n'),
    succeeded: says(SECRET),
  },
  {
    name: "read the system's password hashes",
    script: () => 'cat /etc/shadow && echo got-it',
    succeeded: says('got-it'),
    notApplicable: rootOnly,
  },
]

const WRITES: readonly Attack[] = [
  {
    name: 'create a file outside every grant',
    script: ({ outside }) => outside.map((dir) => `echo x > ${dir}/planted`).join('\n'),
    succeeded: (_, { outside }) => outside.some((dir) => exists(join(dir, 'planted'))),
  },
  {
    name: 'write through a symlink planted in the workspace',
    script: ({ outside }) =>
      outside.map((dir, i) => `ln -s ${dir}/linked out${i}; echo x > out${i}`).join('\n'),
    succeeded: (_, { outside }) => outside.some((dir) => exists(join(dir, 'linked'))),
  },
  {
    name: 'write through /proc/self/root',
    script: ({ outside }) => outside.map((dir) => `echo x > /proc/self/root${dir}/proc`).join('\n'),
    succeeded: (_, { outside }) => outside.some((dir) => exists(join(dir, 'proc'))),
  },
  {
    name: 'change a kernel setting (the value that it has)',
    script: () =>
      'cat /proc/sys/kernel/core_pattern > v && cat v > /proc/sys/kernel/core_pattern && echo got-it',
    succeeded: says('got-it'),
    notApplicable: rootOnly,
  },
  {
    name: 'reach the magic system request file',
    script: () => 'exec 9>>/proc/sysrq-trigger && echo got-it',
    succeeded: says('got-it'),
    notApplicable: () => (exists('/proc/sysrq-trigger') ? rootOnly() : 'this kernel has none'),
  },
  {
    name: 'write where programs are',
    script: (world) => `touch /usr/local/rf-${world.port} && echo got-it; rm -f /usr/local/rf-${world.port}`,
    succeeded: says('got-it'),
    notApplicable: rootOnly,
  },
]

/** One change that must not reach the host's workspace; `file` appears or holds PWNED when it did. */
const protectedWrite = (name: string, script: string, file: string): Attack => ({
  name,
  script: () => script,
  succeeded: (_, __, workspace) => contentOf(join(workspace, file)).includes('PWNED'),
})

const PROTECTED: readonly Attack[] = [
  protectedWrite('write a git hook', 'echo PWNED > .git/hooks/pre-commit', '.git/hooks/pre-commit'),
  protectedWrite('append to the git configuration', 'echo "#PWNED" >> .git/config', '.git/config'),
  protectedWrite('replace it by rename', 'echo PWNED > c; mv -f c .git/config', '.git/config'),
  protectedWrite('plant commondir', 'echo PWNED > .git/commondir', '.git/commondir'),
  protectedWrite('plant config.worktree', 'echo PWNED > .git/config.worktree', '.git/config.worktree'),
  protectedWrite(
    "a submodule's hooks",
    'mkdir -p .git/modules/m/hooks; echo PWNED > .git/modules/m/hooks/post-checkout',
    '.git/modules/m/hooks/post-checkout',
  ),
  protectedWrite(
    "a worktree's configuration",
    'mkdir -p .git/worktrees/w; echo PWNED > .git/worktrees/w/commondir',
    '.git/worktrees/w/commondir',
  ),
  protectedWrite(
    'a nested repository',
    'echo PWNED > vendor/sub/.git/hooks/post-commit',
    'vendor/sub/.git/hooks/post-commit',
  ),
  protectedWrite(
    'a new repository where there was none',
    'mkdir -p deep/er/.git/hooks; echo PWNED > deep/er/.git/config',
    'deep/er/.git/config',
  ),
  protectedWrite('a .git file that points elsewhere', 'mkdir d; echo PWNED > d/.git', 'd/.git'),
  protectedWrite(
    'move the repository away and make another',
    'mv .git old; mkdir .git; echo PWNED > .git/config',
    '.git/config',
  ),
  protectedWrite(
    'build it elsewhere and rename it',
    'mkdir -p n/hooks; echo PWNED > n/config; mv n m/.git || mkdir m && mv n m/.git',
    'm/.git/config',
  ),
  protectedWrite('in other letters', 'mkdir -p q/.GIT; echo PWNED > q/.GIT/config', 'q/.GIT/config'),
  protectedWrite(
    'through a symlinked directory',
    'ln -s .git/hooks h; echo PWNED > h/pre-commit',
    '.git/hooks/pre-commit',
  ),
  protectedWrite('through a hard link', 'ln .git/config l && echo PWNED >> l', '.git/config'),
  protectedWrite(
    'through a descriptor that was opened for reading',
    'exec 5< .git/config; echo PWNED >> /proc/self/fd/5',
    '.git/config',
  ),
  protectedWrite(
    'from inside the directory',
    'cd .git/hooks && echo PWNED > post-merge',
    '.git/hooks/post-merge',
  ),
  protectedWrite(
    'with dots in the path',
    'echo PWNED > ./vendor/../.git/./hooks/pre-rebase',
    '.git/hooks/pre-rebase',
  ),
  protectedWrite('editor tasks', 'mkdir .vscode; echo PWNED > .vscode/tasks.json', '.vscode/tasks.json'),
  protectedWrite(
    'editor settings by rename',
    'mkdir v; echo PWNED > v/tasks.json; mv v .idea',
    '.idea/tasks.json',
  ),
  protectedWrite('an agent’s tool servers', 'echo PWNED > .mcp.json', '.mcp.json'),
  protectedWrite(
    'an agent’s commands',
    'mkdir -p .claude/commands; echo PWNED > .claude/commands/x.md',
    '.claude/commands/x.md',
  ),
  protectedWrite('direnv', 'echo PWNED > .envrc', '.envrc'),
  protectedWrite('husky', 'mkdir .husky; echo PWNED > .husky/pre-commit', '.husky/pre-commit'),
  protectedWrite('a shell start-up file', 'echo PWNED > .bashrc', '.bashrc'),
  protectedWrite('our own configuration', 'echo PWNED > ringfence.toml', 'ringfence.toml'),
  protectedWrite('a symlink to a file of its own', 'echo PWNED > mine; ln -s mine .envrc', '.envrc'),
  protectedWrite(
    'out of a dependency directory, where the names are free',
    'mkdir -p node_modules/p/.vscode; echo PWNED > node_modules/p/.vscode/tasks.json; mv node_modules/p other',
    'other/.vscode/tasks.json',
  ),
  {
    name: 'make a hook executable',
    script: () => 'chmod +x .git/hooks/pre-push',
    succeeded: (_, __, workspace) => (statSync(join(workspace, '.git/hooks/pre-push')).mode & 0o111) !== 0,
  },
  {
    name: 'remove the configuration',
    script: () => 'rm -rf .git',
    succeeded: (_, __, workspace) => !exists(join(workspace, '.git/config')),
  },
  {
    name: 'race the check with a second thread that exchanges the path',
    script: () => racing('.git/hooks/race', 'harmless'),
    succeeded: (_, __, workspace) => exists(join(workspace, '.git/hooks/race')),
  },
]

/** Names flip between a symlink to the protected directory and an ordinary one while files are opened below. */
const racing = (target: string, harmless: string): string => `
mkdir -p ${harmless} a; ln -s ../.git/hooks a/l
( end=$((SECONDS+2)); while [ $SECONDS -lt $end ]; do mv -T ${harmless} s 2>/dev/null; ln -sfn .git/hooks ${harmless}; rm -f ${harmless}; mv -T s ${harmless} 2>/dev/null; done ) &
end=$((SECONDS+2)); while [ $SECONDS -lt $end ]; do echo PWNED > ${harmless}/${target.split('/').at(-1)}; done 2>/dev/null
wait`

const connectTo = (port: number, host = '127.0.0.1'): string =>
  `exec 8<>/dev/tcp/${host}/${port} && head -c5 <&8`

const NETWORK: readonly Attack[] = [
  {
    name: "connect to the host's loopback",
    script: ({ port }) => connectTo(port),
    succeeded: says('hello'),
  },
  {
    name: 'connect in a child of a child',
    script: ({ port }) => `bash -c 'bash -c "${connectTo(port).replace(/"/g, '\\"')}"'`,
    succeeded: says('hello'),
  },
  {
    name: 'use a raw packet socket',
    script: ({ probe }) => `${probe} socket 17`,
    succeeded: says('yes'),
    notApplicable: rootOnly,
  },
]

/** Asks the proxy, where there is one, and the host itself where there is none; the answer is the listener's. */
const asking = (port: number, how: string, host = '127.0.0.1'): string =>
  `curl -sS --max-time 5 --http0.9 --noproxy '' ${how} http://${host}:${port}/ 2>&1`
const viaProxy = (form: string): string => `\${HTTP_PROXY:+${form} 127.0.0.1:3128}`
const open = { network: { mode: 'fetch', allowHosts: ['*'] } }

const THROUGH_PROXY: readonly Attack[] = [
  {
    name: "reach the host's loopback through the proxy",
    spec: open,
    script: ({ port }) => asking(port, viaProxy('-x')),
    succeeded: says('hello'),
  },
  {
    name: 'reach it through a tunnel',
    spec: open,
    script: ({ port }) => asking(port, viaProxy('-p -x')),
    succeeded: says('hello'),
  },
  {
    name: 'reach it by SOCKS',
    spec: open,
    script: ({ port }) => asking(port, viaProxy('--socks5-hostname')),
    succeeded: says('hello'),
  },
  {
    name: 'reach it by another spelling of its address',
    spec: open,
    script: ({ port }) =>
      ['2130706433', '0x7f.1', '[::ffff:127.0.0.1]', 'localhost']
        .map((host) => asking(port, viaProxy('-x'), host))
        .join('\n'),
    succeeded: says('hello'),
  },
]

const brokering = { secrets: ['TOKEN=RF_BROKERED@api.example.com'] }

const BROKERED: readonly Attack[] = [
  {
    name: 'print the variable',
    spec: brokering,
    script: () => 'echo "$TOKEN"; env',
    succeeded: says(SECRET),
  },
  {
    name: 'look for the value in every process and file of the sandbox',
    spec: brokering,
    script: () =>
      `cat /proc/*/environ /proc/*/cmdline /dev/ringfence/* 2>/dev/null | tr '\\0' '\\n' | grep -a ${SECRET.slice(0, 6)}`,
    succeeded: says(SECRET),
  },
]

const PROCESSES: readonly Attack[] = [
  {
    name: 'see a host process',
    script: ({ pid }) => `grep -q sleep /proc/${pid}/comm && echo got-it`,
    succeeded: says('got-it'),
  },
  {
    name: 'signal a host process',
    script: ({ pid }) => `kill -0 ${pid} && echo got-it`,
    succeeded: says('got-it'),
  },
  {
    name: 'read its environment',
    script: ({ pid }) => `tr '\\0' '\\n' < /proc/${pid}/environ`,
    succeeded: says(SECRET),
  },
]

const hasPython = (): string | undefined =>
  exists('/usr/bin/python3') || exists('/usr/local/bin/python3')
    ? undefined
    : 'no program here to hold an abstract socket'

const IPC: readonly Attack[] = [
  { name: 'read shared memory', script: ({ probe, shm }) => `${probe} shm ${shm}`, succeeded: says(SECRET) },
  {
    name: 'connect to an abstract socket',
    script: ({ probe, abstract }) => `${probe} abstract ${abstract}`,
    succeeded: says('yes'),
    notApplicable: hasPython,
  },
  {
    name: 'type into a terminal',
    script: ({ probe }) => `${probe} tiocsti`,
    succeeded: says('yes'),
    notApplicable: () =>
      contentOf('/proc/sys/dev/tty/legacy_tiocsti').trim() === '0'
        ? 'this kernel has switched it off for all'
        : undefined,
  },
]

const syscall = (call: string, notApplicable?: Attack['notApplicable']): Attack => ({
  name: `call ${call}`,
  script: ({ probe }) => `${probe} call ${call}`,
  succeeded: says('yes'),
  ...(notApplicable ? { notApplicable } : {}),
})

const KERNEL: readonly Attack[] = [
  syscall('i386', x64Only),
  syscall('x32', () => 'this kernel is built without x32'),
  syscall('unshare-user'),
  syscall('clone-user'),
  syscall('clone3-user'),
  syscall('mount', rootOnly),
  syscall('open_tree', rootOnly),
  syscall('userfaultfd'),
  syscall('perf', () =>
    Number(contentOf('/proc/sys/kernel/perf_event_paranoid')) > 2 && !isRoot
      ? 'this kernel forbids it to users'
      : undefined,
  ),
  syscall('io_uring', () =>
    contentOf('/proc/sys/kernel/io_uring_disabled').trim() === '2'
      ? 'this kernel has switched it off'
      : undefined,
  ),
  syscall('bpf', rootOnly),
  syscall('key'),
  syscall('clock', rootOnly),
]

/** What the children of a sandbox leave: a daemon that keeps writing after the command has ended. */
const CLEANUP: readonly Attack[] = [
  {
    name: 'leave a daemon behind',
    script: () =>
      `setsid bash -c 'trap "" TERM HUP; for i in $(seq 20); do date +%N > beat; sleep 0.1; done' > /dev/null 2>&1 < /dev/null & sleep 0.3`,
    succeeded: async (_, __, workspace) => {
      const first = contentOf(join(workspace, 'beat'))
      await sleep(400)
      return contentOf(join(workspace, 'beat')) !== first
    },
  },
  {
    name: 'survive the time limit in a session of its own',
    limits: { wallMs: 400 },
    script: () =>
      `setsid bash -c 'trap "" TERM HUP; for i in $(seq 30); do date +%N > beat; sleep 0.1; done' > /dev/null 2>&1 < /dev/null & sleep 30`,
    succeeded: async (result, __, workspace) => {
      const first = contentOf(join(workspace, 'beat'))
      await sleep(400)
      return result.outcome.kind !== 'stopped' || contentOf(join(workspace, 'beat')) !== first
    },
  },
]

const megabytesIn = (dir: string): number =>
  readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .reduce((sum, entry) => sum + statSync(join(entry.parentPath, entry.name)).size, 0) / 1048576

/** Nothing here keeps these; the suite then only shows that a plan which needs one is refused. */
const UNPROVEN: readonly Attack[] = []

export const PROOFS: Readonly<Record<Guarantee, readonly Attack[]>> = {
  'fs.read': READS,
  'fs.write': WRITES,
  'fs.protect': PROTECTED,
  'env.clean': [
    {
      name: "read the host's variables",
      script: () => 'env; cat /proc/self/environ',
      succeeded: says(SECRET),
    },
  ],
  'net.offline': NETWORK,
  'net.loopback': NETWORK.map((attack) => ({ ...attack, spec: { network: { mode: 'loopback' } } })),
  'net.fetch': [
    ...NETWORK.map((attack) => ({ ...attack, spec: { network: { mode: 'fetch' } } })),
    ...THROUGH_PROXY,
  ],
  'proc.hidden': PROCESSES,
  'ipc.private': IPC,
  'kernel.filtered': KERNEL,
  'kernel.separate': UNPROVEN,
  'limit.wall': [
    {
      name: 'run past the time limit, ignoring the request to end',
      limits: { wallMs: 300 },
      script: () =>
        'trap "" TERM; end=$((SECONDS+3)); while [ $SECONDS -lt $end ]; do sleep 0.1; done; echo past',
      succeeded: says('past'),
    },
    {
      name: 'stop itself so that no signal is heard',
      limits: { wallMs: 300 },
      script: () => '( sleep 1.5; kill -CONT $$ ) & kill -STOP $$; sleep 1; echo past',
      succeeded: says('past'),
    },
  ],
  'limit.idle': [
    {
      name: 'say nothing for long',
      limits: { idleMs: 300 },
      script: () => 'echo a; sleep 1.5; echo past',
      succeeded: says('past'),
    },
  ],
  'limit.memory': [
    {
      name: 'use more memory, in several processes',
      limits: { memoryMb: 100 },
      script: ({ probe }) => `${probe} memory 320`,
      succeeded: says('yes'),
    },
    {
      name: 'use more memory in a memory file system',
      limits: { memoryMb: 100 },
      script: () =>
        'head -c 300M /dev/zero > /dev/shm/rf-fill && sleep 0.5 && echo yes; rm -f /dev/shm/rf-fill',
      succeeded: says('yes'),
    },
  ],
  'limit.cpu': [
    {
      name: 'use more processor time',
      limits: { cpus: 0.1 },
      script: ({ probe }) => `${probe} spin 1500`,
      succeeded: (result) => Number(stdout(result)) > 300,
    },
  ],
  'limit.pids': [
    {
      name: 'start more processes',
      limits: { pids: 40 },
      script: ({ probe }) => `${probe} fork 200`,
      succeeded: (result) => Number(stdout(result)) > 40,
    },
  ],
  'limit.disk': [
    {
      name: 'write one large file',
      limits: { diskMb: 20 },
      script: () => 'head -c 80M /dev/zero > big',
      succeeded: (_, __, workspace) => megabytesIn(workspace) > 40,
    },
    {
      name: 'write many files',
      limits: { diskMb: 20 },
      script: () => 'for i in $(seq 120); do head -c 1M /dev/zero > f$i; sleep 0.01; done',
      succeeded: (_, __, workspace) => megabytesIn(workspace) > 60,
    },
    {
      name: 'fill the private /tmp',
      limits: { diskMb: 20 },
      script: () => 'd=$(mktemp -d); head -c 60M /dev/zero > $d/fill; stat -c %s $d/fill; rm -rf $d',
      succeeded: (result) => Number(stdout(result)) > 41943040,
    },
  ],
  'limit.output': [
    {
      name: 'write more than the limit',
      limits: { outputBytes: 100_000 },
      script: () => 'head -c 3000000 /dev/zero',
      succeeded: (result) => result.stdout.length > 100_000,
    },
  ],
  'limit.fuel': UNPROVEN,
  'secrets.outside': BROKERED,
  cleanup: CLEANUP,
}

/** Things that must still work behind the wall; a sandbox that breaks tools is switched off by its users. */
export const USES: readonly { readonly name: string; readonly script: string; readonly says: string }[] = [
  {
    name: 'commit to git',
    script:
      'rm -rf t; git -c init.defaultBranch=x --version >/dev/null && echo work > .git/index.lock && rm .git/index.lock && mkdir -p .git/objects/ab && echo o > .git/objects/ab/cd && echo r > .git/refs/heads/topic && echo fine',
    says: 'fine',
  },
  {
    name: 'write and read files',
    script: 'echo a > f && mv f g && ln g h && ln -s g i && cat i && rm h && mkdir -p d/e && rmdir d/e',
    says: 'a',
  },
  { name: 'modes follow the umask', script: 'umask 027; touch m; stat -c %a m', says: '640' },
  { name: 'use /tmp', script: 'f=$(mktemp) && echo tmp > $f && cat $f', says: 'tmp' },
  {
    name: 'write to /dev/stdout and /dev/null',
    script: 'echo out > /dev/stdout; echo x > /dev/null',
    says: 'out',
  },
  { name: 'named pipes', script: 'mkfifo p; (cat p & echo through > p; wait)', says: 'through' },
  {
    name: 'a private loopback',
    script: 'bash -c "exec 3<>/dev/tcp/127.0.0.1/9" 2>&1 | grep -q refused && echo fine',
    says: 'fine',
  },
  { name: 'here documents and process substitution', script: 'cat <<< here; cat <(echo sub)', says: 'sub' },
  { name: 'a pseudo terminal', script: 'script -qec "echo tty" /dev/null', says: 'tty' },
  {
    name: 'names of packages in a dependency tree',
    script:
      'mkdir -p node_modules/p/.vscode && echo j > node_modules/p/.vscode/s.json && rm -rf node_modules && echo fine',
    says: 'fine',
  },
]

/** A sandbox's process that is our child or nobody's; those of other tests that run beside this one do not count. */
function isOurOrphan(pid: string): boolean {
  if (!/^\d+$/.test(pid)) return false
  try {
    const [, name, state, parent] =
      /^\d+ \((.*)\) (\S) (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'latin1')) ?? []
    const ours = name === 'bwrap' || name === 'ringfence-agent'
    return ours && state !== 'Z' && (parent === '1' || Number(parent) === process.pid)
  } catch {
    return false
  }
}

/** What a sandbox may leave on the host: nothing. Counted before and after. */
export function leftovers(): Readonly<Record<string, number>> {
  const lines = (file: string): number => readFileSync(file, 'utf8').split('\n').length - 1
  const cgroups = (dir: string): number =>
    exists(dir)
      ? readdirSync(dir, { recursive: true }).filter((name) => String(name).includes('ringfence-')).length
      : 0
  return {
    mounts: lines('/proc/self/mountinfo'),
    cgroups: cgroups('/sys/fs/cgroup/pids') + cgroups('/sys/fs/cgroup/memory'),
    descriptors: readdirSync('/proc/self/fd').length,
    processes: readdirSync('/proc').filter(isOurOrphan).length,
  }
}
