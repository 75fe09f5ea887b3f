/**
 * All guarantees. A backend claims some, a plan needs some; a plan that needs more than the backend claims is rejected.
 * GUARANTEES.md lists each with its attacks; a guarantee without attacks does not compile (test/conformance/proofs.ts).
 */
export const GUARANTEES = {
  'fs.read': 'only granted paths can be read',
  'fs.write': 'only writable mounts can change',
  'fs.protect': 'protected names in the workspace cannot be changed or created',
  'env.clean': 'the environment contains only declared variables',
  'net.offline': 'no address outside the sandbox can be reached',
  'net.loopback': 'a private loopback works; nothing else can be reached',
  'net.fetch': 'only allowlisted hosts can be reached, never private or metadata addresses',
  'proc.hidden': 'no host process can be seen or signalled',
  'ipc.private': 'no host IPC, abstract socket or terminal can be used',
  'proc.between':
    'no isolated command sees, signals, traces, reads or connects to another of the same sandbox',
  'kernel.filtered': 'dangerous system calls are blocked',
  'kernel.separate': 'the sandbox has its own kernel',
  'limit.wall': 'a command and all its processes end at the time limit',
  'limit.idle': 'a command without output for the idle limit is stopped',
  'limit.memory': 'the total memory of all processes stays below the limit',
  'limit.cpu': 'CPU use stays below the limit',
  'limit.pids': 'the number of processes stays below the limit',
  'limit.disk': 'disk use stays below the limit',
  'limit.output': 'a command is stopped when its output reaches the limit',
  'limit.fuel': 'a metered program stops when it runs out of fuel',
  'secrets.outside': 'brokered credentials never enter the sandbox',
  'secrets.between': 'no isolated command uses a secret or a connection that another was given',
  cleanup: 'no process, mount, cgroup or file is left after close',
} as const

/** The name of a guarantee. */
export type Guarantee = keyof typeof GUARANTEES

/** The names of all guarantees. */
export const GUARANTEE_NAMES = Object.keys(GUARANTEES) as readonly Guarantee[]

/** Whether a text names a guarantee. */
export const isGuarantee = (name: string): name is Guarantee => Object.hasOwn(GUARANTEES, name)

/** Isolation levels, weakest first. */
export const LEVELS = ['native', 'os', 'container', 'gvisor', 'microvm'] as const
/** An isolation level. */
export type Level = (typeof LEVELS)[number]

/** Whether a level is at least as strong as another. */
export const atLeast = (level: Level, wanted: Level): boolean =>
  LEVELS.indexOf(level) >= LEVELS.indexOf(wanted)
