import { createHash } from 'node:crypto'
import { canonical } from '../../audit/canonical.ts'
import { SandboxError } from '../../model/errors.ts'
import type { Event, Json } from '../../model/event.ts'
import type { McpServerConfig } from '../../model/mcp-config.ts'
import type { Requester } from '../../model/requester.ts'
import { splitName, type ToolDescription } from '../../policy/mcp/tool-description.ts'
import {
  compileToolRules,
  decideToolCall,
  type ToolDecision,
  type ToolRules,
} from '../../policy/mcp/tool-rules.ts'
import { callResult, type McpCallResult } from './call-result.ts'
import type { ToolPins, UnapprovedTool } from './tool-pins.ts'
import { connectUpstream, resultLimit, type Upstream, type UpstreamParts, wordsOf } from './upstream.ts'

/** What a gateway is made of. */
export type McpGatewayParts = UpstreamParts & {
  /** The servers of the current configuration. */
  readonly servers: () => readonly McpServerConfig[]
  readonly pins: ToolPins
}

/** Who calls. */
export type McpGatewayCaller = Requester & { readonly agentId?: string | undefined }

/** How a call was approved; absent: it was not. */
export type ToolApproval = { readonly by: string; readonly approvalId?: string | undefined }

/** A tool of a server that the caller may use. */
export type OfferedTool = { readonly server: string; readonly tool: ToolDescription }

/** The state of one server for one caller. */
export type McpServerState = {
  readonly name: string
  readonly tools: readonly ToolDescription[]
  readonly unapproved: readonly UnapprovedTool[]
  /** Tools that are not offered, with the reason. */
  readonly refused: readonly string[]
  /** Why the server cannot be used. */
  readonly problem?: string
  /** What the server said about it; not for models. */
  readonly said?: string | undefined
}

type Connected = {
  readonly upstream: Promise<Upstream>
  readonly config: string
  used: number
  calls: number
}

const IDLE_MS = 10 * 60_000
const SWEEP_MS = 60_000
/** After a failed start, the next one must wait: a program that fails at once must not be started in a loop. */
const RETRY_MS = 5000
/** Calls of one tenant to one server at the same time. */
const MAX_CALLS = 16
const MAX_ARGUMENTS = 1024 * 1024

/** MCP servers of others, for many callers: one connection for each tenant and server, every call judged and recorded. */
export class McpGateway {
  readonly #parts: McpGatewayParts
  readonly #connected = new Map<string, Connected>()
  readonly #failed = new Map<string, { readonly at: number; readonly error: unknown }>()
  readonly #owners = new Map<string, string>()
  #compiled: { readonly from: readonly McpServerConfig[]; readonly rules: Map<string, ToolRules> } | undefined
  readonly #sweeper: NodeJS.Timeout

  constructor(parts: McpGatewayParts) {
    this.#parts = parts
    this.#rules()
    this.#sweeper = setInterval(() => this.#sweep(), SWEEP_MS).unref()
  }

  /** The names of the servers that the caller may use. */
  names(caller: Requester): readonly string[] {
    return this.#parts
      .servers()
      .filter((server) => isGranted(server, caller))
      .map(({ name }) => name)
  }

  /** The approved tools of all servers that the caller may use. A server that fails offers none. */
  async tools(caller: McpGatewayCaller, among?: readonly string[]): Promise<readonly OfferedTool[]> {
    const names = this.names(caller).filter((name) => among?.includes(name) ?? true)
    const states = await Promise.all(names.map((name) => this.state(caller, name)))
    return states.flatMap(({ name, tools }) => tools.map((tool) => ({ server: name, tool })))
  }

  /** The tools of one server: approved, not approved, not offered. */
  async state(caller: McpGatewayCaller, name: string): Promise<McpServerState> {
    const { pins } = this.#parts
    try {
      const upstream = await this.#upstream(this.#granted(caller, name), caller.tenant)
      const all = await upstream.tools()
      const tools = all.filter((tool) => pins.isApproved(name, tool))
      return { name, tools, unapproved: pins.unapproved(name, all), refused: upstream.refused }
    } catch (error) {
      if (!(error instanceof SandboxError)) throw error
      return { name, tools: [], unapproved: [], refused: [], problem: error.message, said: wordsOf(error) }
    }
  }

  /** Approves these descriptions for everybody who may use the server. */
  async approve(
    caller: McpGatewayCaller,
    name: string,
    tools: readonly ToolDescription[],
    by: ToolApproval,
  ): Promise<void> {
    const { pins, record } = this.#parts
    this.#granted(caller, name)
    await record({
      event: 'Approval',
      ...callerFields(caller),
      subject: 'mcp-tools',
      server: name,
      tools: tools.map((tool) => tool.name),
      state: 'approved',
      approved: true,
      answered_by: by.by,
      ...(by.approvalId === undefined ? {} : { approval_id: by.approvalId }),
    })
    pins.approve(name, tools)
  }

  /** The id under which the records of the caller's connection are kept. */
  async connectionId(caller: McpGatewayCaller, name: string): Promise<string> {
    return (await this.#upstream(this.#granted(caller, name), caller.tenant)).id
  }

  /** What the rules say about a call. */
  judge(
    caller: McpGatewayCaller,
    exposed: string,
    args: unknown,
  ): ToolDecision & { readonly server: string; readonly tool: string } {
    const { server, tool } = this.#named(exposed)
    const config = this.#granted(caller, server)
    const rules = this.#rules().get(config.name) as ToolRules
    return { ...decideToolCall(rules, tool, argumentsOf(args)), server, tool }
  }

  /** Calls a tool. Throws if the rules deny it, or if they ask and it was not approved. */
  async call(
    caller: McpGatewayCaller,
    exposed: string,
    given: unknown,
    {
      approval,
      signal,
    }: { readonly approval?: ToolApproval | undefined; readonly signal?: AbortSignal | undefined } = {},
  ): Promise<McpCallResult> {
    const args = argumentsOf(given)
    const decision = this.judge(caller, exposed, args)
    const config = this.#granted(caller, decision.server)
    const event = this.#eventOf(caller, decision, args)
    const judged = {
      action: decision.action,
      reason: decision.reason,
      rules: decision.rules,
      ...approvalFields(approval),
    }
    if (decision.action === 'deny' || (decision.action === 'ask' && !approval)) {
      await this.#parts.record(event(undefined, { ...judged, state: 'refused' }))
      throw refusal(decision)
    }
    const upstream = await this.#upstream(config, caller.tenant)
    const offered = (await upstream.tools()).find(({ name }) => name === decision.tool)
    if (!offered || !this.#parts.pins.isApproved(config.name, offered)) {
      await this.#parts.record(
        event(upstream.id, { ...judged, state: 'refused', details: 'the tool is not approved' }),
      )
      throw notOffered(exposed, offered !== undefined)
    }
    await this.#parts.record(event(upstream.id, { ...judged, state: 'started' }))
    return this.#run(upstream, config, caller.tenant, { tool: decision.tool, args, signal }, (fields) =>
      this.#parts.record(event(upstream.id, fields)),
    )
  }

  /** Records that a person is asked about a call. */
  async asked(caller: McpGatewayCaller, exposed: string, args: unknown): Promise<void> {
    const decision = this.judge(caller, exposed, args)
    const { action, reason, rules } = decision
    await this.#parts.record(
      this.#eventOf(
        caller,
        decision,
        argumentsOf(args),
      )(undefined, { action, reason, rules, state: 'asked' }),
    )
  }

  #eventOf(
    caller: McpGatewayCaller,
    { server, tool }: { readonly server: string; readonly tool: string },
    args: Record<string, unknown>,
  ): (sandboxId: string | undefined, fields: Partial<Event>) => Event {
    const fixed = { exec_id: this.#parts.newId('call'), server, tool, arguments_sha256: hashOf(args) }
    return (sandboxId, fields) => ({
      event: 'McpCall',
      ...callerFields(caller),
      ...(sandboxId === undefined ? {} : { sandbox_id: sandboxId }),
      ...fixed,
      ...fields,
    })
  }

  async #run(
    upstream: Upstream,
    config: McpServerConfig,
    tenant: string,
    {
      tool,
      args,
      signal,
    }: {
      readonly tool: string
      readonly args: Record<string, unknown>
      readonly signal: AbortSignal | undefined
    },
    record: (fields: Partial<Event>) => Promise<void>,
  ): Promise<McpCallResult> {
    const slot = this.#connected.get(keyOf(tenant, config.name))
    const began = Date.now()
    const ended = (fields: Partial<Event>): Promise<void> =>
      record({ state: 'ended', duration_ms: Date.now() - began, ...fields })
    try {
      if (slot && slot.calls >= MAX_CALLS)
        throw new SandboxError(
          'resource-exhausted',
          `${MAX_CALLS} calls to \`${config.name}\` are running already`,
        )
      if (slot) slot.calls++
      try {
        const result = callResult(await upstream.call(tool, args, signal), resultLimit(config))
        await ended({ outcome: result.isError ? 'error' : 'ok', bytes: result.bytes })
        return result
      } finally {
        if (slot) {
          slot.calls--
          slot.used = Date.now()
        }
      }
    } catch (error) {
      const known = error instanceof SandboxError ? error.code : 'internal'
      await ended({ outcome: signal?.aborted ? 'cancelled' : known })
      throw error
    }
  }

  /** The tenant whose connection this is, for records that name only the id. */
  tenantOf(id: string): string | undefined {
    return this.#owners.get(id)
  }

  /** Closes connections whose configuration has changed, and checks the rules of the new one. */
  async reload(): Promise<void> {
    this.#rules()
    const now = new Map(this.#parts.servers().map((server) => [server.name, JSON.stringify(server)]))
    for (const [key, { config }] of this.#connected)
      if (now.get(key.slice(key.indexOf('\0') + 1)) !== config) await this.#drop(key)
  }

  async close(): Promise<void> {
    clearInterval(this.#sweeper)
    await Promise.all([...this.#connected.keys()].map((key) => this.#drop(key)))
  }

  #named(exposed: string): { readonly server: string; readonly tool: string } {
    const named = splitName(exposed)
    if (named) return named
    throw notOffered(exposed, false)
  }

  /** SECURITY: a server that the caller may not use does not exist for it. */
  #granted(caller: Requester, name: string): McpServerConfig {
    const found = this.#parts.servers().find((server) => server.name === name)
    if (found && isGranted(found, caller)) return found
    throw new SandboxError('not-found', `no MCP server \`${name.slice(0, 64)}\``, {
      hint: 'the operator grants one to a tenant: `tenants = […]` in its [[mcp]] table',
    })
  }

  /** Compiled once for each configuration. */
  #rules(): Map<string, ToolRules> {
    const from = this.#parts.servers()
    if (this.#compiled?.from !== from)
      this.#compiled = { from, rules: new Map(from.map((server) => [server.name, compileToolRules(server)])) }
    return this.#compiled.rules
  }

  async #upstream(config: McpServerConfig, tenant: string): Promise<Upstream> {
    const key = keyOf(tenant, config.name)
    const held = this.#connected.get(key)
    if (held) {
      const upstream = await held.upstream
      if (!upstream.isEnded) {
        held.used = Date.now()
        return upstream
      }
      await this.#drop(key, held)
    }
    return this.#connect(key, config, tenant)
  }

  async #connect(key: string, config: McpServerConfig, tenant: string): Promise<Upstream> {
    const other = this.#connected.get(key)
    if (other) return other.upstream
    const failed = this.#failed.get(key)
    if (failed && Date.now() - failed.at < RETRY_MS) throw failed.error
    const id = this.#parts.newId(config.url === undefined ? 'sb' : 'mcp')
    // Before the first record that names the connection.
    this.#owners.set(id, tenant)
    const upstream = connectUpstream(config, { owner: tenant, id }, this.#parts)
    const held: Connected = { upstream, config: JSON.stringify(config), used: Date.now(), calls: 0 }
    this.#connected.set(key, held)
    try {
      const made = await upstream
      this.#failed.delete(key)
      return made
    } catch (error) {
      this.#failed.set(key, { at: Date.now(), error })
      this.#owners.delete(id)
      if (this.#connected.get(key) === held) this.#connected.delete(key)
      throw error
    }
  }

  async #drop(key: string, only?: Connected): Promise<void> {
    const held = this.#connected.get(key)
    if (!held || (only && held !== only)) return
    this.#connected.delete(key)
    const upstream = await held.upstream.catch(() => undefined)
    if (!upstream) return
    await upstream.close()
    this.#owners.delete(upstream.id)
  }

  #sweep(): void {
    for (const [key, { used, calls }] of this.#connected)
      if (calls === 0 && Date.now() - used > IDLE_MS) void this.#drop(key)
  }
}

const keyOf = (tenant: string, name: string): string => `${tenant}\0${name}`

const isGranted = ({ tenants }: McpServerConfig, { tenant, operator }: Requester): boolean =>
  operator || (tenants?.includes(tenant) ?? false)

function argumentsOf(given: unknown): Record<string, unknown> {
  const args = given ?? {}
  if (typeof args !== 'object' || Array.isArray(args))
    throw new SandboxError('invalid-input', 'the arguments of a tool are a JSON object')
  if (JSON.stringify(args).length > MAX_ARGUMENTS)
    throw new SandboxError('too-large', `the arguments have more than ${MAX_ARGUMENTS} characters`)
  return args as Record<string, unknown>
}

/** The arguments may contain anything, so the audit log has only their hash. */
const hashOf = (args: Record<string, unknown>): string =>
  createHash('sha256')
    .update(canonical(args as Json))
    .digest('hex')

const callerFields = ({ agentId, tenant }: McpGatewayCaller): Partial<Event> => ({
  ...(agentId === undefined ? {} : { agent_id: agentId }),
  ...(tenant === '' ? {} : { tenant }),
})

const approvalFields = (approval: ToolApproval | undefined): Partial<Event> =>
  approval === undefined
    ? {}
    : {
        approved_by: approval.by,
        ...(approval.approvalId === undefined ? {} : { approval_id: approval.approvalId }),
      }

const refusal = ({ action, reason, server }: ToolDecision & { readonly server: string }): SandboxError =>
  action === 'deny'
    ? new SandboxError('forbidden-command', reason, {
        hint: `the rules of the MCP server \`${server}\` deny this call`,
      })
    : new SandboxError('approval-required', reason, { hint: `a rule in [[mcp]] \`${server}\` can allow it` })

const notOffered = (exposed: string, isKnown: boolean): SandboxError =>
  new SandboxError(
    'invalid-input',
    `no tool named \`${exposed.slice(0, 64)}\`${isKnown ? ' is approved' : ''}`,
    {
      hint: isKnown ? 'its description must be approved first: call `mcp_servers`' : 'list the tools again',
    },
  )
