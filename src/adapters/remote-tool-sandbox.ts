import type { RingfenceClient } from '../client/client.ts'
import type { RemoteSandbox } from '../client/sandbox.ts'
import type { ExecEvent, FileInfo, SandboxInfo } from '../client/types.ts'
import { SandboxError } from '../model/errors.ts'
import {
  type CommandEnd,
  type RunningToolCommand,
  type StartOptions,
  TERMINAL,
  type ToolSandbox,
  type ToolSandboxDescription,
  type ToolSandboxEntry,
} from './tool-sandbox.ts'

/** Opens a sandbox on a server. */
export async function openOnServer(client: RingfenceClient, agentId: string): Promise<ToolSandbox> {
  const sandbox = await client.create({ agent_id: agentId })
  const { stdout } = await sandbox.exec(['pwd'])
  return remoteToolSandbox(client, sandbox, stdout.trim() || '/tmp')
}

/** A remote sandbox for tools. */
export function remoteToolSandbox(
  client: RingfenceClient,
  sandbox: RemoteSandbox,
  workspace: string,
): ToolSandbox {
  return {
    id: sandbox.id,
    workspace,
    describe: async () => descriptionOf(await sandbox.refresh()),
    start: (command, options) => start(client, sandbox, command, options),
    files: {
      read: (path, range) => sandbox.files.read(path, range),
      write: async (path, data) => void (await sandbox.files.write(path, data)),
      list: async (path, depth) => (await sandbox.files.list(path, depth)).map(entryOf),
      stat: async (path) => entryOf(await sandbox.files.stat(path)),
      remove: (path) => sandbox.files.remove(path),
    },
    judge: (command, { cwd } = {}) => client.evaluate(command, workspace, { sandboxId: sandbox.id, cwd }),
    setAllowHosts: async (hosts) => (await sandbox.setAllowHosts(hosts)).hosts ?? [],
    portUrl: async (port) => sandbox.portUrl(port),
    trail: async (limit) => (await sandbox.logs()).items.slice(-limit),
    close: async () => void (await sandbox.close()),
  }
}

const entryOf = ({ name, path, kind, size, modified_at }: FileInfo): ToolSandboxEntry => ({
  name,
  path,
  kind,
  size,
  modifiedMs: Date.parse(modified_at),
})

function descriptionOf({ backend, level, network, agent_id }: SandboxInfo): ToolSandboxDescription {
  return {
    backend: backend ?? 'unknown',
    level: level ?? 'unknown',
    network: { mode: network.mode, allowHosts: network.allow_hosts },
    ...(agent_id === null ? {} : { agentId: agent_id }),
  }
}

async function start(
  client: RingfenceClient,
  sandbox: RemoteSandbox,
  command: string | readonly string[],
  options: StartOptions,
): Promise<RunningToolCommand> {
  const { cwd, env, stdin, stdinOpen, terminal, timeoutMs } = options
  const events = sandbox.stream(command, {
    ...(cwd === undefined ? {} : { cwd }),
    ...(env === undefined ? {} : { env }),
    ...(stdin === undefined ? {} : { stdin }),
    ...(stdinOpen ? { stdin_open: true } : {}),
    ...(terminal ? { terminal: TERMINAL } : {}),
    ...(timeoutMs === undefined ? {} : { timeout_ms: timeoutMs }),
  })
  const id = await begun(client, events, options)
  const ended = follow(events, options)
  ended.catch(() => {})
  const stop = (): void => void sandbox.signal(id, 'SIGKILL').catch(() => {})
  if (options.signal?.aborted) stop()
  options.signal?.addEventListener('abort', stop, { once: true })
  return {
    id,
    write: (data) => sandbox.write(id, data),
    endInput: () => sandbox.write(id, '', true),
    signal: (name) => sandbox.signal(id, name),
    ended: ended.finally(() => options.signal?.removeEventListener('abort', stop)),
  }
}

/** Waits until the command runs. An approval that is not answered here waits for an operator of the server. */
async function begun(
  client: RingfenceClient,
  events: AsyncGenerator<ExecEvent, void>,
  { approved }: StartOptions,
): Promise<string> {
  for (;;) {
    const { value, done } = await events.next()
    if (done) throw new SandboxError('unreachable', 'the connection was lost before the command started')
    if (value.type === 'approval' && approved) await client.answer(value.id, true)
    if (value.type === 'start') return value.exec_id
  }
}

async function follow(
  events: AsyncGenerator<ExecEvent, void>,
  { output }: StartOptions,
): Promise<CommandEnd> {
  for await (const event of events) {
    if (event.type === 'stdout' || event.type === 'stderr') await output(event.type, event.data)
    if (event.type === 'end') {
      const { outcome, truncated, duration_ms, violations, hint } = event.result
      const more = hint === undefined ? {} : { hint }
      if (outcome) return { outcome, truncated, durationMs: duration_ms ?? 0, violations, ...more }
    }
  }
  throw new SandboxError('unreachable', 'the connection was lost before the command ended')
}
