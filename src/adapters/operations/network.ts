import { SandboxError } from '../../model/errors.ts'
import { either, list, number, object, optional, text } from '../../model/shape.ts'
import type { AgentSession } from '../session.ts'
import { type Call, done, type Operation, operation, Question, type Result, told } from './operation.ts'

/** SECURITY: a request for network access needs the user's approval, and the policy is checked after the approval. */
async function requestHost(session: AgentSession, host: string, why: string, call: Call): Promise<Result> {
  const sandbox = await session.sandbox()
  const { network } = await sandbox.describe()
  const hosts = network.allowHosts
  if (network.mode === 'full' || hosts.includes(host))
    return done(`${host} is already allowed`, { allowed: true, hosts })
  if (network.mode !== 'fetch')
    throw new SandboxError('invalid-network-mode', `this sandbox has the network mode \`${network.mode}\``, {
      hint: 'tell the user that the sandbox must be started with network mode fetch',
    })
  if (!call.approved) {
    if (call.canAsk) throw new Question(`let the sandbox reach ${host}`, why || 'no reason given')
    throw new SandboxError('approval-required', `the user must allow \`${host}\``)
  }
  const next = [...hosts, host]
  const answer = (await sandbox.setAllowHosts(next)).find((each) => each.host === host)
  // A listed host may still be blocked: private and metadata addresses stay unreachable.
  if (answer?.verdict === 'deny')
    return done(`${host} is still blocked: ${answer.reason}`, { allowed: false, hosts: next })
  return done(`${host} is now allowed`, { allowed: true, hosts: next })
}

/** Tools that reach ports and hosts. */
export const reachOperations: readonly Operation[] = [
  operation({
    name: 'expose_port',
    title: 'Open a port',
    effect: 'writes',
    about: 'Returns the URL outside the sandbox for a TCP port on which a program inside listens.',
    input: object({ port: number({ integer: true, min: 1, max: 65_535 }) }),
    output: {
      type: 'object',
      properties: { port: { type: 'integer' }, url: { type: 'string' } },
      required: ['port', 'url'],
    },
    async run(session, { port }) {
      const url = await (await session.sandbox()).portUrl(port)
      return done(url, { port, url })
    },
  }),
  operation({
    name: 'request_host',
    title: 'Request network access',
    effect: 'opens',
    about: 'Asks the user to allow the sandbox to reach one more host.',
    input: object({
      host: told(text({ max: 255 }), 'a name such as `pypi.org`, or `name:port`'),
      why: optional(text({ empty: true, max: 500 })),
    }),
    output: {
      type: 'object',
      properties: { allowed: { type: 'boolean' }, hosts: { type: 'array', items: { type: 'string' } } },
      required: ['allowed', 'hosts'],
    },
    run: (session, { host, why }, call) => requestHost(session, host, why ?? '', call),
  }),
  operation({
    name: 'policy_check',
    title: 'Check a command',
    effect: 'looks',
    about:
      'Returns the policy decision for a command without running it: allow, sandbox, ask or deny, and why.',
    input: object({
      command: told(
        either(text(), list(text({ empty: true }))),
        'a shell line, or a list: program and arguments',
      ),
    }),
    output: {
      type: 'object',
      properties: {
        action: { type: 'string' },
        reason: { type: 'string' },
        rules: { type: 'array', items: { type: 'string' } },
      },
      required: ['action', 'reason', 'rules'],
    },
    async run(session, { command }) {
      const { action, reason, rules } = await (await session.sandbox()).judge(command)
      return done(`${action}: ${reason}`, { action, reason, rules })
    },
  }),
  operation({
    name: 'sandbox_info',
    title: 'About the sandbox',
    effect: 'looks',
    about: 'Returns the workspace, the isolation level and the allowed hosts.',
    input: object({}),
    output: {
      type: 'object',
      properties: {
        sandbox_id: { type: 'string' },
        workspace: { type: 'string' },
        backend: { type: 'string' },
        level: { type: 'string' },
        network: { type: 'object' },
      },
      required: ['sandbox_id', 'workspace', 'backend', 'level', 'network'],
    },
    async run(session) {
      const sandbox = await session.sandbox()
      const { backend, level, network } = await sandbox.describe()
      const data = {
        sandbox_id: sandbox.id,
        workspace: sandbox.workspace,
        backend,
        level,
        network: { mode: network.mode, allow_hosts: network.allowHosts },
      }
      return done(JSON.stringify(data, null, 2), data)
    },
  }),
  operation({
    name: 'sandbox_reset',
    title: 'Reset the sandbox',
    effect: 'changes',
    about: 'Destroys the sandbox with all its processes, and opens a new one on the same workspace.',
    input: object({}),
    output: { type: 'object', properties: { sandbox_id: { type: 'string' } }, required: ['sandbox_id'] },
    async run(session) {
      await session.reset()
      const { id } = await session.sandbox()
      return done(`new sandbox: ${id}`, { sandbox_id: id })
    },
  }),
]
