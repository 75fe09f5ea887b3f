import { agentOf } from '../adapters/mcp/http.ts'
import { serveMcpOnStdio } from '../adapters/mcp/stdio.ts'
import { localSession } from '../agents.ts'
import { compose, environment, type Ringfence } from '../compose/compose.ts'
import { askAtClient, describedText, gatewayOf, gatewayTools } from '../compose/mcp-gateway.ts'
import { OPERATOR } from '../model/requester.ts'
import { visible, visibleLines } from '../model/text/visible.ts'
import { VERSION } from '../model/version.ts'
import type { McpGateway, McpServerState } from '../supervisor/mcp/gateway.ts'
import { parseOptions, usage } from './options/options.ts'
import { SESSION_OPTIONS, sessionSpec } from './options/session-options.ts'
import { askYes } from './terminal/ask.ts'
import { err, out } from './terminal/output.ts'

/** `ringfence mcp`: MCP server on stdin and stdout; `mcp ls` and `mcp approve`: the servers of `[[mcp]]`. */
export async function mcp(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('mcp', args, SESSION_OPTIONS)
  const [verb, name, ...rest] = positionals
  const files = { config: values.config, policy: values.policy }
  if (verb === 'ls' && name === undefined) return withGateway(files, (gateway) => list(gateway, values.json))
  if (verb === 'approve' && name !== undefined && rest.length === 0)
    return withGateway(files, (gateway) => approve(gateway, name, values.yes ?? false))
  if (verb !== undefined) throw usage('mcp', `unexpected \`${verb}\``)
  return serve(values)
}

type Values = ReturnType<typeof parseOptions<typeof SESSION_OPTIONS>>['values']

async function serve(values: Values): Promise<number> {
  const named = values['agent-id'] ?? environment().RINGFENCE_AGENT_ID
  const spec = sessionSpec(values, named ?? 'mcp')
  const files = { config: values.config, policy: values.policy }
  const session = localSession(spec, files)
  const parts = await compose(files)
  const gateway = parts.config.mcp ? gatewayOf(parts, VERSION) : undefined
  const caller = () => ({ ...OPERATOR, agentId: String(spec.agentId) })
  await serveMcpOnStdio({
    session,
    version: VERSION,
    approveAll: values.yes ?? false,
    gateway: gateway && gatewayTools(gateway, caller, askAtClient),
    // The first tool call opens the sandbox, after the client has sent its name.
    onClient: (name) => {
      if (named === undefined) spec.agentId = agentOf(name)
    },
    onError: (error) => {
      if (!values.quiet) err(`ringfence: mcp: ${error.message.split('\n')[0]}\n`)
    },
  })
  await gateway?.close()
  await parts.close()
  return 0
}

async function withGateway(
  files: Parameters<typeof compose>[0],
  work: (gateway: McpGateway) => Promise<number>,
): Promise<number> {
  const parts: Ringfence = await compose(files)
  const gateway = gatewayOf(parts, VERSION)
  try {
    return await work(gateway)
  } finally {
    await gateway.close()
    await parts.close()
  }
}

async function list(gateway: McpGateway, json: boolean | undefined): Promise<number> {
  const states = await Promise.all(gateway.names(OPERATOR).map((name) => gateway.state(OPERATOR, name)))
  out(json ? `${JSON.stringify(states.map(stateJson))}\n` : states.map(stateText).join(''))
  if (!json && states.length === 0)
    err('ringfence: there are no MCP servers; add [[mcp]] to the configuration\n')
  return 0
}

const stateJson = ({ name, tools, unapproved, refused, problem, said }: McpServerState) => ({
  name,
  tools: tools.map((tool) => tool.name),
  unapproved: unapproved.map(({ tool, before }) => ({ name: tool.name, changed: before !== undefined })),
  refused,
  problem: problem ?? null,
  ...(said === undefined ? {} : { said }),
})

function stateText({ name, tools, unapproved, refused, problem, said }: McpServerState): string {
  if (problem !== undefined)
    return `${name}  not available: ${visible(problem)}\n${said ? `  it said: ${visible(said)}\n` : ''}`
  return [
    `${name}  ${tools.length} approved, ${unapproved.length} waiting, ${refused.length} not offered`,
    ...tools.map((tool) => `  ${tool.name}`),
    ...unapproved.map(
      ({ tool, before }) => `  ${tool.name}  (${before === undefined ? 'new' : 'changed'}: not approved)`,
    ),
    ...refused.map((why) => `  not offered: ${visible(why)}`),
    '',
  ].join('\n')
}

async function approve(gateway: McpGateway, name: string, yes: boolean): Promise<number> {
  const { unapproved, problem } = await gateway.state(OPERATOR, name)
  if (problem !== undefined) {
    err(`ringfence: mcp: ${visible(problem)}\n`)
    return 125
  }
  if (unapproved.length === 0) {
    err(`ringfence: all tools of ${name} are approved\n`)
    return 0
  }
  for (const { tool, before } of unapproved)
    out(
      `${before === undefined ? 'new' : 'changed'}: ${tool.name}\n${visibleLines(describedText(tool, before)).replace(/^/gm, '  ')}\n\n`,
    )
  if (
    !yes &&
    !(await askYes(
      `show ${unapproved.length === 1 ? 'this tool' : `these ${unapproved.length} tools`} to agents? [y/N] `,
      false,
    ))
  ) {
    err('ringfence: not approved; add --yes to approve without a question\n')
    return 126
  }
  await gateway.approve(
    OPERATOR,
    name,
    unapproved.map(({ tool }) => tool),
    { by: yes ? '--yes' : 'terminal' },
  )
  out(`approved: ${unapproved.length} ${unapproved.length === 1 ? 'tool' : 'tools'} of ${name}\n`)
  return 0
}
