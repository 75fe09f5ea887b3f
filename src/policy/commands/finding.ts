import type { Action } from '../../model/decision.ts'

/** One reason to be stricter about one command. */
export type Finding = {
  readonly action: Action
  /** Id of the built-in rule, `theme/name`. */
  readonly rule: string
  readonly reason: string
  /** No operator rule relaxes it. */
  readonly hard: boolean
}

/** Never runs, whatever the operator's rules say. */
export const denied = (rule: string, reason: string): Finding => ({
  action: 'deny',
  rule,
  reason,
  hard: true,
})

/** A person looks first, whatever the operator's rules say: we could not see what would run. */
export const unseen = (rule: string, reason: string): Finding => ({ action: 'ask', rule, reason, hard: true })

/** A person looks first unless an operator's rule says otherwise. */
export const asked = (rule: string, reason: string): Finding => ({ action: 'ask', rule, reason, hard: false })

/** Refused by our own rules; an operator's rule may say otherwise. */
export const refused = (rule: string, reason: string): Finding => ({
  action: 'deny',
  rule,
  reason,
  hard: false,
})

/** May run, but only inside a sandbox, unless an operator's rule says otherwise. */
export const boxed = (rule: string, reason: string): Finding => ({
  action: 'sandbox',
  rule,
  reason,
  hard: false,
})

/** Never on the host: it depends on something that is known only at run time. */
export const dynamic = (reason: string): Finding => ({
  action: 'sandbox',
  rule: 'shell/dynamic',
  reason,
  hard: true,
})
