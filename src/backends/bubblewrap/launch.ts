import { LAUNCH_VARIABLE, STAGE } from '../../host/guest/protocol.ts'
import type { Command } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/files/path.ts'
import { type Mount, type PathFact, type Plan, PROXY_PORT } from '../../model/plan.ts'
import {
  isOffline,
  protectionFields,
  socketFields,
  socketMemory,
  watched,
  writableTargets,
} from '../guest-config.ts'
import { isIsolated } from '../isolated-command.ts'
import { RUN_BYTES, rootOperations } from '../writable-root.ts'

/**
 * Translates a plan to the launch vector that our launcher (guest/agent) reads.
 *
 *   launcher: cgroup D · bind ro|rw SRC DEV INO DST · arg A · file DST TEXT · contents FD · file-from-contents DST BYTES · filter HEX ·
 *             init FIELD · ids … · lower SRC DEV INO · layer DST · disk IMAGE DEV INO · own DST
 *   bwrap:    --unshare-… --ro-bind-fd 7 /usr … --bind-fd 9 /home/u/project …
 *   init:     env K=V · argv A · cwd D · report-network G · supervise D · protect-… · writable D · readonly D · mask … · rlimit …
 *
 * A later mount covers an earlier one, so the order is: system, private directories, mounts of the plan, masks.
 */

/** The layout of this host's root file system; read once. */
export type SystemLayout = {
  /** `/bin -> usr/bin` and the like on merged systems. */
  readonly links: readonly { readonly path: string; readonly target: string }[]
  /** Directories with programs and libraries, mounted read-only. */
  readonly programs: readonly string[]
  /** Files and directories of /etc that programs need and that contain no secrets. */
  readonly etc: readonly string[]
  /** Only for sandboxes with network access. */
  readonly certificates: readonly string[]
}

/** What a launch needs besides its plan. */
export type LaunchContext = {
  /** The agent prepares everything and waits for a `go` frame. */
  readonly waitForGo: boolean
  readonly bwrap: string
  readonly layout: SystemLayout
  readonly filter: string
  readonly uid: number
  readonly gid: number
  /** The user on the host, if it is not the plan's. */
  readonly hostUser?: Plan['runAs']
  /** The descriptor of the control channel, or -1 if the caller starts the process itself. */
  readonly control: number
  /** The descriptor on which the agent hands over the proxy's listening socket, if the sandbox has a proxy. */
  readonly handoverFd?: number | undefined
  /** The descriptor from which the launcher reads the plan's files (`launchContents`), if the plan has any. */
  readonly contents?: number | undefined
  readonly cgroups: readonly string[]
  /** What a sandbox with a home of its own takes for the id of its boot; it differs after each start. */
  readonly bootId?: string
  /** Limits that the agent must enforce because no cgroup does. */
  readonly agentHolds: { readonly memory: boolean; readonly pids: boolean }
}

const arg = (...values: readonly string[]): string[] => values.flatMap((value) => ['arg', value])
const init = (...values: readonly string[]): string[] => values.flatMap((value) => ['init', value])

const NAMESPACES = ['--unshare-pid', '--unshare-ipc', '--unshare-uts', '--unshare-cgroup-try']
const SESSION = ['--new-session', '--die-with-parent', '--as-pid-1', '--hostname', 'sandbox']
// The agent needs these to finish the mounts; it drops all of them before the command starts.
const AGENT_CAPABILITIES = ['CAP_SYS_ADMIN', 'CAP_SYS_RESOURCE', 'CAP_SETPCAP']
// The kernel requires this one to map user 0 of one namespace to another user in the next.
const MAPPING_CAPABILITY = 'CAP_SETFCAP'
// To raise the MTU of the sandbox's loopback, and to bring up those of isolated commands; then the network is a separate
// namespace.
const LOOPBACK_CAPABILITY = 'CAP_NET_ADMIN'

/** Kernel settings that root could write; the rest of /proc belongs to the sandbox. */
const PROC_READONLY = [
  '/proc/sys',
  '/proc/sysrq-trigger',
  '/proc/irq',
  '/proc/bus',
  '/proc/fs',
  '/proc/acpi',
  '/proc/scsi',
]
/** SECURITY: root may write to files of every process of its own, such as the agent's OOM score. */
const AGENT_PROC = '/proc/1'
/** Kernel information that is not namespaced. */
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

/** The launch vector for one command, or for a persistent sandbox that takes commands on its channel. */
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
    ...userOperation(context.hostUser ?? plan.runAs),
    'filter',
    context.filter,
    ...(plan.root ? rootOperations(plan, plan.root) : []),
    // The launcher is in the user namespace of a writable root already.
    ...arg(...(plan.root ? [] : ['--unshare-user']), ...NAMESPACES),
    ...arg(...(plan.network.mode === 'full' ? [] : ['--unshare-net'])),
    ...arg(...(context.uid === 0 ? [] : ['--uid', '0', '--gid', '0'])),
    ...arg(
      ...SESSION,
      '--cap-drop',
      'ALL',
      ...capabilities(plan, context).flatMap((name) => ['--cap-add', name]),
    ),
    ...rootArguments(plan, context),
    ...init(...agentFields(plan, command, context)),
  ]
}

const userOperation = (user: Plan['runAs']): string[] =>
  user ? ['user', String(user.uid), String(user.gid)] : []

const rootArguments = (plan: Plan, context: LaunchContext): string[] =>
  plan.root ? writableRoot(plan, context) : grantsRoot(plan) ? hostRoot(plan) : privateRoot(plan, context)

/** Kept by the agent, in the sandbox's own user namespace; it gives most of them to the sandbox's root user. */
const ROOT_USER_CAPABILITIES = [
  'CAP_CHOWN',
  'CAP_DAC_OVERRIDE',
  'CAP_FOWNER',
  'CAP_FSETID',
  'CAP_KILL',
  'CAP_SETGID',
  'CAP_SETUID',
  'CAP_NET_BIND_SERVICE',
  'CAP_SYS_PTRACE',
]

// An overlay uses the capabilities of the process that mounted it: it copies files up with their owners and modes.
const OVERLAY_CAPABILITIES = ['CAP_DAC_OVERRIDE', 'CAP_FOWNER', 'CAP_CHOWN', 'CAP_FSETID', 'CAP_MKNOD']

const capabilities = (plan: Plan, { uid, handoverFd }: LaunchContext): readonly string[] => [
  ...AGENT_CAPABILITIES,
  ...(handoverFd === undefined && !isIsolated(plan) ? [] : [LOOPBACK_CAPABILITY]),
  ...(uid === 0 ? [] : [MAPPING_CAPABILITY]),
  ...(plan.root ? ROOT_USER_CAPABILITIES : overlaid(plan).length > 0 ? OVERLAY_CAPABILITIES : []),
]

/** `danger-full-access`: the host's root, but without its processes, kernel settings and devices. */
function hostRoot(plan: Plan): string[] {
  const root = plan.mounts.filter((mount) => mount.target === '/')
  return [
    ...root.flatMap(bind),
    ...arg('--proc', '/proc', '--dev', '/dev'),
    ...files(plan),
    ...stagedMounts(plan),
  ]
}

/** The root that the launcher assembled; its `/etc` and `/var` come from its layers. */
function writableRoot(plan: Plan, { bootId }: LaunchContext): string[] {
  return [
    ...arg('--bind', `${STAGE}/root`, '/'),
    ...arg('--proc', '/proc', '--dev', '/dev'),
    ...arg('--perms', '1777', ...tmpSize(plan), '--tmpfs', '/tmp', '--perms', '0755'),
    ...arg('--size', String(RUN_BYTES), '--tmpfs', '/run'),
    ...arg('--perms', '0755', '--dir', '/run/ringfence', '--perms', '1777', '--dir', '/run/lock'),
    ...(bootId ? boot(bootId) : []),
    ...files(plan),
  ]
}

/** The host's id would not change when a sandbox that was paused without its memory starts again. */
const boot = (id: string): string[] => [
  ...arg('--perms', '0444'),
  'cover',
  '/proc/sys/kernel/random/boot_id',
  `${id}\n`,
]

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

/** SECURITY: the agent supervises a mount by its path; below a symbolic link it would be elsewhere, unsupervised. */
const varTmp = (plan: Plan): string[] =>
  grants(plan).some(({ target }) => `${target}/`.startsWith('/var/tmp/'))
    ? ['--dir', '/var/tmp']
    : ['--symlink', '../tmp', '/var/tmp']

const tmpSize = (plan: Plan): string[] =>
  plan.limits.diskMb ? ['--size', String(plan.limits.diskMb * MB)] : []

function etc(plan: Plan, { layout, uid, gid, bootId }: LaunchContext): string[] {
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
    ...(home && bootId ? boot(bootId) : []),
  ]
}

/**
 * PLATFORM: file contents are passed on a descriptor. An environment variable holds at most 128 KiB, and the system's
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

/** Whether the plan mounts the host's root. */
const grantsRoot = (plan: Plan): boolean => plan.mounts.some((mount) => mount.target === '/')

/** All mounts of the host; a mounted root already includes its sockets. */
const grants = (plan: Plan): readonly Mount[] =>
  grantsRoot(plan) ? plan.mounts : [...plan.mounts, ...plan.unixSockets]

/**
 * SECURITY: bubblewrap 0.8 follows symbolic links when it creates a mount point, so a guest that wrote to a mount before
 * could make it create files on the host. Therefore bubblewrap never gets a target below another mount: those are staged
 * in a directory of ours, and the agent moves them and refuses every symbolic link.
 */
const isNested = (plan: Plan, mount: Mount): boolean =>
  plan.mounts.some((other) => mount.target !== other.target && isWithin(mount.target, other.target))

const outer = (plan: Plan): readonly Mount[] => grants(plan).filter((mount) => !isNested(plan, mount))

/** The launcher mounts everything below a writable root itself. */

const nested = (plan: Plan): readonly Mount[] =>
  (plan.root ? [] : grants(plan))
    .filter((mount) => isNested(plan, mount))
    .sort((a, b) => a.target.length - b.target.length)

const overlaid = (plan: Plan): readonly Mount[] => outer(plan).filter((mount) => mount.overlay)

/** Stages the original and the directory for changes; the agent mounts the overlay and removes both. */
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
    ...(plan.root ? ['root-user'] : []),
    ...(command === 'persistent' ? ['persistent'] : command.argv.flatMap((value) => ['argv', value])),
    ...(command === 'persistent' && isIsolated(plan) ? ['isolate'] : []),
    ...(context.waitForGo ? ['wait-for-go'] : []),
    ...(plan.tracesAccess ? ['trace'] : []),
    ...(plan.network.mode === 'full' ? ['shared-network'] : []),
    ...(plan.network.mode === 'fetch' ? ['proxy-port', String(PROXY_PORT)] : []),
    ...(context.handoverFd === undefined ? [] : ['handover', String(context.handoverFd)]),
    // Without a network, an attempt to reach one is recorded as a violation.
    ...(isOffline(plan) ? ['report-network', `net.${plan.network.mode}`] : []),
    ...['cwd', command === 'persistent' ? plan.cwd : (command.cwd ?? plan.cwd)],
    // PLATFORM: as a user other than 0, bubblewrap would leave the agent without the capability to mount.
    ...(context.uid === 0 ? [] : ['user', String(context.uid), String(context.gid)]),
    ...overlaid(plan).flatMap(overlayFields),
    ...nested(plan).flatMap((mount, index) => ['nested', stage(index), mount.target, mount.mode]),
    ...plan.masks.flatMap((mask) => ['mask', mask.target, mask.dev, mask.ino]),
    ...PROC_HIDDEN.flatMap((path) => ['hide', path]),
    ...[...PROC_READONLY, ...(plan.root ? [AGENT_PROC] : [])].flatMap((path) => ['readonly', path]),
    ...(grantsRoot(plan) ? ['whole-file-system'] : writablePaths(plan).flatMap((path) => ['writable', path])),
    ...protectionFields(plan),
    ...socketFields(plan, systemMounts(plan, context)),
    ...limitFields(plan, context),
  ]
}

/**
 * SECURITY: services keep sockets beside their programs too. The layers of a writable root are an overlay, through which
 * nobody reaches a socket of the host.
 */
const systemMounts = (plan: Plan, { layout }: LaunchContext): readonly string[] =>
  plan.root ? [] : [...layout.programs, ...layout.etc]

const writablePaths = (plan: Plan): readonly string[] => [...writableTargets(plan), '/tmp', '/dev']

function limitFields(plan: Plan, { agentHolds, uid }: LaunchContext): string[] {
  const { memoryMb, pids, diskMb } = plan.limits
  return [
    ...['rlimit', 'core', '0'],
    ...(pids !== undefined && agentHolds.pids ? ['processes', String(pids)] : []),
    // The kernel counts exactly, but not for user 0.
    ...(pids !== undefined && agentHolds.pids && uid !== 0 ? ['rlimit', 'nproc', String(pids)] : []),
    ...(memoryMb !== undefined && agentHolds.memory
      ? ['rlimit', 'data', String(memoryMb * MB), 'memory', String(memoryMb * MB), 'memory-shared']
      : // The kernel slows sockets down at a quarter, which must not end a sandbox.
        socketMemory(plan, 1 / 2)),
    // The size of its own disk limits a sandbox that has one.
    ...(diskMb !== undefined && !plan.root
      ? ['rlimit', 'fsize', String(diskMb * MB), 'disk', String(diskMb * MB)]
      : []),
    ...(watched(plan) ? ['check-interval', '25'] : []),
  ]
}

/** The vector as environment variables beside the guest's own; the launcher recognizes them by name. */
export function launchEnvironment(
  vector: readonly string[],
  guest: Readonly<Record<string, string>>,
): Record<string, string> {
  // SECURITY: the launcher reads `RINGFENCE_LAUNCH_01` as item 1 too; a guest's variable must never become one.
  const ours = Object.keys(guest).find((name) => name.startsWith(LAUNCH_VARIABLE))
  if (ours) throw new SandboxError('invalid-input', `the variable \`${ours}\` is reserved for the launcher`)
  const env: Record<string, string> = { ...guest, [LAUNCH_VARIABLE]: String(vector.length) }
  for (const [index, item] of vector.entries()) env[`${LAUNCH_VARIABLE}_${index}`] = item
  return env
}
