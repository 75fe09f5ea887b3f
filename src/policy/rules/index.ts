import { BUSINESS } from './business.ts'
import { GIT_RULES } from './git.ts'
import { DISKS, PRIVILEGED } from './privileged.ts'
import { READING } from './reading.ts'
import type { BuiltInRule } from './rule.ts'

/** All built-in rules. Commands that match none of them get the policy's default action. */
export const BUILT_IN: readonly BuiltInRule[] = [
  ...READING,
  ...GIT_RULES,
  ...PRIVILEGED,
  ...DISKS,
  ...BUSINESS,
]
