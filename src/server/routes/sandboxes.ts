import { createHash } from 'node:crypto'
import { SandboxError } from '../../model/errors.ts'
import { type Call, type Route, route } from '../route.ts'
import {
  createShape,
  forkShape,
  listQuery,
  logsQuery,
  networkShape,
  noBody,
  snapshotShape,
  specOf,
  timeoutShape,
} from '../shapes.ts'
import {
  cursorFrom,
  cursorOf,
  pageOf,
  sandboxJson,
  sandboxSchema,
  snapshotJson,
  snapshotSchema,
} from '../views.ts'

const MOST_SNAPSHOTS = 100
const ONE = { 200: { description: 'the sandbox', schema: sandboxSchema } }
const idOf = ({ params }: Call<never, never> | Call): string => params.id as string

/** A name that a client gives to one attempt, so that repeating it makes nothing twice. */
function idempotencyOf(call: Call): { readonly name: string; readonly request: string } | undefined {
  const name = call.request.headers.get('idempotency-key')
  if (name === null) return undefined
  if (!/^[\x21-\x7e]{1,128}$/.test(name))
    throw new SandboxError('invalid-input', 'an idempotency key has 1 to 128 visible characters')
  return { name, request: createHash('sha256').update(JSON.stringify(call.body)).digest('hex') }
}

export const sandboxRoutes: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/sandboxes',
    summary: 'Create a sandbox',
    scope: 'create',
    body: createShape,
    answers: { 201: { description: 'it is ready', schema: sandboxSchema } },
    async handle(call) {
      const { body, parts, principal } = call
      const made = await parts.supervisor.create(principal, {
        spec: specOf(body),
        timeoutMs: body.timeout_ms,
        idleMs: body.idle_ms || undefined,
        idempotency: idempotencyOf(call as Call),
      })
      const token = made.token === undefined ? {} : { token: made.token }
      return Response.json({ ...sandboxJson(made), ...token }, { status: 201 })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes',
    summary: 'List sandboxes, newest first',
    scope: 'read',
    query: listQuery,
    answers: { 200: { description: 'a page', schema: pageOf(sandboxSchema) } },
    async handle({ parts, principal, query }) {
      const limit = query.limit ?? 50
      const after = query.cursor === undefined ? undefined : cursorFrom(query.cursor)
      if (query.cursor !== undefined && !after)
        throw new SandboxError('invalid-input', 'cursor: not one of ours')
      const states = query.state === undefined ? undefined : [query.state]
      const found = await parts.supervisor.list(principal, { states, agentId: query.agent_id, after, limit })
      const last = found.at(-1)
      const next = found.length === limit && last ? cursorOf(last.row) : null
      return Response.json({ items: found.map(sandboxJson), next })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id',
    summary: 'One sandbox',
    scope: 'read',
    sandboxToken: true,
    answers: ONE,
    handle: async (call) =>
      Response.json(sandboxJson(await call.parts.supervisor.get(call.principal, idOf(call)))),
  }),
  route({
    method: 'DELETE',
    path: '/v1/sandboxes/:id',
    summary: 'End a sandbox; twice is harmless',
    scope: 'create',
    answers: ONE,
    handle: async (call) =>
      Response.json(sandboxJson(await call.parts.supervisor.stop(call.principal, idOf(call)))),
  }),
  ...(['pause', 'resume'] as const).map((verb) =>
    route({
      method: 'POST',
      path: `/v1/sandboxes/:id/${verb}`,
      summary: verb === 'pause' ? 'Freeze it; its deadlines stand still' : 'Let it go on',
      scope: 'create',
      body: noBody,
      answers: ONE,
      handle: async (call) =>
        Response.json(sandboxJson(await call.parts.supervisor[verb](call.principal, idOf(call)))),
    }),
  ),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/snapshot',
    summary: 'Keep the files of its own places; a sandbox can start from them as its template',
    scope: 'create',
    body: snapshotShape,
    answers: {
      201: { description: 'the snapshot', schema: snapshotSchema },
      501: { description: 'this backend cannot' },
    },
    handle: async ({ parts, principal, params, body }) =>
      Response.json(snapshotJson(await parts.snapshots.take(principal, params.id as string, body.name)), {
        status: 201,
      }),
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/fork',
    summary: 'A new sandbox of the same spec with the same files; processes stay where they are',
    scope: 'create',
    body: forkShape,
    answers: {
      201: { description: 'it is ready', schema: sandboxSchema },
      501: { description: 'this backend cannot' },
    },
    async handle({ parts, principal, params, body }) {
      const made = await parts.snapshots.fork(principal, params.id as string, body.timeout_ms)
      const token = made.token === undefined ? {} : { token: made.token }
      return Response.json({ ...sandboxJson(made), ...token }, { status: 201 })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/snapshots',
    summary: 'Snapshots, newest first',
    scope: 'read',
    answers: { 200: { description: 'the latest hundred', schema: pageOf(snapshotSchema) } },
    handle: async ({ parts, principal }) =>
      Response.json({
        items: (await parts.snapshots.list(principal, MOST_SNAPSHOTS)).map(snapshotJson),
        next: null,
      }),
  }),
  route({
    method: 'DELETE',
    path: '/v1/snapshots/:id',
    summary: 'Forget a snapshot',
    scope: 'create',
    answers: { 204: { description: 'it is gone' } },
    async handle({ parts, principal, params }) {
      await parts.snapshots.remove(principal, params.id as string)
      return new Response(null, { status: 204 })
    },
  }),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/timeout',
    summary: 'Set the deadline anew, counted from now; 0 means never',
    scope: 'create',
    body: timeoutShape,
    answers: ONE,
    async handle(call) {
      const { timeout_ms, only_longer } = call.body
      const seen = await call.parts.supervisor.setTimeout(
        call.principal,
        call.params.id as string,
        timeout_ms,
        only_longer,
      )
      return Response.json(sandboxJson(seen))
    },
  }),
  route({
    method: 'PUT',
    path: '/v1/sandboxes/:id/network',
    summary: 'Change which hosts it reaches while it runs',
    scope: 'create',
    body: networkShape,
    answers: ONE,
    async handle({ parts, principal, params, body }) {
      const seen = await parts.supervisor.setAllowHosts(principal, params.id as string, body.allow_hosts)
      return Response.json({ ...sandboxJson(seen), hosts: seen.live?.sandbox?.hostVerdicts ?? [] })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/metrics',
    summary: 'What it does right now',
    scope: 'read',
    sandboxToken: true,
    answers: { 200: { description: 'figures', schema: { type: 'object' } } },
    async handle(call) {
      const { row, live } = await call.parts.supervisor.get(call.principal, idOf(call))
      return Response.json({
        id: row.id,
        state: live?.shown ?? row.state,
        running: live?.running ?? 0,
        execs: live?.execs.size ?? 0,
        ttl_left_ms: live?.ttl.leftMs ?? null,
        idle_left_ms: live?.idle.leftMs ?? null,
        uptime_ms: (row.endedAt ?? Date.now()) - row.createdAt,
      })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/logs',
    summary: 'What is on record about it, oldest first',
    scope: 'read',
    sandboxToken: true,
    query: logsQuery,
    answers: { 200: { description: 'a page', schema: pageOf({ type: 'object' }) } },
    async handle({ parts, principal, params, query }) {
      const { row } = await parts.supervisor.get(principal, params.id as string)
      const limit = query.limit ?? 200
      const items = await parts.trail.query({ sandboxId: row.id, after: query.after, limit })
      return Response.json({ items, next: items.length === limit ? String(items.at(-1)?.seq) : null })
    },
  }),
]
