import type { Action } from '../../model/decision.ts'
import type { Risk } from '../../model/risk.ts'
import { type RuleId, risksOf } from '../rules/risks.ts'

/** One reason to be stricter about one command. */
export type Finding = {
  readonly action: Action
  /** Id of the built-in rule, `theme/name`. */
  readonly rule: RuleId
  readonly reason: string
  /** Operator rules cannot relax it. */
  readonly hard: boolean
  /** The possible harm; a sandbox that contains all of it makes the question unnecessary (policy/containment.ts). */
  readonly risks: readonly Risk[]
}

const finding = (action: Action, rule: RuleId, reason: string, hard: boolean): Finding => ({
  action,
  rule,
  reason,
  hard,
  risks: risksOf(rule),
})

/** Never runs; operator rules cannot relax it. */
export const denied = (rule: RuleId, reason: string): Finding => finding('deny', rule, reason, true)

/** Always asks a person, because the command that would run is not known; operator rules cannot relax it. */
export const unseen = (rule: RuleId, reason: string): Finding => finding('ask', rule, reason, true)

/** Asks a person unless an operator rule decides otherwise. */
export const asked = (rule: RuleId, reason: string): Finding => finding('ask', rule, reason, false)

/** Denied by the built-in rules; an operator rule may decide otherwise. */
export const refused = (rule: RuleId, reason: string): Finding => finding('deny', rule, reason, false)

/** Runs only in a sandbox unless an operator rule decides otherwise. */
export const boxed = (rule: RuleId, reason: string): Finding => finding('sandbox', rule, reason, false)

/** Never runs on the host, because it depends on values that are known only at run time. */
export const dynamic = (reason: string): Finding => finding('sandbox', 'shell/dynamic', reason, true)
