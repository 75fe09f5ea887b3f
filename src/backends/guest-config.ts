import { type Plan, PROXY_PORT, type Protection } from '../model/plan.ts'
import type { Limits } from '../model/spec.ts'

/**
 * A plan in the guest agent's language, as far as it is the same behind every wall. Pure.
 */

export const isOffline = ({ network }: Plan): boolean =>
  network.mode === 'offline' || network.mode === 'loopback'

export const writableTargets = (plan: Plan): readonly string[] =>
  plan.mounts.filter((mount) => mount.mode === 'rw').map((mount) => mount.target)

const NOTHING: Protection = { roots: [], inner: [], names: [], exceptBelow: [], pinned: [] }

/** The agent watches writes for protected names, and also when it has to count what is written. */
export function protectionFields(plan: Plan): string[] {
  const protection = plan.protection ?? NOTHING
  if (!plan.protection && plan.limits.diskMb === undefined) return []
  return [
    ...writableTargets(plan).flatMap((path) => ['supervise', path === '/' ? '' : path]),
    ...plan.own.flatMap((path) => ['private', path]),
    ...lines('protect-root', protection.roots),
    ...lines('protect-inner', protection.inner),
    ...lines('protect-name', protection.names),
    ...lines('protect-except', protection.exceptBelow),
    ...protection.pinned.flatMap((path) => ['protect-path', path]),
  ]
}

/** A table of names as one field: each field of its own would be four variables of the launcher's environment. */
const lines = (field: string, names: readonly string[]): string[] =>
  names.length > 0 ? [field, names.join('\n')] : []

/** Limits that somebody asked for are looked at more often than nets. */
export const watched = (plan: Plan): boolean =>
  (['memoryMb', 'pids', 'diskMb'] as const).some(
    (name: keyof Limits) => plan.limits[name] !== undefined && !plan.nets.includes(name),
  )

const MB = 1024 * 1024
/** The agent, and the keeper of the command that asks. */
export const AGENT_PROCESSES = 2

export type ContainerSide = {
  /** Whether the kernel inside passes calls up to the agent: without that, names cannot be protected there. */
  readonly supervises: boolean
  /** Whether the agent has to count memory and processes, because no control group sees them one by one. */
  readonly counts?: boolean
  /** Whether it takes long to make a process there, so that the agent makes the next one beforehand. */
  readonly prefork?: boolean
}

/** The configuration of an agent in a container, where the engine made the mounts and holds memory and processes. */
export function containerFields(
  plan: Plan,
  { supervises, counts, prefork }: ContainerSide,
): readonly string[] {
  const { diskMb, memoryMb, pids } = plan.limits
  return [
    'persistent',
    ...(prefork ? ['prefork'] : []),
    'cwd',
    plan.cwd,
    ...Object.entries(plan.env).flatMap(([name, value]) => ['env', `${name}=${value}`]),
    ...(plan.network.mode === 'fetch' ? ['proxy-port', String(PROXY_PORT)] : []),
    ...(supervises && isOffline(plan) ? ['report-network', `net.${plan.network.mode}`] : []),
    ...[...writableTargets(plan), '/tmp', '/dev'].flatMap((path) => ['writable', path]),
    ...(supervises ? protectionFields(plan) : []),
    ...['rlimit', 'core', '0'],
    ...(diskMb === undefined ? [] : ['rlimit', 'fsize', String(diskMb * MB)]),
    ...(diskMb === undefined || !supervises ? [] : ['disk', String(diskMb * MB)]),
    ...(counts && memoryMb !== undefined ? ['memory', String(memoryMb * MB)] : []),
    // What is refused at once needs no counting; what slips through between two ticks is found by it.
    ...(counts && pids !== undefined
      ? ['processes', String(pids), 'rlimit', 'nproc', String(pids + AGENT_PROCESSES)]
      : []),
    ...(watched(plan) ? ['check-interval', '25'] : []),
  ]
}

/** What the agent finds at each mount point, so that it can see that it is the thing that policy judged. */
export const expectedMounts = (plan: Plan): readonly string[] => [
  ...[...plan.mounts, ...plan.unixSockets].flatMap(({ target, dev, ino }) => ['is', target, dev, ino]),
  ...plan.masks.flatMap(({ target, dev, ino }) => ['not', target, dev, ino]),
]
