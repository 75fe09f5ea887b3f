import { existsSync } from 'node:fs'
import { Cgroup, type CgroupHost, cgroupHost } from '../../host/cgroup.ts'
import { monotonicMs } from '../../host/clock.ts'
import type { Frame } from '../../host/frames.ts'
import { groupName } from '../../host/orphans.ts'
import { Session } from '../../host/session.ts'
import { signalName } from '../../host/signals.ts'
import { type Companion, type RunResult, run, startCompanion } from '../../host/spawn.ts'
import {
  caller,
  hostFingerprint,
  hostPidOf,
  observeLayout,
  readText,
  systemProgram,
  treeUsage,
} from '../../host/system.ts'
import type { Command, ExecResult, Outcome, Use, Violation } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import { isPlan, type Plan } from '../../model/plan.ts'
import type { Limits } from '../../model/spec.ts'
import type {
  Backend,
  BackendSandbox,
  ExecIo,
  OpenOptions,
  Probe,
  Usage,
  Wrapped,
  Wrapper,
} from '../backend.ts'
import {
  type Confinement,
  type GuestPlace,
  GuestSandbox,
  type KernelCounts,
  violationsOf,
} from '../guest-sandbox.ts'
import { type LaunchContext, launchEnvironment, launchVector, type SystemLayout } from './launch.ts'
import { layersOf } from './layers.ts'
import { type Arch, assemble, encode } from './seccomp.ts'

export type BubblewrapParts = {
  /** Our launcher and guest agent, built by the set-up. */
  readonly agent: string
  /** A small plan that the probe really runs. */
  readonly probePlan: () => Plan
  readonly bwrap?: string
  /** Tests change a launch on purpose, to see that the proofs notice. */
  readonly sabotage?: (vector: readonly string[]) => readonly string[]
}

const CONTROL = 3
/** Where the agent hands the proxy's listening socket over. */
const HAND = 4
const SETUP_FAILED = 'the sandbox could not be set up: '

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

/** Namespaces, seccomp, Landlock and the guest agent around the host's own tools. */
export function bubblewrap(parts: BubblewrapParts): Backend & Wrapper {
  return new Bubblewrap(parts)
}

class Bubblewrap implements Backend, Wrapper {
  readonly name = 'bubblewrap'
  readonly level = 'os'
  readonly byNameOnly = false
  readonly emulated = false
  readonly reviews = true
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
      return { available: false, reason, fix: known ?? 'run the tests to see more: npm test' }
    }
    return { available: true, guarantees: this.#claims(), startMs: monotonicMs() - started }
  }

  fingerprint(): string {
    return hostFingerprint([this.#bwrap ?? 'bwrap', this.#parts.agent])
  }

  #missing(): { reason: string; fix: string } | undefined {
    if (process.platform !== 'linux') return { reason: 'bubblewrap needs Linux', fix: 'use another backend' }
    if (!(process.arch in { x64: 1, arm64: 1 }))
      return { reason: `no filter for ${process.arch}`, fix: 'use x64 or arm64' }
    if (!this.#bwrap) return { reason: 'bubblewrap is not installed', fix: 'apt-get install bubblewrap' }
    if (!existsSync(this.#parts.agent))
      return { reason: 'the guest agent is not built', fix: 'npm run setup' }
    return undefined
  }

  /** Processor time has no ceiling but the control group's. */
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
    return new BubblewrapSandbox(plan, this.#place(plan, options), (command, io) =>
      this.#exec(plan, command, io, options.onTunnel),
    )
  }

  /** A sandbox that stays: made when the first command comes, gone with its channel. */
  #place(plan: Plan, { onTunnel }: OpenOptions): BubblewrapPlace {
    return new BubblewrapPlace(plan.limits.pids, () => {
      const group = this.#group(plan)
      const vector = this.#vector(plan, 'stay', group, CONTROL)
      const env = launchEnvironment(vector, plan.env)
      const launch = { file: this.#parts.agent, args: ['launch'], env, cwd: '/', control: true }
      const companion = startCompanion(launch, onTunnel)
      return { group, companion, session: new Session(companion.channel) }
    })
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

  /** Joining a group costs milliseconds in the kernel, too much for a net that nobody asked for. */
  #group(plan: Plan): Cgroup | undefined {
    const asked = Object.entries(plan.limits).filter(([name]) => !plan.nets.includes(name as keyof Limits))
    if (!asked.some(([name]) => ['memoryMb', 'pids', 'cpus'].includes(name))) return undefined
    return Cgroup.create(this.#cgroupHost, groupName(), Object.fromEntries(asked))
  }

  /** Whether the agent has to hold a limit: nobody asked for it, or there is no control group that could. */
  #agentHolds(plan: Plan, limit: 'memoryMb' | 'pids'): boolean {
    return plan.nets.includes(limit) || (plan.limits[limit] !== undefined && !this.#cgroupHost.parents[limit])
  }

  #vector(
    plan: Plan,
    command: Command | 'stay',
    group: Cgroup | undefined,
    control: number,
    waits = false,
  ): readonly string[] {
    this.#layout ??= observeLayout()
    this.#filter ??= Buffer.from(encode(assemble(process.arch as Arch))).toString('hex')
    const user = plan.runAs ?? caller()
    const context: LaunchContext = {
      bwrap: this.#bwrap as string,
      layout: this.#layout,
      filter: this.#filter,
      ...user,
      control,
      hand: control >= 0 && plan.network.mode === 'fetch' ? HAND : undefined,
      waits,
      cgroups: group?.dirs ?? [],
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
      const launch = { file: this.#parts.agent, args: ['launch'], env, cwd: '/', control: true }
      const result = await run(launch, plan.limits, { ...io, onTunnel })
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

/** One command alone is launched with its own streams; everything else goes through the session. */
class BubblewrapSandbox extends GuestSandbox {
  readonly #alone: (command: Command, io: ExecIo) => Promise<ExecResult>
  readonly #place: GuestPlace & { readonly isOpen: boolean }

  constructor(
    plan: Plan,
    place: BubblewrapPlace,
    alone: (command: Command, io: ExecIo) => Promise<ExecResult>,
  ) {
    super(plan, place)
    this.#alone = alone
    this.#place = place
  }

  override exec(command: Command, io: ExecIo = {}): Promise<ExecResult> {
    const alone = io.last && !this.#place.isOpen && io.limits === undefined
    return alone ? this.#alone(command, io) : super.exec(command, io)
  }
}

type Opened = {
  readonly group: Cgroup | undefined
  readonly companion: Companion
  readonly session: Session
}

class BubblewrapPlace implements GuestPlace {
  readonly ended: Promise<string>
  readonly #open: () => Opened
  readonly #pids: number | undefined
  #opened: Opened | undefined
  #over = false
  #execs = 0
  #isEnded: (reason: string) => void = () => {}

  constructor(pids: number | undefined, open: () => Opened) {
    this.#pids = pids
    this.#open = open
    this.ended = new Promise((resolve) => {
      this.#isEnded = resolve
    })
  }

  get isOpen(): boolean {
    return this.#opened !== undefined
  }

  async session(): Promise<Session> {
    if (this.#over) throw new SandboxError('wrong-state', 'the sandbox is closed')
    if (!this.#opened) {
      this.#opened = this.#open()
      const { session, companion } = this.#opened
      void session.ended.then((reason) => this.#isEnded(reason))
      companion.exited.catch((error: Error) => session.close(error.message))
    }
    const { session } = this.#opened
    try {
      await session.ready
    } catch (error) {
      throw await this.#failure(error as Error)
    }
    return session
  }

  /** Why the wall could not be set up: the agent's word, or bubblewrap's. */
  async #failure(error: Error): Promise<SandboxError> {
    const { companion } = this.#opened as Opened
    const { said } = await companion.exited
    const text =
      error.message === 'the sandbox ended' ? said.trim().split('\n')[0] || error.message : error.message
    const { reason, fix } = diagnose(text)
    return new SandboxError('launch-failed', `${SETUP_FAILED}${reason}`, { hint: fix })
  }

  layersOf(status: ReadonlyMap<string, string>): readonly string[] {
    return layersOf(status, this.#opened?.group !== undefined)
  }

  /** Each command has a keeper of ours beside it, which must not be charged to the commands. */
  onCommands(running: number): void {
    if (this.#pids !== undefined && !this.#over) this.#opened?.group?.allowPids(this.#pids + running)
  }

  counts(): KernelCounts {
    return this.#opened?.group?.counts() ?? { oomKills: 0, pidsRefused: 0 }
  }

  usage(): Usage | undefined {
    return this.#opened && treeUsage(this.#opened.companion.pid)
  }

  async confine(pid: number, limits: Limits): Promise<Confinement> {
    const { group, companion } = this.#opened as Opened
    const host = hostPidOf(companion.pid, pid)
    const name = `ringfence-exec-${++this.#execs}`
    const own = host === undefined ? undefined : group?.nested(name, limits)
    if (!own || host === undefined)
      throw new SandboxError('unsupported', 'this host cannot hold that limit for one command', {
        hint: 'ask for memory, processors or processes when the sandbox is created',
      })
    own.join(host)
    return { counts: () => own.counts(), release: () => own.remove() }
  }

  async close(): Promise<void> {
    this.#over = true
    this.#isEnded('closed')
    if (!this.#opened) return
    const { session, companion, group } = this.#opened
    session.close()
    companion.kill()
    await companion.exited.catch(() => {})
    await group?.remove()
  }
}

function resultOf(result: RunResult, group: Cgroup | undefined): ExecResult {
  const ready = result.frames.find((frame) => frame.kind === 'ready')
  const error = result.frames.find((frame) => frame.kind === 'error')
  if (!result.stopped && (!ready || error)) throw launchError(error, result)
  const counts = group?.counts() ?? { oomKills: 0, pidsRefused: 0 }
  const outcome = outcomeOf(result, counts.oomKills)
  return {
    outcome,
    stdout: result.stdout,
    stderr: result.stderr,
    truncated: result.truncated,
    durationMs: result.durationMs,
    violations: violationsOf(toldViolations(result.frames), outcome, counts),
    ...usesOf(result.frames),
    layers: ready?.kind === 'ready' ? layersOf(ready.status, group !== undefined) : [],
  }
}

function launchError(error: Frame | undefined, result: RunResult): SandboxError {
  const said = Buffer.from(result.stderr).toString('utf8').trim().split('\n')[0] ?? ''
  const text =
    error?.kind === 'error'
      ? error.text
      : said || `the launcher ended with ${result.exit.code ?? result.exit.signal}`
  const { reason, fix } = diagnose(text)
  return new SandboxError('launch-failed', `${SETUP_FAILED}${reason}`, { hint: fix })
}

function outcomeOf(result: RunResult, oomKills: number): Outcome {
  if (result.stopped) return { kind: 'stopped', limit: result.stopped }
  const exit = result.frames.find((frame) => frame.kind === 'exit')
  const killed = exit?.kind !== 'exit' || exit.code === (exit.signaled ? 9 : 137)
  if (killed && oomKills > 0) return { kind: 'stopped', limit: 'memory' }
  if (exit?.kind !== 'exit') return { kind: 'signaled', signal: result.exit.signal ?? 'SIGKILL' }
  return exit.signaled
    ? { kind: 'signaled', signal: signalName(exit.code) }
    : { kind: 'exited', code: exit.code }
}

function usesOf(frames: readonly Frame[]): { readonly uses?: readonly Use[] } {
  const uses = frames.flatMap((frame) => (frame.kind === 'use' ? [frame.use] : []))
  return uses.length === 0 ? {} : { uses }
}

const toldViolations = (frames: readonly Frame[]): readonly Violation[] =>
  frames.flatMap((frame) =>
    frame.kind === 'violation' ? [{ guarantee: frame.guarantee, details: frame.details }] : [],
  )

/** Turns what the kernel or bubblewrap said into what a person can do about it. */
function diagnose(text: string): { readonly reason: string; readonly fix: string } {
  const blocked = /new namespace|uid_?map|RTM_NEWADDR|Operation not permitted|No space left/i.test(text)
  if (blocked && readText('/proc/sys/kernel/apparmor_restrict_unprivileged_userns')?.trim() === '1')
    return {
      reason: 'AppArmor blocks user namespaces for this program',
      fix: 'sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or add an AppArmor profile for bwrap',
    }
  if (blocked && readText('/proc/sys/kernel/unprivileged_userns_clone')?.trim() === '0')
    return { reason: 'user namespaces are switched off', fix: 'sysctl -w kernel.unprivileged_userns_clone=1' }
  if (blocked && readText('/proc/sys/user/max_user_namespaces')?.trim() === '0')
    return { reason: 'user namespaces are switched off', fix: 'sysctl -w user.max_user_namespaces=15000' }
  if (/Can't find source path \/proc\/self\/fd/.test(text))
    return {
      reason: 'the owner of the workspace cannot enter a directory above it',
      fix: 'let others pass through those directories (chmod o+x), or make the workspace yours',
    }
  return { reason: text.replace(/^bwrap: /, ''), fix: 'run `ringfence doctor` to see what this host lacks' }
}
