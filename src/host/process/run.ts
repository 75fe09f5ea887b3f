import { constants } from 'node:os'
import type { Duplex } from 'node:stream'
import type { StopLimit } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { type Frame, FrameReader, frame, numberFrame } from '../guest/frames.ts'
import { GRACE_MS, LimitedCommand, type Output } from './limited-command.ts'
import { type Child, failure, type Launch, spawnChild } from './spawn.ts'
import type { TimeLimits } from './watchdog.ts'

/** The streams of a process and how it is cancelled. */
export type RunIo = {
  /** `inherit` passes our standard streams through; bytes are written, then the stream is closed; `pipe` is the caller's. */
  readonly stdin?: 'inherit' | 'pipe' | Uint8Array | undefined
  /** Reading pauses while a promise that it returned is pending. */
  readonly output?: Output
  readonly signal?: AbortSignal | undefined
  /** For a guest agent, which hands over its listening socket on descriptor 4: called for each connection to the proxy. */
  readonly onTunnel?: ((stream: Duplex) => void) | undefined
  /** Called with a function that sends signals to the command. */
  readonly onStarted?: ((send: (signal: NodeJS.Signals) => void) => void) | undefined
  /** For a guest agent started with `wait-for-go`: it continues when this resolves, and is killed when this rejects. */
  readonly permit?: Promise<unknown> | undefined
}

/** How a process ended and what it printed. */
export type RunResult = {
  /** How the started process itself ended; a guest agent's `exit` frame says more. */
  readonly exit: { readonly code: number | null; readonly signal: string | null }
  readonly stopped: StopLimit | undefined
  readonly stdout: Uint8Array
  readonly stderr: Uint8Array
  readonly truncated: boolean
  readonly durationMs: number
  readonly frames: readonly Frame[]
}

/** The limit of frames; an agent that sends more is not ours. */
const MAX_FRAMES = 1024
/** A traced command opens many files. */
const MAX_USES = 65_536

/** Runs a process under limits and always terminates it: first by signal, then after a grace period the whole tree. */
export async function run(launch: Launch, limits: TimeLimits, io: RunIo = {}): Promise<RunResult> {
  return new Run(launch, limits, io).result
}

/** A running process that the caller interacts with, under the same limits. */
export type RunningProcess = {
  readonly pid: number
  readonly result: Promise<RunResult>
  write(data: Uint8Array): Promise<void>
  endInput(): void
  signal(signal: NodeJS.Signals): void
}

/** Starts a process under limits that the caller talks to while it runs. */
export function startProcess(launch: Launch, limits: TimeLimits, io: RunIo = {}): RunningProcess {
  return new Run(launch, limits, io)
}

class Run implements RunningProcess {
  readonly result: Promise<RunResult>
  readonly #launch: Launch
  readonly #limits: TimeLimits
  readonly #io: RunIo
  readonly #reader = new FrameReader()
  readonly #frames: Frame[] = []
  readonly #command: LimitedCommand
  #child: Child

  constructor(launch: Launch, limits: TimeLimits, io: RunIo) {
    this.#launch = launch
    this.#limits = limits
    this.#io = io
    this.#command = new LimitedCommand({
      limits,
      output: io.output,
      signal: io.signal,
      ladder: { terminate: () => this.#signal('SIGTERM'), kill: () => this.#kill() },
    })
    try {
      this.#child = this.#start()
    } catch (cause) {
      // Arguments that are too long or invalid are rejected here, before there is a process.
      throw cause instanceof SandboxError ? cause : failure(launch, cause as Error)
    }
    this.result = this.#finish()
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  write(data: Uint8Array): Promise<void> {
    return new Promise((resolve, reject) => {
      const closed = (): void =>
        reject(new SandboxError('wrong-state', 'the command has closed its standard input'))
      if (!this.#child.stdin?.writable) return closed()
      this.#child.stdin.write(data, (error) => (error ? closed() : resolve()))
    })
  }

  endInput(): void {
    this.#child.stdin?.end()
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.killGroup(signal)
  }

  #start(): Child {
    const piped = this.#passesThrough() ? 'inherit' : 'pipe'
    const stdin = this.#io.stdin === 'inherit' ? 'inherit' : this.#io.stdin === undefined ? 'ignore' : 'pipe'
    return spawnChild(this.#launch, [stdin, piped, piped], this.#io.onTunnel)
  }

  /** Output that is counted must pass through this process. */
  #passesThrough(): boolean {
    const { outputBytes, idleMs } = this.#limits
    return this.#io.output === 'inherit' && outputBytes === undefined && idleMs === undefined
  }

  async #finish(): Promise<RunResult> {
    const child = this.#child
    const exit = this.#watchExit()
    this.#watchStreams()
    const refused = await this.#permitted(exit)
    if (refused) throw refused.error
    this.#command.start()
    this.#io.onStarted?.((signal) => this.#signal(signal))
    child.stdin?.on('error', () => {})
    if (this.#io.stdin instanceof Uint8Array) child.stdin?.end(this.#io.stdin)
    try {
      const ended = await exit
      return { exit: ended, stopped: this.#command.stopped, ...this.#command.result(), frames: this.#frames }
    } finally {
      // A process that left the process group may still hold the other ends.
      for (const stream of child.stdio) stream?.destroy()
      this.#command.dispose()
    }
  }

  /** Waits for the permit, or for an exit before it. */
  async #permitted(exit: Promise<unknown>): Promise<{ readonly error: unknown } | undefined> {
    if (!this.#io.permit) return undefined
    const ended = exit.then(
      () => undefined,
      () => undefined,
    )
    try {
      await this.#io.permit
      ;(this.#child.stdio[3] as Duplex | null | undefined)?.write(frame('go', 0), () => {})
      return undefined
    } catch (error) {
      this.#kill()
      await ended
      return { error }
    }
  }

  #watchExit(): Promise<RunResult['exit']> {
    const child = this.#child
    return new Promise((resolve, reject) => {
      child.on('error', (cause) => reject(failure(this.#launch, cause)))
      child.on('close', (code, signal) => resolve({ code, signal }))
      // A process that left its group may hold the pipes forever; output after the exit is ignored.
      child.on('exit', (code, signal) => {
        if (!this.#launch.control) this.#command.after(GRACE_MS, () => resolve({ code, signal }))
      })
    })
  }

  #watchStreams(): void {
    for (const name of ['stdout', 'stderr'] as const) {
      this.#child[name]?.on('data', (chunk: Uint8Array) => this.#hold(name, this.#command.take(name, chunk)))
    }
    const control = this.#child.stdio[3] as Duplex | null | undefined
    control?.on('error', () => {})
    control?.on('data', (chunk: Uint8Array) => this.#hear(this.#reader.push(chunk)))
  }

  #hear(frames: Frame[]): void {
    for (const frame of frames) {
      // The exit frame must not get lost, however many frames came before it.
      const room = frame.kind === 'exit' || frame.kind === 'use' ? MAX_USES : MAX_FRAMES
      if (this.#frames.length < room) this.#frames.push(frame)
      if (frame.kind === 'limit') this.#command.note(frame.limit)
    }
  }

  /** A slow reader blocks the pipe, and thereby the command. */
  #hold(name: 'stdout' | 'stderr', taken: unknown): void {
    if (!(taken instanceof Promise)) return
    const stream = this.#child[name]
    stream?.pause()
    taken.then(
      () => stream?.resume(),
      () => this.#command.cancel(),
    )
  }

  #signal(signal: NodeJS.Signals): void {
    const control = this.#child.stdio[3] as Duplex | null | undefined
    if (control) control.write(numberFrame('signal', 0, constants.signals[signal]), () => {})
    else this.#child.killGroup(signal)
  }

  /**
   * SECURITY: bubblewrap's first child sets its parent-death signal only some time after the fork. The process group
   * reaches it until it creates a session, the closed channel ends the agent, and in between it dies with its parent.
   */
  #kill(): void {
    this.#child.killGroup('SIGKILL')
    ;(this.#child.stdio[3] as Duplex | null | undefined)?.destroy()
  }
}
