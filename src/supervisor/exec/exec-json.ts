import type { ExecResult } from '../../model/command.ts'
import type { Decision } from '../../model/decision.ts'
import type { Level } from '../../model/guarantee.ts'

/** Fields that are known only at the end are `null` before. */
type Done = Pick<ExecResult, 'layers' | 'truncated' | 'durationMs' | 'violations'> & {
  readonly outcome: ExecResult['outcome'] | null
  readonly decision: Decision | null
  readonly hint?: string
}
type Where = { readonly id: string; readonly backend: string; readonly level: Level }
type Said = { readonly execId: string; readonly stdout: string; readonly stderr: string }

/** One command as shown by `run --json`, `auto --json` and `/v1`. */
export const execResultJson = (sandbox: Where, { execId, stdout, stderr }: Said, done: Done) => ({
  sandbox_id: sandbox.id,
  exec_id: execId,
  backend: sandbox.backend,
  level: sandbox.level,
  layers: done.layers,
  outcome: done.outcome,
  stdout,
  stderr,
  truncated: done.truncated,
  duration_ms: Math.round(done.durationMs * 10) / 10,
  violations: done.violations,
  decision: done.decision,
  ...(done.hint === undefined ? {} : { hint: done.hint }),
})
