import { OPERATIONS } from '../operations/index.ts'
import {
  type Call,
  failure,
  type Operation,
  perform,
  type Result,
  unknownTool,
} from '../operations/operation.ts'
import type { AgentSession } from '../session.ts'
import { coerced, parseLenientObject } from './lenient-json.ts'

/** Function tools for chat completions, for local models and compatible APIs. */

export type FunctionTool = {
  readonly type: 'function'
  readonly function: {
    readonly name: string
    readonly description: string
    readonly parameters: Record<string, unknown>
  }
}

/** A function call of a chat completion. */
export type ToolCall = {
  readonly id: string
  readonly function: { readonly name: string; readonly arguments: unknown }
}

/** The message that answers a function call. */
export type ToolMessage = { readonly role: 'tool'; readonly tool_call_id: string; readonly content: string }

const functionOf = ({ name, about, input }: Operation): FunctionTool => ({
  type: 'function',
  function: { name, description: about, parameters: { ...input.schema } },
})

/** Parses arguments leniently and always returns a result. */
export async function performLeniently(
  session: AgentSession,
  name: string,
  args: unknown,
  call: Call = {},
  table: readonly Operation[] = OPERATIONS,
): Promise<Result> {
  try {
    const found = table.find((one) => one.name === name)
    if (!found) throw unknownTool(table, name)
    return await perform(table, session, name, coerced(parseLenientObject(args), found.input.schema), call)
  } catch (error) {
    return failure(error)
  }
}

/** Function tools and the function that executes their calls. */
export function functionTools(session: AgentSession): {
  readonly tools: FunctionTool[]
  readonly run: (call: ToolCall, options?: Call) => Promise<ToolMessage>
} {
  return {
    tools: OPERATIONS.map(functionOf),
    async run({ id, function: { name, arguments: args } }, options) {
      const { text } = await performLeniently(session, name, args, options)
      return { role: 'tool', tool_call_id: id, content: text }
    },
  }
}
