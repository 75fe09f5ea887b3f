import type { Inspected, JudgedCommand } from '../../../../src/client/console-types.ts'
import { commandText } from '../../../../src/model/text/shell-quote.ts'
import { Badge, RuleTag } from '../../components/badge.tsx'
import { Panel } from '../../components/panel.tsx'
import { plural, safeText } from '../../format.ts'

const MAX_LENGTH = 600
const MAX_DEPTH = 6
/** Steps appear one after the other, unless the system prefers reduced motion; later ones appear together. */
const MAX_STEP = 12

/** How the policy decided about a command line: each command through the stages, then the strictest decision. */
export function Evaluation({
  result,
  ruleCount,
}: {
  readonly result: Inspected
  readonly ruleCount: number
}) {
  const { decision, nodes } = result
  return (
    <Panel title="Evaluation" className="steps">
      <ol>
        <li className="step">
          <strong>Parsed</strong> {plural(nodes.length, 'command')}
        </li>
        {nodes.map((command, index) => (
          <CommandStep key={index} command={command} step={index + 1} ruleCount={ruleCount} />
        ))}
        <li className="step" data-step={Math.min(nodes.length + 1, MAX_STEP)}>
          <div role="status">
            <strong>Strictest decision wins</strong> <Badge word={decision.action} />{' '}
            {safeText(decision.reason)}{' '}
            {decision.rules.map((rule) => (
              <RuleTag key={rule} rule={rule} />
            ))}
          </div>
        </li>
      </ol>
    </Panel>
  )
}

function CommandStep(props: {
  readonly command: JudgedCommand
  readonly step: number
  readonly ruleCount: number
}) {
  const { command } = props
  return (
    <li
      className="step"
      data-depth={Math.min(command.depth, MAX_DEPTH)}
      data-step={Math.min(props.step, MAX_STEP)}
    >
      <code>{safeText(commandText(command.argv)).slice(0, MAX_LENGTH)}</code>
      <ol className="stages">
        {stagesOf(command, props.ruleCount).map(({ name, text, decides }) => (
          <li key={name} className={decides ? `stage decides ${command.action}` : 'stage'}>
            <span className="stage-name">{name}</span>
            <span>
              {decides ? <Badge word={command.action} /> : <span className="dim">–</span>} {safeText(text)}
            </span>
          </li>
        ))}
      </ol>
    </li>
  )
}

type Stage = { readonly name: string; readonly text: string; readonly decides: boolean }

/** The stages of the evaluation, in order, and which of them decided. */
function stagesOf(command: JudgedCommand, ruleCount: number): readonly Stage[] {
  const { hard, reason } = command
  const isYours = command.matched.length > 0
  const isDefault = command.rule === 'default'
  return [
    { name: 'Hard denies', text: hard ? reason : 'no match', decides: hard },
    { name: 'Your rules', text: yourRulesText(command, ruleCount), decides: !hard && isYours },
    { name: 'Built-in rules', text: builtInText(command), decides: !hard && !isYours && !isDefault },
    { name: 'Default', text: isDefault ? reason : 'not reached', decides: isDefault },
  ]
}

function yourRulesText({ matched, hard, reason }: JudgedCommand, ruleCount: number): string {
  if (matched.length > 0) return `${matched.join(', ')}${hard ? '' : `: ${reason}`}`
  return ruleCount === 0 ? 'none defined' : 'no match'
}

function builtInText({ matched, rule, rules, hard, reason }: JudgedCommand): string {
  if (matched.length > 0) return 'replaced by your rule'
  if (rule === 'default') return 'no match'
  if (hard) return 'not reached'
  return [[...new Set(rules)].join(', '), reason].filter(Boolean).join(': ')
}
