import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/path.ts'
import type { Mask, Mount, PathFact } from '../../model/plan.ts'
import type { Limits, NetworkMode, Preset, Spec, Unlisted } from '../../model/spec.ts'
import { hardDenied, hasMountSyntax, refuseTarget } from '../paths/mount.ts'
import { judgePath, NOT_HERE, type PathEvidence } from '../paths/paths.ts'
import type { PinFacts } from '../paths/pins.ts'

/** Which host paths a spec gets, and what of them stays hidden. */

/** What the operator permits of sandboxes themselves: paths, limits, networks (seed 000's engine). */
export type SandboxPolicy = {
  /** `undefined`: no list was set, and whoever starts the sandbox decides. An empty list allows nothing. */
  readonly allowedPrefixes: readonly string[] | undefined
  readonly blocked: readonly string[]
  readonly networkModes: readonly NetworkMode[]
  /** Hosts that sandboxes may ask for in mode `fetch`; empty: any public one. */
  readonly allowHosts: readonly string[]
  readonly max: Readonly<Required<Pick<Limits, 'cpus' | 'memoryMb' | 'diskMb' | 'pids'>>>
  /** Private addresses that may be reached in mode `fetch`, where its hosts name them. */
  readonly allowPrivate: readonly string[]
  /** What happens to connections to other hosts unless a spec says it; `deny` cannot be changed by a spec. */
  readonly unlisted?: Unlisted | undefined
  /** Hosts that a sandbox which asks about unlisted hosts may reach without asking. */
  readonly approvedHosts?: readonly string[]
  /** The hosts of a sandbox that names none, where that is not `allowHosts`. */
  readonly defaultHosts?: readonly string[]
  /** Limits of a sandbox that asks for none. */
  readonly ceilings?: Limits
  /** The backends that may be used; absent: all. */
  readonly backends?: readonly string[]
  /** Images of the container engine that may be run; absent: all. */
  readonly engineImages?: readonly string[]
  /** Whether ports may be opened to anybody who knows their address; absent: they may. */
  readonly publicPorts?: boolean
}

/** Something on the host as it was observed: evidence for judgement, and the fact that a mount carries. */
export type Observed = PathEvidence & {
  readonly fact: PathFact | undefined
  readonly blockedInside: readonly Observed[]
  /** Real directories that a `.git` in it stands for, when it is not one itself. */
  readonly repositories: readonly string[]
}

/** What was observed of the host for this spec; an argument, so that a decision can be replayed. */
export type Facts = {
  readonly uid: number
  readonly home: string
  readonly stateDir: Observed
  readonly hostMemoryMb: number
  /** The directory that commands start in when it lies inside the workspace. */
  readonly cwd: string
  /** Whether `ringfence image build` made an image of this name here. */
  readonly isBuiltImage?: ((name: string) => boolean) | undefined
  /** One for each path that `pathsOf` names. */
  readonly paths: ReadonlyMap<string, Observed>
  /** What a protected name in a writable place leads to. */
  readonly pins?: readonly PinFacts[] | undefined
  /** Directories that were made for this sandbox alone; where each goes in it. */
  readonly own?: readonly { readonly target: string; readonly fact: PathFact }[] | undefined
  /** What stands ready for network mode `fetch`. */
  readonly egress?: EgressFacts | undefined
  /** Empty directories for overlays, as many as there may be writable mounts. */
  readonly overlays?: readonly PathFact[] | undefined
}

/** What the proxy of a sandbox adds to the facts. */
export type EgressFacts = {
  /** What the sandbox sees instead of each secret, by the variable's name. */
  readonly placeholders: Readonly<Record<string, string>>
  /** The system's certificates with the proxy's own; present when the proxy ends TLS. */
  readonly certificates?: string | undefined
  /** Makes Node's own `fetch` use the proxy. */
  readonly nodePreload?: string | undefined
}

type Asked = { readonly path: string; readonly mode: 'ro' | 'rw'; readonly target?: string | undefined }

/** Every mount of the plan, each judged by itself and all of them together. */
export function grantedMounts(
  policy: SandboxPolicy,
  spec: Spec,
  facts: Facts,
  preset: Preset,
): readonly Mount[] {
  if (preset === 'danger-full-access') return [rootMount(policy, spec, facts)]
  const workspaceMode = preset === 'read-only' ? 'ro' : 'rw'
  const asked: Asked[] = [
    ...(spec.workspace === undefined ? [] : [{ path: spec.workspace, mode: workspaceMode } as const]),
    ...(spec.read ?? []).map((path) => ({ path, mode: 'ro' }) as const),
    ...(spec.write ?? []).map((path) => ({ path, mode: 'rw' }) as const),
    ...(spec.mounts ?? []).map(({ source, target, mode }) => ({ path: source, target, mode: mode ?? 'rw' })),
  ]
  const readOnly = asked.find((one) => preset === 'read-only' && one.mode === 'rw')
  if (readOnly) {
    throw new SandboxError(
      'invalid-input',
      `\`${readOnly.path}\` is asked for writing in the read-only preset`,
      {
        hint: 'use the workspace-write preset',
      },
    )
  }
  return distinct(asked.map((one) => mountOf(policy, one, facts)))
}

/** The sandbox's own directories: nothing of the host is in them, so only their places are judged. */
export function ownMounts({ own = [] }: Facts, preset: Preset): readonly Mount[] {
  if (own.length > 0 && preset === 'danger-full-access')
    throw new SandboxError('invalid-input', 'danger-full-access has no private directories')
  return own.map(({ target, fact }) => {
    const refused = refuseTarget(target) ?? refusedTarget(target)
    if (refused)
      throw new SandboxError('invalid-input', `\`${target}\` cannot be a private directory: ${refused}`)
    return { ...fact, target, mode: 'rw' }
  })
}

/** With review every writable mount gets an overlay; what cannot have one is refused. */
export function reviewedMounts(mounts: readonly Mount[], facts: Facts): readonly Mount[] {
  const writable = mounts.filter(({ mode }) => mode === 'rw')
  for (const mount of writable) {
    const outer = writable.some((other) => other !== mount && isWithin(mount.target, other.target))
    if (mount.target === '/' || mount.kind !== 'dir' || outer)
      throw new SandboxError('unsupported', `changes of \`${mount.target}\` cannot be reviewed`, {
        hint: 'review covers writable directories that do not lie in one another',
      })
  }
  return mounts.map((mount) => {
    const overlay = facts.overlays?.[writable.indexOf(mount)]
    if (mount.mode === 'rw' && !overlay)
      throw new SandboxError('internal', 'no place for the changes was made')
    return mount.mode === 'rw' && overlay ? { ...mount, overlay } : mount
  })
}

/** Two grants for one target: asking for the same thing twice is harmless, anything else is a contradiction. */
export function distinct(mounts: readonly Mount[]): readonly Mount[] {
  const byTarget = new Map<string, Mount>()
  for (const mount of mounts) {
    const other = byTarget.get(mount.target)
    if (other && other.real !== mount.real)
      throw new SandboxError('invalid-input', `two mounts have the target \`${mount.target}\``)
    // SECURITY: of two modes for one path the stricter holds.
    byTarget.set(mount.target, other?.mode === 'ro' ? other : mount)
  }
  return [...byTarget.values()]
}

/** The whole host, for those who asked for danger by name and whose operator set no bounds. */
function rootMount(policy: SandboxPolicy, spec: Spec, facts: Facts): Mount {
  const more = spec.read ?? spec.write ?? spec.mounts
  if (more?.length) {
    throw new SandboxError(
      'invalid-input',
      'danger-full-access grants everything; leave the other grants out',
    )
  }
  if (policy.allowedPrefixes && !policy.allowedPrefixes.includes('/')) {
    throw new SandboxError('forbidden-host-path', 'danger-full-access is outside the allowed paths', {
      hint: hintFor(policy),
    })
  }
  return { ...factOf('/', facts), target: '/', mode: 'rw' }
}

function mountOf(policy: SandboxPolicy, asked: Asked, facts: Facts): Mount {
  const observed = facts.paths.get(asked.path)
  assertAbsolute(asked.path)
  refuseAbsent(policy, asked.path, observed)
  const denied = deniedMount(policy, asked, facts) ?? refusedTarget(asked.target)
  if (denied) {
    throw new SandboxError('forbidden-host-path', `\`${asked.path}\` cannot be mounted: ${denied}`, {
      hint: hintFor(policy),
    })
  }
  if (observed?.state === 'exists' && observed.symlinks.some((link) => link.at === observed.normal)) {
    throw refusedLink(policy, asked.path, observed.real)
  }
  const fact = factOf(asked.path, facts)
  return { ...fact, target: asked.target?.replace(/(?<=.)\/+$/, '') ?? fact.real, mode: asked.mode }
}

/** SECURITY: where an operator set bounds, a link reads like everything else outside them. */
function refusedLink(policy: SandboxPolicy, path: string, real: string): SandboxError {
  if (!policy.allowedPrefixes)
    return new SandboxError('forbidden-host-path', `\`${path}\` is a symlink to \`${real}\``, {
      hint: 'mount the real path',
    })
  return new SandboxError('forbidden-host-path', `\`${path}\` cannot be mounted: ${NOT_HERE}`, {
    hint: hintFor(policy),
  })
}

function assertAbsolute(path: string): void {
  if (path.startsWith('/')) return
  throw new SandboxError('path-not-absolute', `\`${path}\` is not an absolute path`, {
    hint: 'name the whole path',
  })
}

function deniedMount(policy: SandboxPolicy, asked: Asked, facts: Facts): string | undefined {
  const prefixes = policy.allowedPrefixes ?? [asked.path]
  const { verdict, reason } = judgePath(
    { allowed: prefixes.map((path) => ({ path, mode: 'rw' })), blocked: policy.blocked, protected: [] },
    {
      path: asked.path,
      op: asked.mode === 'ro' ? 'mount-ro' : 'mount-rw',
      ...(asked.target ? { target: asked.target } : {}),
    },
    {
      path: facts.paths.get(asked.path) as PathEvidence,
      roots: prefixes.map((path) => facts.paths.get(path) as PathEvidence),
    },
  )
  return verdict === 'deny' ? reason : ownPlace(factOf(asked.path, facts).real, facts)
}

/** Never granted, whoever asks: our own records and keys, and a home directory as a whole. */
function ownPlace(real: string, facts: Facts): string | undefined {
  const state = facts.stateDir.fact?.real
  if (state !== undefined && isWithin(real, state)) return 'it holds the records and keys of ringfence'
  if (isWithin(facts.home, real))
    return 'it holds your home directory and its credentials; work in a directory below it'
  return undefined
}

const refusedTarget = (target: string | undefined): string | undefined =>
  target !== undefined && isWithin(target, '/.ringfence') ? 'the sandbox needs that place itself' : undefined

/** SECURITY: where an operator set limits, "missing" and "outside" must read the same; where nobody did, say what is wrong. */
function refuseAbsent(policy: SandboxPolicy, path: string, observed: Observed | undefined): void {
  if (policy.allowedPrefixes || observed?.state === 'exists') return
  const why = observed?.state === 'unreadable' ? 'cannot be read by this user' : 'does not exist'
  throw new SandboxError('invalid-input', `\`${path}\` ${why}`, {
    hint: 'name an existing directory or file',
  })
}

function hintFor(policy: SandboxPolicy): string {
  return policy.allowedPrefixes
    ? `allowed: ${policy.allowedPrefixes.join(', ') || 'nothing'}`
    : 'choose a project directory'
}

/** What was observed of something that exists and can be mounted. */
export function factOf(path: string, facts: Facts): PathFact {
  const fact = facts.paths.get(path)?.fact
  if (!fact)
    throw new SandboxError('forbidden-host-path', `\`${path}\` cannot be used`, {
      hint: 'name an existing directory or file',
    })
  return fact
}

/** Unix sockets by name; never an engine's. */
export const grantedSockets = (spec: Spec, facts: Facts): readonly Mount[] =>
  (spec.unixSockets ?? []).map((path) => socketMount(path, facts))

function socketMount(path: string, facts: Facts): Mount {
  const fact = factOf(path, facts)
  const denied = hardDenied(fact.real) ?? (hasMountSyntax(path) ? 'it holds mount option syntax' : undefined)
  if (denied) throw new SandboxError('forbidden-host-path', `\`${path}\` cannot be granted: ${denied}`)
  if (fact.kind !== 'socket') throw new SandboxError('invalid-input', `\`${path}\` is not a unix socket`)
  return { ...fact, target: fact.real, mode: 'rw' }
}

/** What lies inside a mount and must not be seen: denied paths, our own state, blocked names at its top. */
export function masksFor(spec: Spec, facts: Facts, mounts: readonly Mount[]): readonly Mask[] {
  for (const path of spec.deny ?? []) refuseContradiction(path, facts, mounts)
  const hidden = [
    ...(spec.deny ?? []).map((path) => facts.paths.get(path)),
    facts.stateDir,
    ...[...facts.paths.values()].flatMap((observed) => observed.blockedInside),
  ]
  const masks = new Map<string, Mask>()
  for (const fact of hidden.map((observed) => observed?.fact)) {
    for (const target of fact ? targetsOf(fact, mounts) : [])
      masks.set(target, { ...(fact as PathFact), target })
  }
  // A mount of its own inside a masked place was asked for by name and judged by itself.
  return [...masks.values()].filter((mask) => !mounts.some((mount) => mount.target === mask.target))
}

function targetsOf(fact: PathFact, mounts: readonly Mount[]): readonly string[] {
  return mounts
    .filter((mount) => isWithin(fact.real, mount.real) && fact.real !== mount.real)
    .map(
      (mount) =>
        `${mount.target === '/' ? '' : mount.target}${fact.real.slice(mount.real === '/' ? 0 : mount.real.length)}`,
    )
}

/** SECURITY: a denial that would have no effect is an error, not a comment. */
function refuseContradiction(path: string, facts: Facts, mounts: readonly Mount[]): void {
  assertAbsolute(path)
  const real = facts.paths.get(path)?.fact?.real
  const whole = real === undefined ? undefined : mounts.find((mount) => isWithin(mount.real, real))
  if (!whole) return
  throw new SandboxError('invalid-input', `\`${path}\` is denied, and \`${whole.real}\` in it is granted`, {
    hint: 'leave one of them out',
  })
}
