import type { Guarantee, Level } from './guarantee.ts'
import type { Isolation, Limits, NetworkMode, Preset, Unlisted } from './spec.ts'

/** The proxy's port on the sandbox's loopback in network mode `fetch`. */
export const PROXY_PORT = 3128

/** An absolute host path with every symlink resolved. Only `host/` creates one. */
export type RealPath = string & { readonly [real]: true }
declare const real: unique symbol

/** What was observed of a host path, to detect later that it was replaced. */
export type PathFact = {
  readonly real: RealPath
  readonly kind: 'dir' | 'file' | 'socket'
  readonly dev: string
  readonly ino: string
  readonly uid: number
  readonly gid: number
}

/** A host path mounted in the sandbox. The backend must open the inode that the policy checked. */
export type Mount = PathFact & {
  readonly target: string
  readonly mode: 'ro' | 'rw'
  /** In a writable root: the server's user is `user`, other owners are stored ids (`IdRanges`). */
  readonly stored?: boolean
  /** Writes go to `upper` in this directory, next to an empty `work`; the original is not changed. */
  readonly overlay?: PathFact
}

/** A path inside a mount that is hidden from the sandbox. */
export type Mask = PathFact & { readonly target: string }

/** A read-only file whose content is part of the plan. */
export type PlanFile = { readonly target: string; readonly text: string }

/** Host ids for sandboxes with a root user. */
export type IdRanges = {
  /** On the disks of sandboxes this host id stands for their user 0. No process ever runs as it. */
  readonly stored: number
  /** The first of `count` ranges of 65536 ids; each live sandbox takes one that no other has. */
  readonly first: number
  readonly count: number
  /** The directory whose locked files say which ranges are in use on this host. */
  readonly locks: string
}

/** One overlay of a writable root: read-only directories, the topmost first, that belong to the host's root user. */
export type RootLayer = { readonly target: string; readonly lower: readonly PathFact[] }

/** A private, writable root with a root user: everything that the sandbox writes is on a disk of its own. */
export type WritableRoot = {
  /** Outermost first; the first target is `/`. */
  readonly layers: readonly RootLayer[]
  /** The file with the disk; its size is the limit of what can be written. */
  readonly disk: PathFact
  readonly ids: IdRanges
  /** The unpacked image that it is made of, the topmost layer first; absent: the programs of the host or of the backend. */
  readonly image?: readonly PathFact[] | undefined
}

/** Names that cannot be changed or created inside writable mounts (policy/paths/protect.ts). */
export type Protection = {
  /** Protected at any depth: `.git` itself cannot be created, moved or replaced. */
  readonly roots: readonly string[]
  /** Protected inside a directory of that name, as `name/inner`: `.git/hooks`. */
  readonly inner: readonly string[]
  /** Protected at any depth except inside dependency directories, where packages contain their own. */
  readonly names: readonly string[]
  /** Directories inside which `names` are not protected. */
  readonly exceptBelow: readonly string[]
  /** Full paths of the same files in a repository that `.git` points to. */
  readonly pinned: readonly string[]
}

type PlanFields = {
  readonly backend: string | undefined
  /** The backends that the requester may use; absent: all. */
  readonly allowedBackends: readonly string[] | undefined
  readonly minLevel: Level
  readonly preset: Preset
  readonly image: string | undefined
  /** Whether `image` may be one of the container engine, besides those built by ringfence. */
  readonly engineImages: boolean
  /** Working directory of commands inside the sandbox. */
  readonly cwd: string
  readonly mounts: readonly Mount[]
  /** Private directories of the sandbox; the first is its home. */
  readonly own: readonly string[]
  /** Mount targets of the tenant's volumes, which other sandboxes may have mounted too. */
  readonly volumes: readonly string[]
  /** The root file system is the sandbox's own, with a root user; absent: it is the host's programs, read-only. */
  readonly root: WritableRoot | undefined
  readonly masks: readonly Mask[]
  readonly protection: Protection | undefined
  readonly network: {
    readonly mode: NetworkMode
    readonly allowHosts: readonly string[]
    /** `ask`: a person is asked about other hosts while the connection waits. Absent: they are refused. */
    readonly unlisted?: Unlisted
  }
  /** Private addresses that the proxy may reach if `allowHosts` names them. */
  readonly privateHosts: readonly string[]
  readonly unixSockets: readonly Mount[]
  /** Small files created in the sandbox. */
  readonly files: readonly PlanFile[]
  readonly env: Readonly<Record<string, string>>
  /** Variables of granted secrets; each holds a placeholder. */
  readonly secrets: readonly string[]
  /** Whether commands share everything in the sandbox, or only its mounts. */
  readonly isolation: Isolation
  readonly limits: Limits
  /** Limits that were not requested but protect the host; enforced in the cheapest way. */
  readonly nets: readonly (keyof Limits)[]
  /** Run as this user when the caller is root: the workspace's owner, or nobody if nothing of the host is granted. */
  readonly runAs: { readonly uid: number; readonly gid: number } | undefined
  readonly needs: readonly Guarantee[]
  readonly waived: readonly Guarantee[]
  readonly agentId: string | undefined
  /** Whether file accesses and started programs are recorded. */
  readonly tracesAccess: boolean
}

/** Frozen, fully resolved grants and limits. Only the policy creates plans; backends accept nothing else. */
export type Plan = PlanFields & { readonly [sealed]: true }
declare const sealed: unique symbol

/** Paths whose contents are the sandbox's or its tenant's, and nothing of the host. */
export const ownedTargets = ({ own, volumes }: Pick<Plan, 'own' | 'volumes'>): readonly string[] => [
  ...own,
  ...volumes,
]

const SEALED = new WeakSet<object>()

/** Marks a plan as created by the policy. The architecture test allows only `policy/plan.ts` to import it. */
export function sealPlan(fields: PlanFields): Plan {
  const plan = deepFreeze({ ...fields }) as Plan
  SEALED.add(plan)
  return plan
}

/** Whether an object is a real plan, for callers without type checking. */
export const isPlan = (value: unknown): value is Plan =>
  typeof value === 'object' && value !== null && SEALED.has(value)

function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value)
    for (const inner of Object.values(value)) deepFreeze(inner)
  }
  return value
}
