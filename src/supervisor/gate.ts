import type { Duplex } from 'node:stream'
import type { Backend, BackendSandbox, OpenOptions } from '../backends/backend.ts'
import type { SandboxRegistry } from '../backends/registry.ts'
import type { Review } from '../host/review.ts'
import type { Action, Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { EventSink } from '../model/event.ts'
import type { Plan } from '../model/plan.ts'
import { isRemote, parseSpec, type Spec } from '../model/spec.ts'
import { type PinFacts, writablePathsOf } from '../policy/pins.ts'
import { type Facts, type Observed, pathsOf, planFor, type SandboxPolicy } from '../policy/plan.ts'
import { allowedHosts } from '../policy/plan-egress.ts'
import type { Egress, PreparedEgress } from './egress.ts'
import { Sandbox } from './sandbox.ts'

/** A command before it is judged: a shell line, or a program with its arguments. */
export type AskedCommand = { readonly line: string } | { readonly argv: readonly [string, ...string[]] }

/** Where a command would run; relative paths in it are judged from there. */
export type CommandPlace = {
  readonly workspace: string
  readonly cwd: string
  /** Directories that are the sandbox's own, and as good as the workspace. */
  readonly own?: readonly string[]
}

export type GateParts = {
  readonly policy: SandboxPolicy
  readonly registry: SandboxRegistry
  readonly trail: EventSink
  readonly judge: (command: AskedCommand, place: CommandPlace) => Promise<Decision>
  readonly observe: (path: string) => Observed
  /** What protected names in a writable place lead to. */
  readonly pins?: (path: string) => PinFacts
  readonly host: Omit<Facts, 'paths' | 'stateDir'> & { readonly stateDir: string }
  readonly newId: (prefix: string) => string
  /** Makes the way out for a sandbox with network mode `fetch`. */
  readonly egress?: (spec: Spec) => Promise<PreparedEgress>
  /** Makes the place where a reviewed sandbox's changes wait. */
  readonly review?: (spec: Spec, sandboxId: string) => Review
}

export type OpenSandboxOptions = {
  readonly signal?: AbortSignal | undefined
  /** An id that was given out before, by `newId`. */
  readonly id?: string | undefined
  /** Whose it is. */
  readonly owner?: string | undefined
  /** Where the spec's private directories lie on the host, in the same order; made for this sandbox alone. */
  readonly own?: readonly string[] | undefined
}

/** What was made ready for a spec before it is judged. */
type Prepared = {
  readonly egress?: PreparedEgress | undefined
  readonly review?: Review | undefined
  readonly own?: readonly string[] | undefined
}

/**
 * The one way in: spec → facts → decision → plan → `needs ⊆ claims` → backend. Every door of the product (library,
 * command line, server, adapters) comes through here.
 */
export class Gate {
  readonly #parts: GateParts

  constructor(parts: GateParts) {
    this.#parts = parts
  }

  get registry(): SandboxRegistry {
    return this.#parts.registry
  }

  /** Judges a spec from outside. Throws what policy objects to. */
  plan(input: unknown, { egress, review, own }: Prepared = {}): Plan {
    const spec = parseSpec(input)
    const { policy, host, observe, pins } = this.#parts
    const paths = new Map(pathsOf(policy, spec).map((path) => [path, observe(path)]))
    const facts = {
      ...host,
      stateDir: observe(host.stateDir),
      paths,
      pins: pins && writablePathsOf(spec).map(pins),
      own: own && ownFacts(spec, own, observe),
      egress: egress?.facts,
      overlays: review?.places(),
    }
    const plan = planFor(policy, spec, facts)
    if (plan instanceof SandboxError) throw plan
    return plan
  }

  judge(command: AskedCommand, plan: Plan, cwd = plan.cwd): Promise<Decision> {
    return this.#parts.judge(command, {
      workspace: workspaceOf(plan),
      cwd,
      own: ownOf(plan),
    })
  }

  /** Opens a sandbox on the first backend that keeps everything the plan needs. */
  async open(
    input: unknown,
    { signal, own, owner, id = this.#parts.newId('sb') }: OpenSandboxOptions = {},
  ): Promise<Sandbox> {
    const spec: Spec = parseSpec(input)
    if (spec.private?.length && !own)
      throw new SandboxError('unsupported', 'private directories exist only on a server', {
        hint: 'name a workspace',
      })
    const prepared = reachesOut(spec) ? await this.#parts.egress?.(spec) : undefined
    const review = spec.review ? this.#parts.review?.(spec, id) : undefined
    try {
      const { plan, backend } = await this.#admitSpec(spec, { egress: prepared, review, own })
      review?.keep(plan.mounts)
      const egress = plan.network.mode === 'fetch' ? prepared?.start(plan, id) : undefined
      const onTunnel = egress && ((stream: Duplex) => egress.handle(stream))
      const inside = await this.#open(backend, plan, { signal, owner, onTunnel })
      const sandbox = this.#sandbox(plan, backend, inside, id, egress, review)
      sandbox.onFailedLaunch(() => this.registry.invalidate(backend.name))
      return sandbox
    } catch (error) {
      await prepared?.close()
      review?.drop()
      throw error
    }
  }

  /** For a command that the caller starts itself: judged and on record like every other, or refused. */
  admit(command: AskedCommand, plan: Plan, backend: Backend): Promise<Decision> {
    return this.#sandbox(plan, backend, undefined).admit(command)
  }

  #sandbox(
    plan: Plan,
    backend: Backend,
    inside: BackendSandbox | undefined,
    id = this.#parts.newId('sb'),
    egress?: Egress,
    review?: Review,
  ): Sandbox {
    const { trail, newId } = this.#parts
    const judge = (command: AskedCommand, cwd?: string): Promise<Decision> => this.judge(command, plan, cwd)
    const judgeHosts = (hosts: readonly string[]): void => {
      allowedHosts(this.#parts.policy, { network: { allowHosts: hosts } })
    }
    return new Sandbox({ id, plan, backend, inside, egress, review, trail, newId, judge, judgeHosts })
  }

  /** A spec that is refused, by policy or for want of a wall, is on record too. */
  async #admitSpec(
    spec: Spec,
    prepared: Prepared,
  ): Promise<{ readonly plan: Plan; readonly backend: Backend }> {
    try {
      const plan = this.plan(spec, prepared)
      return { plan, backend: await this.#parts.registry.select(plan) }
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

function ownFacts(spec: Spec, own: readonly string[], observe: (path: string) => Observed): Facts['own'] {
  return (spec.private ?? []).map((target, index) => {
    const fact = observe(own[index] ?? '').fact
    if (fact?.kind !== 'dir') throw new SandboxError('launch-failed', 'a private directory is missing')
    return { target, fact }
  })
}

/** Whether a proxy will be wanted. */
const reachesOut = ({ network, secrets }: Spec): boolean =>
  network?.mode === 'fetch' || Boolean(network?.allowHosts?.length) || Boolean(secrets?.length)

/** Where E2B and OpenShell keep what belongs to a sandbox: a home there is not somebody else's on this host. */
const REMOTE_HOMES = ['/home/user', '/sandbox', '/workspace']

/** Directories that are the sandbox's own: its homes, and its `/tmp` while nothing of the host is shown in it. */
function ownOf({ backend, own, mounts }: Plan): readonly string[] {
  const isShared = backend === 'native' || mounts.some(({ target }) => isBelow(target, '/tmp'))
  return [...own, ...(isShared ? [] : ['/tmp']), ...(isRemote(backend) ? REMOTE_HOMES : [])]
}

const isBelow = (path: string, dir: string): boolean =>
  path === '/' || path === dir || path.startsWith(`${dir}/`)

/** The main writable mount, or where commands start when nothing is writable. */
const workspaceOf = (plan: Plan): string =>
  plan.mounts.find(
    (mount) => mount.target !== '/' && (plan.cwd === mount.target || plan.cwd.startsWith(`${mount.target}/`)),
  )?.target ?? plan.cwd
