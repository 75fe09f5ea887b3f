import type { Mount, Plan } from '../../model/plan.ts'
import { AGENT_PROCESSES } from '../guest-config.ts'
import { KERNEL_MB } from '../gvisor/own-kernel.ts'

/** Translates a plan to the body of `POST /containers/create`. Pure. */

export type ContainerContext = {
  /** The id of the image, because a name could be reassigned. */
  readonly image: string
  /** The path of our agent on the host; it is the container's first process. */
  readonly agent: string
  /** Our directory with the plan's files. */
  readonly files: string
  readonly uid: number
  readonly gid: number
  /** The host directory through which a container with a writable root receives it. */
  readonly handover?: { readonly source: string; readonly target: string } | undefined
  readonly runtime: string | undefined
  /** Podman ignores the options of a `/tmp` in Docker's form; Docker has no other form to make it executable. */
  readonly podman: boolean
  /** The profile itself, or for Podman the path of a file with it. */
  readonly seccomp: string
  /** The limit of open files per process: an engine cannot exceed the host's limit. */
  readonly descriptors: number
  /** The same for processes of one user. The sandbox's own limit is enforced elsewhere. */
  readonly processes: number
  readonly labels: Readonly<Record<string, string>>
  /** Whether the agent covers the kernel's files itself, because it mounts a `/proc` for each command. */
  readonly coversProc?: boolean | undefined
}

const MB = 1024 * 1024
/** Where the agent is in the container. */
export const AGENT_TARGET = '/.ringfence/agent'

/** Kernel information that is not namespaced. */
const HIDDEN = [
  'kcore',
  'keys',
  'key-users',
  'kallsyms',
  'kmsg',
  'timer_list',
  'timer_stats',
  'latency_stats',
  'sched_debug',
  'acpi',
  'scsi',
  'asound',
]
const READ_ONLY = ['sys', 'sysrq-trigger', 'irq', 'bus', 'fs']
const PROC_HIDDEN = HIDDEN.map((name) => `/proc/${name}`)
const PROC_READONLY = READ_ONLY.map((name) => `/proc/${name}`)

/** The same for the agent. */
export const coverFields: readonly string[] = [
  ...PROC_HIDDEN.flatMap((path) => ['hide', path]),
  ...PROC_READONLY.flatMap((path) => ['readonly', path]),
]

/** The request that creates the container of a plan. */
export function containerBody(plan: Plan, context: ContainerContext): Record<string, unknown> {
  return {
    Image: context.image,
    Entrypoint: [AGENT_TARGET],
    Cmd: ['container'],
    User: `${context.uid}:${context.gid}`,
    WorkingDir: '/',
    Hostname: 'sandbox',
    Labels: context.labels,
    Tty: false,
    OpenStdin: true,
    // The container ends when its standard input is closed, so it ends when we exit.
    StdinOnce: true,
    // Nothing in it needs a graceful shutdown, so an engine that stops does not have to wait.
    StopSignal: 'SIGKILL',
    AttachStdin: true,
    AttachStdout: true,
    AttachStderr: true,
    NetworkDisabled: true,
    HostConfig: {
      ...isolation(context),
      ...resources(plan, context),
      ...fileSystem(plan, context),
    },
  }
}

/**
 * A writable root is assembled from outside (container-root.ts), so the engine mounts only what the agent needs to take it. Its user
 * namespace does not own the network of the container, where root would otherwise have no ports below 1024.
 */
function fileSystem(plan: Plan, context: ContainerContext): Record<string, unknown> {
  const { agent, handover, podman } = context
  if (handover)
    return {
      UsernsMode: 'host',
      Sysctls: { 'net.ipv4.ip_unprivileged_port_start': '0' },
      Mounts: [bind(agent, AGENT_TARGET, true), bind(handover.source, handover.target, true)],
    }
  return {
    Mounts: [...mounts(plan, context), ...(podman ? [temporaryMount(plan)] : [])],
    ...(podman ? {} : { Tmpfs: temporary(plan) }),
  }
}

function isolation({ runtime, seccomp, coversProc, podman }: ContainerContext): Record<string, unknown> {
  return {
    AutoRemove: true,
    Privileged: false,
    CapDrop: ['ALL'],
    // Podman does not read the two lists of paths below.
    SecurityOpt: [
      'no-new-privileges',
      `seccomp=${seccomp}`,
      ...(coversProc && podman ? ['unmask=/proc/*'] : []),
    ],
    ReadonlyRootfs: true,
    NetworkMode: 'none',
    IpcMode: 'private',
    CgroupnsMode: 'private',
    UTSMode: '',
    PidMode: '',
    Init: false,
    RestartPolicy: { Name: 'no' },
    // The agent's output is our protocol, and must not be logged on the engine's disk.
    LogConfig: { Type: 'none' },
    MaskedPaths: [...(coversProc ? [] : PROC_HIDDEN), '/sys/firmware', '/sys/devices/virtual/powercap'],
    ReadonlyPaths: coversProc ? [] : PROC_READONLY,
    ...(runtime === undefined ? {} : { Runtime: runtime }),
  }
}

function resources(
  { limits }: Plan,
  { descriptors, processes, runtime }: ContainerContext,
): Record<string, unknown> {
  // With its own kernel the agent counts what runs in it; the engine's cgroup contains that kernel too.
  const own = runtime === 'runsc'
  const memory = limits.memoryMb === undefined ? 0 : (limits.memoryMb + (own ? KERNEL_MB : 0)) * MB
  return {
    ...(memory > 0 ? { Memory: memory, MemorySwap: memory } : {}),
    ...(limits.cpus === undefined ? {} : { NanoCpus: Math.round(limits.cpus * 1e9) }),
    ...(limits.pids === undefined || own ? {} : { PidsLimit: limits.pids + AGENT_PROCESSES }),
    ShmSize: shared(limits.memoryMb, limits.diskMb) * MB,
    Ulimits: [
      { Name: 'nofile', Soft: Math.min(1024, descriptors), Hard: descriptors },
      { Name: 'nproc', Soft: processes, Hard: processes },
      { Name: 'core', Soft: 0, Hard: 0 },
    ],
  }
}

/** tmpfs counts as memory; without a memory limit it has a limit of its own. */
const shared = (memoryMb = 1024, diskMb = memoryMb): number => Math.max(1, Math.min(memoryMb, diskMb))

/** The size of `/tmp`. */
export const temporaryBytes = ({ limits }: Plan): number => shared(limits.memoryMb, limits.diskMb) * MB

const temporary = (plan: Plan): Record<string, string> => ({
  '/tmp': `rw,exec,nosuid,nodev,mode=1777,size=${temporaryBytes(plan)}`,
})

const temporaryMount = (plan: Plan): Bind => ({
  Type: 'tmpfs',
  Target: '/tmp',
  TmpfsOptions: { SizeBytes: temporaryBytes(plan), Mode: 0o1777 },
})

type Bind = Record<string, unknown>

/** SECURITY: as fields, not as text, so that a colon or a comma in a path is not a separator. */
const bind = (Source: string, Target: string, ReadOnly: boolean): Bind => ({
  Type: 'bind',
  Source,
  Target,
  ReadOnly,
  // Submounts of a read-only mount would stay writable, so they are left out.
  BindOptions: { Propagation: 'rprivate', ...(ReadOnly ? { NonRecursive: true } : {}) },
})

function mounts(plan: Plan, { agent, files }: ContainerContext): readonly Bind[] {
  return [
    bind(agent, AGENT_TARGET, true),
    ...['passwd', 'group'].map((name) => bind(`${files}/${name}`, `/etc/${name}`, true)),
    ...plan.files.map(({ target }, index) => bind(`${files}/plan-${index}`, target, true)),
    ...[...plan.mounts, ...plan.unixSockets]
      .sort((a, b) => a.target.length - b.target.length)
      .map(({ real, target, mode }: Mount) => bind(real, target, mode === 'ro')),
    ...plan.masks.map(({ target, kind }) =>
      kind === 'dir'
        ? { Type: 'tmpfs', Target: target, ReadOnly: true, TmpfsOptions: { SizeBytes: 4096, Mode: 0 } }
        : bind('/dev/null', target, true),
    ),
  ]
}
