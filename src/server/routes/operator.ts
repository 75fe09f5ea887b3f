import type { TrailRecord } from '../../audit/chain.ts'
import {
  type HostTraffic,
  settingsShape,
  type Traffic,
  tenantPage,
  trafficShape,
} from '../../model/api/operator.ts'
import { timesOf } from '../../model/event.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { tenantOf } from '../views.ts'

/** Tenants, settings, and connections by host. */

/** The newest records of connections that are counted. */
const COUNTED = 5000

const isBlocked = ({ event }: TrailRecord): boolean => event === 'SandboxViolation'

const reasonOf = ({ details }: TrailRecord): string | null =>
  typeof details === 'string' ? details.replace(/^connect to .*? \(\w+\): /, '') : null

type Counting = HostTraffic & { readonly ids: Set<unknown> }

/** Totals by host, hosts with blocked connections first. Records are newest first. */
function trafficOf(records: readonly TrailRecord[]): Traffic {
  const hosts = new Map<string, Counting>()
  for (const record of records) {
    if (typeof record.host !== 'string') continue
    const before = hosts.get(record.host)
    const ids = before?.ids ?? new Set()
    ids.add(record.sandbox_id)
    const blocked = isBlocked(record)
    hosts.set(record.host, {
      host: record.host,
      allowed: (before?.allowed ?? 0) + (blocked ? 0 : 1),
      blocked: (before?.blocked ?? 0) + (blocked ? timesOf(record) : 0),
      sandboxes: ids.size,
      last_at: before?.last_at ?? record.time,
      reason: before?.reason ?? (blocked ? reasonOf(record) : null),
      ids,
    })
  }
  const items = [...hosts.values()].map(({ ids: _ids, ...traffic }) => traffic)
  return {
    since: records.at(-1)?.time ?? null,
    items: items.sort((a, b) => b.blocked - a.blocked || b.allowed - a.allowed),
  }
}

/** Routes of tenants, settings and traffic. */
export const operatorRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/tenants',
    summary: 'List tenants with what each may have and what it uses',
    scope: 'admin',
    answers: { 200: { description: 'all tenants', shape: tenantPage } },
    handle: async ({ parts }) => reply(200, { items: await parts.tenants(), next: null }),
  }),
  route({
    method: 'GET',
    path: '/v1/settings',
    summary: 'Every setting of the configuration with its value and meaning',
    scope: 'admin',
    answers: { 200: { description: 'the settings', shape: settingsShape } },
    handle: ({ parts }) => reply(200, parts.configuration()),
  }),
  route({
    method: 'GET',
    path: '/v1/egress',
    summary: 'Connections of all sandboxes by host, from the newest records of the audit log',
    scope: 'read',
    answers: { 200: { description: 'the hosts', shape: trafficShape } },
    async handle({ parts, principal }) {
      const records = await parts.trail.query({
        events: ['Connection', 'SandboxViolation'],
        order: 'desc',
        tenant: tenantOf(principal),
        limit: COUNTED,
      })
      return reply(200, trafficOf(records))
    },
  }),
]
