import { expect, test } from 'vitest'
import type { StoreTrail } from '../../audit/store-trail.ts'
import { Metrics } from './metrics.ts'
import { countRecords } from './server-metrics.ts'

type Listener = Parameters<StoreTrail['onCommitted']>[0]

test('a record that stands for several refusals counts as so many, and one of another kind as one', () => {
  const metrics = new Metrics()
  let commit: Listener = () => undefined
  countRecords(metrics, {
    onCommitted: (listener) => {
      commit = listener
      return () => undefined
    },
  })
  const rows = [
    { event: 'SandboxViolation', guarantee: 'net.fetch' },
    { event: 'SandboxViolation', guarantee: 'net.fetch', count: 40 },
    { event: 'Review', state: 'applied', count: 7 },
  ].map((record) => ({ event: record.event, line: JSON.stringify(record) }))
  commit(rows as unknown as Parameters<Listener>[0])
  expect(metrics.text()).toContain('ringfence_violations_total{guarantee="net.fetch"} 41')
  expect(metrics.text()).toContain('ringfence_reviews_total{state="applied"} 1')
  expect(metrics.text()).toContain('ringfence_audit_records_total{event="SandboxViolation"} 2')
})
