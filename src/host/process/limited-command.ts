import type { Outcome, StopLimit } from '../../model/command.ts'
import { CollectedBytes } from '../../model/files/collected-bytes.ts'
import { servedCaller } from '../broker/served-caller.ts'
import { monotonicMs } from '../clock.ts'
import { passTo } from './own-streams.ts'
import { signalName } from './signals.ts'
import { type TimeLimits, Watchdog } from './watchdog.ts'

/** Time between SIGTERM and SIGKILL. */
export const GRACE_MS = 500

type Stream = 'stdout' | 'stderr'

/** Where a command's output goes; without one it is collected for the result. */
export type Output = 'inherit' | ((stream: Stream, chunk: Uint8Array) => unknown) | undefined

/** How a command is terminated, step by step. */
export type KillLadder = {
  readonly terminate: () => void
  readonly kill: () => void
  /** Called if the command still exists some time after `kill`. */
  readonly giveUp?: { readonly afterMs: number; readonly call: () => void }
}

type Options = {
  readonly limits: TimeLimits
  readonly output: Output
  readonly signal: AbortSignal | undefined
  readonly ladder: KillLadder
}

/**
 * The part that every way of running a command shares: it enforces the limits on time, silence and output, collects the
 * output, and ends the command when a limit is reached.
 */
export class LimitedCommand {
  readonly #output: Output
  readonly #ladder: KillLadder
  readonly #watchdog: Watchdog
  readonly #collected: Record<Stream, CollectedBytes>
  readonly #timers = new Set<NodeJS.Timeout>()
  readonly #started = monotonicMs()
  readonly #caller = servedCaller()

  constructor({ limits, output, signal, ladder }: Options) {
    this.#output = output
    this.#ladder = ladder
    this.#watchdog = new Watchdog(limits, signal, (reason) => this.#end(reason))
    const { outputBytes } = limits
    this.#collected = { stdout: new CollectedBytes(outputBytes), stderr: new CollectedBytes(outputBytes) }
  }

  /** The limit that ended the command, if one did. */
  get stopped(): StopLimit | undefined {
    return this.#watchdog.reason
  }

  /** Starts the clocks. */
  start(): void {
    this.#watchdog.start()
  }

  /** Takes one chunk of output. A promise that it returns asks the caller to read no more until it resolves. */
  take(stream: Stream, chunk: Uint8Array): unknown {
    const kept = this.#watchdog.admit(chunk)
    if (kept.length === 0) return undefined
    if (typeof this.#output === 'function') return this.#output(stream, kept)
    // SECURITY: a reader of ours that is slow holds the command, and not our memory.
    if (this.#output === 'inherit') return passTo(this.#caller, stream, kept)
    this.#collected[stream].add(kept)
    return undefined
  }

  /** Ends the command as if its caller had cancelled it. */
  cancel(): void {
    this.#watchdog.stop('cancelled')
  }

  /** Records a limit that the kernel or the guest agent enforced. */
  note(limit: StopLimit): void {
    this.#watchdog.note(limit)
  }

  after(ms: number, action: () => void): void {
    this.#timers.add(setTimeout(action, ms))
  }

  dispose(): void {
    for (const timer of this.#timers) clearTimeout(timer)
    this.#watchdog.dispose()
  }

  result() {
    return {
      stdout: asBuffer(this.#collected.stdout.all()),
      stderr: asBuffer(this.#collected.stderr.all()),
      truncated: this.#watchdog.truncated,
      durationMs: monotonicMs() - this.#started,
    }
  }

  #end(reason: StopLimit): void {
    const { terminate, kill, giveUp } = this.#ladder
    // No grace period for an output flood: its further output is discarded anyway.
    const isFlood = reason === 'output'
    if (!isFlood) terminate()
    this.after(isFlood ? 0 : GRACE_MS, () => {
      kill()
      if (giveUp) this.after(giveUp.afterMs, giveUp.call)
    })
  }
}

/** The exit of a process as the guest agent reports it. */
type Exit = { readonly code: number; readonly signaled: boolean }

/** How a command ended. `exit` is absent if the agent could not report it; then `signal` is what killed the agent. */
export function outcomeOf(
  stopped: StopLimit | undefined,
  exit: Exit | undefined,
  oomKills: number,
  signal = 'SIGKILL',
): Outcome {
  if (stopped) return { kind: 'stopped', limit: stopped }
  const wasKilled = !exit || exit.code === (exit.signaled ? 9 : 137)
  if (wasKilled && oomKills > 0) return { kind: 'stopped', limit: 'memory' }
  if (!exit) return { kind: 'signaled', signal }
  return exit.signaled
    ? { kind: 'signaled', signal: signalName(exit.code) }
    : { kind: 'exited', code: exit.code }
}

const asBuffer = ({ buffer, byteOffset, length }: Uint8Array<ArrayBuffer>): Buffer =>
  Buffer.from(buffer, byteOffset, length)
