import type { GuestEnd, StartedProcess } from '../host/guest/process.ts'
import type { Cgroup } from '../host/process/cgroup.ts'
import { LimitedCommand, outcomeOf } from '../host/process/limited-command.ts'
import type { ExecResult, Outcome, StopLimit, Violation } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import type { Limits } from '../model/spec.ts'
import type { ExecIo, OutputStream, RunningCommand, StartIo, TerminalSize } from './backend.ts'

export type KernelCounts = { readonly oomKills: number; readonly pidsRefused: number }

export type Confinement = { readonly counts: () => KernelCounts; readonly release: () => Promise<void> }

/** Holds one command in a group of its own, or says that this host cannot. */
export function confinedTo(own: Cgroup | undefined, hostPid: number | undefined): Confinement {
  if (!own || hostPid === undefined)
    throw new SandboxError('unsupported', 'this host cannot hold that limit for one command', {
      hint: 'ask for memory, processors or processes when the sandbox is created',
    })
  own.join(hostPid)
  return { counts: () => own.counts(), release: () => own.remove() }
}

/** After the kill; whoever is not gone by then is beyond a signal, and the sandbox goes. */
const LOST_MS = 5000

/**
 * Whoever took all there was hears of its end after a moment. Lit again and again without one, a bomb would be its
 * neighbours' loss, however well it is contained.
 */
const BACK_OFF_MS = 250
const TAKEN: readonly StopLimit[] = ['memory', 'pids', 'disk', 'output']

/** Starts a command, gives it its input, and waits for its end. */
export async function execBy(
  start: (io: StartIo) => Promise<RunningCommand>,
  io: ExecIo,
): Promise<ExecResult> {
  const input = io.stdin instanceof Uint8Array ? io.stdin : undefined
  const running = await start({ ...io, stdin: input !== undefined })
  io.onStarted?.((signal) => running.signal(signal))
  if (input) {
    // A command need not read all that it is offered.
    await running.write(input).catch(() => {})
    running.endInput()
  }
  return running.result
}

/** The limits that whoever reads a command can hold. */
export const timeLimits = ({ wallMs, idleMs, outputBytes }: Limits): Limits => ({
  ...(wallMs === undefined ? {} : { wallMs }),
  ...(idleMs === undefined ? {} : { idleMs }),
  ...(outputBytes === undefined ? {} : { outputBytes }),
})

/** Whether nobody but the reader has to hold them. */
export const areTimeLimits = (limits: Limits): boolean =>
  Object.keys(timeLimits(limits)).length === Object.keys(limits).length

const KERNEL_LIMITS = ['memoryMb', 'pids', 'cpus'] as const

/** What is asked of a sandbox for the sake of one command's limits. */
export type LimitEnforcement = {
  /** What the kernel counted for this sandbox so far. */
  readonly counts: () => KernelCounts
  /** Puts a held process into a place of its own for its own limits. Absent: such limits are refused. */
  readonly confine?: ((pid: number, limits: Limits) => Promise<Confinement>) | undefined
}

/** Where a command's process is made. */
export type CommandParts = {
  readonly start: (onOutput: (stream: OutputStream, chunk: Uint8Array) => unknown) => StartedProcess
  /** Gives the whole sandbox up: a command in it is beyond a signal. */
  readonly lose: (why: string) => void
}

/** One command under its limits: first its own signal, then after a grace everything that it started. */
export class GuestCommand implements RunningCommand {
  readonly result: Promise<ExecResult>
  readonly #io: StartIo
  readonly #limits: Limits
  readonly #place: LimitEnforcement
  readonly #layers: readonly string[]
  readonly #command: LimitedCommand
  readonly #before: KernelCounts
  #guest: StartedProcess | undefined
  #host: CommandParts | undefined
  #confinement: Confinement | undefined
  #isOver: (result: ExecResult) => void = () => {}
  #isFailed: (error: unknown) => void = () => {}

  constructor(limits: Limits, io: StartIo, place: LimitEnforcement, layers: readonly string[]) {
    this.#io = io
    this.#limits = limits
    this.#place = place
    this.#layers = layers
    this.#before = place.counts()
    this.#command = new LimitedCommand({
      limits,
      output: io.output,
      signal: io.signal,
      ladder: {
        terminate: () => this.#guest?.signal('SIGTERM'),
        kill: () => this.#guest?.kill(),
        giveUp: { afterMs: LOST_MS, call: () => this.#host?.lose('a command could not be ended') },
      },
    })
    this.result = new Promise((resolve, reject) => {
      this.#isOver = resolve
      this.#isFailed = reject
    })
    this.result.catch(() => {})
    if (limits.diskMb !== undefined || (this.#isConfined && !place.confine))
      throw new SandboxError('unsupported', 'this backend cannot hold that limit for one command', {
        hint: 'ask for it when the sandbox is created',
      })
  }

  /** Whether its process waits for our word. */
  get isHeld(): boolean {
    return this.#io.permit !== undefined || this.#isConfined
  }

  /** Whether the kernel has to hold limits for this command alone. */
  get #isConfined(): boolean {
    return KERNEL_LIMITS.some((name) => this.#limits[name] !== undefined)
  }

  get pid(): number {
    return this.#guest?.pid ?? 0
  }

  async start(host: CommandParts): Promise<void> {
    this.#host = host
    const guest = host.start((stream, chunk) => this.#command.take(stream, chunk))
    this.#guest = guest
    if (this.isHeld) await this.#admit(guest)
    await guest.started
    this.#command.start()
    this.#guest.ended.then((end) => this.#finish(end)).catch(this.#isFailed)
  }

  /**
   * SECURITY: the command starts once it is permitted and its own limits hold. Its process is made meanwhile and
   * waits; when it is refused, nothing of it is left.
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

  #confine(pid: number): Promise<Confinement> | undefined {
    return this.#place.confine?.(pid, this.#limits)
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

  /** What the kernel counted since this command began; with others beside it, theirs too. */
  #counted(): KernelCounts {
    const own = this.#confinement?.counts() ?? { oomKills: 0, pidsRefused: 0 }
    const now = this.#place.counts()
    return {
      oomKills: own.oomKills + now.oomKills - this.#before.oomKills,
      pidsRefused: own.pidsRefused + now.pidsRefused - this.#before.pidsRefused,
    }
  }
}

/** What was stopped, with the limit that ended the command and what the kernel counted. */
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
