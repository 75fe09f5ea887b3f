import type { Action } from '../../model/decision.ts'
import type { Risk } from '../../model/risk.ts'
import { type RuleId, risksOf } from '../rules/risks.ts'

/** One reason to be stricter about one command. */
export type Finding = {
  readonly action: Action
  /** Id of the built-in rule, `theme/name`. */
  readonly rule: RuleId
  readonly reason: string
  /** No operator rule relaxes it. */
  readonly hard: boolean
  /** What can go wrong; a sandbox that contains all of it makes the question needless (policy/containment.ts). */
  readonly risks: readonly Risk[]
}

const finding = (action: Action, rule: RuleId, reason: string, hard: boolean): Finding => ({
  action,
  rule,
  reason,
  hard,
  risks: risksOf(rule),
})

/** Never runs, whatever the operator's rules say. */
export const denied = (rule: RuleId, reason: string): Finding => finding('deny', rule, reason, true)

/** A person looks first, whatever the operator's rules say: we could not see what would run. */
export const unseen = (rule: RuleId, reason: string): Finding => finding('ask', rule, reason, true)

/** A person looks first unless an operator's rule says otherwise. */
export const asked = (rule: RuleId, reason: string): Finding => finding('ask', rule, reason, false)

/** Refused by our own rules; an operator's rule may say otherwise. */
export const refused = (rule: RuleId, reason: string): Finding => finding('deny', rule, reason, false)

/** May run, but only inside a sandbox, unless an operator's rule says otherwise. */
export const boxed = (rule: RuleId, reason: string): Finding => finding('sandbox', rule, reason, false)

/** Never on the host: it depends on something that is known only at run time. */
export const dynamic = (reason: string): Finding => finding('sandbox', 'shell/dynamic', reason, true)
