/**
 * The closed list of promises. A backend claims some, a plan needs some; a gap is refused.
 * Each sentence stands in GUARANTEES.md beside its proof; a guarantee without a proof does not compile
 * (test/conformance/proofs.ts).
 */
export const GUARANTEES = {
  'fs.read': 'only granted paths can be read',
  'fs.write': 'only writable mounts can change',
  'fs.protect': 'protected names in the workspace cannot be changed or created',
  'env.clean': 'nothing but declared variables is in the environment',
  'net.offline': 'no address outside the sandbox can be reached',
  'net.loopback': 'a private loopback works; nothing else can be reached',
  'net.fetch': 'only allowlisted hosts can be reached, never private or metadata addresses',
  'proc.hidden': 'no host process can be seen or signalled',
  'ipc.private': 'no host IPC, abstract socket or terminal can be used',
  'kernel.filtered': 'dangerous system calls are refused',
  'kernel.separate': 'the sandbox has a kernel of its own',
  'limit.wall': 'a run ends at its wall-clock limit, with all its processes',
  'limit.idle': 'a run that says nothing for its idle limit is ended',
  'limit.memory': 'the memory of all processes together stays below the limit',
  'limit.cpu': 'processor time per second stays below the limit',
  'limit.pids': 'the number of processes stays below the limit',
  'limit.disk': 'what is written to disk stays below the limit',
  'limit.output': 'output stops at its limit while it is read',
  'limit.fuel': 'a metered program stops when its fuel is used up',
  'secrets.outside': 'brokered credentials never enter the sandbox',
  cleanup: 'nothing is left after close',
} as const

/** The name of a guarantee. */
export type Guarantee = keyof typeof GUARANTEES

/** Every guarantee, in the order in which they are shown. */
export const GUARANTEE_NAMES = Object.keys(GUARANTEES) as readonly Guarantee[]

/** Whether a name is a guarantee. */
export const isGuarantee = (name: string): name is Guarantee => Object.hasOwn(GUARANTEES, name)

/** How strong a wall is, weakest first. */
export const LEVELS = ['native', 'os', 'container', 'gvisor', 'microvm'] as const
/** An isolation level. */
export type Level = (typeof LEVELS)[number]

/** Whether a level isolates at least as strongly as another. */
export const atLeast = (level: Level, wanted: Level): boolean =>
  LEVELS.indexOf(level) >= LEVELS.indexOf(wanted)
