import type { ToolGateway } from './adapters/mcp/gateway.ts'
import { McpHttp } from './adapters/mcp/http.ts'
import type { McpOptions } from './adapters/mcp/server.ts'
import { openOnServer } from './adapters/remote-tool-sandbox.ts'
import { AgentSession } from './adapters/session.ts'
import {
  type RunningToolCommand,
  type StartOptions,
  TERMINAL,
  type ToolSandbox,
  type ToolSandboxEntry,
} from './adapters/tool-sandbox.ts'
import { END, type Position } from './audit/files.ts'
import { endOfTrail, readLast } from './audit/read.ts'
import type { FileInfo } from './backends/backend.ts'
import { RingfenceClient } from './client/client.ts'
import { type ComposeOptions, compose, type Ringfence } from './compose/compose.ts'
import { askOnServer, gatewayTools } from './compose/mcp-gateway.ts'
import { forwardPort, type PortForward } from './host/net/port-forward.ts'
import type { Mount } from './server/app.ts'
import { type Principal, requesterOf } from './supervisor/access/keys.ts'
import type { Approvals } from './supervisor/approvals/approvals.ts'
import type { AskHost } from './supervisor/approvals/host-questions.ts'
import type { McpGateway } from './supervisor/mcp/gateway.ts'
import type { Sandbox } from './supervisor/sandbox.ts'

/** `ringfence/agents`: tools for models, on a local or a remote sandbox. */

export { aiSdkTools } from './adapters/models/ai-sdk.ts'
export { anthropicTools } from './adapters/models/anthropic.ts'
export { deepagentsSandbox } from './adapters/models/deepagents.ts'
export { functionTools } from './adapters/models/functions.ts'
export { openaiTools } from './adapters/models/openai.ts'
export { OpenAiSandboxClient } from './adapters/models/openai-sandbox.ts'
export { OPERATIONS } from './adapters/operations/index.ts'
export type { Result } from './adapters/operations/operation.ts'
export { perform } from './adapters/operations/operation.ts'
export { remoteToolSandbox } from './adapters/remote-tool-sandbox.ts'
export { AgentSession } from './adapters/session.ts'
export type { ToolSandbox } from './adapters/tool-sandbox.ts'

/** A session whose local sandbox opens at the first tool call and closes with the session. */
export function localSession(
  spec: Readonly<Record<string, unknown>>,
  options: ComposeOptions = {},
): AgentSession {
  const nobody = { state: 'rejected', reason: 'the client cannot ask its user' } as const
  const session = new AgentSession(async () => {
    const ringfence = await compose(options)
    try {
      const began = endOfTrail(ringfence.stateDir)
      const askHost: AskHost = async (question) => session.askHost?.(question) ?? nobody
      const sandbox = await ringfence.gate.open(spec, { askHost })
      sandbox.onClose(() => ringfence.close())
      return localToolSandbox(ringfence, sandbox, began === END ? undefined : began)
    } catch (error) {
      await ringfence.close()
      throw error
    }
  })
  return session
}

/** A local sandbox for tools; `began` is where its part of the audit log starts. */
export function localToolSandbox(ringfence: Ringfence, sandbox: Sandbox, began?: Position): ToolSandbox {
  const { plan } = sandbox
  const ports = new Map<number, Promise<PortForward>>()
  let allowHosts = plan.network.allowHosts
  sandbox.onClose(async () => {
    for (const port of ports.values()) (await port).close()
  })
  return {
    id: sandbox.id,
    workspace: plan.cwd,
    describe: async () => ({
      backend: sandbox.backend,
      level: sandbox.level,
      network: { mode: plan.network.mode, allowHosts },
      ...(plan.agentId === undefined ? {} : { agentId: plan.agentId }),
    }),
    start: (command, options) => start(sandbox, command, options),
    files: {
      read: (path, range) => sandbox.files.read(path, range),
      write: (path, data) => sandbox.files.write(path, data),
      list: async (path, depth) => (await sandbox.files.entries(path, depth)).map(entryOf),
      stat: async (path) => entryOf(await sandbox.files.stat(path)),
      remove: (path) => sandbox.files.remove(path),
    },
    judge: (command, where) => sandbox.judge(asked(command), where),
    async setAllowHosts(hosts) {
      await sandbox.setAllowHosts(hosts)
      allowHosts = hosts
      return sandbox.hostVerdicts
    },
    async portUrl(port) {
      const open = ports.get(port) ?? forwardPort(() => sandbox.connect(port))
      ports.set(port, open)
      return (await open).url
    },
    trail: async (limit) => readLast(ringfence.stateDir, limit, { sandboxId: sandbox.id }, began),
    close: () => sandbox.close(),
  }
}

const entryOf = ({ name, path, kind, size, modifiedMs }: FileInfo): ToolSandboxEntry => ({
  name,
  path,
  kind,
  size,
  modifiedMs,
})

const asked = (command: string | readonly string[]) =>
  typeof command === 'string' ? { line: command } : { argv: command as readonly [string, ...string[]] }

async function start(
  sandbox: Sandbox,
  command: string | readonly string[],
  { cwd, env, stdin, stdinOpen, terminal, timeoutMs, output, signal, approved }: StartOptions,
): Promise<RunningToolCommand> {
  const running = await sandbox.spawn(command, {
    ...(cwd === undefined ? {} : { cwd }),
    ...(env === undefined ? {} : { env }),
    ...(signal === undefined ? {} : { signal }),
    ...(timeoutMs === undefined ? {} : { limits: { wallMs: timeoutMs } }),
    ...(stdinOpen || stdin !== undefined ? { stdin: true } : {}),
    ...(terminal ? { terminal: TERMINAL } : {}),
    ...(approved ? { approve: () => ({ approved: true, by: approved }) } : {}),
    output,
  })
  if (stdin !== undefined) void feed(running, stdin)
  return {
    id: running.execId,
    write: (data) => running.write(Buffer.from(data)),
    endInput: async () => running.endInput(),
    signal: async (name) => running.signal(name as NodeJS.Signals),
    ended: running.result,
  }
}

/** Ignores write errors: a command may exit without reading all of its input. */
async function feed(running: Awaited<ReturnType<Sandbox['spawn']>>, text: string): Promise<void> {
  try {
    await running.write(Buffer.from(text))
    running.endInput()
  } catch {
    // The command's outcome reports what happened.
  }
}

/** Where a server mounts MCP, and extensions of its tools. */
export type McpMountOptions = {
  readonly path?: string
  readonly extend?: McpOptions['extend']
  /** Begins the ids of sessions; tells which of several servers keeps one. */
  readonly sessionPrefix?: string | undefined
  readonly gateway?: McpGateway | undefined
}

/** The `/mcp` route. Its tools call `/v1` with the caller's key, so they permit nothing that `/v1` does not. */
export function mcpMount(
  version: string,
  { path = '/mcp', extend, sessionPrefix, gateway }: McpMountOptions = {},
): Mount {
  const mcp = new McpHttp({ version, sessionPrefix, ...(extend && { extend }) })
  return (app, { authenticate, parts }) => {
    app.all(path, async (context) => {
      const principal = await authenticate(context, 'exec')
      const { keyId, tenant } = principal
      const headers = context.req.raw.headers
      const host = headers.get('host') ?? 'localhost'
      const bearer = /^Bearer (.+)$/i.exec(headers.get('authorization') ?? '')?.[1]
      const apiKey = bearer ?? headers.get('x-api-key') ?? ''
      const inside: typeof fetch = async (input, init) =>
        app.request(String(input), {
          ...init,
          headers: { ...(init?.headers as Record<string, string>), host },
        })
      const client = new RingfenceClient({ url: `http://${host}`, apiKey, fetch: inside })
      return mcp.handle(context.req.raw, {
        keyId,
        tenant,
        open: (agentId) => openOnServer(client, agentId),
        gateway: gateway && ((agentId) => serverGateway(gateway, parts.approvals, principal, agentId)),
      })
    })
  }
}

/** The gateway for one key; the key is the caller whatever the client says. */
function serverGateway(
  gateway: McpGateway,
  approvals: Approvals,
  principal: Principal,
  agentId: () => string,
): ToolGateway {
  const caller = () => ({ ...requesterOf(principal), keyId: principal.keyId, agentId: agentId() })
  return gatewayTools(gateway, caller, askOnServer(gateway, approvals, caller))
}
