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
    `${field(record, 'state')}${suffix(record, 'backend', ' on ')}${suffix(record, 'reason', ': ')}`,
  Exec: execSummary,
  SandboxViolation: (record) =>
    `${field(record, 'guarantee') || field(record, 'violation_type')}: ${field(record, 'details')}`,
  Connection: (record) => `${field(record, 'host')}:${field(record, 'port')} ${field(record, 'address')}`,
  Approval: (record) =>
    `${field(record, 'state') || (record.approved === true ? 'approved' : 'not approved')}${suffix(record, 'reason', ': ')}`,
  Review: (record) =>
    `${field(record, 'count')} ${record.count === 1 ? 'change' : 'changes'}${notApplied(record)}`,
  SkillRun: (record) => ['skill', 'state', 'outcome'].map((name) => field(record, name)).join(' '),
  Pruning: (record) =>
    `removed ${field(record, 'sandboxes')} sandboxes, ${field(record, 'approvals')} approvals and ${field(record, 'files')} files from before ${field(record, 'ended_before')}`,
  Checkpoint: ({ head }) =>
    `signed head of ${String((head as { count?: number } | undefined)?.count ?? '')} records`,
}

function execSummary(record: TrailRecord): string {
  const outcome = record.outcome as
    | { kind?: string; code?: number; signal?: string; limit?: string }
    | undefined
  if (!outcome) return field(record, 'state')
  const detail = outcome.code ?? outcome.signal ?? outcome.limit ?? ''
  return `${outcome.kind} ${detail} after ${field(record, 'duration_ms')} ms`
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
