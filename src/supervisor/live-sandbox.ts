import { SandboxError } from '../model/errors.ts'
import type { SandboxRow } from '../store/sandboxes.ts'
import { Deadline } from './deadline.ts'
import type { ExecSession } from './exec/exec-session.ts'
import { type EndReason, isEnded, move, type ShownState, type State, shown } from './lifecycle.ts'
import type { OpenSandbox } from './open-sandbox.ts'

/** Ended commands that are kept for whoever comes back. */
const KEPT_EXECS = 32

/** One sandbox in the supervisor's hands, from the request until nothing of it is left. */
export class LiveSandbox {
  readonly id: string
  readonly ttl: Deadline
  readonly idle: Deadline
  readonly execs = new Map<string, ExecSession>()
  /** Ends a provisioning that is no longer wanted. */
  readonly abort = new AbortController()
  /** Resolves when it has ended. */
  readonly gone: Promise<void>
  row: SandboxRow
  /** Why it ends, from the moment that it does. */
  ending: string | undefined
  sandbox: OpenSandbox | undefined
  idleMs: number | undefined
  /** What was started last, for people. */
  lastCommand: { readonly command: string; readonly at: number } | undefined
  #state: State = 'requested'
  readonly #pauses = new Set<() => void>()
  #running = 0
  #tail: Promise<unknown> = Promise.resolve()
  #leave: () => void = () => {}

  constructor(row: SandboxRow, onDeadline: (reason: EndReason) => void) {
    this.id = row.id
    this.row = row
    this.ttl = new Deadline(() => onDeadline('timeout'))
    this.idle = new Deadline(() => onDeadline('idle'))
    this.gone = new Promise((resolve) => {
      this.#leave = resolve
    })
  }

  get state(): State {
    return this.#state
  }

  get running(): number {
    return this.#running
  }

  get shown(): ShownState {
    return shown(this.#state, this.#running)
  }

  /** The one guarded change of state. */
  move(to: State): void {
    this.#state = move(this.id, this.#state, to)
    if (to === 'paused') for (const told of [...this.#pauses]) told()
    if (!isEnded(to)) return
    this.ttl.cancel()
    this.idle.cancel()
    for (const session of this.execs.values()) session.log.forget()
    this.#leave()
  }

  /** Tells of each pause, until what it returns is called. */
  onPause(told: () => void): () => void {
    this.#pauses.add(told)
    return () => this.#pauses.delete(told)
  }

  /** One at a time: what changes a sandbox waits for what is changing it. */
  async serially<T>(work: () => Promise<T>): Promise<T> {
    const before = this.#tail
    const done = before.then(work, work)
    this.#tail = done.catch(() => {})
    return done
  }

  /** The open sandbox, for work that needs it ready. */
  ready(): OpenSandbox {
    if (this.#state === 'ready' && this.sandbox) return this.sandbox
    const why = this.row.reason ? ` (${this.row.reason})` : ''
    throw new SandboxError('wrong-state', `sandbox ${this.id} is ${this.#state}${why}`)
  }

  /** Work in flight keeps the idle deadline away. */
  begin(): () => void {
    this.#running++
    this.idle.cancel()
    let ended = false
    return () => {
      if (ended) return
      ended = true
      this.#running--
      this.touch()
    }
  }

  /** Somebody used it. */
  touch(): void {
    if (this.#running === 0 && this.#state === 'ready') this.idle.set(this.idleMs)
  }

  keep(session: ExecSession): void {
    this.execs.set(session.id, session)
    this.lastCommand = { command: session.command.slice(0, 256), at: session.startedAt }
    for (const [id, old] of this.execs) {
      if (this.execs.size <= KEPT_EXECS) break
      if (old.state === 'running') continue
      this.execs.delete(id)
      old.log.forget()
    }
  }

  /** Holds both deadlines: a pause does not burn them. */
  hold(): void {
    this.ttl.hold()
    this.idle.cancel()
  }

  release(): void {
    this.ttl.release()
    this.touch()
  }
}
