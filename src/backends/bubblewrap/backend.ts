import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { monotonicMs } from '../../host/clock.ts'
import { Session } from '../../host/guest/session.ts'
import { Cgroup, type CgroupHost, cgroupHost } from '../../host/process/cgroup.ts'
import { startChannelProcess } from '../../host/process/channel-process.ts'
import { groupName } from '../../host/process/orphans.ts'
import { run } from '../../host/process/run.ts'
import type { Launch } from '../../host/process/spawn.ts'
import { copyDisk } from '../../host/root/disk-image.ts'
import { caller, hostFingerprint, observeLayout, systemProgram } from '../../host/system.ts'
import type { Command, ExecResult } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Isolation, Limits } from '../../model/spec.ts'
import type { Backend, BackendSandbox, ExecIo, OpenOptions, Probe, Wrapped, Wrapper } from '../backend.ts'
import { areTimeLimits } from '../guest-command.ts'
import { GuestSandbox, type GuestTransport } from '../guest-sandbox.ts'
import { hasEverything, isIsolated, sharedEnvironment, takerOf } from '../isolated-command.ts'
import { BETWEEN, isolatesCommands } from '../isolation-probe.ts'
import { hostUserOf } from './host-user.ts'
import {
  type LaunchContext,
  launchContents,
  launchEnvironment,
  launchVector,
  type SystemLayout,
} from './launch.ts'
import { resultOf, SETUP_FAILED } from './result.ts'
import { type Arch, assemble, encode } from './seccomp.ts'
import { BubblewrapTransport } from './transport.ts'

/** What the bubblewrap backend is made of. */
export type BubblewrapParts = {
  /** The path of our launcher and guest agent, built by `npm run setup`. */
  readonly agent: string
  /** A small plan that the probe runs, also with commands that are isolated from each other. */
  readonly probePlan: (isolation?: Isolation) => Plan
  readonly bwrap?: string
  /** Lets tests break a launch on purpose, to verify that the attack tests notice. */
  readonly sabotage?: (vector: readonly string[]) => readonly string[]
}

/** In the user namespace of a writable root. */
const ROOT_USER = { uid: 0, gid: 0 }
const CONTROL = 3
/** The descriptor on which the agent hands over the proxy's listening socket. */
const HANDOVER = 4
/** The descriptor after the channels: the contents of the plan's files. */
const contentsAfter = (handoverFd: number | undefined): number => (handoverFd ?? CONTROL) + 1

const ALWAYS: readonly Guarantee[] = [
  'fs.read',
  'fs.write',
  'fs.protect',
  'env.clean',
  'net.offline',
  'net.loopback',
  'net.fetch',
  'secrets.outside',
  'proc.hidden',
  'ipc.private',
  'kernel.filtered',
  'limit.wall',
  'limit.idle',
  'limit.memory',
  'limit.pids',
  'limit.disk',
  'limit.output',
  'cleanup',
]

/** Namespaces, seccomp, Landlock and the guest agent, with the host's own tools. */
export function bubblewrap(parts: BubblewrapParts): Backend & Wrapper {
  return new Bubblewrap(parts)
}

class Bubblewrap implements Backend, Wrapper {
  readonly name = 'bubblewrap'
  readonly level = 'os'
  readonly byNameOnly = false
  readonly emulated = false
  readonly reviews = true
  readonly mountsVolumes = true
  readonly writableRoots = true
  readonly #parts: BubblewrapParts
  #layout: SystemLayout | undefined
  #cgroups: CgroupHost | undefined
  #filter: string | undefined

  constructor(parts: BubblewrapParts) {
    this.#parts = parts
  }

  async probe(): Promise<Probe> {
    const missing = this.#missing()
    if (missing) return { available: false, ...missing }
    const started = monotonicMs()
    try {
      const result = await this.#exec(this.#parts.probePlan(), { argv: ['true'] })
      if (result.outcome.kind !== 'exited' || result.outcome.code !== 0)
        throw new Error('the probe command failed')
    } catch (error) {
      const known = error instanceof SandboxError ? error.hint : undefined
      const reason = (error as Error).message.replace(SETUP_FAILED, '')
      return { available: false, reason, fix: known ?? 'run `ringfence doctor` for details' }
    }
    const startMs = monotonicMs() - started
    const between = (await this.#isolates()) ? BETWEEN : []
    return { available: true, guarantees: [...this.#claims(), ...between], startMs }
  }

  /** Whether a command gets namespaces that are not those of its sandbox; a host that forbids it keeps everything else. */
  async #isolates(): Promise<boolean> {
    const plan = this.#parts.probePlan('command')
    return isIsolated(plan) && isolatesCommands(async () => new GuestSandbox(plan, this.#transport(plan, {})))
  }

  fingerprint(): string {
    return hostFingerprint([this.#bwrap ?? 'bwrap', this.#parts.agent])
  }

  #missing(): { reason: string; fix: string } | undefined {
    if (process.platform !== 'linux') return { reason: 'bubblewrap needs Linux', fix: 'use another backend' }
    if (!(process.arch in { x64: 1, arm64: 1 }))
      return { reason: `no seccomp filter for ${process.arch}`, fix: 'use x64 or arm64' }
    if (!this.#bwrap) return { reason: 'bubblewrap is not installed', fix: 'apt-get install bubblewrap' }
    if (!existsSync(this.#parts.agent))
      return { reason: 'the guest agent is not built', fix: 'npm run setup' }
    return undefined
  }

  /** CPU time can be limited only by a cgroup. */
  #claims(): readonly Guarantee[] {
    return this.#cgroupHost.parents.cpus ? [...ALWAYS, 'limit.cpu'] : ALWAYS
  }

  get #bwrap(): string | undefined {
    return this.#parts.bwrap ?? systemProgram('bwrap')
  }

  get #cgroupHost(): CgroupHost {
    this.#cgroups ??= cgroupHost()
    return this.#cgroups
  }

  async open(plan: Plan, options: OpenOptions = {}): Promise<BackendSandbox> {
    if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
    const missing = this.#missing()
    if (missing) throw new SandboxError('backend-unavailable', missing.reason, { hint: missing.fix })
    if (plan.network.mode === 'fetch' && !options.onTunnel)
      throw new SandboxError('internal', 'a sandbox with network mode fetch needs a proxy')
    return new BubblewrapSandbox(plan, this.#transport(plan, options), (command, io) =>
      this.#exec(plan, command, io, options.onTunnel),
    )
  }

  /** A persistent sandbox: started with the first command, ended with its channel. */
  #transport(plan: Plan, { onTunnel }: OpenOptions): BubblewrapTransport {
    return new BubblewrapTransport(plan, () => {
      const group = this.#group(plan)
      const vector = this.#vector(plan, 'persistent', group, CONTROL)
      const env = launchEnvironment(vector, sharedEnvironment(plan))
      // The connections of an isolated command come over the channel, with its id.
      const isolated = isIsolated(plan)
      const companion = startChannelProcess(this.#launch(plan, env), isolated ? undefined : onTunnel)
      const take = takerOf(plan, (stream, secrets) => onTunnel?.(stream, secrets))
      const session = new Session(companion.channel, isolated ? take : undefined)
      return { group, companion, session }
    })
  }

  #launch(plan: Plan, env: Readonly<Record<string, string>>): Launch {
    const contents = launchContents(plan)
    return {
      file: this.#parts.agent,
      args: ['launch'],
      env,
      cwd: '/',
      control: true,
      isLauncher: true,
      contents,
    }
  }

  async wrap(plan: Plan, command: Command): Promise<Wrapped> {
    if (!isPlan(plan)) throw new SandboxError('internal', 'a backend accepts only plans that policy made')
    const group = this.#group(plan)
    const vector = this.#vector(plan, command, group, -1)
    return {
      command: this.#parts.agent,
      args: ['launch'],
      env: launchEnvironment(vector, environmentOf(plan, command)),
      cwd: '/',
      dispose: async () => group?.remove(),
    }
  }

  /** Creating a cgroup and, in v2, joining it costs milliseconds: too much for a limit that was not requested. */
  #group(plan: Plan): Cgroup | undefined {
    const asked = Object.entries(plan.limits).filter(([name]) => !plan.nets.includes(name as keyof Limits))
    if (!asked.some(([name]) => ['memoryMb', 'pids', 'cpus'].includes(name))) return undefined
    return Cgroup.create(this.#cgroupHost, groupName(), Object.fromEntries(asked))
  }

  /** Whether the agent must enforce a limit: it was not requested, or there is no cgroup for it. */
  #agentHolds(plan: Plan, limit: 'memoryMb' | 'pids'): boolean {
    return plan.nets.includes(limit) || (plan.limits[limit] !== undefined && !this.#cgroupHost.parents[limit])
  }

  #vector(
    plan: Plan,
    command: Command | 'persistent',
    group: Cgroup | undefined,
    control: number,
    waitForGo = false,
  ): readonly string[] {
    this.#layout ??= observeLayout()
    this.#filter ??= Buffer.from(encode(assemble(process.arch as Arch))).toString('hex')
    const user = plan.root ? ROOT_USER : (plan.runAs ?? caller())
    const handsOver = plan.network.mode === 'fetch' && !(isIsolated(plan) && command === 'persistent')
    const handoverFd = control >= 0 && handsOver ? HANDOVER : undefined
    const context: LaunchContext = {
      bwrap: this.#bwrap as string,
      layout: this.#layout,
      filter: this.#filter,
      ...user,
      hostUser: hostUserOf(plan),
      control,
      handoverFd,
      contents: control >= 0 && plan.files.length > 0 ? contentsAfter(handoverFd) : undefined,
      waitForGo,
      cgroups: group?.dirs ?? [],
      bootId: randomUUID(),
      agentHolds: { memory: this.#agentHolds(plan, 'memoryMb'), pids: this.#agentHolds(plan, 'pids') },
    }
    const vector = launchVector(plan, command, context)
    return this.#parts.sabotage?.(vector) ?? vector
  }

  async #exec(
    plan: Plan,
    command: Command,
    io: ExecIo = {},
    onTunnel?: OpenOptions['onTunnel'],
  ): Promise<ExecResult> {
    const group = this.#group(plan)
    try {
      const vector = this.#vector(plan, command, group, CONTROL, io.permit !== undefined)
      const env = launchEnvironment(vector, environmentOf(plan, command))
      const launch = this.#launch(plan, env)
      const result = await run(launch, { ...plan.limits, ...io.limits }, { ...io, onTunnel })
      return resultOf(result, group)
    } finally {
      await group?.remove()
    }
  }
}

const environmentOf = (plan: Plan, command: Command): Readonly<Record<string, string>> => ({
  ...plan.env,
  ...command.env,
})

/** A single last command is launched with its own streams; everything else uses the session. */
class BubblewrapSandbox extends GuestSandbox {
  readonly #alone: (command: Command, io: ExecIo) => Promise<ExecResult>
  readonly #transport: GuestTransport & Pick<BubblewrapTransport, 'isOpen' | 'syncDisk'>
  readonly #plan: Plan

  constructor(
    plan: Plan,
    transport: BubblewrapTransport,
    alone: (command: Command, io: ExecIo) => Promise<ExecResult>,
  ) {
    super(plan, transport)
    this.#plan = plan
    this.#alone = alone
    this.#transport = transport
  }

  /** The agent's answer to a file operation shows that it has stopped all commands. */
  async copyDisk(to: string): Promise<void> {
    const { root } = this.#plan
    if (!root) throw new SandboxError('unsupported', 'this sandbox has no disk of its own')
    await this.still(async () => {
      await this.files.stat('/')
      await this.#transport.syncDisk()
      await copyDisk(root.disk.real, to)
    })
  }

  override exec(command: Command, io: ExecIo = {}): Promise<ExecResult> {
    // The host's streams belong to a user that does not exist in a sandbox with users of its own.
    const mayBeAlone =
      this.#plan.root === undefined && !this.#transport.isOpen && hasEverything(this.#plan, command)
    const alone = io.last && mayBeAlone && areTimeLimits(io.limits ?? {})
    return alone ? this.#alone(command, io) : super.exec(command, io)
  }
}
