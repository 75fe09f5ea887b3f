import type { Config } from '../model/config.ts'
import { SandboxError } from '../model/errors.ts'
import { isWithin } from '../model/files/path.ts'
import type { Guarantee } from '../model/guarantee.ts'
import { type Mount, type PathFact, type Plan, sealPlan } from '../model/plan.ts'
import {
  type Isolation,
  isRemote,
  type Limits,
  type NetworkMode,
  type Preset,
  type Spec,
} from '../model/spec.ts'
import {
  distinct,
  type Facts,
  factOf,
  grantedMounts,
  grantedRoot,
  grantedSockets,
  masksFor,
  ownMounts,
  reviewedMounts,
  type SandboxPolicy,
  volumeMounts,
} from './grants/grants.ts'
import { parseSecretGrant } from './grants/secret-grant.ts'
import {
  approvedHostsOf,
  askedNetworkMode,
  egressEnvironment,
  egressFiles,
  reachableHosts,
} from './network/plan-egress.ts'
import { type PinFacts, protectionFor } from './paths/pins.ts'

export type { EgressFacts, Facts, Observed, SandboxPolicy } from './grants/grants.ts'

const BLOCKED = ['.ssh', '.aws', '.gnupg', 'secrets', 'credentials']

/** The part of a configuration that decides about sandboxes. */
export function sandboxPolicyOf(config: Config, home: string): SandboxPolicy {
  const { policy = {} } = config
  const expand = (path: string): string =>
    path === '~' || path.startsWith('~/') ? home + path.slice(1) : path
  return {
    allowedPrefixes: policy.allowed_host_prefixes?.map(expand),
    blocked: policy.blocked_host_patterns ?? BLOCKED,
    isolateCommands: policy.isolate_commands ?? false,
    networkModes: policy.allowed_network_modes ?? ['offline', 'loopback', 'fetch', 'full'],
    allowHosts: config.network?.allow_hosts ?? [],
    allowPrivate: config.network?.allow_private ?? [],
    unlisted: config.network?.unlisted,
    approvedHosts: approvedHostsOf(config, undefined),
    max: {
      cpus: policy.max_cpus ?? 4096,
      memoryMb: policy.max_memory_mb ?? 2 ** 30,
      diskMb: policy.max_disk_mb ?? 2 ** 30,
      pids: policy.max_pids ?? 2 ** 22,
    },
  }
}

/** Every host path that a spec names; the decision needs facts about each. */
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

/**
 * Checks a whole spec and creates the plan, which is the only input that backends accept, or throws the reason.
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
  refuseUnbuilt(spec)
  const preset = spec.preset ?? 'workspace-write'
  const granted = grantedMounts(policy, spec, facts, preset)
  const volumes = volumeMounts(facts, preset)
  const root = grantedRoot(spec, facts, [...granted, ...volumes])
  // The private directories are part of a root of its own.
  const own = root ? [] : ownMounts(facts, preset)
  const homes = root ? (spec.private ?? ROOT_HOMES) : own.map(({ target }) => target)
  const mounts = distinct([...(spec.review ? reviewedMounts(granted, facts) : granted), ...own, ...volumes])
  const sockets = grantedSockets(spec, facts)
  const mode = networkMode(policy, spec)
  const limits = limitsFor(policy, spec, facts)
  // No host tool opens the private directories of a sandbox, so only granted mounts need protected names.
  const writes = granted.some((mount) => mount.mode === 'rw')
  const workspace = spec.workspace === undefined ? undefined : factOf(spec.workspace, facts)
  const wanted = { ...policy.ceilings, ...spec.limits }
  const isolation = isolationOf(policy, spec, mode)
  if (isolation === 'command') refuseSharedPrivate(mounts)
  const between = isolation === 'command' ? betweenCommands(spec) : []
  const asked = needsOf({ preset, mode, asked: wanted, limits, writes, between })
  const { needs, waived } = split(spec, asked)
  return sealPlan({
    backend: spec.backend,
    allowedBackends: policy.backends,
    minLevel: spec.minIsolation ?? (spec.backend === 'native' ? 'native' : 'os'),
    preset,
    image: spec.image,
    engineImages: mayBeEngineImage(policy, spec, facts),
    cwd: workspace ? startingPoint(workspace, facts) : (homes[0] ?? '/tmp'),
    mounts,
    own: homes,
    volumes: volumes.map(({ target }) => target),
    root,
    masks: masksFor(spec, facts, mounts),
    protection: writes && !waived.includes('fs.protect') ? protectionFor(granted, pinsIn(facts)) : undefined,
    network: mode === 'fetch' ? reachableHosts(policy, spec) : { mode, allowHosts: [] },
    privateHosts: mode === 'fetch' ? policy.allowPrivate : [],
    unixSockets: sockets,
    files: mode === 'fetch' ? egressFiles(facts) : [],
    env: {
      ...baseEnvironment(facts),
      ...(homes[0] ? homeEnvironment(homes[0]) : {}),
      ...(root ? ROOT_ENVIRONMENT : {}),
      ...(mode === 'fetch' ? egressEnvironment(facts) : {}),
      ...spec.env,
    },
    secrets: (spec.secrets ?? []).map((grant) => parseSecretGrant(grant).name),
    isolation,
    limits,
    nets: (Object.keys(limits) as (keyof Limits)[]).filter((name) => wanted[name] === undefined),
    runAs: root || facts.uid !== 0 ? undefined : userOf(workspace ?? own[0], [...mounts, ...sockets]),
    needs,
    waived,
    agentId: spec.agentId,
    tracesAccess: spec.learn ?? false,
  })
}

/** Every tenant may use images built by `ringfence image build`; an image of the container engine needs a grant. */
function mayBeEngineImage(policy: SandboxPolicy, { image }: Spec, { isBuiltImage }: Facts): boolean {
  if (image === undefined || isBuiltImage?.(image)) return false
  return policy.engineImages?.includes(image) ?? true
}

/** Fields that are not supported, or not together: refused with their names, never ignored. */
function refuseUnbuilt(spec: Spec): void {
  if (spec.template !== undefined)
    throw new SandboxError('unsupported', `there is no template \`${spec.template}\``, {
      hint: 'leave the field out',
    })
  const mode = spec.network?.mode
  if (spec.secrets?.length && mode !== undefined && mode !== 'fetch')
    throw new SandboxError(
      'invalid-input',
      `secrets are brokered only in network mode \`fetch\`, not \`${mode}\``,
    )
  if (spec.network?.unlisted === 'ask' && mode !== undefined && mode !== 'fetch')
    throw new SandboxError(
      'invalid-input',
      `hosts can be asked for only in network mode \`fetch\`, not \`${mode}\``,
    )
  if (spec.network?.upstream !== undefined && mode !== undefined && mode !== 'fetch')
    throw new SandboxError('invalid-input', `an upstream proxy has no meaning in network mode \`${mode}\``, {
      hint: 'use network mode fetch, or leave the proxy out',
    })
  if (spec.network?.allowHosts?.length && mode !== undefined && mode !== 'fetch')
    throw new SandboxError('invalid-input', `allowed hosts have no meaning in network mode \`${mode}\``, {
      hint: 'use network mode fetch, or leave the hosts out',
    })
}

/**
 * Sandboxes that root starts run as the owner of their workspace. Without anything of the host's that an owner could use,
 * they run as nobody: programs such as sshd take user 0 for one with privileges, which it does not have in a sandbox.
 */
const userOf = (path: PathFact | undefined, granted: readonly unknown[]): Plan['runAs'] => {
  if (path && path.uid !== 0) return { uid: path.uid, gid: path.gid }
  return granted.length === 0 ? NOBODY : undefined
}
const NOBODY = { uid: 65_534, gid: 65_534 }

function startingPoint(workspace: PathFact, facts: Facts): string {
  return isWithin(facts.cwd, workspace.real) ? facts.cwd : workspace.real
}

const pinsIn = ({ paths, pins = [] }: Facts): PinFacts => ({
  repositories: [...[...paths.values()], ...pins].flatMap(({ repositories }) => repositories),
  files: pins.flatMap(({ files }) => files),
})

const SYSTEM_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

const baseEnvironment = (facts: Facts): Readonly<Record<string, string>> => ({
  PATH: SYSTEM_PATH,
  HOME: '/tmp',
  TMPDIR: '/tmp',
  LANG: 'C.UTF-8',
  USER: facts.uid === 0 ? 'root' : 'agent',
  RINGFENCE: '1',
})

/** SECURITY: the directory that the sandbox can write comes last, so that it cannot shadow system programs. */
const homeEnvironment = (home: string): Readonly<Record<string, string>> => ({
  HOME: home,
  USER: 'user',
  LOGNAME: 'user',
  PATH: `${SYSTEM_PATH}:${home}/.local/bin`,
})

/** Debian's pip refuses to install packages for the whole system without it; here the system is the sandbox's own. */
const ROOT_HOMES = ['/home/user']
const ROOT_ENVIRONMENT = { PIP_BREAK_SYSTEM_PACKAGES: '1' }

function networkMode(policy: SandboxPolicy, spec: Spec): NetworkMode {
  const mode = askedNetworkMode(spec)
  if (policy.networkModes.includes(mode)) return mode
  throw new SandboxError('invalid-network-mode', `network mode \`${mode}\` is not permitted`, {
    hint: `permitted: ${policy.networkModes.join(', ')}`,
  })
}

const DEFAULT_PIDS = 1024

/** The requested limits, capped by the operator's; without a request, a default that protects the host. */
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
    spec.backend === 'native' || isRemote(spec.backend)
      ? {}
      : { pids: Math.min(policy.max.pids, DEFAULT_PIDS), memoryMb }
  // SECURITY: a volume outlives the sandbox; without a limit a sandbox could fill the server's disk between two checks of it.
  const writes = facts.volumes?.some(({ mode }) => mode === 'rw') ?? false
  const disk = writes ? { diskMb: Math.min(policy.max.diskMb, VOLUME_WRITES_MB) } : {}
  return { ...defaults, ...disk, ...policy.ceilings, ...asked }
}

/** What a sandbox with a writable volume may write unless it asks for another limit. */
const VOLUME_WRITES_MB = 10_240

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

/** With one network namespace for all there is nothing to keep commands apart, and no backend can. */
function isolationOf(policy: SandboxPolicy, spec: Spec, mode: NetworkMode): Isolation {
  if (spec.isolation === 'sandbox' && policy.isolateCommands)
    throw new SandboxError('forbidden', 'the policy requires that commands are isolated from each other', {
      hint: 'leave `isolation` out; the operator sets `isolate_commands` in [policy]',
    })
  if (spec.waive?.includes('proc.between')) return 'sandbox'
  const isolation = spec.isolation ?? (policy.isolateCommands ? 'command' : 'sandbox')
  if (isolation === 'command' && mode === 'full')
    throw new SandboxError('invalid-input', 'isolated commands cannot share the host’s network', {
      hint: 'use network mode fetch, loopback or offline',
    })
  return isolation
}

/** The directories that each isolated command has for itself. */
const PRIVATE_TO_COMMANDS = ['/tmp', '/dev', '/dev/shm', '/dev/pts', '/proc', '/run', '/var/tmp']

/** SECURITY: a mount there would be shared, or be covered and lost. What is mounted below stays. */
function refuseSharedPrivate(mounts: readonly Mount[]): void {
  const mount = mounts.find(({ target }) => PRIVATE_TO_COMMANDS.includes(target))
  if (mount)
    throw new SandboxError(
      'invalid-input',
      `isolated commands each have a \`${mount.target}\` of their own`,
      {
        hint: 'mount it at another path, or leave `isolation` out',
      },
    )
}

const betweenCommands = ({ secrets }: Spec): readonly Guarantee[] =>
  secrets?.length ? ['proc.between', 'secrets.between'] : ['proc.between']

type Asked = {
  readonly preset: Preset
  readonly mode: NetworkMode
  readonly asked: Limits
  readonly limits: Limits
  readonly writes: boolean
  readonly between: readonly Guarantee[]
}

function needsOf({ preset, mode, asked, limits, writes, between }: Asked): Needs {
  const wall = WALL.filter(
    (name) => preset !== 'danger-full-access' || (name !== 'fs.read' && name !== 'fs.write'),
  )
  const network: readonly Guarantee[] = mode === 'full' ? [] : [`net.${mode}`]
  const held = (of: Limits) =>
    LIMIT_GUARANTEES.filter(([name]) => of[name] !== undefined).map(([, guarantee]) => guarantee)
  return {
    wall: [...wall, ...network, ...(writes ? (['fs.protect'] as const) : [])],
    limits: [...held(limits), ...between],
    // A caller that asks for it gets it or is refused, also on backends without isolation.
    asked: [...held(asked), ...between],
  }
}

/** `native` has no isolation and must be requested by name: that waives all isolation, but not a requested limit. */
function split(
  spec: Spec,
  needs: Needs,
): { readonly needs: readonly Guarantee[]; readonly waived: readonly Guarantee[] } {
  if (spec.backend === 'native') return { needs: needs.asked, waived: needs.wall }
  const waived = spec.waive ?? []
  return { needs: [...needs.wall, ...needs.limits].filter((name) => !waived.includes(name)), waived }
}
