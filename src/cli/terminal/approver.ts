import type { ExecOptions } from '../../supervisor/sandbox.ts'
import { askPerson } from './ask.ts'
import { isTerminalStream } from './output.ts'

/** Answers approvals with `--yes` or by asking at the terminal. Without either, there is no `approve` callback. */
export function approver(values: {
  readonly yes?: boolean | undefined
  readonly json?: boolean | undefined
}): {
  readonly approve?: NonNullable<ExecOptions['approve']>
} {
  if (values.yes) return { approve: () => ({ approved: true, by: '--yes' }) }
  if (values.json || !isTerminalStream('stdin') || !isTerminalStream('stderr')) return {}
  return { approve: async (decision) => ({ approved: await askPerson(decision, false), by: 'terminal' }) }
}
