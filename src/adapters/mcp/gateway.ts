import type { CallToolResult, Tool } from '@modelcontextprotocol/server'
import type { Call } from '../operations/operation.ts'

/** Tools of other MCP servers that clients see beside our own. */
export type ToolGateway = {
  /** The tools; `onLate` is called when a server that was slow to start has some too. */
  readonly list: (onLate: () => void) => Promise<readonly Tool[]>
  /** Whether a call belongs to another server. */
  readonly owns: (name: string) => boolean
  /** Whether a call asks a person about more than one call, which `--yes` never answers. */
  readonly isForPerson: (name: string) => boolean
  /** Calls a tool. Throws a `Question` if a person at the client must answer first. */
  readonly call: (name: string, args: unknown, call: Call) => Promise<CallToolResult>
  /** Whether the call may have changed the list of tools. */
  readonly changesTools: (name: string) => boolean
}
