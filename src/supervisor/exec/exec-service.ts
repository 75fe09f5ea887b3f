import { Admission } from '../../model/admission.ts'
import { NO_TRACER, type Span, traced } from '../../model/tracer.ts'
import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'
import type { OpenSandbox } from '../open-sandbox.ts'
import type { CommandDefaults } from '../sandbox.ts'
import type { SupervisorParts } from '../supervisor-parts.ts'
import { type ExecRequest, ExecSession } from './exec-session.ts'
import { OutputBudget } from './output-budget.ts'

/** The caller, and what to call while a command waits for approval. */
export type ExecContext = {
  readonly onAsked?: (id: string) => void
  readonly signal?: AbortSignal
}

/** A running command and its sandbox. */
export type Started = {
  readonly session: ExecSession
  readonly live: OpenSandbox
  readonly entry: LiveSandbox
}

/** Starts and tracks commands: admission, approval, output and end. */
export class ExecService {
  readonly #parts: SupervisorParts
  readonly #admission: Admission
  readonly #background: Admission
  /** The memory limit for command output, for the whole server. */
  readonly output: OutputBudget

  constructor(parts: SupervisorParts) {
    this.#parts = parts
    const { execs, background, waiting, outputBytes } = parts.limits
    this.#admission = new Admission('commands', { running: execs, waiting })
    // Background commands have no known end, so queueing for one makes no sense.
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

  /** Starts a command. Resolves once it runs; rejects if it is refused. The span ends with the command. */
  async start(entry: LiveSandbox, asked: ExecRequest, context: ExecContext): Promise<Started> {
    const tracer = this.#parts.tracer ?? NO_TRACER
    const span = tracer.begin('sandbox.exec', { 'ringfence.sandbox_id': entry.id })
    try {
      const started = await tracer.within(span, () =>
        traced(tracer, 'sandbox.exec.start', {}, () => this.#start(entry, inTrace(asked, span), context)),
      )
      endWith(span, started.session)
      return started
    } catch (error) {
      span.end({ error })
      throw error
    }
  }

  async #start(entry: LiveSandbox, asked: ExecRequest, context: ExecContext): Promise<Started> {
    const sandbox = entry.ready()
    const request = asked.usesDefaults ? withDefaults(asked, sandbox.commandDefaults) : asked
    const end = entry.begin()
    let leave: (() => void) | undefined
    try {
      // A background command must not occupy a slot that others queue for.
      const admission = request.background || request.terminal ? this.#background : this.#admission
      leave = await admission.enter(entry.row)
      entry.ready()
      const session = new ExecSession({
        sandbox,
        request,
        tenant: entry.row.tenant,
        budget: this.output,
        approve: (decision, execId) =>
          traced(this.#parts.tracer ?? NO_TRACER, 'approval', { 'ringfence.exec_id': execId }, () =>
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
          ),
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

/** As an engine runs a command in a container: the directory stays when another user is named. */
const withDefaults = (request: ExecRequest, { cwd, user }: CommandDefaults): ExecRequest => ({
  ...request,
  cwd: request.cwd ?? cwd,
  user: request.user ?? user,
})

/** A program inside that traces its own work continues the trace of the request that started it. */
const inTrace = (request: ExecRequest, { traceparent }: Span): ExecRequest =>
  traceparent === undefined ? request : { ...request, env: { TRACEPARENT: traceparent, ...request.env } }

function endWith(span: Span, session: ExecSession): void {
  span.describe({ 'ringfence.exec_id': session.id, 'ringfence.decision': session.decision.action })
  session.result.then(
    ({ outcome }) => {
      span.describe({
        'ringfence.outcome': outcome.kind,
        'process.exit.code': outcome.kind === 'exited' ? outcome.code : undefined,
      })
      span.end()
    },
    (error: unknown) => span.end({ error }),
  )
}
