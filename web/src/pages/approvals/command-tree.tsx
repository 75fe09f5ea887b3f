import type { CommandJudgement } from '../../../../src/model/decision.ts'
import { commandText } from '../../../../src/model/text/shell-quote.ts'
import { Badge, RuleTag } from '../../components/badge.tsx'
import { safeText } from '../../format.ts'

const MAX_DEPTH = 6
const MAX_LENGTH = 2000

/** Every command in a line, indented below the command that starts it, each with its decision. */
export function CommandTree({ commands }: { readonly commands: readonly CommandJudgement[] }) {
  if (commands.length === 0)
    return <p className="dim">The line could not be split into commands, so it was evaluated as a whole.</p>
  return (
    <ol className="tree" aria-label="Commands in this line">
      {commands.map(({ argv, action, reason, rule, depth = 0 }, index) => (
        <li key={index} data-depth={Math.min(depth, MAX_DEPTH)} className={action}>
          <code>{safeText(commandText(argv)).slice(0, MAX_LENGTH)}</code>
          <span className="evaluation">
            <Badge word={action} />
            <span>{safeText(reason)}</span>
            {rule && <RuleTag rule={rule} />}
          </span>
        </li>
      ))}
    </ol>
  )
}
