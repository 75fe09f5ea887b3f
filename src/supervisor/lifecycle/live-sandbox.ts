import { SandboxError } from '../../model/errors.ts'
import type { Spec } from '../../model/spec.ts'
import type { SandboxRow } from '../../store/sandboxes.ts'
import type { ExecSession } from '../exec/exec-session.ts'
import type { OpenSandbox } from '../open-sandbox.ts'
import { Deadline } from './deadline.ts'
import { type EndReason, isEnded, move, type ShownState, type State, shown } from './lifecycle.ts'

/** Ended commands that are kept for clients that attach later. */
const KEPT_EXECS = 32

/** One sandbox that the supervisor manages, from the request until it is destroyed. */
export class LiveSandbox {
  readonly id: string
  readonly ttl: Deadline
  readonly idle: Deadline
  readonly execs = new Map<string, ExecSession>()
  /** Cancels provisioning. */
  readonly abort = new AbortController()
  /** Resolves when the sandbox has ended. */
  readonly gone: Promise<void>
  /** Whether another server starts it again when this one loses it. */
  readonly restarts: boolean
  row: SandboxRow
  /** Why the sandbox is ending; set as soon as it starts to end. */
  ending: string | undefined
  sandbox: OpenSandbox | undefined
  idleMs: number | undefined
  /** The lifetime that the sandbox gets when it wakes after a pause at its timeout. */
  timeoutMs: number | undefined
  /** The last command that was started, for display. */
  lastCommand: { readonly command: string; readonly at: number } | undefined
  #state: State = 'requested'
  readonly #pauses = new Set<() => void>()
  #running = 0
  #tail: Promise<unknown> = Promise.resolve()
  #leave: () => void = () => {}

  constructor(row: SandboxRow, onDeadline: (reason: EndReason) => void) {
    this.id = row.id
    this.row = row
    this.restarts = (JSON.parse(row.spec) as Spec).restart === true
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

  /** Changes the state; throws if the transition is not allowed. */
  move(to: State): void {
    this.#state = move(this.id, this.#state, to)
    if (to === 'paused') for (const listener of [...this.#pauses]) listener()
    if (!isEnded(to)) return
    this.ttl.cancel()
    this.idle.cancel()
    for (const session of this.execs.values()) session.log.forget()
    this.#leave()
  }

  /** Calls the listener at each pause; call the result to unsubscribe. */
  onPause(listener: () => void): () => void {
    this.#pauses.add(listener)
    return () => this.#pauses.delete(listener)
  }

  /** Serializes the changes of this sandbox. */
  async serially<T>(work: () => Promise<T>): Promise<T> {
    const before = this.#tail
    const done = before.then(work, work)
    this.#tail = done.catch(() => {})
    return done
  }

  /** The open sandbox; throws unless it is ready. */
  ready(): OpenSandbox {
    if (this.#state === 'ready' && this.sandbox) return this.sandbox
    const why = this.row.reason ? ` (${this.row.reason})` : ''
    throw new SandboxError('wrong-state', `sandbox ${this.id} is ${this.#state}${why}`)
  }

  /** Suspends the idle deadline while work is in progress. */
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

  /** Restarts the idle deadline. */
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

  /** Holds both deadlines, so that a pause does not consume them. */
  hold(): void {
    this.ttl.hold()
    this.idle.cancel()
  }

  release(): void {
    this.ttl.release()
    this.touch()
  }
}
