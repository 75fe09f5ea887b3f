import { positionOf } from '../../audit/chain.ts'
import {
  auditEvents,
  bareRecordsShape,
  proofShape,
  recordPage,
  signedHeadShape,
  verificationShape,
} from '../../model/api/audit.ts'
import { SandboxError } from '../../model/errors.ts'
import type { EventName } from '../../model/event.ts'
import type { Infer } from '../../model/shape.ts'
import { streamEndOfSandbox } from '../../model/stream-end.ts'
import type { Principal } from '../../supervisor/access/keys.ts'
import type { ServerParts } from '../parts.ts'
import type { Call, EventOf, Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { auditQuery, eventsQuery, linesQuery } from '../shapes.ts'
import { lastEventId, sse } from '../streams/sse.ts'
import { nextSeq, tenantOf } from '../views.ts'

/** The audit log: records, verification, proofs, and the stream of new records. */

type AuditQuery = Infer<typeof auditQuery>

function audited({ parts, principal }: Pick<Call, 'parts' | 'principal'>, query: AuditQuery, limit: number) {
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

const reading: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/audit',
    summary: 'List records of the audit log, oldest first unless `order=desc`',
    scope: 'read',
    query: auditQuery,
    answers: { 200: { description: 'a page', shape: recordPage } },
    async handle(call) {
      const limit = call.query.limit ?? 100
      const items = await audited(call, call.query, limit)
      return reply(200, { items, next: nextSeq(items, limit) })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/audit/verify',
    summary: 'Verify the whole audit log against its signed head',
    scope: 'admin',
    answers: { 200: { description: 'the result', shape: verificationShape } },
    handle: async ({ parts }) => reply(200, await parts.trail.verify()),
  }),
  route({
    method: 'GET',
    path: '/v1/audit/head',
    summary: 'Get the signed head and the public key that signed it',
    scope: 'read',
    answers: { 200: { description: 'the head', shape: signedHeadShape } },
    handle: async ({ parts }) =>
      reply(200, { head: await parts.trail.head(), public_key: parts.trail.publicKey }),
  }),
  route({
    method: 'GET',
    path: '/v1/audit/lines',
    summary: 'Get canonical lines exactly as they were hashed, for verification elsewhere',
    scope: 'admin',
    query: linesQuery,
    answers: { 200: { description: 'one record per line', type: 'application/x-ndjson' } },
    async handle({ parts, query }) {
      const lines = await parts.trail.linesAfter(query.after ?? -1, query.limit ?? 1024)
      return new Response(lines.map((line) => `${line}\n`).join(''), { headers: NDJSON })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/audit/export',
    summary: 'Export the whole audit log as canonical lines',
    scope: 'admin',
    answers: { 200: { description: 'one record per line', type: 'application/x-ndjson' } },
    handle: ({ parts }) => new Response(streamOf(parts.trail.lines()), { headers: NDJSON }),
  }),
  route({
    method: 'GET',
    path: '/v1/audit/proof/:seq',
    summary: 'Get the Merkle proof that one record is in the audit log',
    scope: 'read',
    answers: { 200: { description: 'the proof', shape: proofShape } },
    async handle({ parts, principal, params }) {
      const seq = /^\d{1,15}$/.test(params.seq) ? Number(params.seq) : -1
      const tenant = tenantOf(principal)
      const [own] = await parts.trail.ownRecords({ after: seq - 1, before: seq + 1, tenant, limit: 1 })
      if (!own) throw new SandboxError('not-found', `there is no record \`${params.seq}\``)
      return reply(200, await parts.trail.proof(seq))
    },
  }),
  route({
    method: 'GET',
    path: '/api/audit',
    summary: 'List records as a bare list',
    scope: 'read',
    query: auditQuery,
    answers: { 200: { description: 'the records', shape: bareRecordsShape } },
    async handle(call) {
      const records = await audited(call, call.query, call.query.limit ?? 100)
      return reply(
        200,
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
]

const following: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/events',
    summary: 'Stream new records; resumes from `Last-Event-ID`; with `sandbox_id`, until that sandbox ends',
    scope: 'read',
    query: eventsQuery,
    answers: {
      200: {
        description: 'one event per record, named after its `event`; `cut` says why the stream ends',
        type: 'text/event-stream',
        events: auditEvents,
      },
    },
    handle: async (call) => {
      const { parts, principal, query, request } = call
      const { sandbox_id: sandboxId, event } = query
      const over = sandboxId === undefined ? undefined : await endOf(parts, principal, sandboxId)
      async function* events(signal: AbortSignal): AsyncGenerator<EventOf<typeof auditEvents>, void> {
        const after = lastEventId(request) ?? query.after
        const wanted = { after, sandboxId, events: event && [event], signal, over }
        for await (const record of parts.feed.follow(principal, wanted))
          yield { event: record.event as EventName, data: record, id: positionOf(record) }
        if (sandboxId === undefined || signal.aborted) return
        const { row } = await parts.supervisor.get(principal, sandboxId)
        yield { event: 'cut', data: streamEndOfSandbox(row.reason ?? row.state) }
      }
      return sse(call, events)
    },
  }),
]

/** Routes of the audit log. */
export const auditRoutes: readonly Route[] = [...reading, ...following]
