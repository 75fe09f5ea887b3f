import type { CommandJudgement } from '../../src/model/decision.ts'
import { plain } from './format.ts'
import { Badge } from './ui.tsx'

/** Words as a shell would need them, so that what holds blanks shows its bounds. */
export const commandText = (argv: readonly string[]): string =>
  argv.map((word) => (/^[^\s'"\\]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(' ')

/** Every command in a line, below what starts it, each with its own judgement. */
export function CommandTree({ commands }: { readonly commands: readonly CommandJudgement[] }) {
  if (commands.length === 0)
    return <p className="dim">No command in it could be told apart; the line is judged as a whole.</p>
  return (
    <ol className="tree" aria-label="Every part of it">
      {commands.map(({ argv, action, reason, rule, depth = 0 }, index) => (
        <li key={index} data-depth={Math.min(depth, 6)} className={action}>
          <code>{plain(commandText(argv)).slice(0, 2000)}</code>
          <span className="judgement">
            <Badge word={action} />
            <span>{plain(reason)}</span>
            {rule && <code className="rule">{rule}</code>}
          </span>
        </li>
      ))}
    </ol>
  )
}
