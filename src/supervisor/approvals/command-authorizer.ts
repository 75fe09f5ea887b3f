import type { Decision } from '../../model/decision.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Plan } from '../../model/plan.ts'
import { whatWouldPass } from '../../policy/explain.ts'
import type { AskedCommand } from '../gate.ts'
import type { SandboxRecord } from '../sandbox-record.ts'
import { type Answered, type ApprovalAnswer, askedUnchanged } from './approval-facts.ts'

/** Where a command would run, and who answers if it needs approval. */
export type AuthorizeOptions = {
  /** A path inside the sandbox; default: the workspace. */
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  /** A user of a sandbox with a root user; default: `user`. */
  readonly user?: string
  /** Answers `ask`: true if a human approved this command, or an answer with who and why. */
  readonly approve?: (decision: Decision, execId: string) => Answered | Promise<Answered>
}

type AuthorizerParts = {
  readonly plan: Plan
  readonly record: SandboxRecord
  readonly judge: (command: AskedCommand, asking: AuthorizeOptions) => Promise<Decision>
}

/** Authorizes commands: each is checked by the policy, approved if required, and recorded before it runs. */
export class CommandAuthorizer {
  readonly #parts: AuthorizerParts

  constructor(parts: AuthorizerParts) {
    this.#parts = parts
  }

  /** Throws if the command may not start. */
  async decide(asked: AskedCommand, execId: string, options: AuthorizeOptions): Promise<Decision> {
    const { judge, record } = this.#parts
    const decision = await judge(asked, options)
    // Recorded before the question, so that a question without an answer is in the audit log too.
    await record.decided(asked, execId, decision)
    const { action, reason } = decision
    if (action === 'deny')
      throw new SandboxError('forbidden-command', reason, {
        hint: `${whatWouldPass(decision)}. \`ringfence check command\` shows each part and the rule that matched`,
      })
    if (action === 'ask') await this.#ask(asked, execId, decision, options)
    return decision
  }

  /** SECURITY: an approval covers the programs as they are now; if one changes before the answer, it is not valid. */
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
    const reason = 'a program of the command changed while it waited for approval'
    await record.decided(command, execId, { ...decision, action: 'deny', reason })
    throw new SandboxError('approval-required', `${decision.reason} (${reason})`, {
      hint: 'run it again to request a new approval',
    })
  }
}

/** Tells the caller who rejected the command, and why. */
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
