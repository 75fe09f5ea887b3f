import { SandboxError } from '../../model/errors.ts'
import { isOperator, type Principal } from '../../supervisor/keys.ts'
import { approvalJson } from '../../supervisor/questions.ts'
import { type Call, type Route, route } from '../route.ts'
import {
  answerShape,
  approvalsQuery,
  auditQuery,
  evaluateShape,
  eventsQuery,
  keyShape,
  noBody,
  skillShape,
  webhookShape,
} from '../shapes.ts'
import { lastEventId, type SseEvent, sse } from '../sse.ts'
import { pageOf } from '../views.ts'

/** Judging, asking, recording: everything about sandboxes that is not a sandbox. */

const OBJECT = { type: 'object' } as const
const tenantOf = (principal: Principal): string | undefined =>
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
    tenant: tenantOf(principal),
    limit,
  })
}

const policyRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/policy/evaluate',
    summary: 'Judge a command without running it',
    scope: 'read',
    body: evaluateShape,
    answers: { 200: { description: 'the decision', schema: OBJECT } },
    async handle({ parts, body }) {
      const { command, argv, workspace, cwd } = body
      const [program, ...rest] = argv ?? []
      if ((command === undefined) === (program === undefined))
        throw new SandboxError('no-command', 'give either `argv` or `command`')
      const asked =
        command === undefined ? { argv: [program as string, ...rest] as const } : { line: command }
      const place = {
        ...(workspace === undefined ? {} : { workspace }),
        ...(cwd === undefined ? {} : { cwd }),
      }
      return Response.json(await parts.evaluate(asked as Parameters<typeof parts.evaluate>[0], place))
    },
  }),
  route({
    method: 'POST',
    path: '/v1/reload',
    summary: 'Read the configuration anew, as a whole or not at all',
    scope: 'admin',
    body: noBody,
    answers: { 200: { description: 'the policy in force', schema: OBJECT } },
    handle: async ({ parts }) => Response.json(await parts.reload()),
  }),
  route({
    method: 'GET',
    path: '/v1/backends',
    summary: 'What this host can do',
    scope: 'read',
    answers: { 200: { description: 'as `ringfence doctor` says it', schema: OBJECT } },
    handle: async ({ parts }) => Response.json({ backends: await parts.backends() }),
  }),
]

const approvalRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/approvals',
    summary: 'Questions to a human, newest first',
    scope: 'read',
    query: approvalsQuery,
    answers: { 200: { description: 'a page', schema: pageOf(OBJECT) } },
    async handle({ parts, principal, query }) {
      const rows = await parts.questions.list(principal, query.state, query.limit ?? 50)
      return Response.json({ items: rows.map(approvalJson), next: null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/approvals/:id',
    summary: 'One question',
    scope: 'read',
    answers: { 200: { description: 'the question', schema: OBJECT } },
    handle: async ({ parts, principal, params }) =>
      Response.json(approvalJson(await parts.questions.get(principal, params.id as string))),
  }),
  route({
    method: 'POST',
    path: '/v1/approvals/:id',
    summary: 'Answer a question; only the first answer counts',
    scope: 'admin',
    body: answerShape,
    answers: { 200: { description: 'the question', schema: OBJECT } },
    handle: async ({ parts, principal, params, body }) =>
      Response.json(approvalJson(await parts.questions.answer(principal, params.id as string, body.approve))),
  }),
]

const trailRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/audit',
    summary: 'Records of the trail, oldest first',
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
    summary: 'The trail as it grows, as events; goes on from `Last-Event-ID`',
    scope: 'read',
    query: eventsQuery,
    answers: { 200: { description: 'one event a record', type: 'text/event-stream' } },
    handle: ({ parts, principal, query, request }) => {
      const stop = new AbortController()
      request.signal.addEventListener('abort', () => stop.abort(), { once: true })
      const records = parts.feed.follow(principal, {
        after: lastEventId(request) ?? query.after,
        sandboxId: query.sandbox_id,
        events: query.event === undefined ? undefined : [query.event],
        signal: stop.signal,
      })
      async function* events(): AsyncGenerator<SseEvent, void> {
        try {
          for await (const record of records) yield { event: record.event, data: record, id: record.seq }
        } finally {
          stop.abort()
        }
      }
      return sse(events())
    },
  }),
]

const keyRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/keys',
    summary: 'Make a key; it is shown once',
    scope: 'admin',
    body: keyShape,
    answers: { 201: { description: 'the key', schema: OBJECT } },
    async handle({ parts, body }) {
      const { secret, key } = await parts.keys.create(body)
      return Response.json({ ...keyJson(key), key: secret }, { status: 201 })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/keys',
    summary: 'All keys, without their secrets',
    scope: 'admin',
    answers: { 200: { description: 'the keys', schema: pageOf(OBJECT) } },
    handle: async ({ parts }) => Response.json({ items: (await parts.keys.list()).map(keyJson), next: null }),
  }),
  route({
    method: 'DELETE',
    path: '/v1/keys/:id',
    summary: 'Revoke a key, at once',
    scope: 'admin',
    answers: { 204: { description: 'revoked' } },
    async handle({ parts, params }) {
      await parts.keys.revoke(params.id as string)
      return new Response(null, { status: 204 })
    },
  }),
]

type KeyInfo = Awaited<ReturnType<Call['parts']['keys']['list']>>[number]

export const keyJson = (key: KeyInfo) => ({
  id: key.id,
  name: key.name,
  start: key.start,
  scopes: key.scopes,
  tenant: key.tenant,
  created_at: new Date(key.createdAt).toISOString(),
  revoked_at: key.revokedAt === null ? null : new Date(key.revokedAt).toISOString(),
})

const webhookRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/webhooks',
    summary: 'Send records of the trail to an address, signed',
    scope: 'create',
    body: webhookShape,
    answers: { 201: { description: 'the webhook with its secret, shown once', schema: OBJECT } },
    async handle({ parts, principal, body }) {
      const row = await parts.webhooks.create(principal, { url: body.url, events: body.events ?? [] })
      return Response.json(
        { id: row.id, url: row.url, events: row.events, secret: row.secret },
        { status: 201 },
      )
    },
  }),
  route({
    method: 'GET',
    path: '/v1/webhooks',
    summary: 'The webhooks',
    scope: 'read',
    answers: { 200: { description: 'the webhooks', schema: pageOf(OBJECT) } },
    async handle({ parts, principal }) {
      const rows = await parts.webhooks.list(principal)
      const items = rows.map(({ id, url, events, failures }) => ({ id, url, events, failures }))
      return Response.json({ items, next: null })
    },
  }),
  route({
    method: 'DELETE',
    path: '/v1/webhooks/:id',
    summary: 'Remove a webhook',
    scope: 'create',
    answers: { 204: { description: 'gone' } },
    async handle({ parts, principal, params }) {
      await parts.webhooks.remove(principal, params.id as string)
      return new Response(null, { status: 204 })
    },
  }),
]

const skillRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/api/skills/usage',
    summary: 'What skills used',
    scope: 'read',
    answers: { 200: { description: 'a bare list', schema: { type: 'array', items: OBJECT } } },
    handle: async ({ parts }) => Response.json(await parts.skills.usage()),
  }),
  route({
    method: 'POST',
    path: '/v1/skills/:name/run',
    summary: 'Run a skill',
    scope: 'exec',
    body: skillShape,
    answers: { 200: { description: 'its result', schema: OBJECT } },
    handle: async ({ parts, params, body }) =>
      Response.json(await parts.skills.run(params.name as string, body.input, body.agent_id)),
  }),
]

const healthRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/healthz',
    summary: 'Whether the process answers',
    scope: 'open',
    answers: { 200: { description: 'it does', schema: OBJECT } },
    handle: () => Response.json({ ok: true }),
  }),
  route({
    method: 'GET',
    path: '/readyz',
    summary: 'Whether work can be done, or why not',
    scope: 'open',
    answers: {
      200: { description: 'it can', schema: OBJECT },
      503: { description: 'why not', schema: OBJECT },
    },
    async handle({ parts }) {
      const problems = await parts.trouble()
      const ready = problems.length === 0
      return Response.json({ ready, problems }, { status: ready ? 200 : 503 })
    },
  }),
  route({
    method: 'GET',
    path: '/metrics',
    summary: 'Figures for Prometheus',
    scope: 'read',
    answers: { 200: { description: 'text', type: 'text/plain' } },
    handle({ parts, principal }) {
      if (!isOperator(principal)) throw new SandboxError('forbidden', 'the figures speak of every tenant')
      return new Response(parts.metrics.text(), { headers: { 'content-type': 'text/plain; version=0.0.4' } })
    },
  }),
]

export const governanceRoutes: readonly Route[] = [
  ...policyRoutes,
  ...approvalRoutes,
  ...trailRoutes,
  ...keyRoutes,
  ...webhookRoutes,
  ...skillRoutes,
  ...healthRoutes,
]
