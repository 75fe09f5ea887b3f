import type { Decision } from '../../model/decision.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import type { AskedCommand } from '../gate.ts'
import type { SandboxRecord } from '../sandbox-record.ts'
import { type Answered, type ApprovalAnswer, askedUnchanged } from './approval-facts.ts'

/** Where a command would run, and who answers when it is to be asked about. */
export type AuthorizeOptions = {
  /** A guest path; the workspace when absent. */
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  /** Answers `ask`: true once a human has approved this very command, or who said what. */
  readonly approve?: (decision: Decision, execId: string) => Answered | Promise<Answered>
  /** Answers `ask` before anybody is asked, where the place itself is the answer. */
  readonly answerForUser?: ((decision: Decision) => Decision) | undefined
}

type AuthorizerParts = {
  readonly plan: Plan
  readonly record: SandboxRecord
  readonly judge: (command: AskedCommand, cwd?: string) => Promise<Decision>
}

/** Gives commands leave to start: each is judged, approved where that is wanted, and on record before it runs. */
export class CommandAuthorizer {
  readonly #parts: AuthorizerParts

  constructor(parts: AuthorizerParts) {
    this.#parts = parts
  }

  /** Throws when the command may not start. */
  async decide(asked: AskedCommand, execId: string, options: AuthorizeOptions): Promise<Decision> {
    const { judge, record } = this.#parts
    const judged = await judge(asked, options.cwd)
    const decision = options.answerForUser?.(judged) ?? judged
    // On record before anybody is asked: a question that is never answered was asked all the same.
    await record.decided(asked, execId, decision)
    const { action, reason } = decision
    if (action === 'deny')
      throw new SandboxError('forbidden-command', reason, {
        hint: '`ringfence check command` shows every part and its rule',
      })
    if (action === 'ask') await this.#ask(asked, execId, decision, options)
    return decision
  }

  /** SECURITY: an approval is for this program as it is; one that changes while a person thinks needs another. */
  async #ask(
    command: AskedCommand,
    execId: string,
    decision: Decision,
    options: AuthorizeOptions,
  ): Promise<void> {
    const { plan, record } = this.#parts
    const { approve, cwd, env } = options
    if (!approve)
      throw new SandboxError('approval-required', decision.reason, {
        hint: 'approve it with --yes, or add a rule to the policy',
      })
    const asked = { command, cwd: cwd ?? plan.cwd, env: { ...plan.env, ...env }, decision }
    const { answer, isSame } = await askedUnchanged(asked, () => approve(decision, execId))
    if (answer.approvalId === undefined) await record.answered(execId, answer)
    if (answer.state !== 'approved') throw notApproved(decision, answer)
    if (isSame) return
    const reason = 'a program of it changed after it was asked about'
    await record.decided(command, execId, { ...decision, action: 'deny', reason })
    throw new SandboxError('approval-required', `${decision.reason} (${reason})`, { hint: 'ask again' })
  }
}

/** The caller hears who said no, and why. */
function notApproved(decision: Decision, { state, by, reason, approvalId }: ApprovalAnswer): SandboxError {
  const who = state === 'expired' ? 'not answered' : `rejected${by === undefined ? '' : ` by \`${by}\``}`
  const said = `${who}${reason === undefined || reason === '' ? '' : `: ${reason}`}`
  return new SandboxError('approval-required', `${decision.reason} (${said})`, {
    hint:
      state === 'expired'
        ? 'ask an admin to answer, or add a rule to the policy'
        : 'ask an admin, or add a rule to the policy',
    reasons: [`${approvalId === undefined ? 'approval' : approvalId} ${state}: ${said}`],
  })
}
