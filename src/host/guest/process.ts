import { constants } from 'node:os'
import type { Violation } from '../../model/command.ts'
import { SandboxError } from '../../model/errors.ts'
import { type Frame, INPUT_WINDOW, type SudoRequest, WINDOW } from './frames.ts'
import type { FrameListener, FrameSender } from './session.ts'

/** A process that the agent should start. */
export type GuestRequest = {
  /** The fields of a command (COMMAND_FIELDS in protocol.ts). */
  readonly fields: readonly string[]
  readonly onOutput: (stream: 'stdout' | 'stderr', chunk: Uint8Array) => unknown
  /** How the output is throttled; absent: not at all. */
  readonly pace?: Pace
  /** The secrets that an isolated command may use. */
  readonly secrets?: readonly string[] | undefined
  /** Called when `sudo` in this command asks to start something; it starts when this resolves. Absent: refused. */
  readonly onSudo?: ((request: SudoRequest) => Promise<void>) | undefined
}

/** `stream`: output is consumed as it arrives. `result`: output is kept in memory until the end. */
export type Pace = 'stream' | 'result'

/** How a command ended, as the agent reported it. */
export type GuestEnd = {
  readonly exit: { readonly signaled: boolean; readonly code: number } | undefined
  readonly limit: 'memory' | 'pids' | 'disk' | undefined
  readonly violations: readonly Violation[]
  /** Set if the sandbox ended before the command. */
  readonly lost: string | undefined
  /** Set if the process was created but could not execute the command. */
  readonly refused: string | undefined
}

/** A process of a command, for the code that enforces its limits. */
export interface StartedProcess {
  readonly pid: number
  readonly started: Promise<{ readonly pid: number }>
  readonly ended: Promise<GuestEnd>
  write(data: Uint8Array): Promise<void>
  endInput(): void
  signal(signal: NodeJS.Signals): void
  kill(): void
  release(): void
  resize(cols: number, rows: number): void
}

const STEP = WINDOW / 4
/** One window each time: 64 MB a second, so that a command that floods leaves CPU time to others. */
const PACE_MS = 4
/** A long result beside other commands, 8 MB a second: garbage collection of its memory would stall all of them. */
const LONG_RESULT_MS = 32

/** Commands of this process that have not ended. */
let running = 0
const MAX_VIOLATIONS = 1024

/** The answer to a request of `sudo`. */
export function verdict(token: number, allowed: boolean): Uint8Array {
  const payload = Buffer.alloc(5)
  payload.writeUInt32LE(token, 0)
  payload[4] = allowed ? 1 : 0
  return payload
}

/** One command in a session, as the host sees it. */
export class GuestProcess implements FrameListener, StartedProcess {
  /** The secrets that an isolated command may use. */
  readonly secrets: readonly string[]
  readonly started: Promise<GuestProcess>
  readonly ended: Promise<GuestEnd>
  pid = 0
  readonly #sender: FrameSender
  /** Its number in the session. */
  readonly id: number
  readonly #onOutput: GuestRequest['onOutput']
  readonly #pace: Pace | undefined
  readonly #onSudo: GuestRequest['onSudo']
  readonly #violations: Violation[] = []
  #limit: GuestEnd['limit']
  #refused: string | undefined
  #inputRoom = INPUT_WINDOW
  #inputOpen = true
  #over = false
  #exited = false
  #owed = 0
  #given = 0
  #received = WINDOW
  #giving = false
  #outputs: Promise<void> = Promise.resolve()
  #waiting: (() => void)[] = []
  #isStarted: (process: GuestProcess) => void = () => {}
  #isRefused: (error: Error) => void = () => {}
  #isEnded: (end: GuestEnd) => void = () => {}

  constructor(sender: FrameSender, id: number, request: GuestRequest) {
    this.#sender = sender
    this.id = id
    this.#onOutput = request.onOutput
    this.secrets = request.secrets ?? []
    this.#pace = request.pace
    this.#onSudo = request.onSudo
    running++
    this.started = new Promise((resolve, reject) => {
      this.#isStarted = resolve
      this.#isRefused = reject
    })
    this.started.catch(() => {})
    this.ended = new Promise((resolve) => {
      this.#isEnded = resolve
    })
  }

  hear(frame: Frame): void {
    if (frame.kind === 'stdout' || frame.kind === 'stderr') this.#print(frame.kind, frame.bytes)
    else if (frame.kind === 'window') this.#widen(frame.bytes)
    else if (frame.kind === 'violation') this.#note({ guarantee: frame.guarantee, details: frame.details })
    else if (frame.kind === 'limit') this.#limit = frame.limit
    else if (frame.kind === 'sudo') void this.#answer(frame.request)
    else if (frame.kind === 'started') this.#begin(frame.pid)
    else if (frame.kind === 'exit') this.#exit({ signaled: frame.signaled, code: frame.code })
    else if (frame.kind === 'refused') this.#refuse(frame.text)
  }

  async #answer(request: SudoRequest): Promise<void> {
    const allowed = await (this.#onSudo?.(request) ?? Promise.reject()).then(
      () => true,
      () => false,
    )
    if (!this.#over) this.#sender.send('verdict', this.id, verdict(request.token, allowed))
  }

  #begin(pid: number): void {
    this.pid = pid
    this.#isStarted(this)
  }

  /** The consumer of the output may be slow; the end is reported after all of it. */
  #exit(exit: GuestEnd['exit']): void {
    if (this.#exited) return
    this.#exited = true
    this.#isStarted(this)
    void this.#outputs.then(() => this.#finish(exit, undefined))
  }

  #refuse(text: string): void {
    this.#refused ??= text
    this.#finish(undefined, undefined)
    this.#isRefused(new SandboxError('invalid-input', text))
  }

  #note(violation: Violation): void {
    if (this.#violations.length < MAX_VIOLATIONS) this.#violations.push(violation)
  }

  lose(reason: string): void {
    this.#isRefused(new SandboxError('wrong-state', `the sandbox is gone: ${reason}`))
    this.#finish(undefined, reason)
  }

  #finish(exit: GuestEnd['exit'], lost: string | undefined): void {
    if (this.#over) return
    this.#over = true
    running--
    this.#sender.forget(this.id)
    for (const wake of this.#waiting.splice(0)) wake()
    this.#isEnded({ exit, limit: this.#limit, violations: this.#violations, lost, refused: this.#refused })
  }

  /** SECURITY: an agent that exceeds its window is disconnected, so memory is bounded by the window. */
  #print(stream: 'stdout' | 'stderr', bytes: Uint8Array): void {
    this.#received -= bytes.length
    if (this.#received < 0) {
      this.lose('the agent sent more output than the window allows')
      return
    }
    // Empty chunks use no window: without this check, a flood of them would queue without limit for a slow reader.
    if (bytes.length === 0 || this.#exited) return
    const taken = this.#taken(stream, bytes)
    if (taken instanceof Promise) this.#wait(taken, bytes.length)
    else this.#giveRoom(bytes.length)
  }

  /** A consumer that throws is treated like one whose promise rejects. */
  #taken(stream: 'stdout' | 'stderr', bytes: Uint8Array): unknown {
    try {
      return this.#onOutput(stream, bytes)
    } catch (error) {
      return Promise.reject(error)
    }
  }

  #wait(taken: Promise<unknown>, bytes: number): void {
    this.#outputs = Promise.all([this.#outputs, taken]).then(
      () => this.#giveRoom(bytes),
      () => this.kill(),
    )
  }

  /** Extends the window after a delay, or at least in a turn of the event loop, so that no command takes all CPU time. */
  #giveRoom(bytes: number): void {
    this.#owed += bytes
    if (this.#owed < STEP || this.#giving) return
    this.#giving = true
    if (this.#pace === undefined) setImmediate(this.#give)
    else setTimeout(this.#give, this.#isLongResult() && running > 1 ? LONG_RESULT_MS : PACE_MS)
  }

  #isLongResult(): boolean {
    return this.#pace === 'result' && this.#given >= WINDOW
  }

  readonly #give = (): void => {
    this.#giving = false
    if (this.#over) return
    this.#received += this.#owed
    this.#given += this.#owed
    this.#sender.sendNumber('window', this.id, this.#owed)
    this.#owed = 0
  }

  #widen(bytes: number): void {
    this.#inputRoom = Math.min(this.#inputRoom + bytes, INPUT_WINDOW)
    for (const wake of this.#waiting.splice(0)) wake()
  }

  /** Resolves when all data has been sent to the command. */
  async write(data: Uint8Array): Promise<void> {
    let rest = data
    while (rest.length > 0) {
      if (this.#over || !this.#inputOpen)
        throw new SandboxError('wrong-state', 'the command has closed its standard input')
      if (this.#inputRoom === 0) await new Promise<void>((resolve) => this.#waiting.push(resolve))
      const part = rest.subarray(0, Math.min(rest.length, this.#inputRoom))
      if (part.length === 0) continue
      this.#inputRoom -= part.length
      this.#sender.send('input', this.id, part)
      rest = rest.subarray(part.length)
    }
  }

  endInput(): void {
    if (this.#over || !this.#inputOpen) return
    this.#inputOpen = false
    this.#sender.send('input', this.id)
  }

  /** Sends a signal to the command's process group. */
  signal(signal: NodeJS.Signals): void {
    if (!this.#over) this.#sender.sendNumber('signal', this.id, constants.signals[signal])
  }

  /** Kills the command with all its descendants. */
  kill(): void {
    if (!this.#over) this.#sender.send('kill', this.id)
  }

  /** Starts a command that was waits for `go`. */
  release(): void {
    if (!this.#over) this.#sender.send('go', this.id)
  }

  resize(cols: number, rows: number): void {
    const payload = Buffer.alloc(4)
    payload.writeUInt16LE(cols, 0)
    payload.writeUInt16LE(rows, 2)
    if (!this.#over) this.#sender.send('resize', this.id, payload)
  }
}
