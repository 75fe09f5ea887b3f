import type { StopLimit } from '../../model/command.ts'
import type { Limits } from '../../model/spec.ts'
import { type LongTimeout, longTimeout } from '../clock.ts'

/** The limits that are enforced by reading a command's output and by timers. */
export type TimeLimits = Pick<Limits, 'wallMs' | 'idleMs' | 'outputBytes'>

/** Enforces the limits that are visible to the reader of a command: time, silence, output. */
export class Watchdog {
  readonly #limits: TimeLimits
  readonly #onStop: (reason: StopLimit) => void
  readonly #signal: AbortSignal | undefined
  #wall: LongTimeout | undefined
  #idle: LongTimeout | undefined
  #outputBytes = 0
  #reason: StopLimit | undefined

  constructor(limits: TimeLimits, signal: AbortSignal | undefined, onStop: (reason: StopLimit) => void) {
    this.#limits = limits
    this.#signal = signal
    this.#onStop = onStop
  }

  /** Why the command was stopped. INVARIANT: the first reason wins; later ones are consequences. */
  get reason(): StopLimit | undefined {
    return this.#reason
  }

  get truncated(): boolean {
    return this.#outputBytes > (this.#limits.outputBytes ?? Number.POSITIVE_INFINITY)
  }

  /** Starts the timers. */
  start(): void {
    const { wallMs } = this.#limits
    if (wallMs !== undefined) this.#wall = longTimeout(() => this.stop('wall'), wallMs)
    this.#restartIdle()
    if (this.#signal?.aborted) this.#cancel()
    this.#signal?.addEventListener('abort', this.#cancel, { once: true })
  }

  /** Counts a chunk of output and truncates it at the limit. */
  admit(chunk: Uint8Array): Uint8Array {
    this.#restartIdle()
    const room = (this.#limits.outputBytes ?? Number.POSITIVE_INFINITY) - this.#outputBytes
    this.#outputBytes += chunk.length
    if (chunk.length <= room) return chunk
    this.stop('output')
    return chunk.subarray(0, Math.max(0, room))
  }

  stop(reason: StopLimit): void {
    if (this.#reason) return
    this.#reason = reason
    this.#onStop(reason)
  }

  /** Records a limit that was enforced elsewhere. */
  note(reason: StopLimit): void {
    this.#reason ??= reason
  }

  dispose(): void {
    this.#wall?.clear()
    this.#idle?.clear()
    this.#signal?.removeEventListener('abort', this.#cancel)
  }

  #restartIdle(): void {
    const { idleMs } = this.#limits
    if (idleMs === undefined) return
    this.#idle?.clear()
    this.#idle = longTimeout(() => this.stop('idle'), idleMs)
  }

  readonly #cancel = (): void => this.stop('cancelled')
}
