import { createHash } from 'node:crypto'
import { recordPage } from '../../model/api/audit.ts'
import { createShape } from '../../model/api/create-sandbox.ts'
import {
  createdSandboxShape,
  networkChangeShape,
  SHOWN_STATES,
  sandboxMetricsShape,
  sandboxPage,
  sandboxShape,
} from '../../model/api/sandboxes.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Call, Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { listQuery, logsQuery, networkShape, noBody, specOf, timeoutShape } from '../shapes.ts'
import { createdJson, cursorFrom, cursorOf, nextSeq, sandboxJson, stateOf } from '../views.ts'

/** Sandboxes: their lifecycle and what they are doing. */

/** `state=live`: every state but the final ones. */
const LIVE_STATES = SHOWN_STATES.filter((state) => state !== 'destroyed' && state !== 'failed')

const ONE = { 200: { description: 'the sandbox', shape: sandboxShape } } as const

/** A name that a client gives to one attempt, so that a repeat creates nothing twice. */
function idempotencyOf({
  request,
  body,
}: Pick<Call, 'request' | 'body'>): { readonly name: string; readonly request: string } | undefined {
  const name = request.headers.get('idempotency-key')
  if (name === null) return undefined
  if (!/^[\x21-\x7e]{1,128}$/.test(name))
    throw new SandboxError('invalid-input', 'an idempotency key has 1 to 128 visible characters')
  return { name, request: createHash('sha256').update(JSON.stringify(body)).digest('hex') }
}

const lifecycle: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/sandboxes',
    summary: 'Create a sandbox',
    scope: 'create',
    body: createShape,
    answers: { 201: { description: 'the sandbox, ready', shape: createdSandboxShape } },
    async handle(call) {
      const { body, parts, principal } = call
      const made = await parts.supervisor.create(principal, {
        spec: specOf(body),
        timeoutMs: body.timeout_ms,
        idleMs: body.idle_ms || undefined,
        idempotency: idempotencyOf(call),
      })
      return reply(201, createdJson(made))
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes',
    summary: 'List sandboxes, newest first',
    scope: 'read',
    query: listQuery,
    answers: { 200: { description: 'a page', shape: sandboxPage } },
    async handle({ parts, principal, query }) {
      const limit = query.limit ?? 50
      const after = query.cursor === undefined ? undefined : cursorFrom(query.cursor)
      if (query.cursor !== undefined && !after)
        throw new SandboxError('invalid-input', 'cursor: not one of ours')
      const states = query.state === 'live' ? LIVE_STATES : query.state && [query.state]
      const found = await parts.supervisor.list(principal, { states, agentId: query.agent_id, after, limit })
      const last = found.at(-1)
      const next = found.length === limit && last ? cursorOf(last.row) : null
      return reply(200, { items: found.map(sandboxJson), next })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id',
    summary: 'Get a sandbox',
    scope: 'read',
    sandboxToken: true,
    answers: ONE,
    handle: async ({ parts, principal, params }) =>
      reply(200, sandboxJson(await parts.supervisor.get(principal, params.id))),
  }),
  route({
    method: 'DELETE',
    path: '/v1/sandboxes/:id',
    summary: 'End a sandbox; ending it twice is harmless',
    scope: 'create',
    answers: ONE,
    handle: async ({ parts, principal, params }) =>
      reply(200, sandboxJson(await parts.supervisor.stop(principal, params.id))),
  }),
  ...(['pause', 'resume'] as const).map((verb) =>
    route({
      method: 'POST',
      path: `/v1/sandboxes/:id/${verb}` as const,
      summary: verb === 'pause' ? 'Pause a sandbox and its deadlines' : 'Resume a paused sandbox',
      scope: 'create',
      body: noBody,
      answers: ONE,
      handle: async ({ parts, principal, params }) =>
        reply(200, sandboxJson(await parts.supervisor[verb](principal, params.id))),
    }),
  ),
  route({
    method: 'POST',
    path: '/v1/sandboxes/:id/timeout',
    summary: 'Set a new deadline, counted from now (0 = unlimited)',
    scope: 'create',
    body: timeoutShape,
    answers: ONE,
    async handle({ parts, principal, params, body }) {
      const { timeout_ms, only_longer } = body
      return reply(
        200,
        sandboxJson(await parts.supervisor.setTimeout(principal, params.id, timeout_ms, only_longer)),
      )
    },
  }),
  route({
    method: 'PUT',
    path: '/v1/sandboxes/:id/network',
    summary: 'Replace the list of allowed hosts of a running sandbox',
    scope: 'create',
    body: networkShape,
    answers: {
      200: { description: 'the sandbox, with the verdict on each host', shape: networkChangeShape },
    },
    async handle({ parts, principal, params, body }) {
      const changed = await parts.supervisor.setAllowHosts(principal, params.id, body.allow_hosts)
      return reply(200, { ...sandboxJson(changed), hosts: changed.live?.sandbox?.hostVerdicts ?? [] })
    },
  }),
]

const activity: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/metrics',
    summary: 'Get what a sandbox is doing now',
    scope: 'read',
    sandboxToken: true,
    answers: { 200: { description: 'running commands and remaining time', shape: sandboxMetricsShape } },
    async handle({ parts, principal, params }) {
      const view = await parts.supervisor.get(principal, params.id)
      const { row, live } = view
      const usage = live?.sandbox?.usage()
      return reply(200, {
        id: row.id,
        state: stateOf(view),
        running: live?.running ?? 0,
        execs: live?.execs.size ?? 0,
        ttl_left_ms: live?.ttl.leftMs ?? null,
        idle_left_ms: live?.idle.leftMs ?? null,
        uptime_ms: (row.endedAt ?? Date.now()) - row.createdAt,
        cpu_ms: usage?.cpuMs ?? null,
        memory_bytes: usage?.memoryBytes ?? null,
      })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/sandboxes/:id/logs',
    summary: 'List the audit records of a sandbox, oldest first',
    scope: 'read',
    sandboxToken: true,
    query: logsQuery,
    answers: { 200: { description: 'a page', shape: recordPage } },
    async handle({ parts, principal, params, query }) {
      const { row } = await parts.supervisor.get(principal, params.id)
      const limit = query.limit ?? 200
      const items = await parts.trail.query({ sandboxId: row.id, after: query.after, limit })
      return reply(200, { items, next: nextSeq(items, limit) })
    },
  }),
]

/** Routes of sandboxes. */
export const sandboxRoutes: readonly Route[] = [...lifecycle, ...activity]
