import type { Action } from '../../model/decision.ts'
import type { RuleId } from './risks.ts'

/** One of our own rules. A token may be a list: any of its words stands there. */
export type BuiltInRule = {
  /** Its risks are the row of this id in `risks.ts`. */
  readonly id: RuleId
  readonly prefix: readonly (string | readonly string[])[]
  readonly action: Action
  readonly why: string
  /** No operator rule relaxes it. */
  readonly hard?: boolean
  /** Nothing may follow the prefix. */
  readonly exact?: boolean
  readonly match: readonly string[]
  readonly notMatch?: readonly string[]
}

/** Words of a blank-separated list. */
export const words = (list: string): readonly string[] => list.trim().split(/\s+/)
