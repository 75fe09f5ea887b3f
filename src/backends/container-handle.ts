import type { Duplex } from 'node:stream'
import { Session, type TunnelTaker } from '../host/guest/session.ts'
import type { Cgroup } from '../host/process/cgroup.ts'
import { hostPidOf, treeUsage } from '../host/system.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'
import type { Limits } from '../model/spec.ts'
import type { Freezable, Usage } from './backend.ts'
import { type Confinement, confinedTo, type KernelCounts } from './guest-command.ts'
import { GuestSandbox, type GuestTransport } from './guest-sandbox.ts'
import { ISOLATING_PROCESSES, isIsolated, takerOf } from './isolated-command.ts'

/** A started container with our agent as its first process, which waits for its configuration. */
export interface ContainerHandle extends Freezable {
  /** The agent's standard streams. */
  readonly channel: Duplex
  /** The agent's pid on the host, if visible. */
  readonly pid: number | undefined
  /** The cgroup that the engine created, if visible. */
  readonly group: Cgroup | undefined
  /** The error message of the engine or the agent; empty if there is none. */
  errorText(): Promise<string>
  /** Why the container ended, if the engine knows more than the channel; absent: it does not. */
  endReason?(): Promise<string | undefined>
  /** The number of OOM kills that only the engine knows about. */
  readonly oomKills: number
  /** Kills the container with everything in it; nothing is left when it resolves. */
  destroy(): Promise<void>
}

/** The agent's configuration, sent once the sandbox is known. */
export type AgentConfig = {
  readonly fields: readonly string[]
  readonly expected: readonly string[]
  readonly filter: Uint8Array
}

/** What a container is connected with. */
export type ContainerTransportOptions = {
  readonly layersOf: GuestTransport['layersOf']
  readonly onTunnel?: TunnelTaker | undefined
}

/** The agent is one process. */
const AGENT = 1
const SETUP_MS = 20_000

/** A sandbox in a container: the channel is the container's standard input and output. */
export class ContainerTransport implements GuestTransport {
  readonly ended: Promise<string>
  readonly layersOf: GuestTransport['layersOf']
  readonly container: ContainerHandle
  readonly #session: Session
  #onTunnel: TunnelTaker | undefined
  readonly #pids: number | undefined
  #execs = 0
  #over = false
  #counted: KernelCounts = { oomKills: 0, pidsRefused: 0 }

  constructor(
    plan: Plan,
    container: ContainerHandle,
    agentConfig: AgentConfig,
    { layersOf, onTunnel }: ContainerTransportOptions,
  ) {
    this.container = container
    this.#onTunnel = onTunnel
    const ours = isIsolated(plan) ? ISOLATING_PROCESSES : 0
    this.#pids = plan.limits.pids === undefined ? undefined : plan.limits.pids + ours
    this.layersOf = layersOf
    this.#session = new Session(
      container.channel,
      plan.network.mode === 'fetch' ? takerOf(plan, (...tunnel) => this.#pass(...tunnel)) : undefined,
    )
    this.ended = this.#session.ended.then(async (why) => (await container.endReason?.()) ?? why)
    const text = (fields: readonly string[]): Buffer =>
      Buffer.from(fields.map((field) => `${field}\0`).join(''))
    this.#session.send('configure', 0, text(agentConfig.fields))
    this.#session.send('expect', 0, text(agentConfig.expected))
    this.#session.send('filter', 0, agentConfig.filter)
    this.#session.send('go', 0)
  }

  /** Sets the receiver of the sandbox's proxy connections; a pooled container has none yet. */
  handTo(onTunnel: TunnelTaker | undefined): void {
    this.#onTunnel = onTunnel
  }

  #pass(...[stream, secrets]: Parameters<TunnelTaker>): void {
    if (this.#onTunnel) this.#onTunnel(stream, secrets)
    else stream.destroy()
  }

  /** Runs one command in advance, so that caches are warm for the first real command. */
  async warm(argv: readonly string[]): Promise<void> {
    const fields = argv.flatMap((word) => ['argv', word])
    await this.#session.start({ fields, onOutput: () => undefined }).ended
  }

  get isGone(): boolean {
    return this.#over || this.container.channel.destroyed
  }

  /** Resolves when the agent has activated the last layers; on failure nothing is left. */
  async ready(): Promise<void> {
    const timer = setTimeout(() => this.#session.close('the agent did not answer in time'), SETUP_MS)
    try {
      await this.#session.ready
    } catch (error) {
      const errorText = await this.container.errorText().catch(() => '')
      await this.close()
      const why = (error as Error).message
      throw new SandboxError(
        'launch-failed',
        `the sandbox could not be set up: ${why === 'the sandbox ended' && errorText ? errorText : why}`,
      )
    } finally {
      clearTimeout(timer)
    }
  }

  async session(): Promise<Session> {
    if (this.#over) throw new SandboxError('wrong-state', 'the sandbox is closed')
    return this.#session
  }

  /** The counters of a removed cgroup keep their last values. */
  counts(): KernelCounts {
    const now = this.container.group?.counts() ?? { oomKills: 0, pidsRefused: 0 }
    this.#counted = {
      oomKills: Math.max(this.#counted.oomKills, now.oomKills, this.container.oomKills),
      pidsRefused: Math.max(this.#counted.pidsRefused, now.pidsRefused),
    }
    return this.#counted
  }

  /** Each command has a reaper process of ours, which must not count towards the limit of the commands. */
  onCommands(running: number): void {
    if (this.#pids === undefined || this.#over) return
    try {
      this.container.group?.allowPids(this.#pids + running, AGENT)
    } catch {
      // No permission to change it: then the commands have a slightly lower limit.
    }
  }

  hostPid(): number | undefined {
    return this.isGone ? undefined : this.container.pid
  }

  usage(): Usage | undefined {
    const { pid } = this.container
    return pid === undefined || this.isGone ? undefined : treeUsage(pid)
  }

  async confine(pid: number, limits: Limits): Promise<Confinement> {
    const { group, pid: root } = this.container
    const hostPid = (inner: number): number | undefined =>
      root === undefined ? undefined : hostPidOf(root, inner)
    const isKnown = hostPid(pid) !== undefined
    const own = isKnown ? nestedIn(group, `ringfence-exec-${++this.#execs}`, limits) : undefined
    return confinedTo(own, pid, hostPid)
  }

  async close(): Promise<void> {
    this.#over = true
    this.counts()
    this.#session.close()
    await this.container.destroy()
  }
}

function nestedIn(group: Cgroup | undefined, name: string, limits: Limits): Cgroup | undefined {
  try {
    return group?.nested(name, limits)
  } catch {
    return undefined
  }
}

/** A sandbox in a container, which can be paused. */
export class ContainerSandbox extends GuestSandbox {
  /** The container in the engine. */
  readonly container: ContainerHandle

  constructor(plan: Plan, transport: ContainerTransport, container: ContainerHandle = transport.container) {
    super(plan, transport)
    this.container = container
  }

  /** The agent stops the commands; then the kernel freezes everything, including the agent. */
  override async pause(): Promise<void> {
    await super.pause()
    try {
      await this.container.pause()
    } catch (error) {
      await super.resume()
      throw error
    }
  }

  override async resume(): Promise<void> {
    if (this.isPaused) await this.container.resume()
    await super.resume()
  }
}
