import type { Config } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import type { Guarantee } from '../model/guarantee.ts'
import { type Mask, type Mount, type PathFact, type Plan, sealPlan } from '../model/plan.ts'
import type { Limits, NetworkMode, Preset, Spec } from '../model/spec.ts'
import { judgePath, type PathEvidence } from './paths.ts'
import { hardDenied, hasMountSyntax, isWithin } from './paths-mount.ts'
import { PROTECTION } from './protect.ts'

/** What the operator permits of sandboxes themselves: paths, limits, networks (seed 000's engine). */
export type SandboxPolicy = {
  /** `undefined`: no list was set, and whoever starts the sandbox decides. An empty list allows nothing. */
  readonly allowedPrefixes: readonly string[] | undefined
  readonly blocked: readonly string[]
  readonly networkModes: readonly NetworkMode[]
  readonly max: Readonly<Required<Pick<Limits, 'cpus' | 'memoryMb' | 'diskMb' | 'pids'>>>
}

const BLOCKED = ['.ssh', '.aws', '.gnupg', 'secrets', 'credentials']

export function sandboxPolicyOf(config: Config, home: string): SandboxPolicy {
  const { policy = {} } = config
  const expand = (path: string): string =>
    path === '~' || path.startsWith('~/') ? home + path.slice(1) : path
  return {
    allowedPrefixes: policy.allowed_host_prefixes?.map(expand),
    blocked: policy.blocked_host_patterns ?? BLOCKED,
    networkModes: policy.allowed_network_modes ?? ['offline', 'loopback', 'fetch', 'full'],
    max: {
      cpus: policy.max_cpus ?? 4096,
      memoryMb: policy.max_memory_mb ?? 2 ** 30,
      diskMb: policy.max_disk_mb ?? 2 ** 30,
      pids: policy.max_pids ?? 2 ** 22,
    },
  }
}

/** Something on the host as it was observed: evidence for judgement, and the fact that a mount carries. */
export type Observed = PathEvidence & {
  readonly fact: PathFact | undefined
  readonly blockedInside: readonly Observed[]
}

/** What was observed of the host for this spec; an argument, so that a decision can be replayed. */
export type Facts = {
  readonly uid: number
  readonly home: string
  readonly stateDir: Observed
  readonly hostMemoryMb: number
  /** The directory that commands start in when it lies inside the workspace. */
  readonly cwd: string
  /** One for each path that `pathsOf` names. */
  readonly paths: ReadonlyMap<string, Observed>
}

/** Every host path that a spec names and a decision therefore needs facts of. */
export function pathsOf(policy: SandboxPolicy, spec: Spec): readonly string[] {
  return [
    ...new Set([
      ...(spec.workspace === undefined ? [] : [spec.workspace]),
      ...(spec.read ?? []),
      ...(spec.write ?? []),
      ...(spec.deny ?? []),
      ...(spec.unixSockets ?? []),
      ...(spec.mounts ?? []).map((mount) => mount.source),
      ...(policy.allowedPrefixes ?? []),
      ...(spec.preset === 'danger-full-access' ? ['/'] : []),
    ]),
  ]
}

type Asked = { readonly path: string; readonly mode: 'ro' | 'rw'; readonly target?: string | undefined }

/**
 * Judges a whole spec and makes the one thing that backends accept, or says why not.
 * INVARIANT: the only caller of `sealPlan`.
 */
export function planFor(policy: SandboxPolicy, spec: Spec, facts: Facts): Plan | SandboxError {
  try {
    return judge(policy, spec, facts)
  } catch (error) {
    if (error instanceof SandboxError) return error
    throw error
  }
}

function judge(policy: SandboxPolicy, spec: Spec, facts: Facts): Plan {
  const preset = spec.preset ?? 'workspace-write'
  const mounts = [...grantedMounts(policy, spec, facts, preset)]
  const sockets = (spec.unixSockets ?? []).map((path) => socketMount(path, facts))
  const mode = networkMode(policy, spec)
  const limits = limitsFor(policy, spec, facts)
  const writes = mounts.some((mount) => mount.mode === 'rw')
  const workspace = spec.workspace === undefined ? undefined : factOf(spec.workspace, facts)
  const asked = needsOf(preset, mode, spec.limits ?? {}, limits, writes)
  const { needs, waived } = split(spec, asked)
  return sealPlan({
    backend: spec.backend,
    minLevel: spec.minIsolation ?? (spec.backend === 'native' ? 'native' : 'os'),
    preset,
    image: spec.image,
    cwd: startingPoint(workspace, facts),
    mounts,
    masks: masksFor(spec, facts, mounts),
    protection: writes && !waived.includes('fs.protect') ? PROTECTION : undefined,
    network: { mode, allowHosts: spec.network?.allowHosts ?? [] },
    unixSockets: sockets,
    env: { ...baseEnvironment(facts), ...spec.env },
    limits,
    nets: (Object.keys(limits) as (keyof Limits)[]).filter((name) => spec.limits?.[name] === undefined),
    runAs:
      facts.uid === 0 && workspace && workspace.uid !== 0
        ? { uid: workspace.uid, gid: workspace.gid }
        : undefined,
    needs,
    waived,
    agentId: spec.agentId,
  })
}

function startingPoint(workspace: PathFact | undefined, facts: Facts): string {
  if (!workspace) return '/tmp'
  return isWithin(facts.cwd, workspace.real) ? facts.cwd : workspace.real
}

const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

const baseEnvironment = (facts: Facts): Readonly<Record<string, string>> => ({
  PATH: SYSTEM_PATH,
  HOME: '/tmp',
  TMPDIR: '/tmp',
  LANG: 'C.UTF-8',
  USER: facts.uid === 0 ? 'root' : 'agent',
  RINGFENCE: '1',
})

function grantedMounts(policy: SandboxPolicy, spec: Spec, facts: Facts, preset: Preset): readonly Mount[] {
  if (preset === 'danger-full-access') return [rootMount(facts)]
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

/** Two grants for one target: asking for the same thing twice is harmless, anything else is a contradiction. */
function distinct(mounts: readonly Mount[]): readonly Mount[] {
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

function rootMount(facts: Facts): Mount {
  return { ...factOf('/', facts), target: '/', mode: 'rw' }
}

function mountOf(policy: SandboxPolicy, asked: Asked, facts: Facts): Mount {
  const observed = facts.paths.get(asked.path)
  if (!asked.path.startsWith('/')) {
    throw new SandboxError('path-not-absolute', `\`${asked.path}\` is not an absolute path`, {
      hint: 'name the whole path',
    })
  }
  if (observed?.state === 'exists' && observed.symlinks.some((link) => link.at === observed.normal)) {
    throw new SandboxError('forbidden-host-path', `\`${asked.path}\` is a symlink to \`${observed.real}\``, {
      hint: 'mount the real path',
    })
  }
  refuseAbsent(policy, asked.path, observed)
  const prefixes = policy.allowedPrefixes ?? [asked.path]
  const verdict = judgePath(
    { allowed: prefixes.map((path) => ({ path, mode: 'rw' })), blocked: policy.blocked, protected: [] },
    {
      path: asked.path,
      op: asked.mode === 'ro' ? 'mount-ro' : 'mount-rw',
      ...(asked.target ? { target: asked.target } : {}),
    },
    { path: observed as PathEvidence, roots: prefixes.map((path) => facts.paths.get(path) as PathEvidence) },
  )
  if (verdict.verdict === 'deny') {
    throw new SandboxError('forbidden-host-path', `\`${asked.path}\` cannot be mounted: ${verdict.reason}`, {
      hint: hintFor(policy),
    })
  }
  const fact = factOf(asked.path, facts)
  if (fact.real === facts.home || isWithin(facts.home, fact.real)) {
    throw new SandboxError(
      'forbidden-host-path',
      `\`${asked.path}\` holds your home directory and its credentials`,
      {
        hint: 'work in a project directory below it',
      },
    )
  }
  return { ...fact, target: asked.target ?? fact.real, mode: asked.mode }
}

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

function factOf(path: string, facts: Facts): PathFact {
  const fact = facts.paths.get(path)?.fact
  if (!fact)
    throw new SandboxError('forbidden-host-path', `\`${path}\` cannot be used`, {
      hint: 'name an existing directory or file',
    })
  return fact
}

function socketMount(path: string, facts: Facts): Mount {
  const fact = factOf(path, facts)
  const denied = hardDenied(fact.real) ?? (hasMountSyntax(path) ? 'it holds mount option syntax' : undefined)
  if (denied) throw new SandboxError('forbidden-host-path', `\`${path}\` cannot be granted: ${denied}`)
  if (fact.kind !== 'socket') throw new SandboxError('invalid-input', `\`${path}\` is not a unix socket`)
  return { ...fact, target: fact.real, mode: 'rw' }
}

/** What lies inside a mount and must not be seen: denied paths, our own state, blocked names at its top. */
function masksFor(spec: Spec, facts: Facts, mounts: readonly Mount[]): readonly Mask[] {
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

function networkMode(policy: SandboxPolicy, spec: Spec): NetworkMode {
  const mode = spec.network?.mode ?? (spec.network?.allowHosts?.length ? 'fetch' : 'offline')
  if (policy.networkModes.includes(mode)) return mode
  throw new SandboxError('invalid-network-mode', `network mode \`${mode}\` is not permitted`, {
    hint: `permitted: ${policy.networkModes.join(', ')}`,
  })
}

const DEFAULT_PIDS = 1024

/** The asked limits, each within the operator's ceiling; where none was asked, a ceiling that keeps the host alive. */
function limitsFor(policy: SandboxPolicy, spec: Spec, facts: Facts): Limits {
  const asked = spec.limits ?? {}
  for (const name of ['cpus', 'memoryMb', 'diskMb', 'pids'] as const) {
    const value = asked[name]
    if (value !== undefined && value > policy.max[name]) {
      throw new SandboxError(
        'resource-limit-exceeded',
        `${name} ${value} is above the policy's ${policy.max[name]}`,
      )
    }
  }
  const memoryMb = Math.min(policy.max.memoryMb, Math.max(512, Math.floor(facts.hostMemoryMb * 0.75)))
  const defaults =
    spec.backend === 'native' ? {} : { pids: Math.min(policy.max.pids, DEFAULT_PIDS), memoryMb }
  return { ...defaults, ...asked }
}

const LIMIT_GUARANTEES: readonly (readonly [keyof Limits, Guarantee])[] = [
  ['cpus', 'limit.cpu'],
  ['memoryMb', 'limit.memory'],
  ['diskMb', 'limit.disk'],
  ['pids', 'limit.pids'],
  ['wallMs', 'limit.wall'],
  ['idleMs', 'limit.idle'],
  ['outputBytes', 'limit.output'],
  ['fuel', 'limit.fuel'],
]

const WALL: readonly Guarantee[] = [
  'fs.read',
  'fs.write',
  'env.clean',
  'proc.hidden',
  'ipc.private',
  'kernel.filtered',
  'cleanup',
]

type Needs = {
  readonly wall: readonly Guarantee[]
  readonly limits: readonly Guarantee[]
  readonly asked: readonly Guarantee[]
}

function needsOf(preset: Preset, mode: NetworkMode, asked: Limits, limits: Limits, writes: boolean): Needs {
  const wall = WALL.filter(
    (name) => preset !== 'danger-full-access' || (name !== 'fs.read' && name !== 'fs.write'),
  )
  const network: readonly Guarantee[] = mode === 'full' ? [] : [`net.${mode}`]
  const held = (of: Limits) =>
    LIMIT_GUARANTEES.filter(([name]) => of[name] !== undefined).map(([, guarantee]) => guarantee)
  return {
    wall: [...wall, ...network, ...(writes ? (['fs.protect'] as const) : [])],
    limits: held(limits),
    asked: held(asked),
  }
}

/** `native` has no wall and is only taken by name: that gives up the whole wall, but not a limit asked for. */
function split(
  spec: Spec,
  needs: Needs,
): { readonly needs: readonly Guarantee[]; readonly waived: readonly Guarantee[] } {
  if (spec.backend === 'native') return { needs: needs.asked, waived: needs.wall }
  const waived = spec.waive ?? []
  return { needs: [...needs.wall, ...needs.limits].filter((name) => !waived.includes(name)), waived }
}
