import { backendsShape, doctorShape, healthShape, readinessShape } from '../../model/api/host.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'

/** The server and its host: health, metrics, backends. */

export const hostRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/healthz',
    summary: 'Liveness: the process answers',
    scope: 'open',
    answers: { 200: { description: 'alive', shape: healthShape } },
    handle: () => reply(200, { ok: true } as const),
  }),
  route({
    method: 'GET',
    path: '/readyz',
    summary: 'Readiness: the server can do work, or why not',
    scope: 'open',
    answers: {
      200: { description: 'ready', shape: readinessShape },
      503: { description: 'not ready, with the problems', shape: readinessShape },
    },
    async handle({ parts }) {
      const problems = await parts.trouble()
      return problems.length === 0
        ? reply(200, { ready: true, problems })
        : reply(503, { ready: false, problems })
    },
  }),
  route({
    method: 'GET',
    path: '/metrics',
    summary: 'Metrics for Prometheus',
    // Not `read`: the figures are about every tenant.
    scope: 'metrics',
    answers: { 200: { description: 'Prometheus text format', type: 'text/plain' } },
    handle({ parts }) {
      return new Response(parts.metrics.text(), { headers: { 'content-type': 'text/plain; version=0.0.4' } })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/backends',
    summary: 'List backends with what each can do on this host',
    scope: 'read',
    answers: { 200: { description: 'the backends', shape: backendsShape } },
    handle: async ({ parts }) => reply(200, { backends: await parts.backends() }),
  }),
  route({
    method: 'GET',
    path: '/v1/doctor',
    summary: 'Probe the backends and the host now, with a fix for each problem',
    scope: 'admin',
    answers: { 200: { description: 'the report of `ringfence doctor --json`', shape: doctorShape } },
    handle: async ({ parts }) => reply(200, await parts.doctor()),
  }),
]
