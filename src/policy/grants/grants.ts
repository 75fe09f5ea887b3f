import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/files/path.ts'
import type { Mask, Mount, PathFact, WritableRoot } from '../../model/plan.ts'
import type { Limits, NetworkMode, Preset, Spec, Unlisted } from '../../model/spec.ts'
import { hardDenied, hasMountSyntax, refuseTarget } from '../paths/mount.ts'
import { judgePath, NOT_HERE, type PathEvidence } from '../paths/paths.ts'
import type { PinFacts } from '../paths/pins.ts'

/** The host paths that a spec gets, and what is hidden in them. */

/** The operator's limits for sandboxes: paths, resources, networks. */
export type SandboxPolicy = {
  /** `undefined`: no list is set, and the caller decides. An empty list allows nothing. */
  readonly allowedPrefixes: readonly string[] | undefined
  readonly blocked: readonly string[]
  readonly networkModes: readonly NetworkMode[]
  /** Whether every command must be isolated from the others of its sandbox; default: no. */
  readonly isolateCommands?: boolean
  /** Hosts that sandboxes may request in mode `fetch`; empty: any public host. */
  readonly allowHosts: readonly string[]
  readonly max: Readonly<Required<Pick<Limits, 'cpus' | 'memoryMb' | 'diskMb' | 'pids'>>>
  /** Private addresses that may be reached in mode `fetch` if the sandbox's hosts name them. */
  readonly allowPrivate: readonly string[]
  /** How connections to other hosts are handled unless a spec says so; a spec cannot override `deny`. */
  readonly unlisted?: Unlisted | undefined
  /** Hosts that a sandbox with `unlisted = ask` may reach without asking. */
  readonly approvedHosts?: readonly string[]
  /** The hosts of a sandbox that names none, if they differ from `allowHosts`. */
  readonly defaultHosts?: readonly string[]
  /** Limits of a sandbox that requests none. */
  readonly ceilings?: Limits
  /** The backends that may be used; absent: all. */
  readonly backends?: readonly string[]
  /** Images of the container engine that may be run; absent: all. */
  readonly engineImages?: readonly string[]
  /** Whether ports may be opened to anyone who knows their URL; default: yes. */
  readonly publicPorts?: boolean
}

/** An observed host path: evidence for the decision, and the fact that a mount carries. */
export type Observed = PathEvidence & {
  readonly fact: PathFact | undefined
  readonly blockedInside: readonly Observed[]
  /** Real directories that a `.git` file or link in it refers to. */
  readonly repositories: readonly string[]
}

/** Observations of the host for this spec; passed as an argument, so that a decision can be replayed. */
export type Facts = {
  readonly uid: number
  readonly home: string
  readonly stateDir: Observed
  readonly hostMemoryMb: number
  /** The directory in which commands start if it is inside the workspace. */
  readonly cwd: string
  /** Whether `ringfence image build` built an image of this name here. */
  readonly isBuiltImage?: ((name: string) => boolean) | undefined
  /** One entry per path returned by `pathsOf`. */
  readonly paths: ReadonlyMap<string, Observed>
  /** The targets of protected names in writable directories. */
  readonly pins?: readonly PinFacts[] | undefined
  /** Private directories of this sandbox, with their mount targets. */
  readonly own?: readonly { readonly target: string; readonly fact: PathFact }[] | undefined
  /** Volumes that the spec names, with their mount targets. */
  readonly volumes?:
    | readonly { readonly target: string; readonly fact: PathFact; readonly mode: 'ro' | 'rw' }[]
    | undefined
  /** The root file system that was prepared for this sandbox. */
  readonly root?: WritableRoot | undefined
  /** Facts for network mode `fetch`. */
  readonly egress?: EgressFacts | undefined
  /** Empty directories for overlays, one per possible writable mount. */
  readonly overlays?: readonly PathFact[] | undefined
}

/** Facts that the sandbox's proxy adds. */
export type EgressFacts = {
  /** The placeholder for each secret, by the variable's name. */
  readonly placeholders: Readonly<Record<string, string>>
  /** The system's certificates plus the proxy's; present if the proxy terminates TLS. */
  readonly certificates?: string | undefined
  /** Makes Node's own `fetch` use the proxy. */
  readonly nodePreload?: string | undefined
}

type Asked = { readonly path: string; readonly mode: 'ro' | 'rw'; readonly target?: string | undefined }

/** All mounts of the plan, checked individually and for conflicts. */
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

/** The sandbox's private directories: they contain nothing of the host, so only their targets are checked. */
export function ownMounts({ own = [] }: Facts, preset: Preset): readonly Mount[] {
  if (own.length > 0 && preset === 'danger-full-access')
    throw new SandboxError('invalid-input', 'danger-full-access has no private directories')
  return own.map(({ target, fact }) => {
    assertPrivateTarget(target)
    return { ...fact, target, mode: 'rw' }
  })
}

/** Volumes: directories of the server that hold only what sandboxes of the tenant wrote, so only their targets are checked. */
export function volumeMounts({ volumes = [] }: Facts, preset: Preset): readonly Mount[] {
  if (volumes.length > 0 && preset === 'danger-full-access')
    throw new SandboxError('invalid-input', 'danger-full-access has no volumes')
  return volumes.map(({ target: asked, fact, mode }) => {
    const target = asked.replace(/(?<=.)\/+$/, '')
    const refused = refuseTarget(target) ?? refusedTarget(target)
    if (refused)
      throw new SandboxError('invalid-input', `a volume cannot be mounted at \`${target}\`: ${refused}`)
    if (preset === 'read-only' && mode === 'rw')
      throw new SandboxError('invalid-input', `\`${target}\` is asked for writing in the read-only preset`)
    return { ...fact, target, mode, stored: true }
  })
}

function assertPrivateTarget(target: string): void {
  const refused = refuseTarget(target) ?? refusedTarget(target)
  if (refused)
    throw new SandboxError('invalid-input', `\`${target}\` cannot be a private directory: ${refused}`)
}

/**
 * The sandbox's own root, if the spec asks for one. SECURITY: a writable mount of the host would have to be written as a
 * user of the host, so the two are refused together.
 */
export function grantedRoot(spec: Spec, facts: Facts, mounts: readonly Mount[]): WritableRoot | undefined {
  if (spec.root !== 'writable') return undefined
  for (const target of spec.private ?? []) assertPrivateTarget(target)
  const mounted = mounts.find(({ mode, stored }) => mode === 'rw' && !stored)
  const preset = spec.preset === 'read-only' ? 'the preset `read-only`' : spec.review ? 'review' : undefined
  const network = spec.network?.mode === 'full' ? 'the network mode `full`' : undefined
  const image = spec.image === undefined ? undefined : 'an image of a container engine'
  const other = mounted ? `the writable mount \`${mounted.target}\`` : (preset ?? network ?? image)
  if (other !== undefined)
    throw new SandboxError('unsupported', `a writable root and ${other} are not supported together`, {
      hint: 'leave one of them out',
    })
  if (!facts.root)
    throw new SandboxError('unsupported', 'a writable root exists only on a server', {
      hint: 'leave out `root`',
    })
  return facts.root
}

/** With review, every writable mount gets an overlay; a mount that cannot have one is refused. */
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
      throw new SandboxError('internal', 'no directory for the changes was created')
    return mount.mode === 'rw' && overlay ? { ...mount, overlay } : mount
  })
}

/** Merges mounts with the same target: identical requests are merged, different sources are an error. */
export function distinct(mounts: readonly Mount[]): readonly Mount[] {
  const byTarget = new Map<string, Mount>()
  for (const mount of mounts) {
    const other = byTarget.get(mount.target)
    if (other && other.real !== mount.real)
      throw new SandboxError('invalid-input', `two mounts have the target \`${mount.target}\``)
    // SECURITY: of two modes for one path, the stricter applies.
    byTarget.set(mount.target, other?.mode === 'ro' ? other : mount)
  }
  return [...byTarget.values()]
}

/** The whole host, for callers who explicitly request danger-full-access when no allowed paths are configured. */
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

/** SECURITY: if allowed paths are configured, a symlink gets the same error as any path outside of them. */
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
  return verdict === 'deny' ? reason : neverGranted(factOf(asked.path, facts).real, facts)
}

/** Never granted to anyone: Ringfence's records and keys, and a whole home directory. */
function neverGranted(real: string, facts: Facts): string | undefined {
  const state = facts.stateDir.fact?.real
  if (state !== undefined && isWithin(real, state)) return 'it holds the records and keys of ringfence'
  if (isWithin(facts.home, real))
    return 'it holds your home directory and its credentials; work in a directory below it'
  return undefined
}

const refusedTarget = (target: string | undefined): string | undefined =>
  target !== undefined && isWithin(target, '/.ringfence') ? 'the sandbox itself uses that path' : undefined

/** SECURITY: if allowed paths are configured, "missing" and "outside" get the same error; otherwise be specific. */
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

/** The facts about a path that exists and can be mounted. */
export function factOf(path: string, facts: Facts): PathFact {
  const fact = facts.paths.get(path)?.fact
  if (!fact)
    throw new SandboxError('forbidden-host-path', `\`${path}\` cannot be used`, {
      hint: 'name an existing directory or file',
    })
  return fact
}

/** Unix sockets by name; never the socket of a container engine or of our broker. */
export const grantedSockets = (spec: Spec, facts: Facts): readonly Mount[] =>
  (spec.unixSockets ?? []).map((path) => socketMount(path, facts))

function socketMount(path: string, facts: Facts): Mount {
  const fact = factOf(path, facts)
  const denied =
    hardDenied(fact.real) ??
    neverGranted(fact.real, facts) ??
    (hasMountSyntax(path) ? 'it holds mount option syntax' : undefined)
  if (denied) throw new SandboxError('forbidden-host-path', `\`${path}\` cannot be granted: ${denied}`)
  if (fact.kind !== 'socket') throw new SandboxError('invalid-input', `\`${path}\` is not a unix socket`)
  return { ...fact, target: fact.real, mode: 'rw' }
}

/** Paths inside a mount that are hidden: denied paths, Ringfence's state, blocked names in its top directory. */
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
  // A mount inside a masked directory was requested by name and checked separately.
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

/** SECURITY: a `deny` entry that would have no effect is an error and is not ignored. */
function refuseContradiction(path: string, facts: Facts, mounts: readonly Mount[]): void {
  assertAbsolute(path)
  const real = facts.paths.get(path)?.fact?.real
  const whole = real === undefined ? undefined : mounts.find((mount) => isWithin(mount.real, real))
  if (!whole) return
  throw new SandboxError('invalid-input', `\`${path}\` is denied, and \`${whole.real}\` in it is granted`, {
    hint: 'leave one of them out',
  })
}
