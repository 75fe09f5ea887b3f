import { SandboxError } from '../../model/errors.ts'
import { isOperator, requesterOf } from '../../supervisor/access/keys.ts'
import { approvalJson } from '../../supervisor/approvals/approvals.ts'
import { type Route, route } from '../route.ts'
import { answerShape, approvalsQuery, evaluateShape, noBody, skillShape } from '../shapes.ts'
import { pageOf } from '../views.ts'
import { tenantOf } from './trail.ts'

/** Judging, asking, recording: everything about sandboxes that is not a sandbox. */

const OBJECT = { type: 'object' } as const

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
      const rows = await parts.approvals.list(principal, query.state, query.limit ?? 50)
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
      Response.json(approvalJson(await parts.approvals.get(principal, params.id as string))),
  }),
  route({
    method: 'POST',
    path: '/v1/approvals/:id',
    summary: 'Answer a question; only the first answer counts',
    scope: 'admin',
    body: answerShape,
    answers: { 200: { description: 'the question', schema: OBJECT } },
    handle: async ({ parts, principal, params, body }) =>
      Response.json(
        approvalJson(await parts.approvals.answer(principal, params.id as string, body.approve, body.reason)),
      ),
  }),
]

const skillRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/api/skills/usage',
    summary: 'What skills used',
    scope: 'read',
    answers: { 200: { description: 'a bare list', schema: { type: 'array', items: OBJECT } } },
    handle: async ({ parts, principal }) => Response.json(await parts.skills.usage(tenantOf(principal))),
  }),
  route({
    method: 'POST',
    path: '/v1/skills/:name/run',
    summary: 'Run a skill',
    scope: 'exec',
    body: skillShape,
    answers: { 200: { description: 'its result', schema: OBJECT } },
    handle: async ({ parts, principal, params, body }) =>
      Response.json(await parts.skills.run(params.name as string, body.input, requesterOf(principal))),
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
  ...skillRoutes,
  ...healthRoutes,
]
