import { SandboxError } from '../../model/errors.ts'
import { streamEndOfSandbox } from '../../model/stream-end.ts'
import { isOperator, type Principal } from '../../supervisor/access/keys.ts'
import type { ServerParts } from '../parts.ts'
import { type Call, type Route, route } from '../route.ts'
import { auditQuery, eventsQuery, linesQuery } from '../shapes.ts'
import { lastEventId, type SseEvent, sse } from '../sse.ts'
import { pageOf } from '../views.ts'

/** What happened, for whoever may see it. */

const OBJECT = { type: 'object' } as const
export const tenantOf = (principal: Principal): string | undefined =>
  isOperator(principal) ? undefined : principal.tenant

type AuditQuery = {
  readonly event?: string
  readonly event_type?: string
  readonly agent_id?: string
  readonly sandbox_id?: string
  readonly exec_id?: string
  readonly since?: string
  readonly limit?: number
  readonly cursor?: number
  readonly order?: 'asc' | 'desc'
  readonly before?: number
}

function audited({ parts, principal }: Call, query: AuditQuery, limit: number) {
  const { event, event_type } = query
  if (event_type !== undefined && event_type !== 'sandbox')
    throw new SandboxError('invalid-input', 'event_type: the only one is `sandbox`')
  const events = event_type === 'sandbox' ? ['SandboxViolation'] : event === undefined ? undefined : [event]
  return parts.trail.query({
    events,
    agentId: query.agent_id,
    sandboxId: query.sandbox_id,
    execId: query.exec_id,
    since: query.since,
    after: query.cursor,
    before: query.before,
    order: query.order,
    tenant: tenantOf(principal),
    limit,
  })
}

const NDJSON = {
  'content-type': 'application/x-ndjson',
  'content-disposition': 'attachment; filename="ringfence-trail.jsonl"',
  'x-content-type-options': 'nosniff',
}

function streamOf(lines: AsyncGenerator<string, void>): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder()
  return new ReadableStream({
    async pull(controller) {
      const { done, value } = await lines.next()
      if (done) controller.close()
      else controller.enqueue(encoder.encode(`${value}\n`))
    },
    async cancel() {
      await lines.return()
    },
  })
}

/** Fires when the sandbox has ended; at once when it has already. */
async function endOf(
  parts: ServerParts,
  principal: Principal,
  sandboxId: string,
): Promise<AbortSignal | undefined> {
  const { live } = await parts.supervisor.get(principal, sandboxId)
  if (!live) return AbortSignal.abort()
  const over = new AbortController()
  void live.gone.then(() => over.abort())
  return over.signal
}

export const trailRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/audit',
    summary: 'Records of the trail, oldest first unless `order=desc`',
    scope: 'read',
    query: auditQuery,
    answers: { 200: { description: 'a page', schema: pageOf(OBJECT) } },
    async handle(call) {
      const limit = call.query.limit ?? 100
      const items = await audited(call as Call, call.query, limit)
      return Response.json({ items, next: items.length === limit ? String(items.at(-1)?.seq) : null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/audit/verify',
    summary: 'Check the whole trail against its signed head',
    scope: 'admin',
    answers: { 200: { description: 'the verdict', schema: OBJECT } },
    handle: async ({ parts }) => Response.json(await parts.trail.verify()),
  }),
  route({
    method: 'GET',
    path: '/v1/audit/head',
    summary: 'The signed head, and the key that signs it',
    scope: 'read',
    answers: { 200: { description: 'the head', schema: OBJECT } },
    handle: async ({ parts }) =>
      Response.json({ head: await parts.trail.head(), public_key: parts.trail.publicKey }),
  }),
  route({
    method: 'GET',
    path: '/v1/audit/lines',
    summary: 'The canonical lines exactly as they were hashed, for whoever verifies them',
    scope: 'admin',
    query: linesQuery,
    answers: { 200: { description: 'one record a line', type: 'application/x-ndjson' } },
    async handle({ parts, query }) {
      const lines = await parts.trail.linesAfter(query.after ?? -1, query.limit ?? 1024)
      return new Response(lines.map((line) => `${line}\n`).join(''), { headers: NDJSON })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/audit/export',
    summary: 'The whole trail as canonical lines',
    scope: 'admin',
    answers: { 200: { description: 'one record a line', type: 'application/x-ndjson' } },
    handle: ({ parts }) => new Response(streamOf(parts.trail.lines()), { headers: NDJSON }),
  }),
  route({
    method: 'GET',
    path: '/v1/audit/proof/:seq',
    summary: 'That one record is in the trail, checkable without the others',
    scope: 'read',
    answers: { 200: { description: 'the proof', schema: OBJECT } },
    async handle({ parts, principal, params }) {
      const seq = /^\d{1,15}$/.test(params.seq as string) ? Number(params.seq) : -1
      const tenant = tenantOf(principal)
      const [own] = await parts.trail.query({ after: seq - 1, before: seq + 1, tenant, limit: 1 })
      if (!own) throw new SandboxError('not-found', `there is no record \`${params.seq}\``)
      return Response.json(await parts.trail.proof(seq))
    },
  }),
  route({
    method: 'GET',
    path: '/api/audit',
    summary: 'Records as a bare list',
    scope: 'read',
    query: auditQuery,
    answers: { 200: { description: 'the records', schema: { type: 'array', items: OBJECT } } },
    async handle(call) {
      const records = await audited(call as Call, call.query, call.query.limit ?? 100)
      return Response.json(
        records.map((one) => ({
          timestamp: one.time,
          agent_id: one.agent_id ?? null,
          event: one.event,
          violation_type: one.violation_type ?? null,
          details: one.details ?? null,
          sandbox_id: one.sandbox_id ?? null,
          hash: one.hash,
          prev_hash: one.prev_hash,
        })),
      )
    },
  }),
  route({
    method: 'GET',
    path: '/v1/events',
    summary: 'The trail as it grows, as events; goes on from `Last-Event-ID`; of one sandbox, until its end',
    scope: 'read',
    query: eventsQuery,
    answers: {
      200: {
        description: 'one event a record; `cut` with the reason of its end',
        type: 'text/event-stream',
      },
    },
    handle: async (call) => {
      const { parts, principal, query, request } = call
      const { sandbox_id: sandboxId, event } = query
      const over = sandboxId === undefined ? undefined : await endOf(parts, principal, sandboxId)
      async function* events(signal: AbortSignal): AsyncGenerator<SseEvent, void> {
        const after = lastEventId(request) ?? query.after
        const wanted = { after, sandboxId, events: event && [event], signal, over }
        for await (const record of parts.feed.follow(principal, wanted))
          yield { event: record.event, data: record, id: record.seq }
        if (sandboxId === undefined || signal.aborted) return
        const { row } = await parts.supervisor.get(principal, sandboxId)
        yield { event: 'cut', data: streamEndOfSandbox(row.reason ?? row.state) }
      }
      return sse(call, events)
    },
  }),
]
