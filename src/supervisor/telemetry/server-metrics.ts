import type { StoreTrail } from '../../audit/store-trail.ts'
import { timesOf } from '../../model/event.ts'
import type { Row, Store, Tx, Value } from '../../store/sql.ts'
import type { Metrics } from './metrics.ts'
import type { Post } from './webhooks.ts'

/** What a server counts besides its own work: everything that becomes a record, the store, and webhooks. */

type Counter = {
  readonly name: string
  readonly help: string
  readonly label: string
  readonly field: string
}

/** SECURITY: fields with few values of ours, never a name or a text of a sandbox. */
const COUNTED: Readonly<Record<string, Counter>> = {
  PolicyDecision: {
    name: 'ringfence_decisions_total',
    help: 'Decisions of the policy by action.',
    label: 'action',
    field: 'action',
  },
  SandboxViolation: {
    name: 'ringfence_violations_total',
    help: 'Blocked actions of sandboxes by guarantee.',
    label: 'guarantee',
    field: 'guarantee',
  },
  Approval: {
    name: 'ringfence_approvals_total',
    help: 'Answered and expired approvals by state.',
    label: 'state',
    field: 'state',
  },
  Connection: {
    name: 'ringfence_connections_total',
    help: 'Connections of sandboxes through the proxy by verdict.',
    label: 'verdict',
    field: 'verdict',
  },
  Review: {
    name: 'ringfence_reviews_total',
    help: 'Reviews by what was done with their changes.',
    label: 'state',
    field: 'state',
  },
  McpCall: {
    name: 'ringfence_mcp_calls_total',
    help: 'Calls of MCP tools through the gateway by state.',
    label: 'state',
    field: 'state',
  },
}

/** Counts the records of the audit log as they are committed. */
export function countRecords(metrics: Metrics, trail: Pick<StoreTrail, 'onCommitted'>): void {
  trail.onCommitted((rows) => {
    for (const { event, line } of rows) {
      metrics.count('ringfence_audit_records_total', 'Records of the audit log by event.', { event })
      const counter = COUNTED[event]
      if (!counter) continue
      const record = JSON.parse(line) as Record<string, unknown>
      const value = record[counter.field]
      const labels = { [counter.label]: typeof value === 'string' ? value : 'none' }
      metrics.count(counter.name, counter.help, labels, timesOf(record))
    }
  })
}

/** The same store, whose calls are timed. */
export function timedStore(store: Store, metrics: Metrics): Store {
  const timed = async <T>(operation: 'read' | 'write', call: () => Promise<T>): Promise<T> => {
    const started = performance.now()
    try {
      return await call()
    } catch (error) {
      metrics.count('ringfence_store_errors_total', 'Calls of the store that failed.', { operation })
      throw error
    } finally {
      const seconds = (performance.now() - started) / 1000
      metrics.observe('ringfence_store_seconds', 'How long calls of the store took.', { operation }, seconds)
    }
  }
  return {
    kind: store.kind,
    read: (sql: string, params?: readonly Value[]) =>
      timed<readonly Row[]>('read', () => store.read(sql, params)),
    write: <T>(work: (tx: Tx) => Promise<T>, locks?: readonly string[]) =>
      timed('write', () => store.write(work, locks)),
    guardWrites: (first) => store.guardWrites(first),
    close: () => store.close(),
  }
}

/** The same delivery, whose results are counted. */
export const countedPost =
  (metrics: Metrics, post: Post): Post =>
  async (...request) => {
    let result = 'failed'
    try {
      const status = await post(...request)
      result = status >= 200 && status <= 299 ? 'delivered' : 'refused'
      return status
    } finally {
      metrics.count('ringfence_webhook_deliveries_total', 'Deliveries to webhooks by result.', { result })
    }
  }
