import type { PolicyDescription } from '../../../../src/client/console-types.ts'
import { ACTIONS } from '../../../../src/model/decision.ts'
import { Badge } from '../../components/badge.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { Panel } from '../../components/panel.tsx'
import { type Column, Table } from '../../components/table.tsx'
import { safeLine, safeText } from '../../format.ts'

const RULE_COLUMNS: readonly Column[] = [
  { name: 'Action' },
  { name: 'Matches' },
  { name: 'Reason' },
  { name: 'Examples', className: 'num' },
  { name: 'ID' },
]

export function YourRules({ rules }: { readonly rules: PolicyDescription['rules'] }) {
  return (
    <Panel title="Your rules">
      {rules.length === 0 ? (
        <EmptyState title="No rules yet" command="ringfence policy init">
          The built-in rules below apply. Your rules take precedence over them, except over hard denies. To
          start a policy file:
        </EmptyState>
      ) : (
        <Table label="Your rules" columns={RULE_COLUMNS}>
          {rules.map((rule) => (
            <tr key={rule.id}>
              <td>
                <Badge word={rule.action} />
              </td>
              <td className="mono">
                {safeText(rule.matches)}
                {rule.dirs.length > 0 && <span className="dim"> in {rule.dirs.join(', ')}</span>}
              </td>
              <td>{safeText(rule.why)}</td>
              <td className="num">{rule.examples}</td>
              <td className="mono dim">{safeLine(rule.id)}</td>
            </tr>
          ))}
        </Table>
      )}
    </Panel>
  )
}

const THEME_COLUMNS: readonly Column[] = [
  { name: 'Group' },
  { name: 'Rules' },
  { name: 'Hard denies', className: 'num' },
  { name: 'Includes' },
]
const MAX_SAMPLES = 3

type Theme = PolicyDescription['built_in'][number]

export function BuiltInRules({ themes }: { readonly themes: readonly Theme[] }) {
  return (
    <Panel title="Built-in rules">
      <Table label="Built-in rules" columns={THEME_COLUMNS}>
        {themes.map((theme) => (
          <tr key={theme.theme}>
            <td className="mono">{theme.theme}</td>
            <td>
              <ActionCounts actions={theme.actions} />
            </td>
            <td className="num">{theme.hard > 0 ? theme.hard : ''}</td>
            <td className="dim">
              {theme.what.slice(0, MAX_SAMPLES).join(', ')}
              {theme.what.length > MAX_SAMPLES ? ', …' : ''}
            </td>
          </tr>
        ))}
      </Table>
    </Panel>
  )
}

function ActionCounts({ actions }: { readonly actions: Theme['actions'] }) {
  return (
    <div className="badges">
      {ACTIONS.filter((action) => actions[action]).map((action) => (
        <span key={action} className="nowrap">
          {actions[action]} <Badge word={action} />
        </span>
      ))}
    </div>
  )
}
