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
import { readText } from '../operations/files.ts'
import { OPERATIONS } from '../operations/index.ts'
import { failure, type Operation, perform, Question, type Result } from '../operations/operation.ts'
import type { AgentSession } from '../session.ts'

/** The SDK, loaded by whoever speaks MCP and by nobody else. */
export type McpSdk = typeof import('@modelcontextprotocol/server')
export const loadMcp = (): Promise<McpSdk> => import('@modelcontextprotocol/server')

export type McpOptions = {
  readonly session: AgentSession
  readonly version: string
  /** Hears who the client says it is, before the first tool runs. */
  readonly onClient?: (name: string) => void
  /** Adds to a server before it is used: for the conformance suite's fixtures. */
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
  'Everything runs in one sandbox of this session; its workspace is where relative paths begin. ' +
  'Commands are judged by a policy first; an `error:` says what to do instead. After the sandbox ended, `sandbox_reset` gives a fresh one.'

const TRAIL = 'ringfence://trail'
const FILE = 'ringfence://file'

/** One MCP server over one agent's session; it serves one connection, or one request of the newest revision. */
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
        title: 'What was decided and done in this sandbox',
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
  // Nothing here reaches the world but what policy lets out of the sandbox.
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
  const answered = session.approvals.take(Object.keys(mcpReq.inputResponses ?? {}), name, args)
  const answer = answered === undefined ? undefined : sdk.inputResponse(mcpReq.inputResponses, answered)
  if (answer?.kind === 'elicit' && !saidYes(answer))
    return toolResult(failure(new SandboxError('approval-required', 'the person said no')))
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

/** The newest revision says with each request what older ones said in the handshake. */
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
 * SECURITY: the agent chose this text. What is left out of it is counted in its place, and what would look like lines of ours, or
 * like nothing, is spelled out.
 */
const shown = (text: string): string => clip(visible(text), SHOWN_CHARACTERS)

/** The person at the client is asked; the client then sends the very same call again with the answer. */
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
