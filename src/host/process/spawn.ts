import { type ChildProcess, spawn } from 'node:child_process'
import { constants } from 'node:os'
import { Duplex } from 'node:stream'
import type { StopLimit } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { monotonicMs } from '../clock.ts'
import { type Frame, FrameReader, frame, numberFrame } from '../guest/frames.ts'
import { serveSocket } from '../net/loopback.ts'
import { CollectedOutput } from './collected-output.ts'
import { type TimeLimits, Watchdog } from './watchdog.ts'

/** A process to start, complete: nothing is inherited but what stands here. */
export type Launch = {
  readonly file: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd?: string
  /** Descriptor 3 is a control channel to a guest agent. */
  readonly control: boolean
  /** Bytes that the agent reads from the descriptor after its channels, until their end. */
  readonly contents?: Uint8Array | undefined
}

export type RunIo = {
  /** `inherit` passes our own standard streams through; bytes are written and the stream is closed; `pipe` is the caller's. */
  readonly stdin?: 'inherit' | 'pipe' | Uint8Array | undefined
  /** While a promise that it returned is pending, nothing more is read. */
  readonly output?: 'inherit' | ((stream: 'stdout' | 'stderr', chunk: Uint8Array) => unknown) | undefined
  readonly signal?: AbortSignal | undefined
  /** With a guest agent, which then hands its listening socket over on descriptor 4: each connection to the proxy. */
  readonly onTunnel?: ((stream: Duplex) => void) | undefined
  /** Gets the means to pass signals on to the command. */
  readonly onStarted?: ((send: (signal: NodeJS.Signals) => void) => void) | undefined
  /** With a guest agent that waits: it gets the word when this resolves, and is ended when it rejects. */
  readonly permit?: Promise<unknown> | undefined
}

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

/** Between asking and killing. */
export const GRACE_MS = 500
/** Frames that are kept; an agent that sends more is not ours. */
const MAX_FRAMES = 1024
/** A watched command opens many files. */
const MAX_USES = 65_536

/**
 * Runs a process under limits and always ends it: first its own signal, then after a grace the whole tree.
 * The only caller of `child_process`.
 */
export async function run(launch: Launch, limits: TimeLimits, io: RunIo = {}): Promise<RunResult> {
  return new Run(launch, limits, io).result
}

/** A process that the caller talks to while it runs, under the same limits. */
export type RunningProcess = {
  readonly pid: number
  readonly result: Promise<RunResult>
  write(data: Uint8Array): Promise<void>
  endInput(): void
  signal(signal: NodeJS.Signals): void
}

export function startProcess(launch: Launch, limits: TimeLimits, io: RunIo = {}): RunningProcess {
  return new Run(launch, limits, io)
}

/** A process that speaks a protocol for as long as it lives, on descriptor 3 or on its standard streams. */
export type ChannelProcess = {
  readonly pid: number
  readonly channel: Duplex
  /** Resolves when the process and its first children are gone, with what it said on standard error. */
  readonly exited: Promise<{
    readonly code: number | null
    readonly signal: string | null
    readonly said: string
  }>
  readonly kill: () => void
}

const MAX_SAID = 8192

/** Starts a process that stays, such as a sandbox with its agent. `onTunnel` as in `RunIo`. */
export function startChannelProcess(launch: Launch, onTunnel?: RunIo['onTunnel']): ChannelProcess {
  const child = born(
    launch,
    spawn(launch.file, launch.args, {
      env: launch.env as NodeJS.ProcessEnv,
      ...(launch.cwd === undefined ? {} : { cwd: launch.cwd }),
      stdio: launch.control
        ? ['ignore', 'ignore', 'pipe', ...channels(launch, onTunnel)]
        : ['pipe', 'pipe', 'pipe'],
      detached: true,
    }),
  )
  sendContents(launch, child)
  if (onTunnel) serveHandedOver(child, onTunnel)
  const channel = launch.control ? (child.stdio[3] as Duplex) : standardStreams(child)
  return { pid: child.pid ?? 0, channel, ...watched(launch, child) }
}

/** From descriptor 3 on: the control channel, where a listening socket comes from, and where contents are read. */
const channels = ({ contents }: Launch, onTunnel: RunIo['onTunnel']): ('pipe' | 'ipc')[] => [
  'pipe',
  ...(onTunnel ? (['ipc'] as const) : []),
  ...(contents ? (['pipe'] as const) : []),
]

/** The child says itself when it misses some of it. */
function sendContents({ contents }: Launch, child: ChildProcess): void {
  if (!contents) return
  const stream = child.stdio.at(-1) as Duplex | null | undefined
  stream?.on('error', () => {})
  stream?.end(contents, () => stream.destroy())
}

/**
 * Serves the listening socket that a child made in its own network, for as long as the child lives: no byte of a
 * connection goes through the child.
 * SECURITY: it comes before anything of a guest runs, and then the child closes the channel.
 * PLATFORM: we do not; a child whose channel was closed on this side never says that it is gone.
 */
function serveHandedOver(child: ChildProcess, onTunnel: NonNullable<RunIo['onTunnel']>): void {
  child.once('message', (_letter, socket) => {
    // SECURITY: to listen on nothing is to listen on every address.
    if (socket === undefined) {
      child.emit('error', new Error('its listening socket did not come'))
      return
    }
    const close = serveSocket(socket, onTunnel)
    if (child.exitCode === null && child.signalCode === null) child.once('exit', close)
    else close()
  })
}

/** How it ends, with the beginning of what it said; and the means to end it. */
function watched(launch: Launch, child: ChildProcess): Pick<ChannelProcess, 'exited' | 'kill'> {
  let said = ''
  child.stderr?.on('data', (chunk: Buffer) => {
    if (said.length < MAX_SAID) said += chunk.toString('utf8')
  })
  const exited = new Promise<Awaited<ChannelProcess['exited']>>((resolve, reject) => {
    child.on('error', (cause) => reject(failure(launch, cause)))
    child.on('close', (code, signal) => resolve({ code, signal, said }))
  })
  exited.catch(() => {})
  const kill = (): void => {
    try {
      if (child.pid !== undefined) process.kill(-child.pid, 'SIGKILL')
    } catch {
      // Already gone.
    }
  }
  return { exited, kill }
}

/** A process with streams to us, or files that are open already, on its descriptors from 3 on. */
export type StreamProcess = Omit<ChannelProcess, 'channel'> & { readonly streams: readonly Duplex[] }

/** Starts a process that stays and is spoken to on several descriptors, such as a hypervisor. */
export function startStreamProcess(
  launch: Launch,
  descriptors: readonly ('stream' | number)[],
): StreamProcess {
  const child = born(
    launch,
    spawn(launch.file, launch.args, {
      env: launch.env as NodeJS.ProcessEnv,
      cwd: launch.cwd ?? '/',
      stdio: ['ignore', 'ignore', 'pipe', ...descriptors.map((one) => (one === 'stream' ? 'pipe' : one))],
      detached: true,
    }),
  )
  const streams = child.stdio.slice(3).filter((one) => one !== null && one !== undefined) as Duplex[]
  return { pid: child.pid ?? 0, streams, ...watched(launch, child) }
}

/** A companion without a control channel speaks on its standard input and output. */
function standardStreams({ stdin, stdout }: ChildProcess): Duplex {
  stdin?.on('error', () => {})
  return Duplex.from({ readable: stdout as NodeJS.ReadableStream, writable: stdin as NodeJS.WritableStream })
}

const failure = ({ file }: Launch, cause: Error): SandboxError =>
  new SandboxError('launch-failed', `cannot start ${file}: ${cause.message}`, { cause })

/** PLATFORM: without a free descriptor Node returns a child that has no streams, and says why only later. */
function born(launch: Launch, child: ChildProcess): ChildProcess {
  if ((child.stdio as unknown) !== undefined) return child
  child.on('error', () => {})
  throw failure(launch, new Error('too many open files'))
}

class Run implements RunningProcess {
  readonly result: Promise<RunResult>
  readonly #launch: Launch
  readonly #limits: TimeLimits
  readonly #io: RunIo
  readonly #started = monotonicMs()
  readonly #reader = new FrameReader()
  readonly #frames: Frame[] = []
  readonly #said: Record<'stdout' | 'stderr', CollectedOutput>
  readonly #timers = new Set<NodeJS.Timeout>()
  readonly #watchdog: Watchdog
  #child: ChildProcess

  constructor(launch: Launch, limits: TimeLimits, io: RunIo) {
    this.#launch = launch
    this.#limits = limits
    this.#io = io
    const { outputBytes } = limits
    this.#said = { stdout: new CollectedOutput(outputBytes), stderr: new CollectedOutput(outputBytes) }
    this.#watchdog = new Watchdog(limits, io.signal, (reason) => this.#stop(reason))
    try {
      this.#child = this.#start()
    } catch (cause) {
      // Too long or impossible arguments are refused on the spot, before there is a process.
      throw cause instanceof SandboxError ? cause : failure(launch, cause as Error)
    }
    this.result = this.#finish()
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  write(data: Uint8Array): Promise<void> {
    return new Promise((resolve, reject) => {
      const closed = (): void => reject(new SandboxError('wrong-state', 'the command no longer reads'))
      if (!this.#child.stdin?.writable) return closed()
      this.#child.stdin.write(data, (error) => (error ? closed() : resolve()))
    })
  }

  endInput(): void {
    this.#child.stdin?.end()
  }

  signal(signal: NodeJS.Signals): void {
    this.#killGroup(signal)
  }

  #start(): ChildProcess {
    const { file, args, env, cwd, control } = this.#launch
    const piped = this.#passesThrough() ? 'inherit' : 'pipe'
    const stdin = this.#io.stdin === 'inherit' ? 'inherit' : this.#io.stdin === undefined ? 'ignore' : 'pipe'
    const child = spawn(file, args, {
      env: env as NodeJS.ProcessEnv,
      ...(cwd === undefined ? {} : { cwd }),
      stdio: control
        ? [stdin, piped, piped, ...channels(this.#launch, this.#io.onTunnel)]
        : [stdin, piped, piped],
      // A process group of its own: what is killed while it starts other processes takes them along.
      detached: true,
    })
    born(this.#launch, child)
    sendContents(this.#launch, child)
    if (this.#io.onTunnel) serveHandedOver(child, this.#io.onTunnel)
    return child
  }

  /** What is to be counted has to come through our hands. */
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
    this.#watchdog.start()
    this.#io.onStarted?.((signal) => this.#signal(signal))
    child.stdin?.on('error', () => {})
    if (this.#io.stdin instanceof Uint8Array) child.stdin?.end(this.#io.stdin)
    try {
      const ended = await exit
      return { exit: ended, ...this.#collected() }
    } finally {
      // Whoever left the process group may still hold the other ends.
      for (const stream of child.stdio) stream?.destroy()
      for (const timer of this.#timers) clearTimeout(timer)
      this.#watchdog.dispose()
    }
  }

  /** Waits for the permit, or for an end that came before it. */
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
      // A process that left its group may hold the pipes for ever; what it says after the end does not count.
      child.on('exit', (code, signal) => {
        if (!this.#launch.control) this.#after(GRACE_MS, () => resolve({ code, signal }))
      })
    })
  }

  #watchStreams(): void {
    for (const name of ['stdout', 'stderr'] as const) {
      this.#child[name]?.on('data', (chunk: Uint8Array) => this.#take(name, chunk))
    }
    const control = this.#child.stdio[3] as Duplex | null | undefined
    control?.on('error', () => {})
    control?.on('data', (chunk: Uint8Array) => this.#hear(this.#reader.push(chunk)))
  }

  #hear(frames: Frame[]): void {
    for (const frame of frames) {
      // However much was told before, how the command ended must not get lost.
      const room = frame.kind === 'exit' || frame.kind === 'use' ? MAX_USES : MAX_FRAMES
      if (this.#frames.length < room) this.#frames.push(frame)
      if (frame.kind === 'limit') this.#watchdog.note(frame.limit)
    }
  }

  #take(name: 'stdout' | 'stderr', chunk: Uint8Array): void {
    const kept = this.#watchdog.admit(chunk)
    if (kept.length === 0) return
    if (typeof this.#io.output === 'function') this.#hold(name, this.#io.output(name, kept))
    else if (this.#io.output === 'inherit') process[name].write(kept)
    else this.#said[name].add(kept)
  }

  /** A reader that needs time stops the pipe, and the pipe in the end the command. */
  #hold(name: 'stdout' | 'stderr', taken: unknown): void {
    if (!(taken instanceof Promise)) return
    const stream = this.#child[name]
    stream?.pause()
    taken.then(
      () => stream?.resume(),
      () => this.#watchdog.stop('cancelled'),
    )
  }

  #stop(reason: StopLimit): void {
    // A flood does not deserve a grace: what it writes meanwhile is thrown away anyway.
    if (reason !== 'output') this.#signal('SIGTERM')
    this.#after(reason === 'output' ? 0 : GRACE_MS, () => this.#kill())
  }

  #signal(signal: NodeJS.Signals): void {
    const control = this.#child.stdio[3] as Duplex | null | undefined
    if (control) control.write(numberFrame('signal', 0, constants.signals[signal]), () => {})
    else this.#killGroup(signal)
  }

  /**
   * SECURITY: bubblewrap's first child is tied to its parent's death only some time after it was born. The group reaches
   * it until it makes a session of its own, the closed channel ends the agent, and in between it dies with its parent.
   */
  #kill(): void {
    this.#killGroup('SIGKILL')
    ;(this.#child.stdio[3] as Duplex | null | undefined)?.destroy()
  }

  #killGroup(signal: NodeJS.Signals): void {
    try {
      if (this.#child.pid !== undefined) process.kill(-this.#child.pid, signal)
    } catch {
      // Already gone.
    }
  }

  #after(ms: number, action: () => void): void {
    this.#timers.add(setTimeout(action, ms))
  }

  #collected(): Omit<RunResult, 'exit'> {
    return {
      stopped: this.#watchdog.reason,
      stdout: this.#said.stdout.all(),
      stderr: this.#said.stderr.all(),
      truncated: this.#watchdog.truncated,
      durationMs: monotonicMs() - this.#started,
      frames: this.#frames,
    }
  }
}
