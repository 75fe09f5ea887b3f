import { basename } from 'node:path/posix'
import { USER_UID } from '../../host/guest/protocol.ts'
import type { Mount, Plan, WritableRoot } from '../../model/plan.ts'
import type { User } from '../container-files.ts'

/** Translates a plan to the configuration of a machine's `/init` (guest/agent/machine/setup.c). Pure. */

/** The memory that the guest's kernel and our agent need. */
const KERNEL_MB = 128
const SIZES_MB = [512, 1024, 2048, 4096, 8192, 16_384, 32_768]
const DEFAULT_MB = 1024
const DEFAULT_DISK_MB = 10_240
const MB = 1024 * 1024

const asked = (plan: Plan, name: 'memoryMb' | 'diskMb'): number | undefined =>
  plan.nets.includes(name) ? undefined : plan.limits[name]

/** The memory of the whole machine: one of a few sizes, because each needs its own template. */
export function machineMemoryMb(plan: Plan): number | undefined {
  const wanted = asked(plan, 'memoryMb')
  if (wanted === undefined) return DEFAULT_MB
  return SIZES_MB.find((size) => size >= wanted + KERNEL_MB)
}

/** The size of a machine's disk in MiB. */
export const diskMb = (plan: Plan): number => asked(plan, 'diskMb') ?? DEFAULT_DISK_MB

/** In mount order: a nested mount comes after the outer one. */
export const guestMountsOf = (plan: Plan): readonly Mount[] =>
  [...plan.mounts].sort((a, b) => a.target.length - b.target.length)

/** What a machine is told besides the plan. */
export type ContainerSettings = {
  readonly user: User
  readonly hostname: string
  readonly memoryMb: number
  /** The numbers of the mounts whose files are on the input drive. */
  readonly images: ReadonlySet<number>
}

/** The fields that set up the container in a machine. */
export function containerSettingFields(plan: Plan, settings: ContainerSettings): readonly string[] {
  const { user, hostname, memoryMb, images } = settings
  const { pids, cpus } = plan.limits
  const most = Math.min(asked(plan, 'memoryMb') ?? Number.POSITIVE_INFINITY, memoryMb - KERNEL_MB)
  const tmp = Math.min(most, plan.limits.diskMb ?? Number.POSITIVE_INFINITY)
  return [
    ...(plan.root ? rootFields(plan, plan.root) : userFields(plan, user)),
    ...['tmp', `${Math.max(1, Math.floor(tmp))}m`],
    ...[
      'limit',
      'memory.max',
      String(most * MB),
      'limit',
      'pids.max',
      pids === undefined ? 'max' : String(pids),
    ],
    ...['limit', 'cpu.max', cpus === undefined ? 'max 100000' : `${Math.round(cpus * 100_000)} 100000`],
    ...[...(plan.root ? [] : userFiles(plan, user)), ...smallFiles(plan, hostname)].flatMap(
      ({ target, text }) => ['file', target, text],
    ),
    ...(images.size > 0 ? ['inputs'] : []),
    ...guestMountsOf(plan).flatMap(({ kind, mode, target }, index) => [
      'mount',
      images.has(index) ? 'image' : kind === 'dir' ? 'dir' : 'file',
      mode,
      target,
      basename(target),
    ]),
  ]
}

/** Without mounts the disk is not needed. */
const userFields = (plan: Plan, { uid, gid }: User): readonly string[] => [
  ...(plan.mounts.length > 0 ? ['disk'] : []),
  ...['user', String(uid), String(gid)],
]

/** In a machine of its own a sandbox needs no range of its own: ids are those that its disk stores. */
const rootFields = (plan: Plan, { ids, image }: WritableRoot): readonly string[] => [
  ...['root', String(ids.stored)],
  ...plan.own.flatMap((target) => ['own', target]),
  ...(image ? [] : FIRST_FILES).flatMap(({ target, text }) => ['first-file', target, text]),
]

type SmallFile = { readonly target: string; readonly text: string }

/** System users that programs and packages expect, with the ids that Debian reserves for them. */
const SYSTEM_USERS = [
  ['root', 0, '/root', '/bin/bash'],
  ['daemon', 1, '/usr/sbin', '/usr/sbin/nologin'],
  ['bin', 2, '/bin', '/usr/sbin/nologin'],
  ['sys', 3, '/dev', '/usr/sbin/nologin'],
  ['mail', 8, '/var/mail', '/usr/sbin/nologin'],
  ['www-data', 33, '/var/www', '/usr/sbin/nologin'],
  ['_apt', 42, '/nonexistent', '/usr/sbin/nologin'],
  ['nobody', 65534, '/nonexistent', '/usr/sbin/nologin'],
  ['user', USER_UID, '/home/user', '/bin/bash'],
] as const
const SYSTEM_GROUPS = 'tty:x:5:\nsudo:x:27:user\nshadow:x:42:\nutmp:x:43:\nstaff:x:50:\nnogroup:x:65534:\n'

/** What a new root has beyond the image; afterwards these files are the sandbox's own. */
const FIRST_FILES: readonly SmallFile[] = [
  {
    target: '/etc/passwd',
    text: SYSTEM_USERS.map(
      ([name, id, home, shell]) => `${name}:x:${id}:${id === 42 ? 65534 : id}::${home}:${shell}\n`,
    ).join(''),
  },
  {
    target: '/etc/group',
    text: `${SYSTEM_USERS.filter(([, id]) => id !== 42 && id !== 65534)
      .map(([name, id]) => `${name}:x:${id}:\n`)
      .join('')}${SYSTEM_GROUPS}`,
  },
  { target: '/etc/nsswitch.conf', text: 'passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n' },
  { target: '/root/.profile', text: '' },
]

function userFiles(plan: Plan, { uid, gid }: User): readonly SmallFile[] {
  const name = plan.own[0] ? 'user' : uid === 0 ? 'root' : 'agent'
  const home = plan.own[0] ?? '/tmp'
  const shell = plan.own[0] ? '/bin/bash' : '/bin/sh'
  return [
    {
      target: '/etc/passwd',
      text: `${name}:x:${uid}:${gid}::${home}:${shell}\nnobody:x:65534:65534::/nonexistent:/bin/false\n`,
    },
    { target: '/etc/group', text: `${name}:x:${gid}:\nnogroup:x:65534:\n` },
  ]
}

const smallFiles = (plan: Plan, hostname: string): readonly SmallFile[] => [
  { target: '/etc/hosts', text: `127.0.0.1 localhost sandbox ${hostname}\n::1 localhost\n` },
  { target: '/etc/hostname', text: `${hostname}\n` },
  ...plan.files,
]

/** What a machine runs before it is saved as a template, so that the programs that sandboxes start are in its memory. */
export const WARM_UP_COMMANDS: readonly string[] = [
  'true',
  'ls / >/dev/null; cat /etc/hosts >/dev/null; head -c1 /dev/zero >/dev/null; mkdir -p /tmp/w && rm -r /tmp/w',
  'command -v bash >/dev/null && bash -c true',
  'command -v git >/dev/null && git --version >/dev/null',
  'command -v python3 >/dev/null && python3 -c "import json,socket,threading"',
  'command -v node >/dev/null && node -e 0',
]

/** What a pooled machine runs, so that its emulator has translated that part of the kernel. */
export const POOL_WARM_UP_COMMANDS: readonly string[] = ['true', 'bash -c true']

/** An empty container for the warm-up. */
export const WARM_UP_MOUNTS: readonly string[] = ['user', '1000', '1000', 'tmp', '64m']
/** The agent's configuration while a machine warms up. */
export const WARM_UP_FIELDS: readonly string[] = [
  ...['persistent', 'cwd', '/tmp', 'env', 'PATH=/usr/local/bin:/usr/bin:/bin', 'env', 'HOME=/tmp'],
  ...['writable', '/tmp', 'writable', '/dev', 'rlimit', 'core', '0'],
]
