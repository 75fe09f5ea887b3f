import type {
  CallToolResult,
  InputRequiredResult,
  ReadResourceResult,
  Server,
  ServerContext,
  Tool,
} from '@modelcontextprotocol/server'
import { SandboxError } from '../../model/errors.ts'
import { visible } from '../../model/visible.ts'
import { clip } from '../capture.ts'
import { type AskHost, HOST_FORM, hostAnswerOf } from '../host-elicitation.ts'
import { readText } from '../operations/files.ts'
import { OPERATIONS } from '../operations/index.ts'
import { failure, type Operation, perform, Question, type Result } from '../operations/operation.ts'
import type { AgentSession } from '../session.ts'

/** The MCP SDK, loaded on first use. */
export type McpSdk = typeof import('@modelcontextprotocol/server')
/** Loads the MCP SDK when it is first needed. */
export const loadMcp = (): Promise<McpSdk> => import('@modelcontextprotocol/server')

/** The session and the extensions of an MCP server. */
export type McpOptions = {
  readonly session: AgentSession
  readonly version: string
  /** Receives the client's name before the first tool call. */
  readonly onClient?: (name: string) => void
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
  const { session, version } = options
  const server = new sdk.Server(
    { name: 'ringfence', title: 'Ringfence sandbox', version },
    { capabilities: { tools: {}, resources: {} }, instructions: INSTRUCTIONS },
  )
  const tools = OPERATIONS.map(toolOf)
  const call: McpHandlers['call'] = (name, args, context) =>
    callTool(sdk, server, options, name, args, context)
  server.setRequestHandler('tools/list', () => ({ tools }))
  server.setRequestHandler('tools/call', ({ params }, context) =>
    call(params.name, params.arguments, context),
  )
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
  options.extend?.(server, { tools, call })
  return server
}

const toolOf = ({ name, title, about, input, output, readOnly }: Operation): Tool => ({
  name,
  title,
  description: about,
  inputSchema: { ...input.schema, type: 'object' },
  outputSchema: { ...output, type: 'object' },
  // Tools affect the outside only as far as the policy permits.
  annotations: { title, readOnlyHint: readOnly ?? false, openWorldHint: false },
})

async function callTool(
  sdk: McpSdk,
  server: Server,
  { session, onClient }: McpOptions,
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
  if (answer?.kind === 'elicit' && !saidYes(answer))
    return toolResult(failure(new SandboxError('approval-required', 'the user rejected it')))
  try {
    const call = {
      signal: mcpReq.signal,
      canAsk: client.canAsk,
      approved: answer?.kind === 'elicit',
      progress: progressOf(context),
    }
    return toolResult(await perform(OPERATIONS, session, name, args ?? {}, call))
  } catch (error) {
    if (error instanceof Question) return question(sdk, error, session.approvals.ask(name, args))
    return toolResult(failure(error))
  }
}

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

/** The newest revision sends with each request what older ones sent in the handshake. */
function clientOf(
  sdk: McpSdk,
  server: Server,
  { mcpReq }: ServerContext,
): { readonly name: string; readonly canAsk: boolean } {
  const envelope = mcpReq.envelope as Readonly<Record<string, unknown>> | undefined
  const info = envelope?.[sdk.CLIENT_INFO_META_KEY] as { readonly name?: string } | undefined
  const able = envelope?.[sdk.CLIENT_CAPABILITIES_META_KEY] as { readonly elicitation?: object } | undefined
  const { elicitation } = able ?? server.getClientCapabilities() ?? {}
  return {
    name: info?.name ?? server.getClientVersion()?.name ?? 'unknown',
    canAsk: elicitation !== undefined,
  }
}

const saidYes = (answer: { readonly action: string; readonly content?: unknown }): boolean =>
  answer.action === 'accept' && (answer.content as { approve?: unknown } | undefined)?.approve === true

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
    requestedSchema: {
      type: 'object',
      properties: { approve: { type: 'boolean', title: 'Allow it', default: false } },
      required: ['approve'],
    },
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

function toolResult({ ok, text, data, image }: Result): CallToolResult {
  const content: CallToolResult['content'] = [{ type: 'text', text }]
  if (image) content.push({ type: 'image', data: image.base64, mimeType: image.mime })
  return ok ? { content, structuredContent: { ...data } } : { content, isError: true }
}

async function readResource(sdk: McpSdk, session: AgentSession, uri: string): Promise<ReadResourceResult> {
  try {
    const place = await session.place()
    if (uri === TRAIL) {
      const lines = (await place.trail(200)).map((record) => JSON.stringify(record))
      return { contents: [{ uri, mimeType: 'application/jsonl', text: lines.join('\n') }] }
    }
    if (uri.startsWith(`${FILE}/`)) {
      const text = await readText(place, decodeURIComponent(uri.slice(FILE.length + 1)))
      return { contents: [{ uri, mimeType: 'text/plain', text }] }
    }
  } catch (error) {
    const known = failure(error).text.split('\n')[0] ?? 'failed'
    throw new sdk.ProtocolError(sdk.ProtocolErrorCode.InvalidParams, known, { uri })
  }
  throw new sdk.ResourceNotFoundError(uri)
}
