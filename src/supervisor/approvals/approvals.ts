import { longTimeout } from '../../host/clock.ts'
import type { Decision } from '../../model/decision.ts'
import { SandboxError } from '../../model/errors.ts'
import type { EventSink, Json } from '../../model/event.ts'
import type { AskedHost, HostScope } from '../../model/host-question.ts'
import { redact } from '../../model/text/redact.ts'
import { hostEntry } from '../../policy/network/network.ts'
import {
  type ApprovalRow,
  answerApproval,
  findApproval,
  insertApproval,
  listApprovals,
  pendingApprovals,
} from '../../store/approvals.ts'
import type { Store } from '../../store/sql.ts'
import { isOperator, type Principal } from '../access/keys.ts'
import { answerFields, hostAnswerFields } from '../sandbox-record.ts'
import type { ApprovalAnswer } from './approval-facts.ts'
import type { HostAnswer, HostQuestion } from './host-questions.ts'

export type { ApprovalRow }

/** What approvals are made of. */
export type ApprovalsParts = {
  readonly store: Store
  readonly trail: EventSink
  readonly newId: (prefix: string) => string
  readonly instance: string
  readonly timeoutMs: () => number
  /** Whether the policy approves a host for good, for a tenant or (null) for the operator. */
  readonly isApprovedHost: (entry: string, tenant: string | null) => boolean
}

/** A command that waits for approval. */
export type ApprovalRequest = {
  readonly tenant: string
  readonly sandboxId: string
  /** The command that waits for the answer. */
  readonly execId: string
  readonly agentId: string | undefined
  readonly command: string | readonly string[]
  readonly cwd: string
  readonly decision: Decision
  readonly signal?: AbortSignal
  /** Called with the approval's id before it is answered. */
  readonly onAsked?: (id: string) => void
}

/** A host that a sandbox of this tenant asks for. */
export type HostRequest = {
  readonly tenant: string
  /** Whether the operator created the sandbox: then an answer "always" is for no tenant. */
  readonly isOperators: boolean
  readonly question: HostQuestion
}

/** How a person answers. */
export type Given = {
  readonly approve: boolean
  readonly reason?: string | undefined
  /** For a host: how far a yes reaches. */
  readonly scope?: HostScope | undefined
}

/** Approval requests. The caller waits for the answer; a request that is not answered in time expires. */
export class Approvals {
  readonly #parts: ApprovalsParts
  readonly #waiting = new Map<string, (answer: HostAnswer) => void>()
  readonly #listeners = new Set<() => void>()

  constructor(parts: ApprovalsParts) {
    this.#parts = parts
  }

  get pending(): number {
    return this.#waiting.size
  }

  /** Calls the listener when a request is added or settled. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** Expires the requests of an earlier run of this server, which no caller waits for any more. */
  async forgetOld(): Promise<void> {
    for (const row of await pendingApprovals(this.#parts.store, this.#parts.instance))
      await this.#settle(row, { state: 'expired', reason: 'the server that asked has stopped' })
  }

  /** Waits for the answer, which is recorded before this resolves. */
  ask(request: ApprovalRequest): Promise<ApprovalAnswer> {
    return this.#wait(this.#rowOf(request), request)
  }

  /** The same for a host. */
  askHost(request: HostRequest): Promise<HostAnswer> {
    return this.#wait(this.#hostRow(request), { signal: request.question.signal })
  }

  async #wait(row: ApprovalRow, request: Pick<ApprovalRequest, 'signal' | 'onAsked'>): Promise<HostAnswer> {
    const answered = new Promise<HostAnswer>((resolve) => this.#waiting.set(row.id, resolve))
    const expire = (reason: string): void => {
      const answer = { state: 'expired', reason } as const
      void this.#settle(row, answer).catch(() => this.#tell(row.id, answer))
    }
    const waitMs = Math.max(0, row.expiresAt - Date.now())
    const timer = longTimeout(() => expire(`no answer within ${Math.round(waitMs / 1000)} s`), waitMs)
    const giveUp = (): void => expire('the caller has disconnected')
    try {
      await this.#parts.store.write((tx) => insertApproval(tx, row))
      this.#changed()
      request.signal?.addEventListener('abort', giveUp, { once: true })
      if (request.signal?.aborted) giveUp()
      request.onAsked?.(row.id)
      return await answered
    } finally {
      timer.clear()
      this.#waiting.delete(row.id)
      request.signal?.removeEventListener('abort', giveUp)
    }
  }

  /** Records a human's answer; only the first answer counts. */
  async answer(principal: Principal, id: string, { approve, reason, scope }: Given): Promise<ApprovalRow> {
    const row = await this.get(principal, id)
    if (!isOperator(principal))
      throw new SandboxError('forbidden', 'only a key with the scope `admin` can answer', {
        hint: 'an agent must not approve its own commands',
      })
    const state = approve ? 'approved' : 'rejected'
    const answer = { state, by: principal.keyId, reason } as const
    const counted = await this.#settle(
      row,
      approve ? { ...answer, scope: this.#scopeOf(row, scope) } : answer,
    )
    const now = (await findApproval(this.#parts.store, id)) ?? row
    if (!counted) throw new SandboxError('conflict', `approval ${id} is already ${now.state}`)
    return now
  }

  /**
   * How far a yes about a host reaches. SECURITY: "always" is what the policy says already: the person who answers has seen the
   * change and saved it, and this answer only lets the sandbox that waits go on.
   */
  #scopeOf(row: ApprovalRow, scope: HostScope | undefined): HostScope | undefined {
    if (row.host === null) {
      if (scope === undefined || scope === 'once') return undefined
      throw new SandboxError('invalid-input', 'a command is approved once; only a host has a scope')
    }
    const { entry, tenant } = JSON.parse(row.host) as StoredHost
    if (scope === 'always' && !this.#parts.isApprovedHost(entry, tenant))
      throw new SandboxError('conflict', `the policy does not contain \`${entry}\` as an approved host`, {
        hint: 'add it to the policy first: `ringfence approve ID --for always` shows the change and saves it',
      })
    return scope ?? 'once'
  }

  async get(principal: Principal, id: string): Promise<ApprovalRow> {
    const row = await findApproval(this.#parts.store, id)
    if (!row || !(isOperator(principal) || row.tenant === principal.tenant))
      throw new SandboxError('not-found', `no such approval \`${id}\``)
    return row
  }

  list(principal: Principal, state: string | undefined, limit: number): Promise<ApprovalRow[]> {
    const tenant = isOperator(principal) ? undefined : principal.tenant
    return listApprovals(this.#parts.store, { tenant, state, limit })
  }

  /** Whether this is the answer that counts. INVARIANT: the answer that counts writes exactly one record. */
  async #settle(row: ApprovalRow, given: HostAnswer): Promise<boolean> {
    const { store, trail } = this.#parts
    const at = Date.now()
    const isLate = row.expiresAt <= at && given.state === 'approved'
    const reason = isLate ? 'the answer came too late' : given.reason && redact(given.reason)
    const answer = { ...given, reason, ...(isLate ? { state: 'expired' as const } : {}), approvalId: row.id }
    const { state, by = null, scope } = answer
    const counted = await store.write((tx) => answerApproval(tx, row.id, { state, by, at, reason, scope }))
    if (!counted) return false
    await trail.append({
      event: 'Approval',
      sandbox_id: row.sandboxId,
      ...(row.agentId === null ? {} : { agent_id: row.agentId }),
      ...(row.execId === null ? {} : { exec_id: row.execId }),
      ...(row.host === null ? answerFields(answer) : hostRecordOf(row.host, answer)),
    })
    this.#tell(row.id, answer)
    return !isLate
  }

  #tell(id: string, answer: HostAnswer): void {
    this.#waiting.get(id)?.({ ...answer, approvalId: id })
    this.#changed()
  }

  #changed(): void {
    for (const listener of this.#listeners) listener()
  }

  #rowOf({
    tenant,
    sandboxId,
    execId,
    agentId,
    command,
    cwd,
    decision,
  }: Omit<ApprovalRequest, 'execId'> & { readonly execId?: string }): ApprovalRow {
    const { newId, instance, timeoutMs } = this.#parts
    const now = Date.now()
    return {
      id: newId('ap'),
      tenant,
      sandboxId,
      execId: execId ?? null,
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
      host: null,
      scope: null,
    }
  }

  #hostRow({ tenant, isOperators, question }: HostRequest): ApprovalRow {
    const { host, port, protocol, sandboxId, agentId } = question
    const entry = hostEntry({ host, port })
    const reason = `\`${host}\` is not an allowed host`
    const stored: StoredHost = { host, port, protocol, entry, tenant: isOperators ? null : tenant }
    return {
      ...this.#rowOf({
        tenant,
        sandboxId,
        agentId,
        command: `connect to ${entry}`,
        cwd: '',
        decision: { action: 'ask', reason, rules: ['network/unlisted'], commands: [] },
      }),
      host: JSON.stringify(stored),
    }
  }
}

/** What is kept of a host that is asked for. */
export type StoredHost = AskedHost & { readonly entry: string; readonly tenant: string | null }

function hostRecordOf(stored: string, answer: HostAnswer): Readonly<Record<string, Json>> {
  const { host, port } = JSON.parse(stored) as StoredHost
  return { host, port, ...hostAnswerFields(answer) } as Readonly<Record<string, Json>>
}
