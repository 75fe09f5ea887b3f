import type { Backend, BackendSandbox, OpenOptions } from '../backends/backend.ts'
import type { SandboxRegistry } from '../backends/registry.ts'
import type { Review } from '../host/review/review.ts'
import type { Action, Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { EventSink } from '../model/event.ts'
import { isWithin } from '../model/files/path.ts'
import { ownedTargets, type Plan, type WritableRoot } from '../model/plan.ts'
import type { Requester } from '../model/requester.ts'
import { isRemote, parseSpec, type Spec } from '../model/spec.ts'
import type { Behind } from '../policy/containment.ts'
import type { Capability } from '../policy/grants/capability.ts'
import {
  assertCapabilitiesPermitted,
  assertLinksPermitted,
  assertPlanPermitted,
  assertPrivatePermitted,
  assertSpecPermitted,
  narrowed,
  type TenantGrants,
} from '../policy/grants/tenancy.ts'
import { allowedHosts, askedNetworkMode } from '../policy/network/plan-egress.ts'
import { type PinFacts, writablePathsOf } from '../policy/paths/pins.ts'
import { type Facts, type Observed, pathsOf, planFor, type SandboxPolicy } from '../policy/plan.ts'
import type { AskHost } from './approvals/host-questions.ts'
import type { Egress, PreparedEgress } from './egress.ts'
import { Sandbox, type SandboxParts } from './sandbox.ts'

/** A command before the policy check: a shell line, or a program with its arguments. */
export type AskedCommand = { readonly line: string } | { readonly argv: readonly [string, ...string[]] }

/** Where a command would run; its relative paths are resolved from there. */
export type WorkingDirectory = {
  readonly workspace: string
  readonly cwd: string
  /** Directories that belong to the sandbox; they are treated like the workspace. */
  readonly own?: readonly string[]
  /** Other paths of the host that the sandbox shows. */
  readonly mounted?: readonly string[]
  /** What `~` stands for; default: the home directory of the user of this process. */
  readonly home?: string
  /** git at the workspace's root starts nothing that a sandbox could have planted. */
  readonly inertGit?: boolean
  /** The sandbox that the command would run in, which may answer questions of the built-in rules; absent: the host. */
  readonly behind?: Behind
}

/** How a command would run in a sandbox. */
export type JudgeOptions = {
  /** A path inside the sandbox; default: the plan's. */
  readonly cwd?: string | undefined
  /** The backend that was selected for the plan. Without it nothing is contained. */
  readonly backend?: string | undefined
  /** The hosts that can be reached now; default: the plan's. */
  readonly allowHosts?: readonly string[] | undefined
  /** The operator opened the network to sandboxes whose clients have nobody to ask. */
  readonly isNetworkGranted?: boolean | undefined
  /** Variables of the command itself. */
  readonly env?: Readonly<Record<string, string>> | undefined
}

/** What the gate checks with. */
export type GateParts = {
  readonly policy: SandboxPolicy
  /**
   * The tenant limits of this requester beside the policy; undefined for the operator. On a server it throws without a
   * requester; elsewhere the requester is the user who started this process.
   */
  readonly grantsOf?: (requester: Requester | undefined) => TenantGrants | undefined
  /** Whether commands may run without isolation if the spec names the backend `native`. */
  readonly allowNative?: () => boolean
  readonly registry: SandboxRegistry
  readonly trail: EventSink
  readonly judge: (command: AskedCommand, directory: WorkingDirectory) => Promise<Decision>
  readonly observe: (path: string) => Observed
  /** The targets of protected names in a writable directory. */
  readonly pins?: (path: string) => PinFacts
  readonly host: Omit<Facts, 'paths' | 'stateDir'> & { readonly stateDir: string }
  readonly newId: (prefix: string) => string
  /** Creates the proxy of a sandbox with network mode `fetch`. */
  readonly egress?: (spec: Spec, allowPrivate: readonly string[], tenant?: string) => Promise<PreparedEgress>
  /** Creates the directory that holds the changes of a reviewed sandbox. */
  readonly review?: (spec: Spec, sandboxId: string) => Review
}

/** Who opens a sandbox, under which id, and until when. */
export type OpenSandboxOptions = {
  readonly signal?: AbortSignal | undefined
  /** An id that `newId` returned earlier. */
  readonly id?: string | undefined
  /** The tenant that owns the sandbox. */
  readonly owner?: string | undefined
  /** Asks a person about a host that is not on the list, where the plan says so. */
  readonly askHost?: AskHost | undefined
  /** The caller that asks for the sandbox. */
  readonly requester?: Requester | undefined
  /**
   * Whose private addresses the sandbox may reach, if it is not the requester. SECURITY: the server opens the sandbox of a skill in
   * its own name, and the code in it is that of a tenant.
   */
  readonly reachesAs?: Requester | undefined
  /** Judges commands as if they ran on the host, where nothing contains a risk. */
  readonly judgedForHost?: boolean
  /** Commands may use the network that the plan opens without a question: the client has nobody to ask. */
  readonly isNetworkGranted?: boolean | undefined
  /** The host paths of the spec's private directories, in the same order; created for this sandbox only. */
  readonly own?: readonly string[] | undefined
  /** The host paths of the spec's volumes, in the same order. */
  readonly volumes?: readonly string[] | undefined
  /** Prepares a root file system for this sandbox only; absent: it cannot have one. */
  readonly root?: RootPreparation | undefined
} & Pick<OpenOptions, 'generation' | 'takesOver'>

/** How a sandbox gets a writable root. */
export type RootPreparation = {
  /** Why this host has none; undefined if it has. */
  readonly unavailable: () => { readonly reason: string; readonly fix: string } | undefined
  readonly prepare: (diskMb: number) => Promise<WritableRoot>
}

/** The disk of a writable root whose spec limits nothing. */
const ROOT_DISK_MB = 10_240

/** What is prepared for a spec before the policy checks it. */
type Prepared = {
  readonly egress?: PreparedEgress | undefined
  readonly review?: Review | undefined
  readonly own?: readonly string[] | undefined
  readonly volumes?: readonly string[] | undefined
  readonly root?: WritableRoot | undefined
  readonly requester?: Requester | undefined
  readonly reachesAs?: Requester | undefined
}

/** A sandbox that already exists. */
export type Made = {
  readonly plan?: Plan | undefined
  /** The requester's own key created the sandbox, so its proxy was created for that key. */
  readonly isOwn?: boolean
}

/** A proxy without a sandbox. */
export type OpenEgress = { readonly egress: Egress; readonly facts: PreparedEgress['facts'] }

/** What a sandbox is created with, beside its plan. */
type SandboxContext = {
  readonly id?: string
  readonly egress?: Egress | undefined
  readonly review?: Review | undefined
  readonly requester?: Requester | undefined
  readonly askHost?: AskHost | undefined
  readonly judgedForHost?: boolean | undefined
  readonly isNetworkGranted?: boolean | undefined
}

/**
 * The only entry point: spec → facts → decision → plan → `needs ⊆ claims` → backend. The library, the command line, the
 * server and the adapters all open sandboxes here.
 */
export class Gate {
  readonly #parts: GateParts

  constructor(parts: GateParts) {
    this.#parts = parts
  }

  get registry(): SandboxRegistry {
    return this.#parts.registry
  }

  /** Parses a spec and checks it against the policy. Throws if the policy rejects it. */
  plan(input: unknown, { egress, review, own, volumes, root, requester, reachesAs }: Prepared = {}): Plan {
    const spec = parseSpec(input)
    const grants = this.#permitted(spec, requester)
    const { host, observe, pins } = this.#parts
    const policy = this.#policyFor(grants, reachesAs)
    const paths = new Map(pathsOf(policy, spec).map((path) => [path, observe(path)]))
    if (grants) assertLinksPermitted(grants, spec, paths)
    const facts = {
      ...host,
      stateDir: observe(host.stateDir),
      paths,
      pins: pins && writablePathsOf(spec).map(pins),
      own: own && ownFacts(spec, own, observe),
      volumes: volumes && volumeFacts(spec, volumes, observe),
      root,
      egress: egress?.facts,
      overlays: review?.directories(),
    }
    const plan = planFor(policy, spec, facts)
    if (plan instanceof SandboxError) throw plan
    if (grants) assertPlanPermitted(grants, plan)
    return plan
  }

  /**
   * Throws `forbidden` unless the requester could have created this sandbox. SECURITY: a caller who uses a sandbox has
   * everything in it, so this is checked again for a sandbox that another key of the tenant created.
   */
  assertPermitted(requester: Requester, spec: Spec, { plan, isOwn = false }: Made = {}): void {
    const grants = this.#permitted(spec, requester)
    if (!grants || !plan) return
    assertPlanPermitted(grants, plan, spec.backend)
    if (!isOwn) assertPrivatePermitted(grants, plan)
  }

  /** The same for a skill, which states its host access as capabilities. */
  assertCapabilities(requester: Requester, capabilities: readonly Capability[]): void {
    const grants = this.#parts.grantsOf?.(requester)
    if (grants) assertCapabilitiesPermitted(grants, capabilities)
  }

  /** The requester's grants; throws if the spec goes beyond them. */
  #permitted(spec: Spec, requester: Requester | undefined): TenantGrants | undefined {
    const { grantsOf, allowNative } = this.#parts
    const grants = grantsOf?.(requester)
    if (grants) assertSpecPermitted(grants, spec)
    if (spec.backend === 'native' && allowNative?.() === false)
      throw new SandboxError('forbidden', 'this server does not run commands without isolation', {
        hint: 'the operator can permit the backend `native`: `allow_native = true` in [backends]',
      })
    return grants
  }

  #policyFor(grants: TenantGrants | undefined, reachesAs?: Requester): SandboxPolicy {
    const policy = grants ? narrowed(this.#parts.policy, grants) : this.#parts.policy
    return reachesAs ? { ...policy, allowPrivate: this.policyFor(reachesAs).allowPrivate } : policy
  }

  /** The policy for a requester that asks for nothing in particular. */
  policyFor(requester: Requester): SandboxPolicy {
    return this.#policyFor(this.#parts.grantsOf?.(requester))
  }

  /** Judges a command of a sandbox with this plan. */
  judge(command: AskedCommand, plan: Plan, options: JudgeOptions = {}): Promise<Decision> {
    return this.#parts.judge(command, this.contextOf(plan, options))
  }

  /** Where commands of this plan run, and behind what. */
  contextOf(
    plan: Plan,
    { cwd = plan.cwd, backend, allowHosts, env, isNetworkGranted }: JudgeOptions = {},
  ): WorkingDirectory {
    const isOnServer = this.#parts.grantsOf !== undefined && plan.backend !== 'native'
    const { home } = this.#parts.host
    return {
      workspace: workspaceOf(plan),
      cwd,
      own: ownOf(plan),
      mounted: plan.mounts
        .map(({ target }) => target)
        .filter((target) => !ownedTargets(plan).includes(target)),
      ...(isOnServer ? { home: GUEST_HOME } : {}),
      ...(backend === undefined
        ? {}
        : { behind: { plan, backend, allowHosts, env, isNetworkGranted, home } }),
    }
  }

  /** Opens a sandbox on the first backend that provides every guarantee the plan needs. */
  async open(
    input: unknown,
    {
      signal,
      own,
      volumes,
      root,
      owner,
      requester,
      reachesAs,
      askHost,
      judgedForHost,
      isNetworkGranted,
      id = this.#parts.newId('sb'),
      generation,
      takesOver,
    }: OpenSandboxOptions = {},
  ): Promise<Sandbox> {
    const spec: Spec = parseSpec(input)
    if (spec.private?.length && !own)
      throw new SandboxError('unsupported', 'private directories exist only on a server', {
        hint: 'name a workspace',
      })
    if (spec.volumes?.length && !volumes)
      throw new SandboxError('unsupported', 'volumes exist only on a server', {
        hint: 'mount a directory with --mount',
      })
    // Before anything is prepared, because a proxy would already have looked up the secrets.
    const grants = await this.#recorded(spec, async () => this.#permitted(spec, requester))
    const { allowPrivate } = this.#policyFor(grants, reachesAs)
    const tenant = reachesAs?.tenant ?? owner ?? requester?.tenant
    const prepared = reachesOut(spec) ? await this.#parts.egress?.(spec, allowPrivate, tenant) : undefined
    const review = spec.review ? this.#parts.review?.(spec, id) : undefined
    try {
      const given = { egress: prepared, review, own, volumes, requester, reachesAs }
      const { plan, backend } = await this.#admitSpec(spec, given, root)
      review?.keep(plan.mounts)
      const egress = plan.network.mode === 'fetch' ? prepared?.start(plan, id) : undefined
      const onTunnel: OpenOptions['onTunnel'] =
        egress && ((stream, secrets) => egress.handle(stream, secrets))
      const options = { signal, owner, onTunnel, id, generation, takesOver }
      const inside = await this.#open(backend, plan, options)
      const sandbox = this.#sandbox(plan, backend, inside, {
        id,
        egress,
        review,
        requester,
        askHost,
        judgedForHost,
        isNetworkGranted,
      })
      sandbox.onFailedLaunch(() => this.registry.invalidate(backend.name))
      return sandbox
    } catch (error) {
      await prepared?.close()
      review?.drop()
      throw error
    }
  }

  /**
   * Opens only the proxy of a spec, for connections that this process makes itself; the policy checks the spec as it does
   * for a sandbox, and every connection is recorded under the id.
   */
  async openEgress(input: unknown, id: string, requester?: Requester): Promise<OpenEgress> {
    const spec: Spec = parseSpec(input)
    const grants = await this.#recorded(spec, async () => this.#permitted(spec, requester))
    const prepared = await this.#parts.egress?.(spec, this.#policyFor(grants).allowPrivate, requester?.tenant)
    if (!prepared) throw new SandboxError('unsupported', 'this process has no egress proxy')
    try {
      const plan = await this.#recorded(spec, async () => this.plan(spec, { egress: prepared, requester }))
      return { egress: prepared.start(plan, id), facts: prepared.facts }
    } catch (error) {
      await prepared.close()
      throw error
    }
  }

  /** Authorizes and records a command that the caller starts itself. */
  admit(command: AskedCommand, plan: Plan, backend: Backend): Promise<Decision> {
    return this.#sandbox(plan, backend, undefined).admit(command)
  }

  #sandbox(
    plan: Plan,
    backend: Backend,
    inside: BackendSandbox | undefined,
    {
      id = this.#parts.newId('sb'),
      egress,
      review,
      requester,
      askHost,
      judgedForHost,
      isNetworkGranted,
    }: SandboxContext = {},
  ): Sandbox {
    const { trail, newId } = this.#parts
    const judge: SandboxParts['judge'] = (command, options) =>
      this.judge(command, plan, {
        ...options,
        backend: judgedForHost ? undefined : backend.name,
        isNetworkGranted,
      })
    const judgeHosts = (hosts: readonly string[]): void => {
      const spec: Spec = { network: { mode: 'fetch', allowHosts: hosts } }
      allowedHosts(this.#policyFor(this.#permitted(spec, requester)), spec)
    }
    return new Sandbox({
      id,
      plan,
      backend,
      inside,
      egress,
      review,
      trail,
      newId,
      judge,
      judgeHosts,
      askHost,
    })
  }

  /** Plans a spec; a rejected spec is recorded too, whether the policy or a missing guarantee rejects it. */
  async #admitSpec(spec: Spec, prepared: Prepared, root: RootPreparation | undefined): Promise<Admitted> {
    return this.#recorded(spec, async () => {
      const plain = spec.root === 'writable' ? undefined : await this.#admitPlan(spec, prepared)
      if (plain && !(spec.root === 'preferred' && mayHaveRoot(plain, root))) return plain
      // Without a preparation the policy refuses; the size of the disk comes from the limits of the spec.
      const { limits } = plain?.plan ?? this.plan({ ...spec, root: 'read-only' }, prepared)
      const made = await root?.prepare(limits.diskMb ?? Math.min(ROOT_DISK_MB, this.#parts.policy.max.diskMb))
      return this.#admitPlan({ ...spec, root: 'writable' }, { ...prepared, root: made })
    })
  }

  async #admitPlan(spec: Spec, prepared: Prepared): Promise<Admitted> {
    const plan = this.plan(spec, prepared)
    return { plan, backend: await this.#parts.registry.select(plan) }
  }

  async #recorded<T>(spec: Spec, work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      if (error instanceof SandboxError) await this.#record('deny', error.message, spec)
      throw error
    }
  }

  async #open(backend: Backend, plan: Plan, options: OpenOptions): Promise<BackendSandbox> {
    try {
      return await backend.open(plan, options)
    } catch (error) {
      this.#parts.registry.invalidate(backend.name)
      throw error
    }
  }

  #record(action: Action, reason: string, spec: Spec): Promise<void> {
    const agent = spec.agentId === undefined ? {} : { agent_id: spec.agentId }
    return this.#parts.trail.append({ event: 'PolicyDecision', ...agent, subject: 'sandbox', action, reason })
  }
}

type Admitted = { readonly plan: Plan; readonly backend: Backend }

/** Whether a sandbox that prefers a writable root can have one. */
const mayHaveRoot = ({ plan, backend }: Admitted, root: RootPreparation | undefined): boolean =>
  root?.unavailable() === undefined &&
  root !== undefined &&
  backend.writableRoots === true &&
  plan.image === undefined &&
  plan.mounts.every(({ target, mode, stored }) => mode === 'ro' || stored || plan.own.includes(target))

function ownFacts(spec: Spec, own: readonly string[], observe: (path: string) => Observed): Facts['own'] {
  return (spec.private ?? []).map((target, index) => {
    const fact = observe(own[index] ?? '').fact
    if (fact?.kind !== 'dir') throw new SandboxError('launch-failed', 'a private directory is missing')
    return { target, fact }
  })
}

function volumeFacts(
  spec: Spec,
  volumes: readonly string[],
  observe: (path: string) => Observed,
): Facts['volumes'] {
  return (spec.volumes ?? []).map(({ target, mode = 'rw' }, index) => {
    const fact = observe(volumes[index] ?? '').fact
    if (fact?.kind !== 'dir') throw new SandboxError('launch-failed', 'the directory of a volume is missing')
    return { target, fact, mode }
  })
}

/** Whether a proxy is needed; also true for combinations that the plan rejects later. */
const reachesOut = (spec: Spec): boolean =>
  askedNetworkMode(spec) === 'fetch' || Boolean(spec.network?.allowHosts?.length || spec.secrets?.length)

/**
 * What `~` stands for in commands of a server's sandboxes. SECURITY: the reason of a decision quotes the path, and a
 * tenant must not learn the home directory of the server's user.
 */
export const GUEST_HOME = '/home/user'

/** Home directories of E2B and OpenShell sandboxes: they are not another user's home on this host. */
const REMOTE_HOMES = ['/home/user', '/sandbox', '/workspace']

/** Directories that belong to the sandbox: its homes, and its `/tmp` unless something of the host is mounted there. */
function ownOf(plan: Plan): readonly string[] {
  const { backend, mounts } = plan
  const isShared =
    backend === 'native' || mounts.some(({ target }) => target === '/' || isWithin(target, '/tmp'))
  return [...ownedTargets(plan), ...(isShared ? [] : ['/tmp']), ...(isRemote(backend) ? REMOTE_HOMES : [])]
}

/** The main writable mount, or the start directory if nothing is writable. */
const workspaceOf = (plan: Plan): string =>
  plan.mounts.find((mount) => mount.target !== '/' && isWithin(plan.cwd, mount.target))?.target ?? plan.cwd
