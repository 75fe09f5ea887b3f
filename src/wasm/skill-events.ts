import type { Event } from '../model/event.ts'
import type { WasmResult } from './sandbox.ts'

/** The agent, the command and the skill of a run. */
export type RunIdentity = {
  readonly agentId?: string | undefined
  readonly execId?: string | undefined
  readonly skill: string
}

/** The audit events of a run: one per violation, and one for the run. */
export function eventsOf(result: WasmResult, { agentId, execId, skill }: RunIdentity): readonly Event[] {
  const who = { ...(agentId && { agent_id: agentId }), ...(execId && { exec_id: execId }), skill }
  const outcome = 'ok' in result ? 'ok' : result.error.code
  return [
    ...result.violations.map(
      ({ violationType, details }): Event => ({
        event: 'SandboxViolation',
        ...who,
        violation_type: violationType,
        details,
      }),
    ),
    { event: 'SkillRun', ...who, outcome, fuel: result.fuel, duration_ms: Math.round(result.durationMs) },
  ]
}
