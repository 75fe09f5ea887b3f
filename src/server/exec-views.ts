import type { ExecResult, ExecView } from '../model/api/execs.ts'
import type { Outcome, Violation } from '../model/command.ts'
import type { Action, ContainedRule } from '../model/decision.ts'
import { SandboxError } from '../model/errors.ts'
import type { Level } from '../model/guarantee.ts'
import type { Principal } from '../supervisor/access/keys.ts'
import type { ExecSession } from '../supervisor/exec/exec-session.ts'
import type { ServerParts } from './parts.ts'

/** Commands as answers, from memory or from the audit log. Fields of records are cast: only the supervisor writes them. */

/** A command in memory as a row of the list. */
export const execViewOf = (session: ExecSession): ExecView => ({
  exec_id: session.id,
  command: session.command,
  terminal: session.isTerminal,
  /** Its output can still be read. */
  held: true,
  state: session.state,
  started_at: new Date(session.startedAt).toISOString(),
  outcome: session.done?.outcome ?? null,
  duration_ms: session.done ? Math.round(session.done.durationMs) : null,
  violations: session.done?.violations.length ?? 0,
  action: session.decision.action,
  reason: session.decision.reason,
})

/** Commands that are no longer in memory, also refused ones, read from the audit log. */
export async function recordedExecs(parts: ServerParts, sandboxId: string): Promise<readonly ExecView[]> {
  const events = ['PolicyDecision', 'Exec', 'SandboxViolation']
  const records = await parts.trail.query({ sandboxId, events, order: 'desc', limit: 600 })
  const views = new Map<string, ExecView>()
  for (const record of records.reverse()) {
    const id = record.exec_id as string | undefined
    if (id === undefined) continue
    const known = views.get(id)
    if (record.event === 'PolicyDecision' && record.subject === 'command')
      views.set(id, {
        exec_id: id,
        command: String(record.command ?? ''),
        terminal: false,
        held: false,
        state: record.action === 'deny' ? 'refused' : 'unfinished',
        started_at: record.time,
        outcome: null,
        duration_ms: null,
        violations: 0,
        action: String(record.action ?? ''),
        reason: String(record.reason ?? ''),
      })
    else if (known && record.event === 'Exec')
      views.set(id, {
        ...known,
        state: record.state as ExecView['state'],
        outcome: (record.outcome ?? null) as Outcome | null,
        duration_ms: (record.duration_ms as number | undefined) ?? null,
      })
    else if (known) views.set(id, { ...known, violations: known.violations + 1 })
  }
  return [...views.values()]
}

/** The result of a command that is no longer in memory. Its output is not in the audit log. */
export async function recordedExec(
  parts: ServerParts,
  principal: Principal,
  params: { readonly id: string; readonly exec: string },
): Promise<ExecResult> {
  const { row } = await parts.supervisor.get(principal, params.id)
  const records = await parts.trail.query({ sandboxId: row.id, execId: params.exec, limit: 1000 })
  const decided = records.find(({ event }) => event === 'PolicyDecision')
  if (!decided) throw new SandboxError('not-found', `there is no command \`${params.exec}\` in this sandbox`)
  const end = records.find(({ event }) => event === 'Exec')
  return {
    sandbox_id: row.id,
    exec_id: params.exec,
    state: (end?.state ?? 'failed') as ExecResult['state'],
    backend: row.backend,
    level: row.level as Level | null,
    layers: (end?.layers ?? []) as readonly string[],
    outcome: (end?.outcome ?? null) as Outcome | null,
    stdout: '',
    stderr: '',
    truncated: true,
    duration_ms: (end?.duration_ms ?? null) as number | null,
    violations: records
      .filter(({ event }) => event === 'SandboxViolation')
      .map(({ guarantee, details }) => ({ guarantee, details }) as Violation),
    decision: {
      action: decided.action as Action,
      reason: decided.reason as string,
      rules: decided.rules as readonly string[],
      ...(decided.contained ? { contained: decided.contained as unknown as readonly ContainedRule[] } : {}),
    },
  }
}
