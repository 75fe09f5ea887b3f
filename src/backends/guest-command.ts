import type { SudoRequest } from '../host/guest/frames.ts'
import type { GuestEnd, StartedProcess } from '../host/guest/process.ts'
import type { Cgroup } from '../host/process/cgroup.ts'
import { LimitedCommand, outcomeOf } from '../host/process/limited-command.ts'
import { hasOwnInput, passOwnInput } from '../host/process/own-streams.ts'
import type { ExecResult, Outcome, StopLimit, Violation } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import type { Limits } from '../model/spec.ts'
import type { ExecIo, OutputStream, RunningCommand, StartIo, TerminalSize } from './backend.ts'

/** Processes that the kernel killed for memory, and forks that it refused. */
export type KernelCounts = { readonly oomKills: number; readonly pidsRefused: number }

/** A cgroup that holds one command. */
export type Confinement = {
  readonly counts: () => KernelCounts
  /** Moves another process of the command, by its pid in the sandbox, into the cgroup. Throws if that fails. */
  readonly join: (pid: number) => void
  readonly release: () => Promise<void>
}

/** Moves one command into its own cgroup; throws if this host cannot. */
export function confinedTo(
  own: Cgroup | undefined,
  pid: number,
  hostPidOf: (pid: number) => number | undefined,
): Confinement {
  const hostPid = hostPidOf(pid)
  if (!own || hostPid === undefined)
    throw new SandboxError('unsupported', 'this host cannot enforce that limit for a single command', {
      hint: 'set memory, CPU and process limits when the sandbox is created',
    })
  own.join(hostPid)
  const join = (other: number): void => {
    const found = hostPidOf(other)
    if (found === undefined) throw new SandboxError('wrong-state', 'the process is gone')
    own.join(found)
  }
  return { counts: () => own.counts(), join, release: () => own.remove() }
}

/** After SIGKILL: a command that still exists then cannot be killed, so the whole sandbox is destroyed. */
const LOST_MS = 5000

/**
 * Delays the exit notice of a command that hit a limit. Without the delay, a fork bomb restarted in a loop would slow
 * down its neighbours, however well it is contained.
 */
const BACK_OFF_MS = 250
/** SECURITY: each use of `sudo` is a record of the audit log, which one command must not flood. */
const MAX_RAISED = 10_000
const TAKEN: readonly StopLimit[] = ['memory', 'pids', 'disk', 'output']

/** Starts a command, writes its standard input, and waits for its end. */
export async function execBy(
  start: (io: StartIo) => Promise<RunningCommand>,
  io: ExecIo,
): Promise<ExecResult> {
  const input = io.stdin instanceof Uint8Array ? io.stdin : undefined
  const isOwn = io.stdin === 'inherit' && hasOwnInput()
  const running = await start({ ...io, stdin: isOwn || input !== undefined })
  io.onStarted?.((signal) => running.signal(signal))
  if (isOwn) passOwnInput(running)
  if (input) {
    // A command does not have to read all its input.
    await running.write(input).catch(() => {})
    running.endInput()
  }
  return running.result
}

/** The limits that the reader of a command enforces. */
export const timeLimits = ({ wallMs, idleMs, outputBytes }: Limits): Limits => ({
  ...(wallMs === undefined ? {} : { wallMs }),
  ...(idleMs === undefined ? {} : { idleMs }),
  ...(outputBytes === undefined ? {} : { outputBytes }),
})

/** Whether the reader alone can enforce these limits. */
export const areTimeLimits = (limits: Limits): boolean =>
  Object.keys(timeLimits(limits)).length === Object.keys(limits).length

const KERNEL_LIMITS = ['memoryMb', 'pids', 'cpus'] as const

/** What a sandbox provides to enforce the limits of one command. */
export type LimitEnforcement = {
  /** The kernel's counters for this sandbox so far. */
  readonly counts: () => KernelCounts
  /** Moves a waiting process into its own cgroup. Absent: limits for a single command are rejected. */
  readonly confine?: ((pid: number, limits: Limits) => Promise<Confinement>) | undefined
}

/** What a command needs of its sandbox. */
export type CommandParts = {
  readonly start: (
    onOutput: (stream: OutputStream, chunk: Uint8Array) => unknown,
    onSudo: (request: SudoRequest) => Promise<void>,
  ) => StartedProcess
  /** Destroys the whole sandbox, because a command in it cannot be killed. */
  readonly lose: (why: string) => void
}

/** One command with its limits; it is ended first by signal, then after a grace period with all its descendants. */
export class GuestCommand implements RunningCommand {
  readonly result: Promise<ExecResult>
  readonly #io: StartIo
  readonly #limits: Limits
  readonly #enforcement: LimitEnforcement
  readonly #layers: readonly string[]
  readonly #command: LimitedCommand
  readonly #before: KernelCounts
  #guest: StartedProcess | undefined
  #host: CommandParts | undefined
  #confinement: Confinement | undefined
  #raised = 0
  #isOver: (result: ExecResult) => void = () => {}
  #isFailed: (error: unknown) => void = () => {}

  constructor(limits: Limits, io: StartIo, enforcement: LimitEnforcement, layers: readonly string[]) {
    this.#io = io
    this.#limits = limits
    this.#enforcement = enforcement
    this.#layers = layers
    this.#before = enforcement.counts()
    this.#command = new LimitedCommand({
      limits,
      output: io.output,
      signal: io.signal,
      ladder: {
        terminate: () => this.#guest?.signal('SIGTERM'),
        kill: () => this.#guest?.kill(),
        giveUp: { afterMs: LOST_MS, call: () => this.#host?.lose('a command could not be killed') },
      },
    })
    this.result = new Promise((resolve, reject) => {
      this.#isOver = resolve
      this.#isFailed = reject
    })
    this.result.catch(() => {})
    if (limits.diskMb !== undefined || (this.#isConfined && !enforcement.confine))
      throw new SandboxError('unsupported', 'this backend cannot enforce that limit for a single command', {
        hint: 'set it when the sandbox is created',
      })
  }

  /** Whether the process waits for permission to start. */
  get isHeld(): boolean {
    return this.#io.permit !== undefined || this.#isConfined
  }

  /** Whether the kernel must enforce limits for this command alone. */
  get #isConfined(): boolean {
    return KERNEL_LIMITS.some((name) => this.#limits[name] !== undefined)
  }

  get pid(): number {
    return this.#guest?.pid ?? 0
  }

  async start(host: CommandParts): Promise<void> {
    this.#host = host
    const guest = host.start(
      (stream, chunk) => this.#command.take(stream, chunk),
      (request) => this.#admitSudo(request),
    )
    this.#guest = guest
    if (this.isHeld) await this.#admit(guest)
    await guest.started
    this.#command.start()
    this.#guest.ended.then((end) => this.#finish(end)).catch(this.#isFailed)
  }

  /**
   * SECURITY: the command starts only after it is permitted and its own limits are active. Its process is created
   * meanwhile and waits; if the command is refused, the process is killed.
   */
  async #admit(guest: StartedProcess): Promise<void> {
    try {
      await this.#io.permit
      if (this.#isConfined) this.#confinement = await this.#confine((await guest.started).pid)
      guest.release()
    } catch (error) {
      guest.kill()
      await guest.ended
      throw error
    }
  }

  /** SECURITY: what `sudo` starts is recorded first, and enters the cgroup of this command before it runs. */
  async #admitSudo({ pid, user, argv }: SudoRequest): Promise<void> {
    if (!this.#io.onSudo) throw new SandboxError('unsupported', 'nobody records what `sudo` starts')
    if (++this.#raised > MAX_RAISED)
      throw new SandboxError('too-many-requests', `a command used \`sudo\` more than ${MAX_RAISED} times`)
    await this.#io.onSudo({ user, argv })
    this.#confinement?.join(pid)
  }

  #confine(pid: number): Promise<Confinement> | undefined {
    return this.#enforcement.confine?.(pid, this.#limits)
  }

  write(data: Uint8Array): Promise<void> {
    return (this.#guest as StartedProcess).write(data)
  }

  endInput(): void {
    this.#guest?.endInput()
  }

  signal(signal: NodeJS.Signals): void {
    this.#guest?.signal(signal)
  }

  resize({ cols, rows }: TerminalSize): void {
    this.#guest?.resize(cols, rows)
  }

  async #finish(end: GuestEnd): Promise<void> {
    this.#command.dispose()
    if (end.limit) this.#command.note(end.limit)
    const counts = this.#counted()
    await this.#confinement?.release()
    if (end.refused !== undefined) throw new SandboxError('invalid-input', end.refused)
    if (end.lost !== undefined && !this.#command.stopped && counts.oomKills === 0)
      throw new SandboxError('wrong-state', `the sandbox is gone: ${end.lost}`)
    const outcome = outcomeOf(this.#command.stopped, end.exit, counts.oomKills)
    const result = this.#command.result()
    const tookAll = counts.oomKills > 0 || (outcome.kind === 'stopped' && TAKEN.includes(outcome.limit))
    if (tookAll) await new Promise((resolve) => setTimeout(resolve, BACK_OFF_MS))
    this.#isOver({
      outcome,
      ...result,
      violations: violationsOf(end.violations, outcome, counts),
      layers: this.#layers,
    })
  }

  /** What the kernel counted since this command began, including parallel commands. */
  #counted(): KernelCounts {
    const own = this.#confinement?.counts() ?? { oomKills: 0, pidsRefused: 0 }
    const now = this.#enforcement.counts()
    return {
      oomKills: own.oomKills + now.oomKills - this.#before.oomKills,
      pidsRefused: own.pidsRefused + now.pidsRefused - this.#before.pidsRefused,
    }
  }
}

/** The violations of a command, with the limit that ended it and the kernel's counters. */
export function violationsOf(
  told: readonly Violation[],
  outcome: Outcome,
  counts: KernelCounts,
): readonly Violation[] {
  const found = [...told]
  if (outcome.kind === 'stopped' && outcome.limit !== 'cancelled')
    found.push({ guarantee: `limit.${outcome.limit}`, details: 'the command was stopped at this limit' })
  else if (counts.oomKills > 0)
    found.push({ guarantee: 'limit.memory', details: `the kernel killed ${counts.oomKills} processes` })
  if (counts.pidsRefused > 0)
    found.push({ guarantee: 'limit.pids', details: `${counts.pidsRefused} forks were refused` })
  return found
}
