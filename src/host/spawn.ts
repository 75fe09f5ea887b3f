import { type ChildProcess, spawn } from 'node:child_process'
import { constants } from 'node:os'
import type { Duplex } from 'node:stream'
import type { StopLimit } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import type { Limits } from '../model/spec.ts'
import { monotonicMs } from './clock.ts'
import { type Frame, FrameReader, goFrame, signalFrame } from './frames.ts'

/** A process to start, complete: nothing is inherited but what stands here. */
export type Launch = {
  readonly file: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly cwd?: string
  /** Descriptor 3 is a control channel to a guest agent. */
  readonly control: boolean
}

export type RunIo = {
  /** `inherit` passes our own standard streams through; bytes are written and the stream is closed. */
  readonly stdin?: 'inherit' | Uint8Array | undefined
  readonly output?: 'inherit' | ((stream: 'stdout' | 'stderr', chunk: Uint8Array) => void) | undefined
  readonly signal?: AbortSignal | undefined
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

type RunLimits = Pick<Limits, 'wallMs' | 'idleMs' | 'outputBytes'>

/** Between asking and killing. */
const GRACE_MS = 500
/** Frames that are kept; an agent that sends more is not ours. */
const MAX_FRAMES = 1024

/**
 * Runs a process under limits and always ends it: first its own signal, then after a grace the whole tree.
 * The only caller of `child_process`.
 */
export async function run(launch: Launch, limits: RunLimits, io: RunIo = {}): Promise<RunResult> {
  return new Run(launch, limits, io).result
}

const failure = ({ file }: Launch, cause: Error): SandboxError =>
  new SandboxError('launch-failed', `cannot start ${file}: ${cause.message}`, { cause })

class Run {
  readonly result: Promise<RunResult>
  readonly #launch: Launch
  readonly #limits: RunLimits
  readonly #io: RunIo
  readonly #started = monotonicMs()
  readonly #reader = new FrameReader()
  readonly #frames: Frame[] = []
  readonly #chunks: Record<'stdout' | 'stderr', Uint8Array[]> = { stdout: [], stderr: [] }
  readonly #timers = new Set<NodeJS.Timeout>()
  #child: ChildProcess
  #stopped: StopLimit | undefined
  #outputBytes = 0
  #idle: NodeJS.Timeout | undefined

  constructor(launch: Launch, limits: RunLimits, io: RunIo) {
    this.#launch = launch
    this.#limits = limits
    this.#io = io
    try {
      this.#child = this.#start()
    } catch (cause) {
      // Too long or impossible arguments are refused on the spot, before there is a process.
      throw failure(launch, cause as Error)
    }
    this.result = this.#finish()
  }

  #start(): ChildProcess {
    const { file, args, env, cwd, control } = this.#launch
    const piped = this.#passesThrough() ? 'inherit' : 'pipe'
    const stdin = this.#io.stdin === 'inherit' ? 'inherit' : this.#io.stdin === undefined ? 'ignore' : 'pipe'
    return spawn(file, args, {
      env: env as NodeJS.ProcessEnv,
      ...(cwd === undefined ? {} : { cwd }),
      stdio: control ? [stdin, piped, piped, 'pipe'] : [stdin, piped, piped],
      // A process group of its own: what is killed while it starts other processes takes them along.
      detached: true,
    })
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
    this.#watchLimits()
    if (child.stdin && this.#io.stdin instanceof Uint8Array) {
      child.stdin.on('error', () => {})
      child.stdin.end(this.#io.stdin)
    }
    try {
      const ended = await exit
      return { exit: ended, ...this.#collected() }
    } finally {
      // Whoever left the process group may still hold the other ends.
      for (const stream of child.stdio) stream?.destroy()
      for (const timer of this.#timers) clearTimeout(timer)
      clearTimeout(this.#idle)
      this.#io.signal?.removeEventListener('abort', this.#cancel)
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
      ;(this.#child.stdio[3] as Duplex | null | undefined)?.write(goFrame(), () => {})
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
      const room = frame.kind === 'exit' ? MAX_FRAMES + 1 : MAX_FRAMES
      if (this.#frames.length < room) this.#frames.push(frame)
      if (frame.kind === 'limit') this.#stopped ??= frame.limit
    }
  }

  #watchLimits(): void {
    const { wallMs } = this.#limits
    if (wallMs !== undefined) this.#after(wallMs, () => this.#stop('wall'))
    this.#restartIdle()
    if (this.#io.signal?.aborted) this.#cancel()
    this.#io.signal?.addEventListener('abort', this.#cancel, { once: true })
  }

  #restartIdle(): void {
    const { idleMs } = this.#limits
    if (idleMs === undefined) return
    clearTimeout(this.#idle)
    this.#idle = setTimeout(() => this.#stop('idle'), idleMs)
  }

  #take(name: 'stdout' | 'stderr', chunk: Uint8Array): void {
    this.#restartIdle()
    const room = (this.#limits.outputBytes ?? Number.POSITIVE_INFINITY) - this.#outputBytes
    this.#outputBytes += chunk.length
    const kept = chunk.length > room ? chunk.subarray(0, Math.max(0, room)) : chunk
    if (kept.length > 0) {
      if (typeof this.#io.output === 'function') this.#io.output(name, kept)
      else if (this.#io.output === 'inherit') process[name].write(kept)
      else this.#chunks[name].push(kept)
    }
    if (chunk.length > room) this.#stop('output')
  }

  readonly #cancel = (): void => this.#stop('cancelled')

  /** INVARIANT: the first reason wins; later ones only follow from it. */
  #stop(reason: StopLimit): void {
    if (this.#stopped) return
    this.#stopped = reason
    // A flood does not deserve a grace: what it writes meanwhile is thrown away anyway.
    if (reason === 'output') this.#kill()
    else {
      this.#signal(constants.signals.SIGTERM)
      this.#after(GRACE_MS, () => this.#kill())
    }
  }

  #signal(signal: number): void {
    const control = this.#child.stdio[3] as Duplex | null | undefined
    if (control) control.write(signalFrame(signal), () => {})
    else this.#killGroup('SIGTERM')
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
      stopped: this.#stopped,
      stdout: Buffer.concat(this.#chunks.stdout),
      stderr: Buffer.concat(this.#chunks.stderr),
      truncated: this.#outputBytes > (this.#limits.outputBytes ?? Number.POSITIVE_INFINITY),
      durationMs: monotonicMs() - this.#started,
      frames: this.#frames,
    }
  }
}
