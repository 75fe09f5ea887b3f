import { agentOf } from '../adapters/mcp/http.ts'
import { serveMcpOnStdio } from '../adapters/mcp/stdio.ts'
import { localSession } from '../agents.ts'
import { environment } from '../compose/compose.ts'
import { VERSION } from './help.ts'
import { parseOptions, usage } from './options.ts'
import { SESSION_OPTIONS, sessionSpec } from './session-options.ts'
import { err } from './terminal/output.ts'

/** `ringfence mcp`: MCP server on stdin and stdout; one client, one sandbox on this directory. */
export async function mcp(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('mcp', args, SESSION_OPTIONS)
  if (positionals.length > 0) throw usage('mcp', `unexpected \`${positionals[0]}\``)
  const named = values['agent-id'] ?? environment().RINGFENCE_AGENT_ID
  const spec = sessionSpec(values, named ?? 'mcp')
  const session = localSession(spec, { config: values.config, policy: values.policy })
  await serveMcpOnStdio({
    session,
    version: VERSION,
    approveAll: values.yes ?? false,
    // The first tool call opens the sandbox, after the client has sent its name.
    onClient: (name) => {
      if (named === undefined) spec.agentId = agentOf(name)
    },
    onError: (error) => {
      if (!values.quiet) err(`ringfence: mcp: ${error.message.split('\n')[0]}\n`)
    },
  })
  return 0
}
