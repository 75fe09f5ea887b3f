import { SandboxError } from '../../model/errors.ts'
import {
  type McpServerConfig,
  TOOL_ACTIONS,
  type ToolAction,
  type ToolRuleConfig,
} from '../../model/mcp-config.ts'
import { compileRegex, type Pattern, PatternError } from '../rules/linear-pattern.ts'
import { type JsonPath, parseJsonPath, possibleValuesAt, valuesAt } from './json-path.ts'

/** Rules on calls of MCP tools: the name of the tool and its arguments decide. */

type Condition = { readonly path: JsonPath; readonly pattern: Pattern }

/** A compiled rule. */
type ToolRule = {
  readonly id: string
  readonly action: ToolAction
  readonly why: string
  readonly tool: Pattern | undefined
  readonly conditions: readonly Condition[]
}

/** The rules of one server. */
export type ToolRules = { readonly rules: readonly ToolRule[]; readonly fallback: ToolAction }

/** What happens to a call, and why. */
export type ToolDecision = {
  readonly action: ToolAction
  readonly reason: string
  readonly rules: readonly string[]
}

/** Compiles the rules of a server. Throws `invalid-config` for a rule that cannot be compiled or whose examples fail. */
export function compileToolRules({ name, rule = [], default_action = 'ask' }: McpServerConfig): ToolRules {
  const rules = rule.map((one, index) => compileRule(one, one.id ?? `mcp.${name}.rule[${index}]`))
  for (const [index, one] of rules.entries()) assertExamples(one, rule[index] as ToolRuleConfig)
  return { rules, fallback: default_action }
}

function compileRule(config: ToolRuleConfig, id: string): ToolRule {
  if (config.tool === undefined && !config.arguments?.length)
    throw invalid(id, 'needs `tool` or `arguments`', 'a rule for everything is `default_action`')
  return {
    id,
    action: config.action,
    why: config.why ?? `the rule \`${id}\` says so`,
    tool: config.tool === undefined ? undefined : compiled(config.tool, id),
    conditions: (config.arguments ?? []).map(({ path, regex }) => ({
      path: parseJsonPath(path),
      pattern: compiled(regex, id),
    })),
  }
}

function compiled(source: string, id: string): Pattern {
  try {
    return compileRegex(source)
  } catch (error) {
    if (error instanceof PatternError) throw invalid(id, error.message)
    throw error
  }
}

/** Decides about a call: the strictest matching rule, whatever their order. */
export function decideToolCall({ rules, fallback }: ToolRules, tool: string, args: unknown): ToolDecision {
  const matching = rules.filter((rule) => matches(rule, tool, args))
  for (const action of TOOL_ACTIONS) {
    const found = matching.filter((rule) => rule.action === action)
    if (found[0]) return { action, reason: found[0].why, rules: found.map(({ id }) => id) }
  }
  const reason = fallback === 'deny' ? 'no rule allows this call' : `no rule decides about \`${tool}\``
  return { action: fallback, reason, rules: ['mcp/default'] }
}

/**
 * SECURITY: a rule that allows must hold for every value at its path, and there must be one; a rule that restricts holds
 * if it could hold for any value. So a list with one harmless entry allows nothing for the others, and neither does `path`
 * beside a `Path` that the server may read instead.
 */
function matches({ action, tool, conditions }: ToolRule, name: string, args: unknown): boolean {
  const grants = action === 'allow'
  const holds = (pattern: Pattern, text: string): boolean =>
    grants ? pattern.test(text) : pattern.could(text)
  if (tool && !holds(tool, name)) return false
  return conditions.every(({ path, pattern }) => {
    const values = possibleValuesAt(args, path).map(textOf)
    return grants
      ? valuesAt(args, path).length > 0 && values.every((text) => holds(pattern, text))
      : values.some((text) => holds(pattern, text))
  })
}

const textOf = (value: unknown): string =>
  typeof value === 'string' ? value : (JSON.stringify(value) ?? 'null')

function assertExamples(rule: ToolRule, { match = [], not_match = [] }: ToolRuleConfig): void {
  const check = (example: string, wanted: boolean): void => {
    const { tool, args } = exampleOf(example, rule.id)
    if (matches(rule, tool, args) !== wanted)
      throw invalid(
        rule.id,
        `the example \`${example}\` in \`${wanted ? 'match' : 'not_match'}\` ${wanted ? 'does not match' : 'matches'}`,
      )
  }
  for (const example of match) check(example, true)
  for (const example of not_match) check(example, false)
}

function exampleOf(text: string, id: string): { readonly tool: string; readonly args: unknown } {
  const [, tool = '', json] = /^(\S+)\s*(.*)$/s.exec(text.trim()) ?? []
  try {
    return { tool, args: json ? (JSON.parse(json) as unknown) : {} }
  } catch {
    throw invalid(
      id,
      `the example \`${text}\` is not a tool and a JSON object`,
      'write `read_file {"path": "/a"}`',
    )
  }
}

const invalid = (id: string, problem: string, hint?: string): SandboxError =>
  new SandboxError('invalid-config', `rule \`${id}\`: ${problem}`, hint === undefined ? {} : { hint })
