import { longTimeout } from '../host/clock.ts'
import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { EventSink, Json } from '../model/event.ts'
import { redact } from '../model/redact.ts'
import {
  type ApprovalRow,
  type ApprovalState,
  answerApproval,
  expireApprovals,
  findApproval,
  insertApproval,
  listApprovals,
} from '../store/approvals.ts'
import type { Store } from '../store/sql.ts'
import { isOperator, type Principal } from './keys.ts'

export type QuestionParts = {
  readonly store: Store
  readonly trail: EventSink
  readonly newId: (prefix: string) => string
  readonly instance: string
  readonly timeoutMs: () => number
}

export type Question = {
  readonly tenant: string
  readonly sandboxId: string
  readonly agentId: string | undefined
  readonly command: string | readonly string[]
  readonly cwd: string
  readonly decision: Decision
  readonly signal?: AbortSignal
  /** Told the id, before anybody answers. */
  readonly onAsked?: (id: string) => void
}

/** Questions to a human. Whoever asked waits; no answer in time is a no. */
export class Questions {
  readonly #parts: QuestionParts
  readonly #waiting = new Map<string, (state: ApprovalState) => void>()
  readonly #listeners = new Set<() => void>()

  constructor(parts: QuestionParts) {
    this.#parts = parts
  }

  get pending(): number {
    return this.#waiting.size
  }

  /** Called whenever a question comes or is settled. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** Nobody waits for what an earlier life asked. */
  async forgetOld(): Promise<void> {
    const { store, instance } = this.#parts
    await store.write((tx) => expireApprovals(tx, instance, Date.now()))
  }

  async ask(question: Question): Promise<boolean> {
    const row = this.#rowOf(question)
    const answered = new Promise<ApprovalState>((resolve) => this.#waiting.set(row.id, resolve))
    const giveUp = (): void =>
      void this.#settle(row, 'expired', null).catch(() => this.#tell(row.id, 'expired'))
    const timer = longTimeout(giveUp, Math.max(0, row.expiresAt - Date.now()))
    try {
      await this.#parts.store.write((tx) => insertApproval(tx, row))
      this.#changed()
      question.signal?.addEventListener('abort', giveUp, { once: true })
      if (question.signal?.aborted) giveUp()
      question.onAsked?.(row.id)
      return (await answered) === 'approved'
    } finally {
      timer.clear()
      this.#waiting.delete(row.id)
      question.signal?.removeEventListener('abort', giveUp)
    }
  }

  /** A human's answer; only the first one counts. */
  async answer(principal: Principal, id: string, approve: boolean, reason?: string): Promise<ApprovalRow> {
    const row = await this.get(principal, id)
    if (!isOperator(principal))
      throw new SandboxError('forbidden', 'only a key with the scope `admin` can answer', {
        hint: 'an agent must not approve its own commands',
      })
    const counted = await this.#settle(row, approve ? 'approved' : 'rejected', principal.keyId, reason)
    const now = (await findApproval(this.#parts.store, id)) ?? row
    if (!counted) throw new SandboxError('conflict', `approval ${id} is already ${now.state}`)
    return now
  }

  async get(principal: Principal, id: string): Promise<ApprovalRow> {
    const row = await findApproval(this.#parts.store, id)
    if (!row || !(isOperator(principal) || row.tenant === principal.tenant))
      throw new SandboxError('not-found', `there is no approval \`${id}\``)
    return row
  }

  list(principal: Principal, state: string | undefined, limit: number): Promise<ApprovalRow[]> {
    const tenant = isOperator(principal) ? undefined : principal.tenant
    return listApprovals(this.#parts.store, { tenant, state, limit })
  }

  async #settle(
    row: ApprovalRow,
    state: ApprovalState,
    by: string | null,
    reason?: string,
  ): Promise<boolean> {
    const { store, trail } = this.#parts
    const late = row.expiresAt <= Date.now() && state === 'approved'
    const final = late ? 'expired' : state
    const counted = await store.write((tx) =>
      answerApproval(tx, row.id, { state: final, by, at: Date.now(), reason: reason && redact(reason) }),
    )
    if (!counted) return false
    const agent = row.agentId === null ? {} : { agent_id: row.agentId }
    await trail.append({
      event: 'Approval',
      sandbox_id: row.sandboxId,
      ...agent,
      approval_id: row.id,
      state: final,
      ...(by === null ? {} : { answered_by: by }),
      ...(reason ? { reason: redact(reason) } : {}),
    })
    this.#tell(row.id, final)
    return !late
  }

  #tell(id: string, state: ApprovalState): void {
    this.#waiting.get(id)?.(state)
    this.#changed()
  }

  #changed(): void {
    for (const listener of this.#listeners) listener()
  }

  #rowOf({ tenant, sandboxId, agentId, command, cwd, decision }: Question): ApprovalRow {
    const { newId, instance, timeoutMs } = this.#parts
    const now = Date.now()
    return {
      id: newId('ap'),
      tenant,
      sandboxId,
      agentId: agentId ?? null,
      command: redact(typeof command === 'string' ? command : command.join(' ')),
      cwd,
      decision: redact(JSON.stringify(decision)),
      state: 'pending',
      answeredBy: null,
      reason: null,
      askedAt: now,
      expiresAt: now + timeoutMs(),
      answeredAt: null,
      instance,
    }
  }
}

/** The contract's shape. */
export const approvalJson = (row: ApprovalRow) => ({
  id: row.id,
  command: row.command,
  cwd: row.cwd,
  decision: JSON.parse(row.decision) as Json,
  sandbox_id: row.sandboxId,
  agent_id: row.agentId,
  asked_at: new Date(row.askedAt).toISOString(),
  expires_at: new Date(row.expiresAt).toISOString(),
  answered_by: row.answeredBy,
  answered_at: row.answeredAt === null ? null : new Date(row.answeredAt).toISOString(),
  reason: row.reason,
  state: row.state,
})
