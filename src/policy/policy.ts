import type { Config } from '../model/config.ts'
import { inspectLine } from './commands/judge.ts'
import { BUILT_IN } from './rules/index.ts'
import { LAUNCHERS } from './rules/launchers.ts'
import {
  type CommandPolicy,
  commandText,
  compileRule,
  indexBuiltIn,
  invalid,
  type Rule,
  ruleMatches,
} from './rules/match.ts'

export type { CommandPolicy } from './rules/match.ts'

const BUILT_IN_INDEX = indexBuiltIn(BUILT_IN)

/**
 * Makes the policy for commands out of a configuration. Throws `invalid-config` for a rule that cannot be compiled,
 * that grants a bare interpreter, or whose examples lie: a broken policy never becomes a weaker one.
 */
export function compilePolicy(config: Config): CommandPolicy {
  const rules = (config.policy?.rule ?? []).map((rule, index) =>
    compileRule(rule, rule.id ?? `policy.rule[${index}]`),
  )
  const allowed = config.commands?.allowed ?? []
  const policy: CommandPolicy = {
    rules,
    builtIn: BUILT_IN_INDEX,
    defaultAction: config.policy?.default_action ?? 'sandbox',
    allowed: allowed.length > 0 ? new Set(allowed) : undefined,
  }
  for (const rule of rules) {
    refuseBareLaunchers(rule)
    checkExamples(rule)
  }
  return policy
}

const subject = (argv: readonly string[]) => ({ spellings: [argv], trusted: true, cwds: [], home: '' })

// SECURITY: whoever may start an interpreter with any arguments may do anything, so no rule grants one bare.
function refuseBareLaunchers(rule: Rule): void {
  if (rule.action !== 'allow') return
  const anywhere: Rule = { ...rule, dirs: [] }
  for (const [program, probes] of LAUNCHERS) {
    const bare = probes.find((args) => ruleMatches(anywhere, subject([program, ...args])))
    if (bare)
      throw invalid(
        rule.id,
        `grants \`${commandText([program, ...bare])}\`, which can run anything`,
        `name what may run, for example the script after \`${program}\``,
      )
  }
}

/** The reference place for examples; only matching counts, so any will do. */
const EXAMPLE = { workspace: '/workspace', home: '/home/agent' }

/** Whether the rule holds for some command in the line. */
function holds(rule: Rule, line: string): boolean {
  const alone: CommandPolicy = {
    rules: [{ ...rule, dirs: [] }],
    builtIn: new Map(),
    defaultAction: 'sandbox',
    allowed: undefined,
  }
  return inspectLine(alone, line, EXAMPLE).nodes.some((node) => node.matched.includes(rule.id))
}

function checkExamples(rule: Rule): void {
  for (const example of rule.config.match ?? [])
    if (!holds(rule, example))
      throw invalid(rule.id, `the example \`${example}\` in \`match\` does not match`)
  for (const example of rule.config.not_match ?? [])
    if (holds(rule, example)) throw invalid(rule.id, `the example \`${example}\` in \`not_match\` matches`)
}
