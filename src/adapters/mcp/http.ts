import { createHash } from 'node:crypto'
import type { McpHttpHandler, WebStandardStreamableHTTPServerTransport } from '@modelcontextprotocol/server'
import { AgentSession } from '../session.ts'
import type { ToolSandbox } from '../tool-sandbox.ts'
import type { ToolGateway } from './gateway.ts'
import { loadMcp, type McpOptions, type McpSdk, mcpServer } from './server.ts'

/** `/mcp`: streamable HTTP, with sessions for older protocol revisions and single requests for the newest. */

const MAX_BODY = 16 * 1024 * 1024
/** Sessions per tenant, so that one tenant cannot use up another's. */
const MAX_SESSIONS = 64
const IDLE_MS = 30 * 60_000

/** Who sends a request: its key and its sandbox session. */
export type McpCaller = {
  /** The authenticated caller; a session belongs to one caller. */
  readonly keyId: string
  readonly tenant: string
  readonly open: (agentId: string) => Promise<ToolSandbox>
  /** Tools of other MCP servers that this key may use. */
  readonly gateway?: ((agentId: () => string) => ToolGateway) | undefined
}

type Transport = WebStandardStreamableHTTPServerTransport

type McpSession = {
  readonly owner: string
  readonly tenant: string
  readonly session: AgentSession
  readonly transport?: Transport
  readonly gateway?: ToolGateway | undefined
  /** The name that the client sent. */
  agent: string
  used: number
}

type McpHttpOptions = Pick<McpOptions, 'version' | 'extend' | 'ownTools'> & {
  /** Begins the ids of sessions; tells which of several servers keeps one. */
  readonly sessionPrefix?: string | undefined
}

/** Serves `/mcp` and keeps the sessions of its clients. */
export class McpHttp {
  readonly #options: McpHttpOptions
  readonly #held = new Map<string, McpSession>()
  #sdk: Promise<McpSdk> | undefined

  constructor(options: McpHttpOptions) {
    this.#options = options
  }

  async handle(request: Request, caller: McpCaller): Promise<Response> {
    this.#sdk ??= loadMcp()
    const sdk = await this.#sdk
    this.#sweep()
    if (!(await sdk.isLegacyRequest(request, undefined, { maxRequestBodySize: MAX_BODY })))
      return this.#single(sdk, caller).fetch(request)
    const id = request.headers.get('mcp-session-id')
    if (id === null) return this.#begin(sdk, request, caller)
    const held = this.#held.get(`session:${id}`)
    // SECURITY: a session of another key is reported as not found.
    if (!held?.transport || held.owner !== caller.keyId) return unknownSession()
    held.used = Date.now()
    return held.transport.handleRequest(request)
  }

  /** The transport itself rejects a request that is not a handshake. */
  async #begin(sdk: McpSdk, request: Request, caller: McpCaller): Promise<Response> {
    const own = [...this.#held.values()].filter(({ tenant }) => tenant === caller.tenant)
    if (own.length >= MAX_SESSIONS)
      return Response.json(rpcError(`this tenant already has ${own.length} sessions`), { status: 429 })
    const transport: Transport = new sdk.WebStandardStreamableHTTPServerTransport({
      sessionIdGenerator: () => `${this.#options.sessionPrefix ?? ''}${crypto.randomUUID()}`,
      maxRequestBodySize: MAX_BODY,
      onsessioninitialized: (id) => void this.#held.set(`session:${id}`, held),
      onsessionclosed: (id) => this.#drop(`session:${id}`),
    })
    const held = heldFor(caller, transport)
    await mcpServer(sdk, this.#serverOptions(held)).connect(transport)
    return transport.handleRequest(request)
  }

  /** The newest revision has no sessions: requests of a key share a sandbox, each with its own server object. */
  #single(sdk: McpSdk, caller: McpCaller): McpHttpHandler {
    const name = `key:${createHash('sha256').update(caller.keyId).digest('hex')}`
    const held = this.#held.get(name) ?? heldFor(caller)
    held.used = Date.now()
    this.#held.set(name, held)
    const options = this.#serverOptions(held)
    return sdk.createMcpHandler(() => mcpServer(sdk, options), {
      legacy: 'reject',
      maxRequestBodySize: MAX_BODY,
    })
  }

  #serverOptions(held: McpSession): McpOptions {
    const onClient = (name: string): void => {
      held.agent = agentOf(name)
    }
    return { ...this.#options, session: held.session, onClient, gateway: held.gateway }
  }

  #sweep(): void {
    for (const [id, { used }] of this.#held) if (Date.now() - used > IDLE_MS) void this.#drop(id)
  }

  async #drop(id: string): Promise<void> {
    const held = this.#held.get(id)
    this.#held.delete(id)
    await held?.session.close()
    await held?.transport?.close()
  }

  async close(): Promise<void> {
    await Promise.all([...this.#held.keys()].map((id) => this.#drop(id)))
  }
}

function heldFor(caller: McpCaller, transport?: Transport): McpSession {
  const held: McpSession = {
    owner: caller.keyId,
    tenant: caller.tenant,
    session: new AgentSession(() => caller.open(held.agent)),
    ...(transport && { transport }),
    gateway: caller.gateway?.(() => held.agent),
    agent: 'mcp',
    used: Date.now(),
  }
  return held
}

/** The agent name for the audit log, from the client's own name; only plain characters are kept. */
export const agentOf = (client: string): string => `mcp/${client.replace(/[^\w.-]/g, '_').slice(0, 64)}`

const rpcError = (message: string) => ({ jsonrpc: '2.0', error: { code: -32_001, message }, id: null })
const unknownSession = (): Response => Response.json(rpcError('no such session'), { status: 404 })
