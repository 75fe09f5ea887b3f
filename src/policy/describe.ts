import type { PolicyDescription, ThemeDescription } from '../model/api/policy.ts'
import type { Config } from '../model/config.ts'
import { ACTIONS } from '../model/decision.ts'
import { sandboxPolicyOf } from './plan.ts'
import { compilePolicy } from './policy.ts'
import { BUILT_IN } from './rules/index.ts'

/** The operator's limits, with their units. */
export const LIMITS = [
  ['max_cpus', 'processors'],
  ['max_memory_mb', 'MB of memory'],
  ['max_disk_mb', 'MB of disk'],
  ['max_pids', 'processes'],
] as const

/** The effective configuration, including defaults. Throws if the configuration would not load. */
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
