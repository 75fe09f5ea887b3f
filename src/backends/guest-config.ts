import { ownedTargets, type Plan, PROXY_PORT, type Protection } from '../model/plan.ts'
import type { Limits } from '../model/spec.ts'
import { isIsolated, sharedEnvironment } from './isolated-command.ts'

/** Translates the parts of a plan that are the same for every backend to the guest agent's configuration. Pure. */

export const isOffline = ({ network }: Plan): boolean =>
  network.mode === 'offline' || network.mode === 'loopback'

/** The guest paths that may be written. */
export const writableTargets = (plan: Plan): readonly string[] =>
  plan.mounts.filter((mount) => mount.mode === 'rw').map((mount) => mount.target)

const NOTHING: Protection = { roots: [], inner: [], names: [], exceptBelow: [], pinned: [] }

/** The agent supervises writes to protect names, and also if it has to count written bytes. */
export function protectionFields(plan: Plan): string[] {
  const protection = plan.protection ?? NOTHING
  if (!plan.protection && (plan.limits.diskMb === undefined || plan.root)) return []
  return [
    ...writableTargets(plan).flatMap((path) => ['supervise', path === '/' ? '' : path]),
    ...ownedTargets(plan).flatMap((path) => ['private', path]),
    ...lines('protect-root', protection.roots),
    ...lines('protect-inner', protection.inner),
    ...lines('protect-name', protection.names),
    ...lines('protect-except', protection.exceptBelow),
    ...protection.pinned.flatMap((path) => ['protect-path', path]),
  ]
}

/**
 * Programs of the host may listen on Unix sockets in mounted directories: the agent refuses connections to them, except to
 * the sockets that the plan grants. A plan that mounts the whole root of the host grants its sockets too. `system`: what a
 * backend mounts of the host besides the plan.
 */
export function socketFields(plan: Plan, system: readonly string[] = []): string[] {
  const own = ownedTargets(plan)
  const shared = plan.mounts.filter(({ target, stored }) => !stored && !own.includes(target))
  if (shared.some(({ target }) => target === '/')) return []
  return [
    ...[...system, ...shared.map(({ target }) => target)].flatMap((target) => ['host-mount', target]),
    ...plan.unixSockets.flatMap(({ target }) => ['host-socket', target]),
  ]
}

/** A table of names as one field: separate fields would take four environment variables of the launcher each. */
const lines = (field: string, names: readonly string[]): string[] =>
  names.length > 0 ? [field, names.join('\n')] : []

/** Requested limits are checked more often than default limits. */
export const watched = (plan: Plan): boolean =>
  (['memoryMb', 'pids', 'diskMb'] as const).some(
    (name: keyof Limits) => plan.limits[name] !== undefined && !plan.nets.includes(name),
  )

const MB = 1024 * 1024
/** The agent, and the reaper of the running command. */
export const AGENT_PROCESSES = 2

/**
 * PLATFORM: no cgroup counts all buffers of sockets: version 1 has a separate limit, which no container engine sets any more, and
 * neither version counts connections that nobody accepts, or netlink. So the agent counts them, with those of the host's proxy, and
 * they are on top of the memory. In a network namespace of the host, the sockets of the host would count too.
 */
export const socketMemory = (plan: Plan, share: number): readonly string[] => {
  const { memoryMb } = plan.limits
  if (memoryMb === undefined || plan.network.mode === 'full') return []
  return ['socket-memory', String(Math.floor(Math.max(64, memoryMb * share) * MB))]
}

/** What differs between containers, gVisor and machines. */
export type ContainerSide = {
  /** Whether the kernel inside supports seccomp notifications: without them names cannot be protected. */
  readonly supervises: boolean
  /** Whether mounts are the host's own files, on which programs of the host may listen. */
  readonly sharesFiles?: boolean
  /** Whether the agent must count memory and processes, because no cgroup sees them individually. */
  readonly counts?: boolean
  /** Whether the agent must count the buffers of sockets, because nothing else counts all of them. */
  readonly countsSockets?: boolean
  /** Whether all files are copies, so that a socket in them is nobody's concern. */
  readonly copies?: boolean
  /** Whether creating a process is slow, so that the agent creates the next one in advance. */
  readonly prefork?: boolean
  /** Whether the agent can give each command namespaces of its own. */
  readonly isolates?: boolean
}

/** The agent's configuration in a container, whose engine creates the mounts and limits memory and processes. */
export function containerFields(
  plan: Plan,
  { supervises, sharesFiles, counts, countsSockets, copies, prefork, isolates }: ContainerSide,
): readonly string[] {
  const { diskMb, memoryMb, pids } = plan.limits
  return [
    'persistent',
    ...(plan.root ? ['root-user'] : []),
    ...(isolates && isIsolated(plan) ? ['isolate'] : []),
    ...(prefork ? ['prefork'] : []),
    ...(copies ? ['free-bind'] : []),
    'cwd',
    plan.cwd,
    ...Object.entries(sharedEnvironment(plan)).flatMap(([name, value]) => ['env', `${name}=${value}`]),
    ...(plan.network.mode === 'fetch' ? ['proxy-port', String(PROXY_PORT)] : []),
    ...(supervises && isOffline(plan) ? ['report-network', `net.${plan.network.mode}`] : []),
    ...[...writableTargets(plan), '/tmp', '/dev'].flatMap((path) => ['writable', path]),
    ...(supervises ? protectionFields(plan) : []),
    ...(supervises && sharesFiles ? socketFields(plan) : []),
    ...['rlimit', 'core', '0'],
    // The size of its own disk limits a sandbox that has one.
    ...(diskMb === undefined || plan.root ? [] : ['rlimit', 'fsize', String(diskMb * MB)]),
    ...(diskMb === undefined || plan.root || !supervises ? [] : ['disk', String(diskMb * MB)]),
    ...(counts && memoryMb !== undefined ? ['memory', String(memoryMb * MB)] : []),
    ...(countsSockets ? socketMemory(plan, 1 / 4) : []),
    // The rlimit rejects most forks at once; counting finds what slips through between two checks.
    ...(counts && pids !== undefined
      ? ['processes', String(pids), 'rlimit', 'nproc', String(pids + AGENT_PROCESSES)]
      : []),
    ...(watched(plan) ? ['check-interval', '25'] : []),
  ]
}

/** The device and inode of each mount, so that the agent can verify that it is what the policy checked. */
export const expectedMounts = (plan: Plan): readonly string[] => [
  ...[...plan.mounts, ...plan.unixSockets].flatMap(({ target, dev, ino }) => ['is', target, dev, ino]),
  ...plan.masks.flatMap(({ target, dev, ino }) => ['not', target, dev, ino]),
]
