import { approvalPage, approvalShape } from '../../model/api/approvals.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { answerShape, approvalsQuery } from '../shapes.ts'
import { approvalJson } from '../views.ts'

/** Approvals: commands and hosts that wait for a person. */

export const approvalRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/approvals',
    summary: 'List approvals, newest first',
    scope: 'read',
    query: approvalsQuery,
    answers: { 200: { description: 'a page', shape: approvalPage } },
    async handle({ parts, principal, query }) {
      const rows = await parts.approvals.list(principal, query.state, query.limit ?? 50)
      return reply(200, { items: rows.map(approvalJson), next: null })
    },
  }),
  route({
    method: 'GET',
    path: '/v1/approvals/:id',
    summary: 'Get an approval',
    scope: 'read',
    answers: { 200: { description: 'the approval', shape: approvalShape } },
    handle: async ({ parts, principal, params }) =>
      reply(200, approvalJson(await parts.approvals.get(principal, params.id))),
  }),
  route({
    method: 'POST',
    path: '/v1/approvals/:id',
    summary: 'Approve or reject; only the first answer counts',
    scope: 'admin',
    body: answerShape,
    answers: { 200: { description: 'the approval', shape: approvalShape } },
    async handle({ parts, principal, params, body }) {
      const answered = await parts.approvals.answer(principal, params.id, body)
      return reply(200, approvalJson(answered))
    },
  }),
]
