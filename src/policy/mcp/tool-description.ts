import { visible, visibleLines } from '../../model/text/visible.ts'

/** What clients are told about a tool of an MCP server, made from what the server says about it. */
export type ToolDescription = {
  readonly name: string
  readonly title?: string
  readonly description: string
  readonly inputSchema: { readonly type: 'object'; readonly [key: string]: unknown }
  readonly annotations: Readonly<Record<string, boolean>>
}

/** PLATFORM: models accept tool names of these characters, at most 64 with the server's name. */
const TOOL_NAME = /^[A-Za-z0-9_-]+$/
const MAX_NAME = 64
const MAX_DESCRIPTION = 8192
const MAX_SCHEMA = 65_536
const MAX_DEPTH = 32
const HINTS = ['readOnlyHint', 'destructiveHint', 'idempotentHint', 'openWorldHint'] as const

/** The name under which clients see a tool. */
export const exposedName = (server: string, tool: string): string => `${server}__${tool}`

/** The server and the tool of such a name. */
export function splitName(name: string): { readonly server: string; readonly tool: string } | undefined {
  const [, server, tool] = /^([a-z][a-z0-9-]*)__(.+)$/s.exec(name) ?? []
  return server === undefined || tool === undefined ? undefined : { server, tool }
}

/**
 * The description of a tool, or why it is not offered. SECURITY: invisible characters, which could carry instructions that
 * only a model reads, are escaped, so that a person approves exactly what the model receives.
 */
export function describeTool(server: string, raw: unknown): ToolDescription | { readonly refused: string } {
  const { name, title, description, inputSchema, annotations } = (raw ?? {}) as Readonly<
    Record<string, unknown>
  >
  if (typeof name !== 'string' || !TOOL_NAME.test(name) || exposedName(server, name).length > MAX_NAME)
    return {
      refused: `\`${visible(String(name)).slice(0, 80)}\`: the name has other characters than letters, digits, \`_\` and \`-\`, or is too long`,
    }
  const about = typeof description === 'string' ? description : ''
  if (about.length > MAX_DESCRIPTION) return { refused: `\`${name}\`: the description is too long` }
  const schema = cleaned(inputSchema, 0)
  if (schema === REFUSED || typeof schema !== 'object' || schema === null || Array.isArray(schema))
    return { refused: `\`${name}\`: the schema of its arguments cannot be shown` }
  if (JSON.stringify(schema).length > MAX_SCHEMA) return { refused: `\`${name}\`: the schema is too long` }
  const given = (annotations ?? {}) as Readonly<Record<string, unknown>>
  return {
    name,
    ...(typeof title === 'string' && title !== '' ? { title: visible(title).slice(0, 200) } : {}),
    description: visibleLines(about),
    inputSchema: { ...schema, type: 'object' },
    annotations: Object.fromEntries(
      HINTS.flatMap((hint) => (typeof given[hint] === 'boolean' ? [[hint, given[hint]]] : [])),
    ) as Record<string, boolean>,
  }
}

const REFUSED = Symbol('refused')

/** A copy with escaped texts. A property whose name would have to be escaped could not be called any more, so it is refused. */
function cleaned(value: unknown, depth: number): unknown {
  if (typeof value === 'string') return visibleLines(value)
  if (typeof value !== 'object' || value === null) return value
  if (depth > MAX_DEPTH) return REFUSED
  const entries = Object.entries(value).map(([key, inner]) => [key, cleaned(inner, depth + 1)] as const)
  if (entries.some(([key, inner]) => inner === REFUSED || key === '__proto__' || visible(key) !== key))
    return REFUSED
  return Array.isArray(value) ? entries.map(([, inner]) => inner) : Object.fromEntries(entries)
}
