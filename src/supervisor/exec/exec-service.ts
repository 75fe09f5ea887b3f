import { Admission } from '../../model/admission.ts'
import type { LiveSandbox } from '../live-sandbox.ts'
import type { OpenSandbox } from '../open-sandbox.ts'
import type { SupervisorParts } from '../supervisor.ts'
import { type ExecParts, type ExecRequest, ExecSession } from './exec-session.ts'
import { OutputBudget } from './output-budget.ts'

/** Who asks, and what to tell while a command waits for a human. */
export type ExecContext = {
  readonly onAsked?: (id: string) => void
  readonly signal?: AbortSignal
  /** In a place that is its own answer nobody is asked. */
  readonly answerForUser?: ExecParts['answerForUser']
}

/** A command that runs, and where. */
export type Started = {
  readonly session: ExecSession
  readonly live: OpenSandbox
  readonly entry: LiveSandbox
}

/** Where commands wait for their turn, for a human, and for their end. */
export class ExecService {
  readonly #parts: SupervisorParts
  readonly #admission: Admission
  readonly #background: Admission
  /** How much of what commands printed is kept, for the whole server. */
  readonly output: OutputBudget

  constructor(parts: SupervisorParts) {
    this.#parts = parts
    const { execs, background, waiting, outputBytes } = parts.limits
    this.#admission = new Admission('commands', { running: execs, waiting })
    // Nobody knows when one of these ends, so there is nothing to wait for.
    this.#background = new Admission('commands in the background', { running: background, waiting: 0 })
    this.output = new OutputBudget(outputBytes)
  }

  get running(): number {
    return this.#admission.running
  }

  get runningInBackground(): number {
    return this.#background.running
  }

  get waiting(): number {
    return this.#admission.waiting
  }

  turnAway(error: unknown): void {
    this.#admission.turnAway(error)
  }

  /** Starts a command. Resolves once it runs; rejects when it is refused. */
  async start(
    entry: LiveSandbox,
    request: ExecRequest,
    { answerForUser, ...context }: ExecContext,
  ): Promise<Started> {
    const sandbox = entry.ready()
    const end = entry.begin()
    let leave: (() => void) | undefined
    try {
      // A command in the background must not keep others waiting for its end.
      const admission = request.background || request.terminal ? this.#background : this.#admission
      leave = await admission.enter(entry.row)
      entry.ready()
      const session = new ExecSession({
        sandbox,
        request,
        answerForUser,
        tenant: entry.row.tenant,
        budget: this.output,
        approve: (decision, execId) =>
          this.#parts.approvals.ask({
            tenant: entry.row.tenant,
            sandboxId: entry.id,
            execId,
            agentId: entry.row.agentId ?? undefined,
            command: request.command,
            cwd: request.cwd ?? sandbox.plan.cwd,
            decision,
            signal: entry.abort.signal,
            ...context,
          }),
      })
      await session.start()
      entry.keep(session)
      this.#follow(session, end, leave)
      return { session, live: sandbox, entry }
    } catch (error) {
      end()
      leave?.()
      throw error
    }
  }

  #follow(session: ExecSession, end: () => void, leave: () => void): void {
    const { metrics } = this.#parts
    session.result
      .then(
        ({ outcome, durationMs }) => {
          metrics.count('ringfence_execs_total', 'Commands by how they ended.', { outcome: outcome.kind })
          metrics.observe('ringfence_exec_seconds', 'How long commands ran.', {}, durationMs / 1000)
        },
        () => metrics.count('ringfence_execs_total', 'Commands by how they ended.', { outcome: 'failed' }),
      )
      .finally(() => {
        end()
        leave()
      })
  }
}
