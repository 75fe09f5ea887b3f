import type { PolicyDescription, RuleDescription, ThemeDescription } from '../../model/api/policy.ts'
import { ACTIONS, type Action } from '../../model/decision.ts'
import { NETWORK_MODES } from '../../model/spec.ts'
import { LIMITS } from '../../policy/describe.ts'

export { describePolicy } from '../../policy/describe.ts'

const DEFAULT: Readonly<Record<Action, string>> = {
  deny: 'does not run',
  ask: 'needs approval',
  sandbox: 'runs in a sandbox',
  allow: 'runs directly on the host',
}

/** A policy description as text. */
export function policyText(policy: PolicyDescription): string {
  const limits = LIMITS.flatMap(([name, unit]) =>
    policy.limits[name] === null ? [] : [`at most ${policy.limits[name]} ${unit}`],
  )
  const rows: readonly (readonly [string, readonly string[]])[] = [
    ['other commands', [`${policy.default_action}: ${DEFAULT[policy.default_action]}`]],
    ['programs', policy.programs === null ? [] : [`only ${policy.programs.join(' ')}`]],
    ['mountable', shownPaths(policy.allowed_host_prefixes)],
    ['never visible', [policy.blocked_host_patterns.join(' ')]],
    ['limits', limits.length === 0 ? ['none'] : limits],
    ['network', networkLines(policy.network)],
    ['terminals', [policy.allow_interactive ? 'interactive terminals allowed' : 'no interactive terminals']],
    ['router', routerLines(policy)],
    ['your rules', policy.rules.length === 0 ? ['none'] : policy.rules.map(ruleLine)],
    ['built in', policy.built_in.map(themeLine)],
  ]
  const filled = rows.filter(([, lines]) => lines.length > 0)
  return `${filled.map(([name, lines]) => `${name.padEnd(15)} ${lines.join(`\n${' '.repeat(16)}`)}`).join('\n')}\n`
}

function shownPaths(prefixes: readonly string[] | null): readonly string[] {
  if (prefixes === null) return ['any path except the names below']
  return prefixes.length === 0 ? ['no host paths'] : prefixes.map((path) => `${path} and its subdirectories`)
}

function networkLines({ modes, allow_hosts, allow_private }: PolicyDescription['network']): string[] {
  const refused = NETWORK_MODES.filter((mode) => !modes.includes(mode))
  return [
    `${modes.join(', ') || 'none'}${refused.length === 0 ? '' : `; not allowed: ${refused.join(', ')}`}`,
    ...(allow_hosts === null ? [] : [`only these hosts: ${allow_hosts.join(' ') || 'none'}`]),
    ...(allow_private.length === 0 ? [] : [`private addresses allowed: ${allow_private.join(' ')}`]),
    'cloud metadata services: never',
  ]
}

function routerLines({ always_sandbox: always, never_sandbox: never }: PolicyDescription): string[] {
  return [
    ...(always.length === 0 ? [] : [`always in a sandbox: ${always.join(' ')}`]),
    ...(never.length === 0 ? [] : [`on the host unless a rule matches: ${never.join(' ')}`]),
  ]
}

const ruleLine = ({ id, action, matches, why, dirs, examples }: RuleDescription): string =>
  `${action.padEnd(7)} ${matches}${dirs.length === 0 ? '' : ` (in ${dirs.join(', ')})`}: ${why} [${id}, ${examples} examples]`

function themeLine({ theme, rules, hard, actions, what }: ThemeDescription): string {
  const counts = ACTIONS.flatMap((action) => (actions[action] ? [`${actions[action]} ${action}`] : []))
  const fixed =
    hard === 0
      ? ''
      : hard === rules
        ? '; cannot be relaxed by a rule'
        : `; ${hard} cannot be relaxed by a rule`
  return `${theme.padEnd(12)} ${counts.join(', ')}${fixed}: ${what.slice(0, 4).join(', ')}${what.length > 4 ? ', …' : ''}`
}
