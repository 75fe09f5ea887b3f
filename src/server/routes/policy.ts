import { decisionShape } from '../../model/api/execs.ts'
import {
  policyCheckShape,
  policyHashShape,
  policyViewShape,
  suggestionPage,
  trialShape,
} from '../../model/api/policy.ts'
import { SandboxError } from '../../model/errors.ts'
import { isOperator } from '../../supervisor/access/keys.ts'
import type { AskedCommand } from '../../supervisor/gate.ts'
import type { Route } from '../route.ts'
import { reply, route } from '../route.ts'
import { evaluateShape, noBody, policySaveShape, policyTextShape, tryShape } from '../shapes.ts'

/** The policy: read it, try it, change it. */

const SUGGEST_FROM = 2000

type AskedBody = { readonly command?: string | undefined; readonly argv?: readonly string[] | undefined }

function askedIn({ command, argv = [] }: AskedBody): AskedCommand {
  const [program, ...rest] = argv
  if (command !== undefined && program === undefined) return { line: command }
  if (command === undefined && program !== undefined) return { argv: [program, ...rest] }
  throw new SandboxError('no-command', 'give either `argv` or `command`')
}

const judging: readonly Route[] = [
  route({
    method: 'POST',
    path: '/v1/policy/evaluate',
    summary: 'Judge a command without running it',
    scope: 'read',
    body: evaluateShape,
    answers: { 200: { description: 'the decision', shape: decisionShape } },
    async handle({ parts, principal, body }) {
      const { workspace, cwd, sandbox_id } = body
      const asked = askedIn(body)
      if (sandbox_id !== undefined) {
        const { live } = await parts.supervisor.get(principal, sandbox_id)
        if (!live) throw new SandboxError('wrong-state', `sandbox \`${sandbox_id}\` has ended`)
        return reply(200, await live.ready().judge(asked, { cwd }))
      }
      const where = {
        ...(workspace === undefined ? {} : { workspace }),
        ...(cwd === undefined ? {} : { cwd }),
      }
      return reply(200, await parts.evaluate(asked, where))
    },
  }),
  route({
    method: 'POST',
    path: '/v1/policy/try',
    summary: 'Judge a command, a path or a URL and show every step',
    scope: 'read',
    body: tryShape,
    answers: { 200: { description: 'the decision with every command, or the verdict', shape: trialShape } },
    async handle({ parts, principal, body }) {
      const { command, path, op, url, workspace, cwd } = body
      if ([command, path, url].filter((one) => one !== undefined).length !== 1)
        throw new SandboxError('invalid-input', 'give one of `command`, `path` and `url`')
      if (command !== undefined)
        return reply(200, await parts.policy.inspect({ line: command }, { workspace, cwd }))
      // SECURITY: tenants must not learn which paths and names exist on this host.
      if (!isOperator(principal))
        throw new SandboxError('forbidden', 'paths and addresses of this host are for the operator')
      if (path !== undefined) return reply(200, await parts.policy.tryPath(path, op ?? 'read', workspace))
      return reply(200, await parts.policy.tryUrl(url as string))
    },
  }),
]

const changing: readonly Route[] = [
  route({
    method: 'GET',
    path: '/v1/policy',
    summary: 'Get the policy in force; for the operator also its file and text',
    scope: 'read',
    answers: { 200: { description: 'the policy', shape: policyViewShape } },
    async handle({ parts, principal }) {
      const { policy } = parts
      const forOperator = isOperator(principal)
      const shown = { policy: policy.hash(), description: await policy.describe(forOperator) }
      // SECURITY: the file may name a database with its password.
      return reply(200, forOperator ? { ...shown, ...policy.source() } : shown)
    },
  }),
  route({
    method: 'POST',
    path: '/v1/policy/check',
    summary: 'Check a text as if it were the policy file; changes nothing',
    scope: 'admin',
    body: policyTextShape,
    answers: { 200: { description: 'the resulting policy and its examples', shape: policyCheckShape } },
    async handle({ parts, body }) {
      try {
        return reply(200, { ok: true, ...(await parts.policy.check(body.text)) } as const)
      } catch (error) {
        if (!(error instanceof SandboxError)) throw error
        const { message, hint } = error
        return reply(200, { ok: false, problem: message, ...(hint ? { hint } : {}) } as const)
      }
    },
  }),
  route({
    method: 'PUT',
    path: '/v1/policy',
    summary: 'Replace the policy file and reload it; an error changes nothing',
    scope: 'admin',
    body: policySaveShape,
    answers: { 200: { description: 'the policy in force', shape: policyHashShape } },
    handle: async ({ parts, body }) => reply(200, await parts.policy.save(body.text, body.base)),
  }),
  route({
    method: 'POST',
    path: '/v1/reload',
    summary: "Reload the server's configuration; an error changes nothing",
    scope: 'admin',
    body: noBody,
    answers: { 200: { description: 'the policy in force', shape: policyHashShape } },
    handle: async ({ parts }) => reply(200, await parts.reload()),
  }),
  route({
    method: 'GET',
    path: '/v1/policy/suggestions',
    summary: 'Changes to the policy that recent records suggest',
    scope: 'admin',
    answers: { 200: { description: 'suggestions', shape: suggestionPage } },
    async handle({ parts }) {
      const events = ['PolicyDecision', 'Approval', 'SandboxViolation']
      const records = await parts.trail.query({ events, order: 'desc', limit: SUGGEST_FROM })
      return reply(200, { items: await parts.policy.suggest(records.reverse()), next: null })
    },
  }),
]

/** Routes of the policy. */
export const policyRoutes: readonly Route[] = [...judging, ...changing]
