import type { Event } from '../model/event.ts'
import type { WasmResult } from './sandbox.ts'

/** Who ran what. */
export type RunIdentity = {
  readonly agentId?: string | undefined
  readonly execId?: string | undefined
  readonly skill: string
}

/** What a run leaves in the trail: one record of the run, and one for each thing that was stopped. */
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
