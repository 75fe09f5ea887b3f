import { basename } from 'node:path/posix'
import type { Mount, Plan } from '../../model/plan.ts'
import type { User } from '../container-files.ts'

/** A plan in the language of a machine's `/init` (guest/agent/machine/setup.c). Pure. */

/** What the guest's kernel and our agent need of a machine's memory. */
const KERNEL_MB = 128
const SIZES_MB = [512, 1024, 2048, 4096, 8192, 16_384, 32_768]
const DEFAULT_MB = 1024
const DEFAULT_DISK_MB = 10_240
const MB = 1024 * 1024

const asked = (plan: Plan, name: 'memoryMb' | 'diskMb'): number | undefined =>
  plan.nets.includes(name) ? undefined : plan.limits[name]

/** How much memory the whole machine gets: one of a few sizes, because each has its own template. */
export function machineMemoryMb(plan: Plan): number | undefined {
  const wanted = asked(plan, 'memoryMb')
  if (wanted === undefined) return DEFAULT_MB
  return SIZES_MB.find((size) => size >= wanted + KERNEL_MB)
}

export const diskMb = (plan: Plan): number => asked(plan, 'diskMb') ?? DEFAULT_DISK_MB

/** In the order in which they are mounted: what lies in another one comes after it. */
export const guestMountsOf = (plan: Plan): readonly Mount[] =>
  [...plan.mounts].sort((a, b) => a.target.length - b.target.length)

/** What a machine is told besides the plan. */
export type ContainerSettings = {
  readonly user: User
  readonly hostname: string
  readonly memoryMb: number
  /** The places, by number, whose files lie on the drive for large inputs. */
  readonly images: ReadonlySet<number>
}

export function containerSettingFields(plan: Plan, settings: ContainerSettings): readonly string[] {
  const { user, hostname, memoryMb, images } = settings
  const { pids, cpus } = plan.limits
  const most = Math.min(asked(plan, 'memoryMb') ?? Number.POSITIVE_INFINITY, memoryMb - KERNEL_MB)
  const tmp = Math.min(most, plan.limits.diskMb ?? Number.POSITIVE_INFINITY)
  return [
    // Nothing lies on it where nothing is mounted.
    ...(plan.mounts.length > 0 ? ['disk'] : []),
    ...['user', String(user.uid), String(user.gid), 'tmp', `${Math.max(1, Math.floor(tmp))}m`],
    ...[
      'limit',
      'memory.max',
      String(most * MB),
      'limit',
      'pids.max',
      pids === undefined ? 'max' : String(pids),
    ],
    ...['limit', 'cpu.max', cpus === undefined ? 'max 100000' : `${Math.round(cpus * 100_000)} 100000`],
    ...smallFiles(plan, user, hostname).flatMap(({ target, text }) => ['file', target, text]),
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

function smallFiles(
  plan: Plan,
  { uid, gid }: User,
  hostname: string,
): readonly { target: string; text: string }[] {
  const name = plan.own[0] ? 'user' : uid === 0 ? 'root' : 'agent'
  const home = plan.own[0] ?? '/tmp'
  const shell = plan.own[0] ? '/bin/bash' : '/bin/sh'
  return [
    {
      target: '/etc/passwd',
      text: `${name}:x:${uid}:${gid}::${home}:${shell}\nnobody:x:65534:65534::/nonexistent:/bin/false\n`,
    },
    { target: '/etc/group', text: `${name}:x:${gid}:\nnogroup:x:65534:\n` },
    { target: '/etc/hosts', text: `127.0.0.1 localhost sandbox ${hostname}\n::1 localhost\n` },
    { target: '/etc/hostname', text: `${hostname}\n` },
    ...plan.files,
  ]
}

/** What a machine runs once before it is put to sleep: the programs that sandboxes start with are in its memory then. */
export const WARM_UP_COMMANDS: readonly string[] = [
  'true',
  'ls / >/dev/null; cat /etc/hosts >/dev/null; head -c1 /dev/zero >/dev/null; mkdir -p /tmp/w && rm -r /tmp/w',
  'command -v bash >/dev/null && bash -c true',
  'command -v git >/dev/null && git --version >/dev/null',
  'command -v python3 >/dev/null && python3 -c "import json,socket,threading"',
  'command -v node >/dev/null && node -e 0',
]

/** What one in the pool runs: its emulator has read that part of the kernel by then. */
export const POOL_WARM_UP_COMMANDS: readonly string[] = ['true', 'bash -c true']

/** A container with nothing in it, for that. */
export const WARM_UP_MOUNTS: readonly string[] = ['user', '1000', '1000', 'tmp', '64m']
export const WARM_UP_FIELDS: readonly string[] = [
  ...['persistent', 'cwd', '/tmp', 'env', 'PATH=/usr/local/bin:/usr/bin:/bin', 'env', 'HOME=/tmp'],
  ...['writable', '/tmp', 'writable', '/dev', 'rlimit', 'core', '0'],
]
