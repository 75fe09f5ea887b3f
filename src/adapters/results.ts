import type { Outcome } from '../model/command.ts'
import { clip } from './capture.ts'
import type { Result } from './operations/operation.ts'
import type { Finished } from './session.ts'

/** Default length of a result for a model. */
export const READ_CHARS = 30_000

/** An outcome as short text. */
export function outcomeText(outcome: Outcome): string {
  switch (outcome.kind) {
    case 'exited':
      return `exit code ${outcome.code}`
    case 'signaled':
      return `killed by ${outcome.signal}`
    case 'stopped':
      return outcome.limit === 'cancelled' ? 'cancelled' : `stopped at the ${outcome.limit} limit`
    default:
      return outcome satisfies never
  }
}

/** The exit code of a command that exited by itself. */
export const exitCode = (outcome: Outcome): number | null => (outcome.kind === 'exited' ? outcome.code : null)

/** A finished command; a non-zero exit is a result, not a failure of the tool. */
export function finishedResult(finished: Finished, max = READ_CHARS): Result {
  const { outcome, violations, hint } = finished
  const stdout = clip(finished.stdout, max)
  const stderr = clip(finished.stderr, max)
  const refused = violations.map(
    ({ guarantee, details }) => `[blocked by the sandbox: ${guarantee}: ${details}]`,
  )
  const parts = [
    stdout,
    stderr && `[stderr]\n${stderr}`,
    ...refused,
    hint === undefined ? '' : `[hint: ${hint}]`,
    `[${outcomeText(outcome)}]`,
  ]
  const cut = stdout.length < finished.stdout.length || stderr.length < finished.stderr.length
  return {
    ok: true,
    text: parts.filter((part) => part !== '').join('\n'),
    data: {
      exec_id: finished.id,
      outcome,
      exit_code: exitCode(outcome),
      stdout,
      stderr,
      truncated: finished.truncated || cut,
      duration_ms: Math.round(finished.durationMs),
      violations,
      ...(hint === undefined ? {} : { hint }),
    },
  }
}
