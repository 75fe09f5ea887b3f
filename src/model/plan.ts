import type { Guarantee, Level } from './guarantee.ts'
import type { Limits, NetworkMode, Preset } from './spec.ts'

/** In network mode `fetch` the sandbox's programs find their proxy on this port of its loopback. */
export const PROXY_PORT = 3128

/** An absolute host path with every symlink resolved. Only `host/` makes one. */
export type RealPath = string & { readonly [real]: true }
declare const real: unique symbol

/** What was observed of one host path: enough to notice later that it is no longer the same thing. */
export type PathFact = {
  readonly real: RealPath
  readonly kind: 'dir' | 'file' | 'socket'
  readonly dev: string
  readonly ino: string
  readonly uid: number
  readonly gid: number
}

/** One host path made visible in the sandbox. The backend must open the very inode that was judged. */
export type Mount = PathFact & {
  readonly target: string
  readonly mode: 'ro' | 'rw'
  /** Writes land in this directory's `upper`, beside an empty `work`; the original stays as it is. */
  readonly overlay?: PathFact
}

/** A path inside a mount that the sandbox must not see. */
export type Mask = PathFact & { readonly target: string }

/** A text that the plan itself brings into the sandbox, read-only. */
export type PlanFile = { readonly target: string; readonly text: string }

/** Names that cannot be changed or created below the writable mounts (policy/paths/protect.ts). */
export type Protection = {
  /** Refused at any depth: `.git` itself may not be created, moved or replaced. */
  readonly roots: readonly string[]
  /** Refused inside a directory of that name, as `name/inner`: `.git/hooks`. */
  readonly inner: readonly string[]
  /** Refused at any depth except below dependency directories, where packages bring their own. */
  readonly names: readonly string[]
  /** Below these the `names` do not count. */
  readonly exceptBelow: readonly string[]
  /** Full paths of the same things in a repository that `.git` only points to. */
  readonly pinned: readonly string[]
}

type PlanFields = {
  readonly backend: string | undefined
  /** The backends that whoever asks may use; absent: all. */
  readonly allowedBackends: readonly string[] | undefined
  readonly minLevel: Level
  readonly preset: Preset
  readonly image: string | undefined
  /** Whether `image` may be one of the container engine's own, beside those that we built. */
  readonly engineImages: boolean
  /** Where commands start, as the guest sees it. */
  readonly cwd: string
  readonly mounts: readonly Mount[]
  /** The directories that are the sandbox's own; the first is its home. */
  readonly own: readonly string[]
  readonly masks: readonly Mask[]
  readonly protection: Protection | undefined
  readonly network: { readonly mode: NetworkMode; readonly allowHosts: readonly string[] }
  /** Private addresses that its proxy reaches, where `allowHosts` names them. */
  readonly privateHosts: readonly string[]
  readonly unixSockets: readonly Mount[]
  /** Small files that the sandbox finds ready. */
  readonly files: readonly PlanFile[]
  readonly env: Readonly<Record<string, string>>
  readonly limits: Limits
  /** Those of the limits that nobody asked for: nets that keep the host alive, held as cheaply as can be. */
  readonly nets: readonly (keyof Limits)[]
  /** Run as this user: the workspace's owner when the caller is root and the workspace is not root's. */
  readonly runAs: { readonly uid: number; readonly gid: number } | undefined
  readonly needs: readonly Guarantee[]
  readonly waived: readonly Guarantee[]
  readonly agentId: string | undefined
  /** What commands open and start is noted. */
  readonly tracesAccess: boolean
}

/** Frozen, fully resolved grants and limits. Only policy makes one; backends accept nothing else. */
export type Plan = PlanFields & { readonly [sealed]: true }
declare const sealed: unique symbol

const SEALED = new WeakSet<object>()

/** Policy's seal. The rooms test allows `policy/plan.ts` alone to import it. */
export function sealPlan(fields: PlanFields): Plan {
  const plan = deepFreeze({ ...fields }) as Plan
  SEALED.add(plan)
  return plan
}

/** For callers without types: a look-alike object is not a plan. */
export const isPlan = (value: unknown): value is Plan =>
  typeof value === 'object' && value !== null && SEALED.has(value)

function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value)
    for (const inner of Object.values(value)) deepFreeze(inner)
  }
  return value
}
