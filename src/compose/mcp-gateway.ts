import { join } from 'node:path'
import type { ToolGateway } from '../adapters/mcp/gateway.ts'
import { McpHttp } from '../adapters/mcp/http.ts'
import { type Call, type Particulars, Question } from '../adapters/operations/operation.ts'
import { SandboxError } from '../model/errors.ts'
import { object, optional, text } from '../model/shape.ts'
import { exposedName, type ToolDescription } from '../policy/mcp/tool-description.ts'
import type { ToolDecision } from '../policy/mcp/tool-rules.ts'
import type { E2bParts } from '../server/e2b/sandbox-request.ts'
import { requesterOf } from '../supervisor/access/keys.ts'
import type { Approvals } from '../supervisor/approvals/approvals.ts'
import {
  McpGateway,
  type McpGatewayCaller,
  type McpServerState,
  type OfferedTool,
  type ToolApproval,
} from '../supervisor/mcp/gateway.ts'
import { ToolPins, type UnapprovedTool } from '../supervisor/mcp/tool-pins.ts'
import { newId, type Ringfence } from './compose.ts'

/** Connects the MCP gateway to the configuration, the gate and the clients. */

/** What a person is asked about. */
type ToolQuestion = {
  readonly what: string
  readonly why: string
  readonly particulars: Particulars
  readonly server: string
  readonly decision: ToolDecision
}

/** Asks a person and returns the approval; throws if there is none. */
export type AskAboutTool = (question: ToolQuestion, call: Call) => Promise<ToolApproval>

const NO_SERVERS = [] as const
/** How long a client waits for the tools of a server that starts. */
const LIST_MS = 8000

/** The gateway of a process. */
export const gatewayOf = ({ gate, trail, current, stateDir }: Ringfence, version: string): McpGateway =>
  new McpGateway({
    gate,
    newId,
    version,
    record: (event) => trail.append(event),
    servers: () => current().mcp ?? NO_SERVERS,
    pins: new ToolPins(join(stateDir, 'mcp', 'tools.json')),
  })

const SERVERS = 'mcp_servers'
const serversInput = object({ approve: optional(text({ max: 64 })) })

/** The gateway's tools for one client. `among`: only these servers. */
export function gatewayTools(
  gateway: McpGateway,
  caller: () => McpGatewayCaller,
  ask: AskAboutTool,
  among?: readonly string[],
): ToolGateway {
  const asked: AskedDescriptions = new Map()
  const names = (): readonly string[] =>
    gateway.names(caller()).filter((name) => among?.includes(name) ?? true)
  return {
    async list(onLate) {
      const offered = await Promise.all(
        names().map((name) => inTime(gateway.tools(caller(), [name]), onLate)),
      )
      return names().length === 0 ? [] : [SERVERS_TOOL, ...offered.flat().map(toolOf)]
    },
    owns: (name) => name === SERVERS || names().some((server) => name.startsWith(`${server}__`)),
    isForPerson: (name) => name === SERVERS,
    changesTools: (name) => name === SERVERS,
    async call(name, args, call) {
      if (name === SERVERS)
        return serversTool({ gateway, caller: caller(), names: names(), asked, ask }, args, call)
      const decision = gateway.judge(caller(), name, args)
      const isAsked = decision.action === 'ask'
      if (isAsked && !call.approved) await gateway.asked(caller(), name, args)
      const approval = isAsked ? await ask(questionAbout(decision, name, args), call) : undefined
      const { content, isError } = await gateway.call(caller(), name, args, { approval, signal: call.signal })
      return { content: [...content], ...(isError ? { isError } : {}) }
    },
  }
}

const SERVERS_TOOL = {
  name: SERVERS,
  title: 'Other MCP servers',
  description:
    'Lists the MCP servers behind this one and their state. Their tools are named `server__tool`. Tools that are new or whose ' +
    'description changed must be approved by a person first: `{"approve": "server"}` asks for it.',
  inputSchema: { ...serversInput.schema, type: 'object' as const },
  annotations: { readOnlyHint: false, destructiveHint: false, idempotentHint: true, openWorldHint: false },
}

/** A server that is slow to start must not delay the others. */
async function inTime(
  tools: Promise<readonly OfferedTool[]>,
  onLate: () => void,
): Promise<readonly OfferedTool[]> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(() => resolve(undefined), LIST_MS)
  })
  const found = await Promise.race([tools, late])
  clearTimeout(timer)
  if (found) return found
  void tools.then((all) => all.length > 0 && onLate()).catch(() => {})
  return []
}

const toolOf = ({ server, tool }: OfferedTool) => ({
  ...tool,
  name: exposedName(server, tool.name),
  annotations: { ...tool.annotations, ...(tool.title === undefined ? {} : { title: tool.title }) },
})

function questionAbout(
  decision: ToolDecision & { readonly server: string; readonly tool: string },
  name: string,
  args: unknown,
): ToolQuestion {
  return {
    what: `${name} ${JSON.stringify(args ?? {})}`,
    why: decision.reason,
    particulars: [],
    server: decision.server,
    decision,
  }
}

/** What the person at a client was asked about last, by server. */
type AskedDescriptions = Map<string, string>

type ServersContext = {
  readonly gateway: McpGateway
  readonly caller: McpGatewayCaller
  readonly names: readonly string[]
  readonly asked: AskedDescriptions
  readonly ask: AskAboutTool
}

async function serversTool(context: ServersContext, args: unknown, call: Call) {
  const { gateway, caller, names } = context
  const { approve } = serversInput.parse(args ?? {}, '')
  if (approve !== undefined && !names.includes(approve))
    throw new SandboxError('not-found', `no MCP server \`${approve}\``, {
      hint: `one of: ${names.join(', ')}`,
    })
  const said = approve === undefined ? undefined : await approveTools(context, approve, call)
  const states = await Promise.all(names.map((name) => gateway.state(caller, name)))
  const text = [...(said ? [said] : []), ...states.map(stateLine)].join('\n')
  return { content: [{ type: 'text' as const, text }] }
}

/**
 * SECURITY: a client repeats the call with the person's answer, and a server may change its descriptions in between. An answer
 * counts only for the descriptions that were shown.
 */
async function approveTools(
  { gateway, caller, asked, ask }: ServersContext,
  name: string,
  call: Call,
): Promise<string> {
  const state = await gateway.state(caller, name)
  if (state.problem !== undefined) return `\`${name}\` cannot be used: ${state.problem}`
  if (state.unapproved.length === 0) return `all tools of \`${name}\` are approved`
  const tools = state.unapproved.map(({ tool }) => tool)
  const shown = JSON.stringify(tools)
  const isSame = asked.get(name) === shown
  asked.set(name, shown)
  const approval = await ask(
    descriptionQuestion(name, state.unapproved),
    isSame ? call : { ...call, approved: undefined },
  )
  await gateway.approve(caller, name, tools, approval)
  asked.delete(name)
  return `approved ${tools.length} ${tools.length === 1 ? 'tool' : 'tools'} of \`${name}\`; list the tools again`
}

/** What a person reads before a model does. */
function descriptionQuestion(server: string, unapproved: readonly UnapprovedTool[]): ToolQuestion {
  const reason =
    'descriptions of tools are instructions to the model; approve them only if they say what you expect'
  return {
    what: `show ${unapproved.length} tools of the MCP server ${server} to the agent`,
    why: reason,
    particulars: unapproved.map(({ tool, before }) => [
      before === undefined ? `new tool ${tool.name}` : `changed tool ${tool.name}`,
      describedText(tool, before),
    ]),
    server,
    decision: { action: 'ask', reason, rules: ['mcp/tools'] },
  }
}

/** Everything about a tool that a model reads. */
export const describedText = (
  { title, description, inputSchema, annotations }: ToolDescription,
  before?: string,
): string =>
  [
    ...(title === undefined ? [] : [`title: ${title}`]),
    description,
    `arguments: ${JSON.stringify(inputSchema)}`,
    `annotations: ${JSON.stringify(annotations)}`,
    ...(before === undefined ? [] : [`approved before: ${before}`]),
  ].join('\n')

/** SECURITY: names of unapproved tools are the server's own text, so a model reads only how many there are. */
function stateLine({ name, tools, unapproved, refused, problem }: McpServerState): string {
  if (problem !== undefined) return `${name}: not available: ${problem}`
  const waiting = unapproved.length === 0 ? '' : `, ${unapproved.length} wait for approval`
  const odd = refused.length === 0 ? '' : `, ${refused.length} not offered`
  return `${name}: ${tools.length} tools${waiting}${odd}`
}

/** PLATFORM: a client shows a short form; longer descriptions are read on the terminal. */
const MAX_SHOWN = 2000
const MAX_SHOWN_TOGETHER = 12_000
/** The most of an approval on a server. */
const MAX_STORED = 65_536

const isShownWhole = (particulars: Particulars): boolean =>
  particulars.every(([, shown]) => shown.length <= MAX_SHOWN) &&
  particulars.reduce((sum, [, shown]) => sum + shown.length, 0) <= MAX_SHOWN_TOGETHER

/** Asks the person at the client of `ringfence mcp`. */
export const askAtClient: AskAboutTool = async ({ what, why, particulars, server, decision }, call) => {
  if (call.approved) return { by: call.approved }
  // SECURITY: nobody approves what is not shown in full.
  if (call.canAsk && isShownWhole(particulars)) throw new Question(what, why, particulars)
  const isAboutTools = decision.rules[0] === 'mcp/tools'
  const way = isAboutTools
    ? `run \`ringfence mcp approve ${server}\``
    : `a rule in [[mcp]] \`${server}\` can allow it`
  throw new SandboxError('approval-required', `${why} (${way})`)
}

/** What the server's approvals need to know about a caller. */
export type ServerCaller = McpGatewayCaller & { readonly keyId: string }

/**
 * Asks the operator of a server. A key with the scope `admin` may also answer at its own client. SECURITY: unless the client
 * holds something less than that key, like the token of a gateway that programs in a sandbox can read.
 */
export const askOnServer =
  (
    gateway: McpGateway,
    approvals: Approvals,
    caller: () => ServerCaller,
    client: 'holds the key' | 'holds a token' = 'holds the key',
  ): AskAboutTool =>
  async (question, call) => {
    const { keyId, tenant, operator, agentId } = caller()
    const answers = operator && client === 'holds the key'
    if (answers && call.approved === 'client') return { by: keyId }
    if (answers && call.canAsk && isShownWhole(question.particulars)) return askAtClient(question, call)
    const { what, particulars, server, decision } = question
    const told = particulars.map(([name, shown]) => `${name}: ${shown}`)
    if (told.join('').length > MAX_STORED)
      throw new SandboxError(
        'approval-required',
        `${decision.reason} (they are too long for an approval: run \`ringfence mcp approve ${server}\` on the server)`,
      )
    const answer = await approvals.ask({
      tenant,
      sandboxId: await gateway.connectionId(caller(), server),
      execId: newId('call'),
      agentId,
      command: ['mcp', what, ...told].join('\n'),
      cwd: '',
      decision: { ...decision, commands: [] },
      ...(call.signal ? { signal: call.signal } : {}),
    })
    if (answer.state === 'approved') return { by: answer.by ?? 'operator', approvalId: answer.approvalId }
    const said =
      answer.state === 'expired' ? 'not answered' : `rejected${answer.reason ? `: ${answer.reason}` : ''}`
    throw new SandboxError('approval-required', `${decision.reason} (${said})`, { reasons: [said] })
  }

/** The gateway for E2B's sandboxes that selected servers: no tools of our own, and the key that made the sandbox as caller. */
export function e2bGateway(
  gateway: McpGateway,
  approvals: () => Approvals,
  version: string,
): E2bParts['mcp'] {
  const mcp = new McpHttp({ version, ownTools: false })
  const none = async (): Promise<never> => {
    throw new SandboxError('unsupported', 'only tools of MCP servers are offered here')
  }
  return {
    names: (principal) => gateway.names(requesterOf(principal)),
    serve(request, principal, sandboxId, names) {
      const caller = (): ServerCaller => ({
        ...requesterOf(principal),
        keyId: principal.keyId,
        agentId: `e2b/${sandboxId}`,
      })
      return mcp.handle(request, {
        keyId: `sandbox ${sandboxId}`,
        tenant: principal.tenant,
        open: none,
        gateway: () =>
          gatewayTools(gateway, caller, askOnServer(gateway, approvals(), caller, 'holds a token'), names),
      })
    },
  }
}
