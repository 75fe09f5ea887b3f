import type { Config } from '../model/config.ts'
import { ACTIONS, type Action } from '../model/decision.ts'
import { sandboxPolicyOf } from './plan.ts'
import { compilePolicy } from './policy.ts'
import { BUILT_IN } from './rules/index.ts'

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

/** One rule as `policy explain` shows it. */
export type RuleDescription = {
  readonly id: string
  readonly action: Action
  readonly matches: string
  readonly why: string
  readonly dirs: readonly string[]
  readonly examples: number
}

/** Rules of one subject with what they do together. */
export type ThemeDescription = {
  readonly theme: string
  readonly rules: number
  /** Those that no rule of the operator relaxes. */
  readonly hard: number
  readonly actions: Readonly<Partial<Record<Action, number>>>
  readonly what: readonly string[]
}

/** The operator's ceilings, with their units. */
export const LIMITS = [
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
