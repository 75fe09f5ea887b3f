import type { Decision } from '../../model/decision.ts'
import type { Plan } from '../../model/plan.ts'

/** Which rules are the operator's. Only a human may approve what they ask about. */
export type OperatorRules = {
  readonly ids: ReadonlySet<string>
  /** The operator's policy asks about every command that no rule matches. */
  readonly asksByDefault: boolean
}

/** The sandbox contains nothing of the host and reaches only the hosts on its list. */
const isPrivate = ({ mounts, own, unixSockets, network, waived }: Plan): boolean =>
  mounts.every(({ target }) => own.includes(target)) &&
  unixSockets.length === 0 &&
  network.mode !== 'full' &&
  waived.length === 0

/**
 * The built-in rules ask about commands that affect the host: its files, its processes, its network. In a sandbox that
 * contains none of them the command runs without approval, because the isolation already prevents that effect.
 * SECURITY: `deny` stays, and so does every `ask` of the operator's rules.
 */
export function sandboxInsteadOfAsking(plan: Plan, rules: OperatorRules): (decision: Decision) => Decision {
  return (decision) => {
    const isOurs = !rules.asksByDefault && !decision.rules.some((id) => rules.ids.has(id))
    if (decision.action !== 'ask' || !isOurs || !isPrivate(plan)) return decision
    return {
      ...decision,
      action: 'sandbox',
      reason: `${decision.reason}; this sandbox contains nothing of the host`,
    }
  }
}
