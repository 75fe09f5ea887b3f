import { SandboxError } from '../../model/errors.ts'
import { isOperator } from '../../supervisor/access/keys.ts'
import { type Route, route } from '../route.ts'
import { policySaveShape, policyTextShape, tryShape } from '../shapes.ts'
import { pageOf } from '../views.ts'

/** The policy for people: read it, try it, change it. */

const OBJECT = { type: 'object' } as const
const SUGGEST_FROM = 2000

export const policyFileRoutes: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/policy',
    summary: 'The policy in force; for the operator also the text that it comes from',
    scope: 'read',
    answers: { 200: { description: 'the policy', schema: OBJECT } },
    async handle({ parts, principal }) {
      const { policy } = parts
      const forOperator = isOperator(principal)
      const shown = { policy: policy.hash(), description: await policy.describe(forOperator) }
      // SECURITY: the file may name a database with its password.
      return Response.json(forOperator ? { ...shown, ...policy.source() } : shown)
    },
  }),
  route({
    method: 'POST',
    path: '/v1/policy/try',
    summary: 'Judge a command, a path or an address and show every step',
    scope: 'read',
    body: tryShape,
    answers: { 200: { description: 'the decision with what led to it', schema: OBJECT } },
    async handle({ parts, principal, body }) {
      const { command, path, op, url, workspace, cwd } = body
      if ([command, path, url].filter((one) => one !== undefined).length !== 1)
        throw new SandboxError('invalid-input', 'give one of `command`, `path` and `url`')
      if (command !== undefined)
        return Response.json(await parts.policy.inspect({ line: command }, { workspace, cwd }))
      // SECURITY: whether a path or a name exists here is nothing that a tenant may ask.
      if (!isOperator(principal))
        throw new SandboxError('forbidden', 'paths and addresses of this host are for the operator')
      if (path !== undefined) return Response.json(await parts.policy.tryPath(path, op ?? 'read', workspace))
      return Response.json(await parts.policy.tryUrl(url as string))
    },
  }),
  route({
    method: 'POST',
    path: '/v1/policy/check',
    summary: 'Read a text as if it were the policy file; changes nothing',
    scope: 'admin',
    body: policyTextShape,
    answers: { 200: { description: 'what it comes to, example by example', schema: OBJECT } },
    async handle({ parts, body }) {
      try {
        return Response.json({ ok: true, ...(await parts.policy.check(body.text)) })
      } catch (error) {
        if (!(error instanceof SandboxError)) throw error
        const { message, hint } = error
        return Response.json({ ok: false, problem: message, ...(hint ? { hint } : {}) })
      }
    },
  }),
  route({
    method: 'PUT',
    path: '/v1/policy',
    summary: 'Put a text in force as the policy file, as a whole or not at all',
    scope: 'admin',
    body: policySaveShape,
    answers: { 200: { description: 'the policy in force', schema: OBJECT } },
    handle: async ({ parts, body }) => Response.json(await parts.policy.save(body.text, body.base)),
  }),
  route({
    method: 'GET',
    path: '/v1/policy/suggestions',
    summary: 'What the latest records suggest, for a person to take or leave',
    scope: 'admin',
    answers: { 200: { description: 'suggestions', schema: pageOf(OBJECT) } },
    async handle({ parts }) {
      const events = ['PolicyDecision', 'Approval', 'SandboxViolation']
      const records = await parts.trail.query({ events, order: 'desc', limit: SUGGEST_FROM })
      return Response.json({ items: await parts.policy.suggest(records.reverse()), next: null })
    },
  }),
]
