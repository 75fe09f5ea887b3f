import type { Client, Transport } from '@modelcontextprotocol/client'
import { proxiedFetch } from '../../egress/fetch/proxied-fetch.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Event } from '../../model/event.ts'
import type { McpServerConfig } from '../../model/mcp-config.ts'
import { OPERATOR } from '../../model/requester.ts'
import { parseSpec, type Spec } from '../../model/spec.ts'
import { visible } from '../../model/text/visible.ts'
import { describeTool, type ToolDescription } from '../../policy/mcp/tool-description.ts'
import type { Gate } from '../gate.ts'
import { SandboxTransport } from './sandbox-transport.ts'

/** One connected MCP server of one tenant. */

/** What a connection is made of. */
export type UpstreamParts = {
  readonly gate: Pick<Gate, 'open' | 'openEgress'>
  readonly record: (event: Event) => Promise<void>
  readonly newId: (prefix: string) => string
  readonly version: string
}

type Sdk = typeof import('@modelcontextprotocol/client')

const MAX_TOOLS = 256
const MAX_PAGES = 16
const CONNECT_MS = 30_000
const MEMORY_MB = 1024
const PIDS = 256
const MAX_RESULT = 1024 * 1024
/** A message has an envelope around the result, and escapes. */
const ENVELOPE = 256 * 1024
/** Records of refused requests of one server; later ones are refused without a record. */
const MAX_REFUSALS = 32

/** The limits of one result. */
export const resultLimit = ({ max_result_bytes = MAX_RESULT }: McpServerConfig): number => max_result_bytes

/** How the transport is opened, under which id it is recorded, and how it is closed. */
type Opened = {
  readonly id: string
  readonly transport: Transport
  readonly close: () => Promise<void>
  readonly why: () => string | undefined
}

/** Connects to a server: its program in a sandbox of its own, or its URL through the proxy. */
export async function connectUpstream(
  config: McpServerConfig,
  { owner, id }: { readonly owner: string; readonly id: string },
  parts: UpstreamParts,
): Promise<Upstream> {
  const sdk = await import('@modelcontextprotocol/client')
  const opened = await (config.url === undefined
    ? program(sdk, config, { owner, id }, parts)
    : remote(sdk, config, id, parts))
  const client = new sdk.Client(
    { name: 'ringfence', version: parts.version },
    {
      // SECURITY: no sampling, no elicitation, no roots. An answer that asks for input is refused too.
      capabilities: {},
      inputRequired: { autoFulfill: false },
      versionNegotiation: { mode: config.url === undefined ? 'legacy' : 'auto' },
      // Schemas of the server are never compiled here.
      jsonSchemaValidator: {
        getValidator: () => (input) => ({ valid: true, data: input as never, errorMessage: undefined }),
      },
    },
  )
  refuseRequests(sdk, client, config, opened, parts)
  const upstream = new Upstream(config, client, opened)
  try {
    await client.connect(opened.transport, { timeout: CONNECT_MS, maxTotalTimeout: CONNECT_MS })
    await upstream.listTools()
    return upstream
  } catch (error) {
    await upstream.close()
    throw unreachable(config, opened.why(), error, UNAPPROVED)
  }
}

/** A connected server. */
export class Upstream {
  readonly #config: McpServerConfig
  readonly #client: Client
  readonly #opened: Opened
  #tools: readonly ToolDescription[] = []
  #refused: readonly string[] = []
  #isStale = false
  #ended = false

  constructor(config: McpServerConfig, client: Client, opened: Opened) {
    this.#config = config
    this.#client = client
    this.#opened = opened
    client.onclose = () => {
      this.#ended = true
    }
    client.setNotificationHandler('notifications/tools/list_changed', () => {
      this.#isStale = true
    })
  }

  /** The sandbox of the program, or the id under which connections are recorded. */
  get id(): string {
    return this.#opened.id
  }

  get isEnded(): boolean {
    return this.#ended
  }

  /** Tools that are not offered, with the reason. */
  get refused(): readonly string[] {
    return this.#refused
  }

  /** The tools; asked again if the server said that they changed. */
  async tools(): Promise<readonly ToolDescription[]> {
    if (this.#isStale) await this.listTools()
    return this.#tools
  }

  async listTools(): Promise<void> {
    this.#isStale = false
    const raw: unknown[] = []
    let cursor: string | undefined
    for (let page = 0; page < MAX_PAGES && raw.length <= MAX_TOOLS; page++) {
      const params = cursor === undefined ? {} : { cursor }
      const answer = await this.#ask(
        () =>
          this.#client.request(
            { method: 'tools/list', params },
            { timeout: CONNECT_MS, maxTotalTimeout: CONNECT_MS },
          ),
        UNAPPROVED,
      )
      raw.push(...answer.tools)
      cursor = answer.nextCursor
      if (cursor === undefined) break
    }
    this.#sort(raw)
  }

  #sort(raw: readonly unknown[]): void {
    const described = raw.slice(0, MAX_TOOLS).map((one) => describeTool(this.#config.name, one))
    const tools = described.filter((one): one is ToolDescription => 'name' in one)
    const isFirst = (tool: ToolDescription, index: number): boolean =>
      tools.findIndex(({ name }) => name === tool.name) === index
    this.#tools = tools.filter(isFirst)
    this.#refused = [
      ...described.flatMap((one) => ('refused' in one ? [one.refused] : [])),
      ...tools
        .filter((tool, index) => !isFirst(tool, index))
        .map(({ name }) => `\`${name}\`: there is another one`),
      ...(raw.length > MAX_TOOLS ? [`${raw.length - MAX_TOOLS} tools beyond the first ${MAX_TOOLS}`] : []),
    ]
  }

  /** Calls a tool; the result is not checked yet. */
  async call(tool: string, args: Record<string, unknown>, signal: AbortSignal | undefined): Promise<unknown> {
    const timeout = (this.#config.timeout_secs ?? 60) * 1000
    return this.#ask(() =>
      this.#client.request(
        { method: 'tools/call', params: { name: tool, arguments: args } },
        { timeout, maxTotalTimeout: timeout, ...(signal ? { signal } : {}) },
      ),
    )
  }

  async #ask<T>(work: () => Promise<T>, words?: typeof UNAPPROVED): Promise<T> {
    try {
      return await work()
    } catch (error) {
      throw unreachable(this.#config, this.#opened.why(), error, words)
    }
  }

  async close(): Promise<void> {
    this.#ended = true
    await this.#client.close().catch(() => {})
    await this.#opened.close().catch(() => {})
  }
}

/** The program in a sandbox: offline, and with nothing of the host, unless the configuration says so. */
async function program(
  sdk: Sdk,
  config: McpServerConfig,
  { owner, id }: { readonly owner: string; readonly id: string },
  parts: UpstreamParts,
): Promise<Opened> {
  const sandbox = await parts.gate.open(programSpec(config), { requester: OPERATOR, owner, id })
  const maxBufferSize = resultLimit(config) + ENVELOPE
  const transport = new SandboxTransport(
    (output) =>
      sandbox.spawn(config.command ?? [], {
        stdin: true,
        output,
        // The operator wrote the command into the configuration; what the policy denies stays denied.
        approve: () => ({ approved: true, by: 'configuration' }),
      }),
    new sdk.ReadBuffer({ maxBufferSize }),
    maxBufferSize,
  )
  return { id: sandbox.id, transport, close: () => sandbox.close(), why: () => transport.reason }
}

/** The sandbox of a program, as a request that the policy checks. */
function programSpec(config: McpServerConfig): Spec {
  const { read, write, hosts, secrets, env, memory_mb = MEMORY_MB } = config
  const isOnline = Boolean(hosts?.length || secrets?.length)
  return parseSpec({
    agentId: `mcp/${config.name}`,
    network: isOnline
      ? { mode: 'fetch', ...(hosts && { allowHosts: hosts }), unlisted: 'deny' }
      : { mode: 'offline' },
    limits: { memoryMb: memory_mb, pids: PIDS },
    ...(read && { read }),
    ...(write && { write }),
    ...(secrets && { secrets }),
    ...(env && { env }),
  })
}

async function remote(sdk: Sdk, config: McpServerConfig, id: string, parts: UpstreamParts): Promise<Opened> {
  const url = new URL(config.url ?? '')
  const host = `${url.hostname}:${url.port || (url.protocol === 'https:' ? 443 : 80)}`
  const { egress, facts } = await parts.gate.openEgress(
    {
      agentId: `mcp/${config.name}`,
      network: { mode: 'fetch', allowHosts: [host], unlisted: 'deny' },
      ...(config.secrets && { secrets: config.secrets }),
    },
    id,
    OPERATOR,
  )
  const send = proxiedFetch({
    handle: (stream) => egress.handle(stream),
    certificates: facts.certificates,
    maxBytes: resultLimit(config) + ENVELOPE,
  })
  const transport = new sdk.StreamableHTTPClientTransport(url, {
    requestInit: { headers: headersOf(config, facts.placeholders) },
    reconnectionOptions: {
      maxRetries: 0,
      initialReconnectionDelay: 1000,
      maxReconnectionDelay: 1000,
      reconnectionDelayGrowFactor: 1,
    },
    // No stream from the server to us: nothing that it could ask for is answered.
    fetch: async (input, init) =>
      init?.method === 'GET' ? new Response(null, { status: 405 }) : send(input, init),
  })
  return { id, transport, close: async () => egress.close(), why: () => undefined }
}

/** The headers, with placeholders for secrets; the proxy replaces them on the way. */
function headersOf(
  { name, headers = {} }: McpServerConfig,
  placeholders: Readonly<Record<string, string>>,
): Record<string, string> {
  const filled = (value: string): string =>
    value.replace(/\$\{([^}]*)\}/g, (_, secret: string) => {
      const found = Object.hasOwn(placeholders, secret) ? placeholders[secret] : undefined
      if (found !== undefined) return found
      throw new SandboxError(
        'invalid-config',
        `[[mcp]] \`${name}\` has no secret \`${visible(secret).slice(0, 64)}\``,
        {
          hint: `add it: \`secrets = ["${secret}=SECRET@HOST"]\``,
        },
      )
    })
  return Object.fromEntries(Object.entries(headers).map(([header, value]) => [header, filled(value)]))
}

/** Sampling, elicitation, roots and everything else that a server could ask of its client is refused and recorded. */
function refuseRequests(
  sdk: Sdk,
  client: Client,
  { name }: McpServerConfig,
  { id }: Opened,
  { record }: UpstreamParts,
): void {
  let refusals = 0
  client.fallbackRequestHandler = async ({ method }) => {
    const asked = visible(method).slice(0, 64)
    if (++refusals <= MAX_REFUSALS)
      await record({
        event: 'SandboxViolation',
        sandbox_id: id,
        agent_id: `mcp/${name}`,
        violation_type: 'CapabilityDenied',
        details: `the MCP server \`${name}\` asked its client for \`${asked}\``,
      })
    throw new sdk.ProtocolError(
      sdk.ProtocolErrorCode.MethodNotFound,
      'Ringfence does not answer requests of MCP servers',
    )
  }
}

/** SECURITY: before a call of an approved tool, no word of the server may reach a model, not even in an error. */
const UNAPPROVED = 'unapproved'

/** What a server said when it failed, for the operator. */
export const wordsOf = ({ cause }: SandboxError): string | undefined =>
  cause instanceof Error ? visible(cause.message).slice(0, 500) : undefined

function unreachable(
  { name }: McpServerConfig,
  why: string | undefined,
  cause: unknown,
  words?: typeof UNAPPROVED,
): SandboxError {
  if (cause instanceof SandboxError) return cause
  const said = visible((cause as Error).message ?? '').slice(0, 500)
  if (/request timed out|timeout/i.test(said) && why === undefined)
    return new SandboxError('timeout', `the MCP server \`${name}\` did not answer in time`, { cause })
  if (/^invalid result/i.test(said))
    return new SandboxError(
      'unreachable',
      `the MCP server \`${name}\` sent an answer that is not valid MCP`,
      { cause },
    )
  const told = words === UNAPPROVED ? 'the operator sees why with `ringfence mcp ls`' : said
  return new SandboxError('unreachable', `the MCP server \`${name}\` failed: ${why ?? told}`, { cause })
}
