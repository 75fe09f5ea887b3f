import type {
  CallToolResult,
  InputRequiredResult,
  ReadResourceResult,
  Server,
  ServerContext,
  Tool,
} from '@modelcontextprotocol/server'
import { SandboxError } from '../../model/errors.ts'
import { visible } from '../../model/text/visible.ts'
import { clip } from '../capture.ts'
import { type AskHost, HOST_FORM, hostAnswerOf } from '../host-elicitation.ts'
import { readText } from '../operations/files.ts'
import { OPERATIONS } from '../operations/index.ts'
import { EFFECTS, failure, type Operation, perform, Question, type Result } from '../operations/operation.ts'
import type { AgentSession } from '../session.ts'
import type { ToolGateway } from './gateway.ts'

/** The MCP SDK, loaded on first use. */
export type McpSdk = typeof import('@modelcontextprotocol/server')
/** Loads the MCP SDK when it is first needed. */
export const loadMcp = (): Promise<McpSdk> => import('@modelcontextprotocol/server')

/** The session and the extensions of an MCP server. */
export type McpOptions = {
  readonly session: AgentSession
  readonly version: string
  /** Commands that need approval are approved (`ringfence mcp --yes`). */
  readonly approveAll?: boolean
  /** Receives the client's name before the first tool call. */
  readonly onClient?: (name: string) => void
  /** False: only tools of other servers are offered, and no sandbox. */
  readonly ownTools?: boolean | undefined
  /** Tools of other MCP servers. */
  readonly gateway?: ToolGateway | undefined
  /** Extends a server before use, for the fixtures of the conformance suite. */
  readonly extend?: (server: Server, ours: McpHandlers) => void
}

type McpHandlers = {
  readonly tools: readonly Tool[]
  readonly call: (
    name: string,
    args: unknown,
    context: ServerContext,
  ) => Promise<CallToolResult | InputRequiredResult>
}

const INSTRUCTIONS =
  'All tools of this session use one sandbox; relative paths start at its workspace. ' +
  'A policy checks each command first; an `error:` says what to do instead. If the sandbox has ended, `sandbox_reset` opens a new one.'

const TRAIL = 'ringfence://trail'
const FILE = 'ringfence://file'

/** An MCP server for one session; it serves one connection, or one request of the newest revision. */
export function mcpServer(sdk: McpSdk, options: McpOptions): Server {
  const { session, version, ownTools = true } = options
  const server = new sdk.Server(
    { name: 'ringfence', title: 'Ringfence sandbox', version },
    {
      capabilities: {
        tools: options.gateway ? { listChanged: true } : {},
        ...(ownTools ? { resources: {} } : {}),
      },
      ...(ownTools ? { instructions: INSTRUCTIONS } : {}),
    },
  )
  const tools = ownTools ? OPERATIONS.map(toolOf) : []
  const call: McpHandlers['call'] = (name, args, context) =>
    callTool(sdk, server, options, name, args, context)
  server.setRequestHandler('tools/list', async (_, context) => {
    const own = clientOf(sdk, server, context).structured ? tools : tools.map(withoutSchema)
    const others = await options.gateway?.list(() => toolsChanged(server))
    return { tools: [...own, ...(others ?? [])] }
  })
  server.setRequestHandler('tools/call', ({ params }, context) =>
    call(params.name, params.arguments, context),
  )
  if (ownTools) addResources(sdk, server, session)
  options.extend?.(server, { tools, call })
  return server
}

/** The audit records and the files of the session's sandbox. */
function addResources(sdk: McpSdk, server: Server, session: AgentSession): void {
  server.setRequestHandler('resources/list', () => ({
    resources: [
      {
        uri: TRAIL,
        name: 'trail',
        title: 'Audit records of this sandbox',
        mimeType: 'application/jsonl',
      },
    ],
  }))
  server.setRequestHandler('resources/templates/list', () => ({
    resourceTemplates: [{ uriTemplate: `${FILE}/{+path}`, name: 'file', title: 'A file in the sandbox' }],
  }))
  server.setRequestHandler('resources/read', ({ params }) => readResource(sdk, session, params.uri))
}

const toolOf = ({ name, title, about, input, output, effect }: Operation): Tool => ({
  name,
  title,
  description: about,
  inputSchema: { ...input.schema, type: 'object' },
  outputSchema: { ...output, type: 'object' },
  annotations: { title, ...EFFECTS[effect] },
})

/**
 * PLATFORM: Claude Code and Codex show their model the structured content only, if there is any: escaped JSON instead of
 * text, and no image. They get text and images alone, and a tool with an output schema must return structured content.
 */
const SHOWS_STRUCTURED_ONLY = /^(claude-code|codex)\b/i

const withoutSchema = ({ outputSchema: _, ...tool }: Tool): Tool => tool

/** Best effort: a client without a stream, or of the newest revision, lists the tools again by itself. */
const toolsChanged = (server: Server): void =>
  void server.notification({ method: 'notifications/tools/list_changed' }).catch(() => {})

async function callTool(
  sdk: McpSdk,
  server: Server,
  { session, onClient, gateway, ownTools = true, approveAll = false }: McpOptions,
  name: string,
  args: unknown,
  context: ServerContext,
): Promise<CallToolResult | InputRequiredResult> {
  const { mcpReq } = context
  const client = clientOf(sdk, server, context)
  onClient?.(client.name)
  if (client.canAsk) session.askHost = hostElicitation(context)
  const answered = session.approvals.take(Object.keys(mcpReq.inputResponses ?? {}), name, args)
  const answer = answered === undefined ? undefined : sdk.inputResponse(mcpReq.inputResponses, answered)
  const given = answer?.kind === 'elicit' ? answer : undefined
  const respond = (result: Result): CallToolResult => toolResult(result, client)
  if (given && !saidYes(given)) return respond(failure(notApproved(given.action)))
  try {
    const call = {
      signal: mcpReq.signal,
      canAsk: client.canAsk,
      approved: given
        ? ('client' as const)
        : approveAll && name !== REQUEST_HOST && !gateway?.isForPerson(name)
          ? ('--yes' as const)
          : undefined,
      progress: progressOf(context),
    }
    if (gateway?.owns(name)) {
      const result = await gateway.call(name, args, call)
      if (gateway.changesTools(name)) toolsChanged(server)
      return result
    }
    return respond(await perform(ownTools ? OPERATIONS : [], session, name, args ?? {}, call))
  } catch (error) {
    if (error instanceof Question) return question(sdk, error, session.approvals.ask(name, args))
    return respond(failure(error))
  }
}

/** SECURITY: `--yes` answers questions about commands; it never opens the network to a host that the agent names. */
const REQUEST_HOST = 'request_host'

/** The form has no field, so accepting it is a yes; a client that sends the field of older versions may still say no. */
const saidYes = ({ action, content }: { readonly action: string; readonly content?: unknown }): boolean =>
  action === 'accept' && (content as { readonly approve?: unknown } | undefined)?.approve !== false

/** PLATFORM: clients without a user decline or cancel by themselves, so the message does not claim that a person answered. */
const notApproved = (action: string): SandboxError =>
  new SandboxError(
    'approval-required',
    action === 'cancel'
      ? 'not approved: the question was closed without an answer'
      : 'not approved: the user declined, or the client declined because it has nobody to ask',
  )

/** Asks through the client while the call runs. PLATFORM: the newest revision has no requests from the server, so nobody is asked there. */
const hostElicitation =
  ({ mcpReq }: ServerContext): AskHost =>
  async ({ host, port, signal }) => {
    const message = `A program in the sandbox wants to reach ${visible(host)}:${port}, which is not on the list of allowed hosts.`
    try {
      return hostAnswerOf(await mcpReq.elicitInput({ message, requestedSchema: HOST_FORM }, { signal }))
    } catch {
      return { state: 'rejected', reason: 'the client could not be asked; call request_host first' }
    }
  }

type McpClient = {
  readonly name: string
  readonly canAsk: boolean
  /** Whether the client's model profits from structured content beside the text. */
  readonly structured: boolean
}

/** The newest revision sends with each request what older ones sent in the handshake. */
function clientOf(sdk: McpSdk, server: Server, { mcpReq }: ServerContext): McpClient {
  const envelope = mcpReq.envelope as Readonly<Record<string, unknown>> | undefined
  const info = envelope?.[sdk.CLIENT_INFO_META_KEY] as { readonly name?: string } | undefined
  const able = envelope?.[sdk.CLIENT_CAPABILITIES_META_KEY] as { readonly elicitation?: object } | undefined
  const { elicitation } = able ?? server.getClientCapabilities() ?? {}
  const name = info?.name ?? server.getClientVersion()?.name ?? 'unknown'
  return { name, canAsk: elicitation !== undefined, structured: !SHOWS_STRUCTURED_ONLY.test(name) }
}

const SHOWN_CHARACTERS = 2000

/**
 * SECURITY: the agent chose this text. Omitted parts are counted, and characters that could imitate our own lines or
 * are invisible are escaped.
 */
const shown = (text: string): string => clip(visible(text), SHOWN_CHARACTERS)

/** Asks the user through the client, which then sends the same call again with the answer. */
function question(sdk: McpSdk, { what, why, particulars }: Question, name: string): InputRequiredResult {
  const about = particulars.map(([label, text]) => `\n${label}: ${shown(text)}`).join('')
  const approve = sdk.inputRequired.elicit({
    message: `Allow this in the sandbox?\n\n${shown(what)}${about}\n\n${shown(why)}`,
    // No field: accepting the question is the approval. A box that starts unticked was sent as a no.
    requestedSchema: { type: 'object', properties: {} },
  })
  return sdk.inputRequired({ inputRequests: { [name]: approve } })
}

function progressOf({ mcpReq }: ServerContext): ((text: string) => void) | undefined {
  const progressToken = mcpReq._meta?.progressToken
  if (progressToken === undefined) return undefined
  let progress = 0
  return (message) => {
    const params = { progressToken, progress: ++progress, message }
    void mcpReq.notify({ method: 'notifications/progress', params }).catch(() => {})
  }
}

function toolResult({ ok, text, data, image }: Result, { structured }: McpClient): CallToolResult {
  const content: CallToolResult['content'] = [{ type: 'text', text }]
  if (image) content.push({ type: 'image', data: image.base64, mimeType: image.mime })
  if (!ok) return { content, isError: true }
  return structured ? { content, structuredContent: { ...data } } : { content }
}

async function readResource(sdk: McpSdk, session: AgentSession, uri: string): Promise<ReadResourceResult> {
  try {
    const sandbox = await session.sandbox()
    if (uri === TRAIL) {
      const lines = (await sandbox.trail(200)).map((record) => JSON.stringify(record))
      return { contents: [{ uri, mimeType: 'application/jsonl', text: lines.join('\n') }] }
    }
    if (uri.startsWith(`${FILE}/`)) {
      const text = await readText(sandbox, decodeURIComponent(uri.slice(FILE.length + 1)))
      return { contents: [{ uri, mimeType: 'text/plain', text }] }
    }
  } catch (error) {
    const known = failure(error).text.split('\n')[0] ?? 'failed'
    throw new sdk.ProtocolError(sdk.ProtocolErrorCode.InvalidParams, known, { uri })
  }
  throw new sdk.ResourceNotFoundError(uri)
}
