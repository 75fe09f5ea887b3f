import type { Mount, Plan } from '../../model/plan.ts'
import { AGENT_PROCESSES } from '../guest-config.ts'
import { KERNEL_MB } from '../gvisor/own-kernel.ts'

/** A plan in the engine's language: the body of `POST /containers/create`. Pure. */

export type ContainerContext = {
  /** The image by its id, so that no name can be moved under us. */
  readonly image: string
  /** Our agent on the host; the container's first process. */
  readonly agent: string
  /** A directory of ours with the files that the plan brings. */
  readonly files: string
  readonly uid: number
  readonly gid: number
  readonly runtime: string | undefined
  /** Podman drops the options of a `/tmp` that is asked for in Docker's way; Docker has no other to make one executable. */
  readonly podman: boolean
  /** The profile itself, or for Podman the path of a file with it. */
  readonly seccomp: string
  /** Open files a process may have at most: an engine cannot give more than the host lets it. */
  readonly descriptors: number
  /** Likewise for the processes of one user. What the sandbox may have is another matter, and held elsewhere. */
  readonly processes: number
  readonly labels: Readonly<Record<string, string>>
}

const MB = 1024 * 1024
const AGENT_TARGET = '/.ringfence/agent'

/** What the kernel shows of itself that is in no namespace. */
const HIDDEN = [
  'kcore',
  'keys',
  'key-users',
  'kallsyms',
  'kmsg',
  'timer_list',
  'sched_debug',
  'acpi',
  'scsi',
  'asound',
]
const READ_ONLY = ['sys', 'sysrq-trigger', 'irq', 'bus', 'fs']

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
    // Our end of the input is the container's life: when we are gone, so is it.
    StdinOnce: true,
    // Nothing in it has to say goodbye, so an engine that goes down need not wait for it.
    StopSignal: 'SIGKILL',
    AttachStdin: true,
    AttachStdout: true,
    AttachStderr: true,
    NetworkDisabled: true,
    HostConfig: {
      ...isolation(context),
      ...resources(plan, context),
      Mounts: [...mounts(plan, context), ...(context.podman ? [temporaryMount(plan)] : [])],
      ...(context.podman ? {} : { Tmpfs: temporary(plan) }),
    },
  }
}

function isolation({ runtime, seccomp }: ContainerContext): Record<string, unknown> {
  return {
    AutoRemove: true,
    Privileged: false,
    CapDrop: ['ALL'],
    SecurityOpt: ['no-new-privileges', `seccomp=${seccomp}`],
    ReadonlyRootfs: true,
    NetworkMode: 'none',
    IpcMode: 'private',
    CgroupnsMode: 'private',
    UTSMode: '',
    PidMode: '',
    Init: false,
    RestartPolicy: { Name: 'no' },
    // What the agent says is for us alone, and not for a log on the engine's disk.
    LogConfig: { Type: 'none' },
    MaskedPaths: HIDDEN.map((name) => `/proc/${name}`).concat(
      '/sys/firmware',
      '/sys/devices/virtual/powercap',
    ),
    ReadonlyPaths: READ_ONLY.map((name) => `/proc/${name}`),
    ...(runtime === undefined ? {} : { Runtime: runtime }),
  }
}

function resources(
  { limits }: Plan,
  { descriptors, processes, runtime }: ContainerContext,
): Record<string, unknown> {
  // With a kernel of its own the agent counts what runs in it; the engine's group holds that kernel too.
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

/** Memory file systems count as memory; where that has no ceiling they have one of their own. */
const shared = (memoryMb = 1024, diskMb = memoryMb): number => Math.max(1, Math.min(memoryMb, diskMb))

const temporary = ({ limits }: Plan): Record<string, string> => ({
  '/tmp': `rw,exec,nosuid,nodev,mode=1777,size=${shared(limits.memoryMb, limits.diskMb) * MB}`,
})

const temporaryMount = ({ limits }: Plan): Bind => ({
  Type: 'tmpfs',
  Target: '/tmp',
  TmpfsOptions: { SizeBytes: shared(limits.memoryMb, limits.diskMb) * MB, Mode: 0o1777 },
})

type Bind = Record<string, unknown>

/** SECURITY: as fields and not as text, so that a colon or a comma in a path is a colon or a comma. */
const bind = (Source: string, Target: string, ReadOnly: boolean): Bind => ({
  Type: 'bind',
  Source,
  Target,
  ReadOnly,
  // What is mounted below a read-only grant would not be read-only by itself; so it is not there at all.
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
