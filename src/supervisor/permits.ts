import type { Decision } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'
import { approvedUnchanged } from './approvals.ts'
import type { AskedCommand } from './gate.ts'
import type { SandboxRecord } from './record.ts'

/** Where a command would run, and who answers when it is to be asked about. */
export type Asking = {
  /** A guest path; the workspace when absent. */
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  /** Answers `ask`: true once a human has approved this very command. */
  readonly approve?: (decision: Decision) => boolean | Promise<boolean>
  /** Answers `ask` before anybody is asked, where the place itself is the answer. */
  readonly settle?: ((decision: Decision) => Decision) | undefined
}

type PermitParts = {
  readonly plan: Plan
  readonly record: SandboxRecord
  readonly judge: (command: AskedCommand, cwd?: string) => Promise<Decision>
}

/** Gives commands leave to start: each is judged, approved where that is wanted, and on record before it runs. */
export class Permits {
  readonly #parts: PermitParts

  constructor(parts: PermitParts) {
    this.#parts = parts
  }

  /** Throws when the command may not start. */
  async decide(asked: AskedCommand, execId: string, options: Asking): Promise<Decision> {
    const { judge, record } = this.#parts
    const judged = await judge(asked, options.cwd)
    const decision = options.settle?.(judged) ?? judged
    const approved = decision.action === 'ask' ? await this.#approve(asked, decision, options) : undefined
    await record.decided(asked, execId, decision, approved)
    const { action, reason } = decision
    if (action === 'deny') {
      throw new SandboxError('forbidden-command', reason, {
        hint: '`ringfence check command` shows every part and its rule',
      })
    }
    if (approved === false) {
      throw new SandboxError('approval-required', reason, {
        hint: options.approve
          ? 'nobody said yes; ask whoever is responsible, or have a rule added to the policy'
          : 'approve it with --yes, or add a rule to the policy',
      })
    }
    return decision
  }

  /** SECURITY: an approval is for this program as it is; one that changes while a person thinks needs another. */
  async #approve(command: AskedCommand, decision: Decision, { approve, cwd, env }: Asking): Promise<boolean> {
    const { plan } = this.#parts
    if (!approve) return false
    const asked = { command, cwd: cwd ?? plan.cwd, env: { ...plan.env, ...env }, decision }
    return approvedUnchanged(asked, () => approve(decision))
  }
}
