import type { TrailRecord } from '../../../src/client/types.ts'

/** The text of a record's field, empty if it has none. */
const field = (record: TrailRecord, name: string): string =>
  record[name] === undefined ? '' : String(record[name])
/** A field after a separator, or nothing. */
const suffix = (record: TrailRecord, name: string, separator: string): string =>
  field(record, name) ? `${separator}${field(record, name)}` : ''

/** One line per event type; events that need no explanation are missing. */
const SUMMARIES: Readonly<Partial<Record<string, (record: TrailRecord) => string>>> = {
  PolicyDecision: (record) => {
    const subject = ['subject', 'operation', 'path'].map((name) => field(record, name)).filter(Boolean)
    return `${field(record, 'command') || subject.join(' ')} — ${field(record, 'reason')}`
  },
  SandboxState: (record) =>
    `Sandbox is ${field(record, 'state')}${suffix(record, 'backend', ' on ')}${suffix(record, 'reason', ': ')}`,
  Exec: execSummary,
  SandboxViolation: (record) =>
    `${field(record, 'guarantee') || field(record, 'violation_type')}: ${field(record, 'details')}${record.count === undefined ? '' : ` (${field(record, 'count')} times)`}`,
  Connection: (record) =>
    `Connection to ${field(record, 'host')}:${field(record, 'port')}${suffix(record, 'address', ' at ')}`,
  Approval: (record) =>
    `Request ${field(record, 'state') || (record.approved === true ? 'approved' : 'not approved')}${suffix(record, 'reason', ': ')}`,
  Review: (record) =>
    `${field(record, 'count')} ${record.count === 1 ? 'change' : 'changes'}${notApplied(record)}`,
  SkillRun: (record) => `Skill ${['skill', 'state', 'outcome'].map((name) => field(record, name)).join(' ')}`,
  Pruning: (record) =>
    `Removed ${field(record, 'sandboxes')} sandboxes, ${field(record, 'approvals')} approvals and ${field(record, 'files')} files from before ${field(record, 'ended_before')}`,
  Checkpoint: ({ head }) =>
    `Signed head of ${String((head as { count?: number } | undefined)?.count ?? '')} records`,
}

function execSummary(record: TrailRecord): string {
  const outcome = record.outcome as
    | { kind?: string; code?: number; signal?: string; limit?: string }
    | undefined
  if (!outcome) return `Command ${field(record, 'state')}`
  const how = {
    exited: `exited with code ${outcome.code}`,
    signaled: `was ended by ${outcome.signal}`,
    stopped: `was stopped by its ${outcome.limit} limit`,
  }[outcome.kind ?? '']
  return `Command ${how ?? outcome.kind} after ${field(record, 'duration_ms')} ms`
}

const notApplied = ({ refused }: TrailRecord): string =>
  Array.isArray(refused) && refused.length > 0 ? `, ${refused.length} not applied` : ''

/** What a record says, in one line. */
export const recordSummary = (record: TrailRecord): string => SUMMARIES[record.event]?.(record) ?? ''

/** The state or decision that a record is about, for its badge; empty if it has none. */
export function recordResult(record: TrailRecord): string {
  if (record.event === 'PolicyDecision') return field(record, 'action')
  if (record.event === 'SandboxViolation') return 'block'
  if (record.event === 'Connection') return field(record, 'verdict')
  if (record.state !== undefined || typeof record.approved !== 'boolean') return field(record, 'state')
  return record.approved ? 'approved' : 'rejected'
}
