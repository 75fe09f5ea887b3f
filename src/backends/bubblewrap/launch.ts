import { LAUNCH_VARIABLE } from '../../host/guest/protocol.ts'
import type { Command } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/path.ts'
import { type Mount, type PathFact, type Plan, PROXY_PORT } from '../../model/plan.ts'
import { isOffline, protectionFields, watched, writableTargets } from '../guest-config.ts'

/**
 * A plan in bubblewrap's language: the launch vector that our launcher (guest/agent) reads.
 *
 *   launcher: cgroup D · bind ro|rw SRC DEV INO DST · arg A · file DST TEXT · contents FD · file-from-contents DST BYTES · filter HEX ·
 *             init FIELD
 *   bwrap:    --unshare-… --ro-bind-fd 7 /usr … --bind-fd 9 /home/u/project …
 *   init:     env K=V · argv A · cwd D · report-network G · supervise D · protect-… · writable D · readonly D · mask … · rlimit …
 *
 * The later mount wins, so the order below is the order of the wall: system, private places, grants, masks.
 */

/** What this host's root file system looks like; observed once. */
export type SystemLayout = {
  /** `/bin -> usr/bin` and the like on merged systems. */
  readonly links: readonly { readonly path: string; readonly target: string }[]
  /** Directories with programs and libraries, shown read-only. */
  readonly programs: readonly string[]
  /** Files and directories of /etc that programs need and that hold no secret. */
  readonly etc: readonly string[]
  /** Only sandboxes with a network get them. */
  readonly certificates: readonly string[]
}

export type LaunchContext = {
  /** The agent makes everything ready and waits for the host's word. */
  readonly waitForGo: boolean
  readonly bwrap: string
  readonly layout: SystemLayout
  readonly filter: string
  readonly uid: number
  readonly gid: number
  /** The control channel's descriptor, or -1 when the caller drives the process. */
  readonly control: number
  /** Where the agent hands the proxy's listening socket over, when the sandbox has a proxy. */
  readonly handoverFd?: number | undefined
  /** Where the launcher reads the contents of the plan's files (`launchContents`), when the plan brings any. */
  readonly contents?: number | undefined
  readonly cgroups: readonly string[]
  /** Limits that no control group holds on this host and that the agent must. */
  readonly agentHolds: { readonly memory: boolean; readonly pids: boolean }
}

const arg = (...values: readonly string[]): string[] => values.flatMap((value) => ['arg', value])
const init = (...values: readonly string[]): string[] => values.flatMap((value) => ['init', value])

const NAMESPACES = [
  '--unshare-user',
  '--unshare-pid',
  '--unshare-ipc',
  '--unshare-uts',
  '--unshare-cgroup-try',
]
const SESSION = ['--new-session', '--die-with-parent', '--as-pid-1', '--hostname', 'sandbox']
// The agent needs these to finish the mounts; it drops them all before the command exists.
const AGENT_CAPABILITIES = ['CAP_SYS_ADMIN', 'CAP_SYS_RESOURCE', 'CAP_SETPCAP']
// To map user 0 of one namespace to another user in the next the kernel asks for this one.
const MAPPING_CAPABILITY = 'CAP_SETFCAP'
// To let the sandbox's own loopback carry larger pieces; the network is a namespace of its own wherever there is a proxy.
const LOOPBACK_CAPABILITY = 'CAP_NET_ADMIN'

/** Kernel controls that the same user could write when it is root; the rest of /proc is the sandbox's own. */
const PROC_READONLY = [
  '/proc/sys',
  '/proc/sysrq-trigger',
  '/proc/irq',
  '/proc/bus',
  '/proc/fs',
  '/proc/acpi',
  '/proc/scsi',
]
/** Views of the kernel itself that are in no namespace. */
const PROC_HIDDEN = [
  '/proc/kcore',
  '/proc/keys',
  '/proc/key-users',
  '/proc/kallsyms',
  '/proc/kmsg',
  '/proc/timer_list',
  '/proc/sched_debug',
]
const MB = 1024 * 1024

/** The whole launch vector for one command, or for a sandbox that stays and takes commands over its channel. */
export function launchVector(
  plan: Plan,
  command: Command | 'persistent',
  context: LaunchContext,
): readonly string[] {
  return [
    'bwrap',
    context.bwrap,
    ...(context.control >= 0 ? ['control', String(context.control)] : []),
    ...(context.handoverFd === undefined ? [] : ['handover', String(context.handoverFd)]),
    ...(context.contents === undefined ? [] : ['contents', String(context.contents)]),
    ...context.cgroups.flatMap((dir) => ['cgroup', dir]),
    ...(plan.runAs ? ['user', String(plan.runAs.uid), String(plan.runAs.gid)] : []),
    'filter',
    context.filter,
    ...arg(...NAMESPACES, ...(plan.network.mode === 'full' ? [] : ['--unshare-net'])),
    ...arg(...(context.uid === 0 ? [] : ['--uid', '0', '--gid', '0'])),
    ...arg(
      ...SESSION,
      '--cap-drop',
      'ALL',
      ...capabilities(plan, context).flatMap((name) => ['--cap-add', name]),
    ),
    ...(grantsRoot(plan) ? hostRoot(plan) : privateRoot(plan, context)),
    ...init(...agentFields(plan, command, context)),
  ]
}

// An overlay works with the rights of whoever mounted it: it copies files up with their owners and modes.
const OVERLAY_CAPABILITIES = ['CAP_DAC_OVERRIDE', 'CAP_FOWNER', 'CAP_CHOWN', 'CAP_FSETID', 'CAP_MKNOD']

const capabilities = (plan: Plan, { uid, handoverFd }: LaunchContext): readonly string[] => [
  ...AGENT_CAPABILITIES,
  ...(handoverFd === undefined ? [] : [LOOPBACK_CAPABILITY]),
  ...(uid === 0 ? [] : [MAPPING_CAPABILITY]),
  ...(overlaid(plan).length > 0 ? OVERLAY_CAPABILITIES : []),
]

/** `danger-full-access`: the host's own root, still without its processes, kernel controls and devices. */
function hostRoot(plan: Plan): string[] {
  const root = plan.mounts.filter((mount) => mount.target === '/')
  return [
    ...root.flatMap(bind),
    ...arg('--proc', '/proc', '--dev', '/dev'),
    ...files(plan),
    ...stagedMounts(plan),
  ]
}

function privateRoot(plan: Plan, context: LaunchContext): string[] {
  const { layout } = context
  return [
    ...arg(...layout.programs.flatMap((path) => ['--ro-bind', path, path])),
    ...arg('--perms', '0755', '--dir', '/etc'),
    ...arg(...layout.links.flatMap(({ path, target }) => ['--symlink', target, path])),
    ...arg('--proc', '/proc', '--dev', '/dev'),
    ...arg(
      '--perms',
      '1777',
      ...tmpSize(plan),
      '--tmpfs',
      '/tmp',
      '--perms',
      '0755',
      '--dir',
      '/var',
      ...varTmp(plan),
    ),
    ...etc(plan, context),
    ...files(plan),
    ...outer(plan).flatMap((mount) => (mount.overlay ? [] : bind(mount))),
    ...overlaid(plan).flatMap(stagedOverlay),
    ...stagedMounts(plan),
    ...arg('--remount-ro', '/'),
  ]
}

/**
 * SECURITY: a grant keeps the path that the agent watches it by; over a symlink it would lie somewhere else, unwatched.
 */
const varTmp = (plan: Plan): string[] =>
  grants(plan).some(({ target }) => `${target}/`.startsWith('/var/tmp/'))
    ? ['--dir', '/var/tmp']
    : ['--symlink', '../tmp', '/var/tmp']

const tmpSize = (plan: Plan): string[] =>
  plan.limits.diskMb ? ['--size', String(plan.limits.diskMb * MB)] : []

function etc(plan: Plan, { layout, uid, gid }: LaunchContext): string[] {
  const home = plan.own[0]
  const name = home ? 'user' : uid === 0 ? 'root' : 'agent'
  const offline = plan.network.mode === 'offline' || plan.network.mode === 'loopback'
  const network = [...(offline ? [] : layout.certificates), ...(plan.network.mode === 'full' ? RESOLVER : [])]
  return [
    ...arg(...[...layout.etc, ...network].flatMap((path) => ['--ro-bind-try', path, path])),
    ...file(
      '/etc/passwd',
      `${name}:x:${uid}:${gid}::${home ?? '/tmp'}:${home ? '/bin/bash' : '/bin/sh'}\nnobody:x:65534:65534::/nonexistent:/bin/false\n`,
    ),
    ...file('/etc/group', `${name}:x:${gid}:\nnogroup:x:65534:\n`),
    ...file('/etc/nsswitch.conf', 'passwd: files\ngroup: files\nhosts: files dns\n'),
    ...(plan.network.mode === 'full'
      ? []
      : file('/etc/hosts', '127.0.0.1 localhost sandbox\n::1 localhost\n')),
  ]
}

/**
 * PLATFORM: their contents go over a descriptor. A variable of the environment holds 128 KiB at most, and the system's
 * certificates alone are larger.
 */
const files = (plan: Plan): string[] =>
  plan.files.flatMap(({ target, text }) => [
    ...arg('--perms', '0444'),
    'file-from-contents',
    target,
    String(Buffer.byteLength(text)),
  ])

/** What the launcher reads from the descriptor `contents`: the plan's files, in the order of the vector. */
export const launchContents = (plan: Plan): Uint8Array | undefined =>
  plan.files.length === 0 ? undefined : Buffer.from(plan.files.map(({ text }) => text).join(''))

const RESOLVER = ['/etc/resolv.conf', '/etc/hosts']

const file = (path: string, content: string): string[] => [...arg('--perms', '0444'), 'file', path, content]

const bind = (mount: Mount): string[] => bindTo(mount, mount.target)

const bindTo = ({ mode, real, dev, ino }: Mount, target: string): string[] => [
  'bind',
  mode,
  real,
  dev,
  ino,
  target,
]

/** A mount of the root itself is a whole different sandbox. */
const grantsRoot = (plan: Plan): boolean => plan.mounts.some((mount) => mount.target === '/')

/** Everything of the host that is mounted; a granted root shows its sockets by itself. */
const grants = (plan: Plan): readonly Mount[] =>
  grantsRoot(plan) ? plan.mounts : [...plan.mounts, ...plan.unixSockets]

/**
 * SECURITY: bubblewrap 0.8 follows symlinks when it makes a mount point, so a guest that once wrote to a mount could
 * make it create files on the host. It therefore never gets a target below another grant: those are staged at
 * places of our own and the agent moves them, refusing every symlink on the way.
 */
const isNested = (plan: Plan, mount: Mount): boolean =>
  plan.mounts.some((other) => mount.target !== other.target && isWithin(mount.target, other.target))

const outer = (plan: Plan): readonly Mount[] => grants(plan).filter((mount) => !isNested(plan, mount))

const nested = (plan: Plan): readonly Mount[] =>
  grants(plan)
    .filter((mount) => isNested(plan, mount))
    .sort((a, b) => a.target.length - b.target.length)

const overlaid = (plan: Plan): readonly Mount[] => outer(plan).filter((mount) => mount.overlay)

/** The original and the place for changes are staged; the agent puts them together and takes both away. */
const stagedOverlay = (mount: Mount, index: number): string[] => [
  ...bindTo({ ...mount, mode: 'ro' }, `/.ringfence/original-${index}`),
  ...bindTo({ ...mount, ...(mount.overlay as PathFact), mode: 'rw' }, `/.ringfence/changes-${index}`),
  ...arg('--dir', mount.target),
]

const overlayFields = (mount: Mount, index: number): string[] => [
  'overlay',
  `/.ringfence/original-${index}`,
  `/.ringfence/changes-${index}`,
  mount.target,
]

const stage = (index: number): string => `/.ringfence/${index}`

const stagedMounts = (plan: Plan): string[] =>
  nested(plan).flatMap((mount, index) => bindTo(mount, stage(index)))

function agentFields(plan: Plan, command: Command | 'persistent', context: LaunchContext): string[] {
  return [
    ...(command === 'persistent' ? ['persistent'] : command.argv.flatMap((value) => ['argv', value])),
    ...(context.waitForGo ? ['wait-for-go'] : []),
    ...(plan.tracesAccess ? ['trace'] : []),
    ...(plan.network.mode === 'full' ? ['shared-network'] : []),
    ...(plan.network.mode === 'fetch' ? ['proxy-port', String(PROXY_PORT)] : []),
    ...(context.handoverFd === undefined ? [] : ['handover', String(context.handoverFd)]),
    // Where there is no network, an attempt to reach one is worth a record.
    ...(isOffline(plan) ? ['report-network', `net.${plan.network.mode}`] : []),
    ...['cwd', command === 'persistent' ? plan.cwd : (command.cwd ?? plan.cwd)],
    // PLATFORM: as another user than 0 bubblewrap would leave the agent without the right to mount.
    ...(context.uid === 0 ? [] : ['user', String(context.uid), String(context.gid)]),
    ...overlaid(plan).flatMap(overlayFields),
    ...nested(plan).flatMap((mount, index) => ['nested', stage(index), mount.target, mount.mode]),
    ...plan.masks.flatMap((mask) => ['mask', mask.target, mask.dev, mask.ino]),
    ...PROC_HIDDEN.flatMap((path) => ['hide', path]),
    ...PROC_READONLY.flatMap((path) => ['readonly', path]),
    ...(grantsRoot(plan)
      ? ['whole-file-system']
      : writablePlaces(plan).flatMap((path) => ['writable', path])),
    ...protectionFields(plan),
    ...limitFields(plan, context),
  ]
}

const writablePlaces = (plan: Plan): readonly string[] => [...writableTargets(plan), '/tmp', '/dev']

function limitFields(plan: Plan, { agentHolds, uid }: LaunchContext): string[] {
  const { memoryMb, pids, diskMb } = plan.limits
  return [
    ...['rlimit', 'core', '0'],
    ...(pids !== undefined && agentHolds.pids ? ['processes', String(pids)] : []),
    // The kernel counts for itself, and exactly, but not for user 0.
    ...(pids !== undefined && agentHolds.pids && uid !== 0 ? ['rlimit', 'nproc', String(pids)] : []),
    ...(memoryMb !== undefined && agentHolds.memory
      ? ['rlimit', 'data', String(memoryMb * MB), 'memory', String(memoryMb * MB), 'memory-shared']
      : []),
    ...(diskMb !== undefined ? ['rlimit', 'fsize', String(diskMb * MB), 'disk', String(diskMb * MB)] : []),
    ...(watched(plan) ? ['check-interval', '25'] : []),
  ]
}

/** The vector as environment variables beside the guest's own, which the launcher tells apart by name. */
export function launchEnvironment(
  vector: readonly string[],
  guest: Readonly<Record<string, string>>,
): Record<string, string> {
  // SECURITY: the launcher reads `RINGFENCE_LAUNCH_01` as item 1 too; a guest's variable must never become one.
  const ours = Object.keys(guest).find((name) => name.startsWith(LAUNCH_VARIABLE))
  if (ours) throw new SandboxError('invalid-input', `the variable \`${ours}\` belongs to the launcher`)
  const env: Record<string, string> = { ...guest, [LAUNCH_VARIABLE]: String(vector.length) }
  for (const [index, item] of vector.entries()) env[`${LAUNCH_VARIABLE}_${index}`] = item
  return env
}
