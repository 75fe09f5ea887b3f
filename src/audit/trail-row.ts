import type { TrailRow } from '../store/trail/rows.ts'
import type { TrailRecord } from './chain.ts'

/** The database row of one line. */
export function rowOf(line: string): TrailRow {
  const record = JSON.parse(line) as TrailRecord
  const text = (value: unknown): string | null => (typeof value === 'string' ? value : null)
  return {
    seq: record.seq,
    time: record.time,
    event: record.event,
    agentId: text(record.agent_id),
    sandboxId: text(record.sandbox_id),
    execId: text(record.exec_id),
    tenant: text(record.tenant),
    line,
  }
}
