import type { Decision } from '../../model/decision.ts'
import type { Plan } from '../../model/plan.ts'

/** Which rules are the operator's; theirs are never answered by anybody but a human. */
export type OperatorRules = {
  readonly ids: ReadonlySet<string>
  /** What was not named is asked, because the operator wants it so. */
  readonly asksByDefault: boolean
}

/** Nothing of the host is in it, and it reaches no further than its list of hosts. */
const isPrivate = ({ mounts, own, unixSockets, network, waived }: Plan): boolean =>
  mounts.every(({ target }) => own.includes(target)) &&
  unixSockets.length === 0 &&
  network.mode !== 'full' &&
  waived.length === 0

/**
 * What our own rules would ask about a command is about the host: its files, its processes, its network. In a place that
 * has none of them the wall is the answer, where nobody could be asked. SECURITY: `deny` stays, and so does every question
 * of the operator's.
 */
export function sandboxInsteadOfAsking(plan: Plan, rules: OperatorRules): (decision: Decision) => Decision {
  return (decision) => {
    const isOurs = !rules.asksByDefault && !decision.rules.some((id) => rules.ids.has(id))
    if (decision.action !== 'ask' || !isOurs || !isPrivate(plan)) return decision
    return {
      ...decision,
      action: 'sandbox',
      reason: `${decision.reason}; nothing of the host is in this sandbox`,
    }
  }
}
