import type { ExecOptions } from '../../supervisor/sandbox.ts'
import { askPerson } from './ask.ts'

/** Who answers when the policy asks: `--yes`, or whoever sits at the terminal. Without either nobody is asked. */
export function approver(values: {
  readonly yes?: boolean | undefined
  readonly json?: boolean | undefined
}): {
  readonly approve?: NonNullable<ExecOptions['approve']>
} {
  if (values.yes) return { approve: () => ({ approved: true, by: '--yes' }) }
  if (values.json || !process.stdin.isTTY || !process.stderr.isTTY) return {}
  return { approve: async (decision) => ({ approved: await askPerson(decision, false), by: 'terminal' }) }
}
