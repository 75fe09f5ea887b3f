/** What policy answers: an action with the rules and reasons that made it. */

/** Strictest first. `deny` never runs; `ask` needs a human; `sandbox` runs only inside; `allow` may run on the host. */
export const ACTIONS = ['deny', 'ask', 'sandbox', 'allow'] as const
/** What the policy decided, strictest first in `ACTIONS`. */
export type Action = (typeof ACTIONS)[number]

/** The strictest of the given actions; `allow` when there are none. */
export function strictest(actions: Iterable<Action>): Action {
  let worst: Action = 'allow'
  for (const action of actions) if (ACTIONS.indexOf(action) < ACTIONS.indexOf(worst)) worst = action
  return worst
}

/** The judgement of one simple command found anywhere in a line. */
export type CommandJudgement = {
  readonly argv: readonly string[]
  readonly action: Action
  readonly reason: string
  readonly rule?: string
  /** How deep it stands in what starts it; absent at the top. */
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

/** A path or an address is either inside the policy or not; there is nothing between. */
export type PathVerdict = { readonly verdict: 'allow' | 'deny'; readonly reason: string }
/** The policy's answer for one URL or address. */
export type UrlVerdict = { readonly verdict: 'allow' | 'block'; readonly reason: string }
