import { resolve } from 'node:path'
import { agentOf } from '../adapters/mcp/http.ts'
import { serveMcpOnStdio } from '../adapters/mcp/stdio.ts'
import { localSession } from '../agents.ts'
import { environment } from '../compose/compose.ts'
import { VERSION } from './help.ts'
import { parseOptions, usage } from './options.ts'
import { err } from './terminal/output.ts'

const OPTIONS = {
  workspace: { type: 'string', short: 'w' },
  preset: { type: 'string' },
  read: { type: 'string', multiple: true },
  write: { type: 'string', multiple: true },
  deny: { type: 'string', multiple: true },
  network: { type: 'string' },
  'allow-host': { type: 'string', multiple: true },
  'ask-hosts': { type: 'boolean' },
  backend: { type: 'string' },
  'min-isolation': { type: 'string' },
  'agent-id': { type: 'string' },
  yes: { type: 'boolean', short: 'y' },
} as const

/** `ringfence mcp`: MCP server on stdin and stdout; one client, one sandbox on this directory. */
export async function mcp(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('mcp', args, OPTIONS)
  if (positionals.length > 0) throw usage('mcp', `unexpected \`${positionals[0]}\``)
  const named = values['agent-id'] ?? environment().RINGFENCE_AGENT_ID
  const hosts = values['allow-host']
  const asks = values['ask-hosts']
  const mode = values.network ?? (hosts || asks ? 'fetch' : undefined)
  const spec: Record<string, unknown> = {
    workspace: resolve(values.workspace ?? '.'),
    agentId: named ?? 'mcp',
    ...(mode && {
      network: { mode, ...(hosts && { allowHosts: hosts }), ...(asks && { unlisted: 'ask' }) },
    }),
    ...(values.preset && { preset: values.preset }),
    ...(values.read && { read: values.read.map((path) => resolve(path)) }),
    ...(values.write && { write: values.write.map((path) => resolve(path)) }),
    ...(values.deny && { deny: values.deny.map((path) => resolve(path)) }),
    ...(values.backend && { backend: values.backend }),
    ...(values['min-isolation'] && { minIsolation: values['min-isolation'] }),
  }
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
