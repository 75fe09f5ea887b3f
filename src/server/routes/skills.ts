import { skillPage, skillRunShape, skillUsageList } from '../../model/api/skills.ts'
import { requesterOf } from '../../supervisor/access/keys.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { skillShape } from '../shapes.ts'
import { tenantOf } from '../views.ts'

/** Skills. */

export const skillRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/skills',
    summary: 'List inspected skills: requested capabilities and red flags',
    scope: 'admin',
    answers: { 200: { description: 'the skills', shape: skillPage } },
    handle: async ({ parts }) => reply(200, { items: await parts.skills.list(), next: null }),
  }),
  route({
    method: 'POST',
    path: '/v1/skills/:name/run',
    summary: 'Run a skill',
    scope: 'exec',
    body: skillShape,
    answers: { 200: { description: 'the result', shape: skillRunShape } },
    handle: async ({ parts, principal, params, body }) =>
      reply(200, await parts.skills.run(params.name, body.input, requesterOf(principal))),
  }),
  route({
    method: 'GET',
    path: '/api/skills/usage',
    summary: 'What runs of skills used',
    scope: 'read',
    answers: { 200: { description: 'a bare list', shape: skillUsageList } },
    handle: async ({ parts, principal }) => reply(200, await parts.skills.usage(tenantOf(principal))),
  }),
]
