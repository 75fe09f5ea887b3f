import type { Config } from '../model/config.ts'
import { commandText } from '../model/text/shell-quote.ts'
import { inspectLine } from './commands/judge.ts'
import { BUILT_IN } from './rules/index.ts'
import { LAUNCHERS } from './rules/launchers.ts'
import {
  type CommandPolicy,
  compileRule,
  indexBuiltIn,
  invalid,
  type Rule,
  ruleMatches,
} from './rules/match.ts'

export type { CommandPolicy } from './rules/match.ts'

const BUILT_IN_INDEX = indexBuiltIn(BUILT_IN)

/**
 * Compiles the command policy from a configuration. Throws `invalid-config` for a rule that cannot be compiled, that
 * grants a bare interpreter, or whose examples fail: a broken policy never becomes a weaker one.
 */
export function compilePolicy(config: Config): CommandPolicy {
  const rules = rulesOf(config)
  const lie = rules.flatMap(examplesOf).find((example) => !example.holds)
  if (lie)
    throw invalid(
      lie.rule,
      `the example \`${lie.line}\` in \`${lie.list}\` ${lie.list === 'match' ? 'does not match' : 'matches'}`,
    )
  const allowed = config.commands?.allowed ?? []
  return {
    rules,
    builtIn: BUILT_IN_INDEX,
    defaultAction: config.policy?.default_action ?? 'sandbox',
    allowed: allowed.length > 0 ? new Set(allowed) : undefined,
  }
}

/** The operator's rules, each compiled and safe to grant; their examples are not checked. */
export function rulesOf(config: Config): readonly Rule[] {
  const rules = (config.policy?.rule ?? []).map((rule, index) =>
    compileRule(rule, rule.id ?? `policy.rule[${index}]`),
  )
  for (const rule of rules) refuseBareLaunchers(rule)
  return rules
}

/** One example of a rule, and whether the rule behaves as the example says. */
export type ExampleResult = {
  readonly rule: string
  readonly list: 'match' | 'not_match'
  readonly line: string
  readonly holds: boolean
}

/** Runs a rule against its own examples. */
export function examplesOf(rule: Rule): readonly ExampleResult[] {
  const { match = [], not_match = [] } = rule.config
  return [
    ...match.map((line) => ({ rule: rule.id, list: 'match' as const, line, holds: matchesIn(rule, line) })),
    ...not_match.map((line) => ({
      rule: rule.id,
      list: 'not_match' as const,
      line,
      holds: !matchesIn(rule, line),
    })),
  ]
}

const subject = (argv: readonly string[]) => ({ spellings: [argv], trusted: true, cwds: [], home: '' })

// SECURITY: an interpreter with arbitrary arguments can do anything, so no rule may grant one without arguments.
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

/** The context for examples; its paths do not matter, because only matching is checked. */
const EXAMPLE = { workspace: '/workspace', home: '/home/agent' }

/** Whether the rule matches some command in the line. */
function matchesIn(rule: Rule, line: string): boolean {
  const alone: CommandPolicy = {
    rules: [{ ...rule, dirs: [] }],
    builtIn: new Map(),
    defaultAction: 'sandbox',
    allowed: undefined,
  }
  return inspectLine(alone, line, EXAMPLE).nodes.some((node) => node.matched.includes(rule.id))
}
