import type { Backend } from '../backends/backend.ts'
import type { ExecResult, Outcome } from '../model/command.ts'
import type { Decision } from '../model/decision.ts'
import { type Event, type EventName, type EventSink, VIOLATION_TYPE } from '../model/event.ts'
import type { Plan } from '../model/plan.ts'
import { redact } from '../model/redact.ts'
import type { ApprovalAnswer } from './approvals/approval-facts.ts'
import type { AskedCommand } from './gate.ts'

type Fields = Readonly<Record<string, Event[string]>>

type RecordParts = {
  readonly id: string
  readonly plan: Plan
  readonly backend: Backend
  readonly trail: EventSink
}

/** What happens in one sandbox, on its way to the trail. */
export class SandboxRecord {
  readonly #parts: RecordParts
  /** INVARIANT: flushed before a command starts; that the sandbox exists is on record before anything runs in it. */
  readonly #unwritten: Event[] = []

  constructor(parts: RecordParts) {
    this.#parts = parts
    this.#unwritten.push(this.#event('SandboxState', { state: 'ready', ...summaryOf(parts) }))
  }

  /** Resolves when the events, and whatever waited for them, are on disk. */
  async write(...events: readonly Event[]): Promise<void> {
    const waiting = this.#unwritten.splice(0)
    try {
      // Handed over together they share one write to disk.
      await Promise.all([...waiting, ...events].map((event) => this.#parts.trail.append(event)))
    } catch (error) {
      this.#unwritten.unshift(...waiting)
      throw error
    }
  }

  #event(event: EventName, fields: Fields): Event {
    const { id, plan } = this.#parts
    const agent = plan.agentId === undefined ? {} : { agent_id: plan.agentId }
    return { event, sandbox_id: id, ...agent, ...fields }
  }

  /** What was judged about a command; with `ask` it is the record of the question. */
  decided(asked: AskedCommand, execId: string, decision: Decision): Promise<void> {
    const { action, reason, rules } = decision
    return this.write(
      this.#event('PolicyDecision', {
        exec_id: execId,
        subject: 'command',
        command: redact('line' in asked ? asked.line : asked.argv.join(' ')),
        action,
        reason: redact(reason),
        rules,
      }),
    )
  }

  /** What became of a question: once, when it is settled. */
  answered(execId: string, answer: ApprovalAnswer): Promise<void> {
    return this.write(this.#event('Approval', { exec_id: execId, ...answerFields(answer) }))
  }

  /** A command that was let through and could not run, or not to its end. */
  failed(execId: string, reason: string): Promise<void> {
    return this.write(this.#event('Exec', { exec_id: execId, state: 'failed', reason: redact(reason) }))
  }

  /** The operator changed which hosts may be reached. */
  hosts(hosts: readonly string[]): Promise<void> {
    return this.write(
      this.#event('PolicyDecision', {
        subject: 'network',
        allow_hosts: hosts,
        action: 'allow',
        reason: 'set by the operator',
      }),
    )
  }

  /** It stands still, or goes on. */
  state(state: 'paused' | 'ready'): Promise<void> {
    return this.write(this.#event('SandboxState', { state }))
  }

  /** The last word, behind what is left to say of a command; `lost` is why it ended by itself. */
  destroyed(events: readonly Event[], lost: string | undefined): Promise<void> {
    const why = lost === undefined ? {} : { reason: redact(lost) }
    return this.write(...events, this.#event('SandboxState', { state: 'destroyed', ...why }))
  }

  /** Files are touched by the host's hand: like a command, on record before it happens. */
  file(operation: string, path: string): Promise<void> {
    const fields = {
      subject: 'file',
      operation,
      path: redact(path),
      action: 'sandbox',
      reason: 'inside the wall',
    }
    return this.write(this.#event('PolicyDecision', fields))
  }

  /** How a command ended, and what it was refused on the way; for `write` or `destroyed`. */
  endOf(execId: string, result: ExecResult): readonly Event[] {
    const { outcome, durationMs, truncated, layers, violations } = result
    const refusals = violations.map(({ guarantee, details }) =>
      this.#event('SandboxViolation', {
        exec_id: execId,
        violation_type: VIOLATION_TYPE[guarantee] ?? 'CapabilityDenied',
        guarantee,
        details: redact(details),
      }),
    )
    const end = this.#event('Exec', {
      exec_id: execId,
      state: 'ended',
      outcome: outcome as Outcome & { [key: string]: string | number },
      duration_ms: Math.round(durationMs),
      truncated,
      layers,
    })
    return [...refusals, end]
  }
}

/** The same fields for every question, whoever answered it. */
export const answerFields = ({ state, by, reason, approvalId }: ApprovalAnswer): Fields => ({
  ...(approvalId === undefined ? {} : { approval_id: approvalId }),
  state,
  // Nobody said anything to what expired.
  ...(state === 'expired' ? {} : { approved: state === 'approved' }),
  ...(by === undefined ? {} : { answered_by: by }),
  ...(reason === undefined || reason === '' ? {} : { reason: redact(reason) }),
})

function summaryOf({ plan, backend }: RecordParts): Fields {
  return {
    backend: backend.name,
    level: backend.level,
    preset: plan.preset,
    network: plan.network.mode,
    mounts: plan.mounts.map(({ real, target, mode }) => ({ source: real, target, mode })),
    waived: plan.waived,
  }
}
