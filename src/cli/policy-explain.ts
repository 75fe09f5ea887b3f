import type { Config } from '../model/config.ts'
import { ACTIONS, type Action } from '../model/decision.ts'
import { NETWORK_MODES } from '../model/spec.ts'
import { sandboxPolicyOf } from '../policy/plan.ts'
import { compilePolicy } from '../policy/policy.ts'
import { BUILT_IN } from '../policy/rules/index.ts'

/** The effective policy as data: `ringfence policy explain --json`. */
export type PolicyDescription = {
  readonly default_action: Action
  /** `null`: whoever starts a sandbox chooses. */
  readonly allowed_host_prefixes: readonly string[] | null
  readonly blocked_host_patterns: readonly string[]
  /** `null`: no ceiling of the operator's. */
  readonly limits: Readonly<Record<(typeof LIMITS)[number][0], number | null>>
  readonly network: {
    readonly modes: readonly string[]
    readonly allow_hosts: readonly string[] | null
    readonly allow_private: readonly string[]
  }
  readonly allow_interactive: boolean
  /** Seed 000's whitelist; `null`: every program. */
  readonly programs: readonly string[] | null
  readonly always_sandbox: readonly string[]
  readonly never_sandbox: readonly string[]
  readonly rules: readonly RuleDescription[]
  readonly built_in: readonly ThemeDescription[]
}

type RuleDescription = {
  readonly id: string
  readonly action: Action
  readonly matches: string
  readonly why: string
  readonly dirs: readonly string[]
  readonly examples: number
}

type ThemeDescription = {
  readonly theme: string
  readonly rules: number
  /** Those that no rule of the operator relaxes. */
  readonly hard: number
  readonly actions: Readonly<Partial<Record<Action, number>>>
  readonly what: readonly string[]
}

const LIMITS = [
  ['max_cpus', 'processors'],
  ['max_memory_mb', 'MB of memory'],
  ['max_disk_mb', 'MB of disk'],
  ['max_pids', 'processes'],
] as const

/** What a configuration comes to, defaults included. Throws where it would not load. */
export function describePolicy(config: Config, home: string): PolicyDescription {
  const { rules, defaultAction, allowed } = compilePolicy(config)
  const { allowedPrefixes, blocked, networkModes } = sandboxPolicyOf(config, home)
  const { policy = {}, network = {}, router = {} } = config
  return {
    default_action: defaultAction,
    allowed_host_prefixes: allowedPrefixes ?? null,
    blocked_host_patterns: blocked,
    limits: Object.fromEntries(
      LIMITS.map(([name]) => [name, policy[name] ?? null]),
    ) as PolicyDescription['limits'],
    network: {
      modes: networkModes,
      allow_hosts: network.allow_hosts ?? null,
      allow_private: network.allow_private ?? [],
    },
    allow_interactive: policy.allow_interactive ?? false,
    programs: allowed === undefined ? null : [...allowed],
    always_sandbox: router.always_sandbox ?? [],
    never_sandbox: router.never_sandbox ?? [],
    rules: rules.map(({ id, action, why, dirs, config: given }) => ({
      id,
      action,
      matches: given.prefix ? `${given.prefix.join(' ')} …` : (given.glob ?? `/${given.regex}/`),
      why,
      dirs,
      examples: (given.match?.length ?? 0) + (given.not_match?.length ?? 0),
    })),
    built_in: themes(),
  }
}

function themes(): readonly ThemeDescription[] {
  const names = [...new Set(BUILT_IN.map(({ id }) => themeOf(id)))]
  return names.map((theme) => {
    const rules = BUILT_IN.filter(({ id }) => themeOf(id) === theme)
    const counts = ACTIONS.map((action) => [action, rules.filter((rule) => rule.action === action).length])
    return {
      theme,
      rules: rules.length,
      hard: rules.filter(({ hard }) => hard === true).length,
      actions: Object.fromEntries(counts.filter(([, count]) => count !== 0)),
      what: [...new Set(rules.map(({ why }) => why))],
    }
  })
}

const themeOf = (id: string): string => id.slice(0, id.indexOf('/'))

const DEFAULT: Readonly<Record<Action, string>> = {
  deny: 'does not run',
  ask: 'a person approves it first',
  sandbox: 'runs, only inside a sandbox',
  allow: 'may run directly on the host',
}

/** The same for people. */
export function policyText(policy: PolicyDescription): string {
  const limits = LIMITS.flatMap(([name, unit]) =>
    policy.limits[name] === null ? [] : [`at most ${policy.limits[name]} ${unit}`],
  )
  const rows: readonly (readonly [string, readonly string[]])[] = [
    ['other commands', [`${policy.default_action}: ${DEFAULT[policy.default_action]}`]],
    ['programs', policy.programs === null ? [] : [`only ${policy.programs.join(' ')}`]],
    ['may be shown', shownPaths(policy.allowed_host_prefixes)],
    ['never shown', [policy.blocked_host_patterns.join(' ')]],
    ['limits', limits.length === 0 ? ['whatever a sandbox asks for'] : limits],
    ['network', networkLines(policy.network)],
    ['terminals', [policy.allow_interactive ? 'interactive ones may be opened' : 'no interactive ones']],
    ['router', routerLines(policy)],
    ['your rules', policy.rules.length === 0 ? ['none'] : policy.rules.map(ruleLine)],
    ['built in', policy.built_in.map(themeLine)],
  ]
  const filled = rows.filter(([, lines]) => lines.length > 0)
  return `${filled.map(([name, lines]) => `${name.padEnd(15)} ${lines.join(`\n${' '.repeat(16)}`)}`).join('\n')}\n`
}

function shownPaths(prefixes: readonly string[] | null): readonly string[] {
  if (prefixes === null) return ['whatever the caller names, but for the names below']
  return prefixes.length === 0 ? ['nothing of the host'] : prefixes.map((path) => `${path} and below`)
}

function networkLines({ modes, allow_hosts, allow_private }: PolicyDescription['network']): string[] {
  const refused = NETWORK_MODES.filter((mode) => !modes.includes(mode))
  return [
    `${modes.join(', ') || 'none'}${refused.length === 0 ? '' : `; refused: ${refused.join(', ')}`}`,
    ...(allow_hosts === null ? [] : [`only these hosts: ${allow_hosts.join(' ') || 'none'}`]),
    ...(allow_private.length === 0
      ? []
      : [`private addresses opened on purpose: ${allow_private.join(' ')}`]),
    'cloud metadata never',
  ]
}

function routerLines({ always_sandbox: always, never_sandbox: never }: PolicyDescription): string[] {
  return [
    ...(always.length === 0 ? [] : [`always in a sandbox: ${always.join(' ')}`]),
    ...(never.length === 0 ? [] : [`on the host unless something is found: ${never.join(' ')}`]),
  ]
}

const ruleLine = ({ id, action, matches, why, dirs, examples }: RuleDescription): string =>
  `${action.padEnd(7)} ${matches}${dirs.length === 0 ? '' : ` (in ${dirs.join(', ')})`}: ${why} [${id}, ${examples} examples]`

function themeLine({ theme, rules, hard, actions, what }: ThemeDescription): string {
  const counts = ACTIONS.flatMap((action) => (actions[action] ? [`${actions[action]} ${action}`] : []))
  const fixed = hard === 0 ? '' : hard === rules ? '; no rule relaxes them' : `; ${hard} that no rule relaxes`
  return `${theme.padEnd(12)} ${counts.join(', ')}${fixed}: ${what.slice(0, 4).join(', ')}${what.length > 4 ? ', …' : ''}`
}
