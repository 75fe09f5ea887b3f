import type { PolicyDescription, RuleDescription, ThemeDescription } from '../../model/api/policy.ts'
import { ACTIONS, type Action } from '../../model/decision.ts'
import { NETWORK_MODES } from '../../model/spec.ts'
import { LIMITS } from '../../policy/describe.ts'

export { describePolicy } from '../../policy/describe.ts'

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
