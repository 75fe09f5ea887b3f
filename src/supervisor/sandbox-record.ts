import type { Backend } from '../backends/backend.ts'
import type { ExecResult, Outcome } from '../model/command.ts'
import type { Decision } from '../model/decision.ts'
import { type Event, type EventName, type EventSink, VIOLATION_TYPE } from '../model/event.ts'
import type { AskedHost } from '../model/host-question.ts'
import type { Plan } from '../model/plan.ts'
import { redact } from '../model/text/redact.ts'
import type { ApprovalAnswer } from './approvals/approval-facts.ts'
import type { HostAnswer } from './approvals/host-questions.ts'
import type { AskedCommand } from './gate.ts'

type Fields = Readonly<Record<string, Event[string]>>

type RecordParts = {
  readonly id: string
  readonly plan: Plan
  readonly backend: Backend
  readonly trail: EventSink
}

/** Writes the events of one sandbox to the audit log. */
export class SandboxRecord {
  readonly #parts: RecordParts
  /** INVARIANT: flushed before a command starts; the sandbox's creation is recorded before anything runs in it. */
  readonly #unwritten: Event[] = []

  constructor(parts: RecordParts) {
    this.#parts = parts
    this.#unwritten.push(this.#event('SandboxState', { state: 'ready', ...summaryOf(parts) }))
  }

  /** Resolves when these events, and the ones queued before them, are on disk. */
  async write(...events: readonly Event[]): Promise<void> {
    const waiting = this.#unwritten.splice(0)
    try {
      // Appended together, they share one write to disk.
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

  /** Records the decision about a command; with `ask` this is the record of the question. */
  decided(asked: AskedCommand, execId: string, decision: Decision): Promise<void> {
    const { action, reason, rules, contained } = decision
    return this.write(
      this.#event('PolicyDecision', {
        exec_id: execId,
        subject: 'command',
        command: redact('line' in asked ? asked.line : asked.argv.join(' ')),
        action,
        reason: redact(reason),
        rules,
        ...(contained ? { contained } : {}),
      }),
    )
  }

  /** Records what `sudo` starts inside a command; the sandbox contains it as it contains the command. */
  raised(execId: string, user: string, argv: readonly string[]): Promise<void> {
    return this.write(
      this.#event('PolicyDecision', {
        exec_id: execId,
        subject: 'command',
        command: redact(argv.join(' ')),
        user,
        action: 'sandbox',
        reason: '`sudo` inside the sandbox',
      }),
    )
  }

  /** Records the outcome of an approval, once. */
  answered(execId: string, answer: ApprovalAnswer): Promise<void> {
    return this.write(this.#event('Approval', { exec_id: execId, ...answerFields(answer) }))
  }

  /** Records that a person is asked about a host. */
  askedHost(host: AskedHost): Promise<void> {
    const reason = `\`${host.host}\` is not an allowed host`
    return this.write(this.#event('PolicyDecision', { subject: 'host', ...host, action: 'ask', reason }))
  }

  /** Records the answer about a host, once. */
  answeredHost({ host, port }: AskedHost, answer: HostAnswer): Promise<void> {
    return this.write(this.#event('Approval', { host, port, ...hostAnswerFields(answer) }))
  }

  /** Records a command that was permitted and could not run, or not to its end. */
  failed(execId: string, reason: string): Promise<void> {
    return this.write(this.#event('Exec', { exec_id: execId, state: 'failed', reason: redact(reason) }))
  }

  /** Records a change of the allowed hosts by the operator. */
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

  /** Records a pause or a resume. */
  state(state: 'paused' | 'ready', reason?: string): Promise<void> {
    return this.write(this.#event('SandboxState', { state, ...(reason === undefined ? {} : { reason }) }))
  }

  /** Writes the last events of the sandbox; `lost` is the reason if it ended by itself. */
  destroyed(events: readonly Event[], lost: string | undefined): Promise<void> {
    const why = lost === undefined ? {} : { reason: redact(lost) }
    return this.write(...events, this.#event('SandboxState', { state: 'destroyed', ...why }))
  }

  /** Records a file operation, which the host carries out, before it happens. */
  file(operation: string, path: string): Promise<void> {
    const fields = {
      subject: 'file',
      operation,
      path: redact(path),
      action: 'sandbox',
      reason: 'inside the sandbox',
    }
    return this.write(this.#event('PolicyDecision', fields))
  }

  /** The events of a command's end and its violations; for `write` or `destroyed`. */
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

/** The event fields of an approval, the same for every way to answer it. */
export const answerFields = ({ state, by, reason, approvalId }: ApprovalAnswer): Fields => ({
  ...(approvalId === undefined ? {} : { approval_id: approvalId }),
  state,
  // An expired approval has no answer.
  ...(state === 'expired' ? {} : { approved: state === 'approved' }),
  ...(by === undefined ? {} : { answered_by: by }),
  ...(reason === undefined || reason === '' ? {} : { reason: redact(reason) }),
})

/** The event fields of an answer about a host. */
export const hostAnswerFields = (answer: HostAnswer): Fields => ({
  ...answerFields(answer),
  ...(answer.state === 'approved' ? { scope: answer.scope ?? 'once' } : {}),
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
