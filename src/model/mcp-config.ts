import {
  type Infer,
  list,
  number,
  object,
  oneOf,
  optional,
  record,
  refuse,
  type Shape,
  text,
} from './shape.ts'

/** The shape of `[[mcp]]`: MCP servers of others, whose tools clients use through Ringfence. */

/** What a rule does with a call, strictest first. */
export const TOOL_ACTIONS = ['deny', 'ask', 'allow'] as const
/** What happens to a call of a tool. */
export type ToolAction = (typeof TOOL_ACTIONS)[number]

const toolRuleShape = object({
  id: optional(text({ max: 64 })),
  /** A regular expression for the whole name of the tool; absent: every tool of the server. */
  tool: optional(text({ max: 1000 })),
  /** Conditions on arguments: a JSON path and a regular expression for the whole value. All of them must hold. */
  arguments: optional(list(object({ path: text({ max: 1000 }), regex: text({ max: 10_000 }) }), 64)),
  action: oneOf(...TOOL_ACTIONS),
  why: optional(text({ max: 1000 })),
  /** Examples that are checked when the configuration is loaded: `tool {"argument": "value"}`. */
  match: optional(list(text())),
  not_match: optional(list(text())),
})
/** One `[[mcp.rule]]`. */
export type ToolRuleConfig = Infer<typeof toolRuleShape>

const serverShape = object({
  /** Prefix of the server's tools: `name__tool`. */
  name: text(),
  /** A program that speaks MCP on its standard input and output; it runs in a sandbox of its own. */
  command: optional(list(text())),
  /** A remote server (streamable HTTP), reached through the egress proxy. */
  url: optional(text({ max: 4096 })),
  /** Headers of requests to `url`; `${NAME}` stands for a secret of `secrets`, which the proxy inserts. */
  headers: optional(record(text({ max: 8192 }), /^[A-Za-z][A-Za-z0-9-]*$/)),
  /** Host paths that the program may read, and those that it may write. */
  read: optional(list(text())),
  write: optional(list(text())),
  /** The hosts that the program may reach; none: it has no network. */
  hosts: optional(list(text())),
  /** `NAME=SECRET@HOST`, as in `--secret`: the program sees a placeholder, the proxy has the value. */
  secrets: optional(list(text(), 16)),
  env: optional(record(text({ empty: true }), /^[A-Za-z_][A-Za-z0-9_]*$/)),
  memory_mb: optional(number({ integer: true, min: 16, max: 2 ** 20 })),
  /** The tenants whose keys may use it; absent: only keys with the scope `admin`, and `ringfence mcp` on this machine. */
  tenants: optional(list(text({ max: 64 }))),
  /** What happens to calls that no rule matches. Default: ask. */
  default_action: optional(oneOf(...TOOL_ACTIONS)),
  /** Timeout of one call. Default: 60. */
  timeout_secs: optional(number({ integer: true, min: 1, max: 3600 })),
  /** The most bytes of one result. Default: 1048576. */
  max_result_bytes: optional(number({ integer: true, min: 1024, max: 64 * 1024 * 1024 })),
  rule: optional(list(toolRuleShape, 256)),
})
/** One `[[mcp]]`. */
export type McpServerConfig = Infer<typeof serverShape>

/** No underscore, so that `name__tool` can be read in one way only. */
const NAME = /^[a-z][a-z0-9-]{0,23}$/
/** Settings of a program, which a remote server does not have, and the other way round. */
const PROGRAM_ONLY = ['read', 'write', 'hosts', 'env', 'memory_mb'] as const

/** All `[[mcp]]` tables. */
export const mcpServersShape: Shape<readonly McpServerConfig[]> = {
  ...list(serverShape, 64),
  parse(value, at) {
    const servers = list(serverShape, 64).parse(value, at)
    for (const [index, server] of servers.entries()) {
      assertServer(server, `${at}[${index}]`)
      if (servers.findIndex(({ name }) => name === server.name) !== index)
        refuse(at, `there are two servers named \`${server.name}\``)
    }
    return servers
  },
}

function assertServer(server: McpServerConfig, at: string): void {
  if (!NAME.test(server.name))
    refuse(
      `${at}.name`,
      `\`${server.name.slice(0, 64)}\` is not a short name of lower-case letters, digits and \`-\``,
    )
  if ((server.command === undefined) === (server.url === undefined))
    refuse(at, 'needs exactly one of `command` and `url`')
  if (server.command?.length === 0) refuse(`${at}.command`, 'must name a program')
  const odd =
    server.url === undefined
      ? (['headers'] as const).find((field) => server[field] !== undefined)
      : PROGRAM_ONLY.find((field) => server[field] !== undefined)
  if (odd !== undefined)
    refuse(`${at}.${odd}`, `is only for a ${server.url === undefined ? '`url`' : '`command`'}`)
  if (server.url !== undefined) assertUrl(server.url, `${at}.url`)
}

/** SECURITY: without TLS anybody on the way could read the credential and change the tools. */
function assertUrl(text: string, at: string): void {
  const url = URL.canParse(text) ? new URL(text) : undefined
  const isLocal = /^(127(\.\d{1,3}){3}|localhost|\[::1\])$/.test(url?.hostname ?? '')
  const isPlain = url?.username === '' && url.password === '' && url.hash === ''
  if (url && isPlain && (url.protocol === 'https:' || (url.protocol === 'http:' && isLocal))) return
  refuse(at, `\`${text.slice(0, 200)}\` is not \`https://…\`, nor \`http://\` on the loopback`)
}
