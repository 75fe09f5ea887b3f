/** Policy decisions: an action with its rules and reasons. */

/** Strictest first. `deny` never runs; `ask` needs approval; `sandbox` runs only in a sandbox; `allow` may run on the host. */
export const ACTIONS = ['deny', 'ask', 'sandbox', 'allow'] as const
/** What the policy decided, strictest first in `ACTIONS`. */
export type Action = (typeof ACTIONS)[number]

/** The strictest of the given actions; `allow` when there are none. */
export function strictest(actions: Iterable<Action>): Action {
  let worst: Action = 'allow'
  for (const action of actions) if (ACTIONS.indexOf(action) < ACTIONS.indexOf(worst)) worst = action
  return worst
}

/** The decision for one simple command of a line. */
export type CommandJudgement = {
  readonly argv: readonly string[]
  readonly action: Action
  readonly reason: string
  readonly rule?: string
  /** Nesting depth; absent at the top level. */
  readonly depth?: number
}

/** The policy's answer for one command line. */
export type Decision = {
  readonly action: Action
  readonly reason: string
  /** Ids of the rules that decided, strictest first. */
  readonly rules: readonly string[]
  readonly commands: readonly CommandJudgement[]
}

/** The decision for a path or an address: allow or deny, nothing between. */
export type PathVerdict = { readonly verdict: 'allow' | 'deny'; readonly reason: string }
/** The policy's answer for one URL or address. */
export type UrlVerdict = { readonly verdict: 'allow' | 'block'; readonly reason: string }
