import type { RuleConfig } from '../../model/config.ts'
import type { Action } from '../../model/decision.ts'
import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/files/path.ts'
import { commandText } from '../../model/text/shell-quote.ts'
import { isOpen } from '../commands/shell/unknown-text.ts'
import { compileGlob, compileRegex, type Pattern, PatternError } from './linear-pattern.ts'
import type { BuiltInRule } from './rule.ts'

/** One operator rule, compiled. */
export type Rule = {
  readonly id: string
  readonly action: Action
  readonly why: string
  readonly priority: number
  readonly tags: readonly string[]
  readonly dirs: readonly string[]
  readonly prefix: readonly string[] | undefined
  readonly pattern: Pattern | undefined
  readonly config: RuleConfig
}

/** The compiled policy for commands. Created only by `compilePolicy`. */
export type CommandPolicy = {
  readonly rules: readonly Rule[]
  readonly builtIn: ReadonlyMap<string, readonly BuiltInRule[]>
  readonly defaultAction: Action
  /** When set, only these programs run. */
  readonly allowed: ReadonlySet<string> | undefined
}

/** The subject of a rule match: one simple command. */
export type Subject = {
  /** The equivalent spellings of the command: as written, by plain name, without global options. */
  readonly spellings: readonly (readonly string[])[]
  /** Started by bare name or from a system directory, so that a grant by name may match. */
  readonly trusted: boolean
  readonly cwds: readonly string[]
  readonly home: string
}

/** Why a configuration is rejected. */
export const invalid = (id: string, problem: string, hint?: string): SandboxError =>
  new SandboxError('invalid-config', `rule \`${id}\`: ${problem}`, hint === undefined ? {} : { hint })

/** Compiles one rule as an operator writes it. */
export function compileRule(config: RuleConfig, id: string): Rule {
  const kinds = [config.prefix, config.glob, config.regex].filter((kind) => kind !== undefined)
  if (kinds.length !== 1) throw invalid(id, 'needs exactly one of `prefix`, `glob` and `regex`')
  if (config.prefix?.length === 0)
    throw invalid(id, '`prefix` is empty', 'a rule for everything is `default_action`')
  return {
    id,
    action: config.action,
    why: config.why ?? describe(config),
    priority: config.priority ?? 0,
    tags: config.tags ?? [],
    dirs: config.dirs ?? [],
    prefix: config.prefix,
    pattern: compilePattern(config, id),
    config,
  }
}

const describe = (config: RuleConfig): string =>
  `the policy says so for \`${config.prefix?.join(' ') ?? config.glob ?? config.regex}\``

function compilePattern(config: RuleConfig, id: string): Pattern | undefined {
  try {
    if (config.glob !== undefined) return compileGlob(config.glob)
    return config.regex === undefined ? undefined : compileRegex(config.regex)
  } catch (error) {
    if (error instanceof PatternError) throw invalid(id, error.message)
    throw error
  }
}

/** Whether a rule matches a command. Restricting rules match every possible meaning, grants only the certain one. */
export function ruleMatches(rule: Rule, subject: Subject): boolean {
  const grants = rule.action === 'allow'
  if (!inDirs(rule, subject, grants)) return false
  // SECURITY: a grant must see every option; the last spelling is without the program's global options.
  const spellings = grants ? subject.spellings.slice(0, subject.trusted ? 2 : 1) : subject.spellings
  return spellings.some((argv) => argvMatches(rule, argv, grants))
}

function argvMatches(rule: Rule, argv: readonly string[], grants: boolean): boolean {
  if (rule.prefix) return prefixMatches(rule.prefix, argv, grants)
  const text = commandText(argv)
  return grants ? rule.pattern?.test(text) === true : rule.pattern?.could(text) === true
}

function prefixMatches(prefix: readonly string[], argv: readonly string[], grants: boolean): boolean {
  for (const [index, token] of prefix.entries()) {
    const word = argv[index]
    if (word === token) continue
    // SECURITY: an unknown word could expand to any number of words, so the positions of the following words are not known.
    if (!grants && word !== undefined && isOpen(word)) return true
    return false
  }
  return true
}

function inDirs(rule: Rule, { cwds, home }: Subject, grants: boolean): boolean {
  if (rule.dirs.length === 0) return true
  if (cwds.length === 0) return !grants
  const dirs = rule.dirs.map((dir) => dir.replace(/^~(?=\/|$)/, home).replace(/\/+$/, ''))
  const isGranted = (cwd: string): boolean => dirs.some((dir) => isWithin(cwd, dir))
  return grants ? cwds.every(isGranted) : cwds.some(isGranted)
}

/** Whether a built-in rule matches a command. */
export function builtInMatches(rule: BuiltInRule, argv: readonly string[]): boolean {
  if (rule.exact === true && argv.length > rule.prefix.length) return false
  // Printing its own version or help, a program reaches nothing.
  if (rule.action === 'ask' && argv.length === 2 && (argv[1] === '--version' || argv[1] === '--help'))
    return false
  const { prefix } = rule
  for (let index = 0; index < prefix.length; index++) {
    const token = prefix[index] as string | readonly string[]
    const word = argv[index]
    if (word === undefined) return false
    if (typeof token === 'string' ? token === word : token.includes(word)) continue
    if (rule.action === 'allow' || index === 0 || !isOpen(word)) return false
  }
  return true
}

/** The built-in rules by the program they start with. */
export function indexBuiltIn(rules: readonly BuiltInRule[]): ReadonlyMap<string, readonly BuiltInRule[]> {
  const index = new Map<string, BuiltInRule[]>()
  for (const rule of rules) {
    const first = rule.prefix[0] ?? ''
    for (const program of typeof first === 'string' ? [first] : first) {
      const list = index.get(program)
      if (list) list.push(rule)
      else index.set(program, [rule])
    }
  }
  return index
}
