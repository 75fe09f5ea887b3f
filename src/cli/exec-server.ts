import { randomBytes } from 'node:crypto'
import { CodexExecServer } from '../adapters/codex/exec-server.ts'
import { localSession } from '../agents.ts'
import { environment } from '../compose/compose.ts'
import { listenOnLoopback } from '../server/websocket-listener.ts'
import { numberOption, parseOptions, usage } from './options/options.ts'
import { SESSION_OPTIONS, sessionSpec } from './options/session-options.ts'
import { server } from './server/remote.ts'
import { err, out } from './terminal/output.ts'

const OPTIONS = { ...SESSION_OPTIONS, port: { type: 'string' }, server: { type: 'boolean' } } as const

/** `ringfence exec-server`: Codex runs its commands and file operations in a sandbox on this directory. */
export async function execServer(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('exec-server', args, OPTIONS)
  if (positionals.length > 0) throw usage('exec-server', `unexpected \`${positionals[0]}\``)
  if (values.server) return addressOnServer(values.json)
  const agentId = values['agent-id'] ?? environment().RINGFENCE_AGENT_ID ?? 'codex'
  const spec = sessionSpec(values, agentId)
  const executor = new CodexExecServer(
    () => localSession(spec, { config: values.config, policy: values.policy }),
    { approver: values.yes ? '--yes' : undefined },
  )
  const secret = randomBytes(24).toString('hex')
  const listener = await listenOnLoopback(numberOption('--port', values.port) ?? 0, secret, (socket) =>
    executor.connect(socket),
  )
  const url = `ws://127.0.0.1:${listener.port}/${secret}`
  out(values.json ? `${JSON.stringify({ url, pid: process.pid })}\n` : `CODEX_EXEC_SERVER_URL=${url}\n`)
  if (!values.quiet && !values.json)
    err('ringfence: exec-server: start codex with this variable; Ctrl-C ends the sandboxes\n')
  await new Promise<void>((resolve) => {
    for (const name of ['SIGINT', 'SIGTERM'] as const) process.once(name, () => resolve())
  })
  await listener.close()
  await executor.close()
  return 0
}

/** The sandboxes are on the server at `RINGFENCE_URL`; prints the address and ends. */
async function addressOnServer(json: boolean | undefined): Promise<number> {
  const client = server()
  const { path, expires_at } = await client.execServer()
  const url = `${client.url.replace(/^http/, 'ws')}${path}`
  out(json ? `${JSON.stringify({ url, expires_at })}\n` : `CODEX_EXEC_SERVER_URL=${url}\n`)
  return 0
}
