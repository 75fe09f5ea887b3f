import type { Action } from '../../model/decision.ts'
import type { RuleId } from './risks.ts'

/** A built-in rule. A token may be a list of alternatives. */
export type BuiltInRule = {
  /** Refers to a row in `risks.ts`. */
  readonly id: RuleId
  readonly prefix: readonly (string | readonly string[])[]
  readonly action: Action
  readonly why: string
  /** Operator rules cannot relax it. */
  readonly hard?: boolean
  /** No arguments may follow the prefix. */
  readonly exact?: boolean
  readonly match: readonly string[]
  readonly notMatch?: readonly string[]
}

/** The words of a space-separated list. */
export const words = (list: string): readonly string[] => list.trim().split(/\s+/)
