/** Policy decisions: an action with its rules and reasons. */

import type { Containment } from './risk.ts'

/** Strictest first. `deny` never runs; `ask` needs approval; `sandbox` runs only in a sandbox; `allow` may run on the host. */
export const ACTIONS = ['deny', 'ask', 'sandbox', 'allow'] as const
/** What the policy decided, strictest first in `ACTIONS`. */
export type Action = (typeof ACTIONS)[number]

/** The stricter of two actions. */
export const stricter = (a: Action, b: Action): Action =>
  a === b || ACTIONS.indexOf(a) < ACTIONS.indexOf(b) ? a : b

/** The strictest of the given actions; `allow` when there are none. */
export function strictest(actions: Iterable<Action>): Action {
  let worst: Action = 'allow'
  for (const action of actions) worst = stricter(worst, action)
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

/** A question or denial of a built-in rule that the sandbox answered: each of its risks with the guarantee that contains it. */
export type ContainedRule = {
  readonly rule: string
  /** What the rule asks for where nothing contains its risks. */
  readonly action: 'ask' | 'deny'
  readonly by: Containment
}

/** The policy's answer for one command line. */
export type Decision = {
  readonly action: Action
  readonly reason: string
  /** Ids of the rules that decided, strictest first. */
  readonly rules: readonly string[]
  readonly commands: readonly CommandJudgement[]
  /** Absent when the sandbox answered nothing. A decision replays with these risks contained and no others. */
  readonly contained?: readonly ContainedRule[]
}

/** The decision for a path or an address: allow or deny, nothing between. */
export type PathVerdict = { readonly verdict: 'allow' | 'deny'; readonly reason: string }
/** The policy's answer for one URL or address. */
export type UrlVerdict = { readonly verdict: 'allow' | 'block'; readonly reason: string }
