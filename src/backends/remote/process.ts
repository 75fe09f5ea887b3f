import type { GuestEnd, StartedProcess } from '../../host/guest/process.ts'
import { SandboxError } from '../../model/errors.ts'

/** How a remote command ended. */
export type RemoteEnd = { readonly signaled: boolean; readonly code: number }

/** The connection to one remote command; implemented by each remote backend. */
export interface RemoteLine {
  /** Resolves when the command has ended; calls `onPid` when it has started. */
  run(onPid: (pid: number) => void, stopped: AbortSignal): Promise<RemoteEnd>
  write(data: Uint8Array): Promise<void>
  endInput(): Promise<void>
  signal(signal: NodeJS.Signals): Promise<void>
  resize(cols: number, rows: number): Promise<void>
}

/**
 * How long to wait for the end of a command after a kill. SECURITY: longer than the time after which the whole sandbox is
 * destroyed; otherwise a command that could not be killed would count as ended.
 */
const SILENT_MS = 15_000

/** A remote command with the interface that the enforcement of limits expects. */
export class RemoteProcess implements StartedProcess {
  readonly started: Promise<{ readonly pid: number }>
  readonly ended: Promise<GuestEnd>
  pid = 0
  readonly #line: RemoteLine
  readonly #stop = new AbortController()
  #begun = false
  #over = false
  #isStarted: (process: { readonly pid: number }) => void = () => {}
  #isRefused: (error: unknown) => void = () => {}
  #isEnded: (end: GuestEnd) => void = () => {}

  constructor(line: RemoteLine, held: boolean) {
    this.#line = line
    this.started = new Promise((resolve, reject) => {
      this.#isStarted = resolve
      this.#isRefused = reject
    })
    this.started.catch(() => {})
    this.ended = new Promise((resolve) => {
      this.#isEnded = resolve
    })
    if (!held) this.release()
  }

  release(): void {
    if (this.#begun || this.#over) return
    this.#begun = true
    const begin = (pid: number): void => {
      this.pid = pid
      this.#isStarted({ pid })
    }
    this.#line.run(begin, this.#stop.signal).then(
      (exit) => {
        begin(this.pid)
        this.#finish({ exit })
      },
      (error: unknown) => {
        this.#isRefused(error)
        this.#finish({ lost: (error as Error).message })
      },
    )
  }

  async write(data: Uint8Array): Promise<void> {
    await this.started
    if (this.#over) throw new SandboxError('wrong-state', 'the command has closed its standard input')
    await this.#line.write(data)
  }

  endInput(): void {
    this.#send(() => this.#line.endInput())
  }

  signal(signal: NodeJS.Signals): void {
    this.#send(() => this.#line.signal(signal))
  }

  resize(cols: number, rows: number): void {
    this.#send(() => this.#line.resize(cols, rows))
  }

  kill(): void {
    if (!this.#begun) this.#finish({})
    else {
      this.#send(() => this.#line.signal('SIGKILL'))
      setTimeout(() => this.#stop.abort(), SILENT_MS).unref()
    }
  }

  /** Does not wait; a command that has already ended is not an error. */
  #send(action: () => Promise<void>): void {
    if (this.#over) return
    void this.started.then(action).catch(() => {})
  }

  #finish(end: { readonly exit?: RemoteEnd; readonly lost?: string }): void {
    if (this.#over) return
    this.#over = true
    this.#isEnded({ exit: end.exit, lost: end.lost, limit: undefined, refused: undefined, violations: [] })
  }
}
