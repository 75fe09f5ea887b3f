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

/** PLATFORM: chat completions accept images only in messages of the user, so an image follows its tool message. */
export type ImageMessage = {
  readonly role: 'user'
  readonly content: [
    { readonly type: 'text'; readonly text: string },
    { readonly type: 'image_url'; readonly image_url: { readonly url: string } },
  ]
}

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
  /** The answer to one call, without images. */
  readonly run: (call: ToolCall, options?: Call) => Promise<ToolMessage>
  /** The answers to all calls of one message, in order, then the images that they show. */
  readonly runAll: (calls: readonly ToolCall[], options?: Call) => Promise<(ToolMessage | ImageMessage)[]>
} {
  const answer = async ({ id, function: { name, arguments: args } }: ToolCall, options?: Call) => {
    const { text, image } = await performLeniently(session, name, args, options)
    const message: ToolMessage = { role: 'tool', tool_call_id: id, content: text }
    return { message, shown: image && imageMessage(name, image) }
  }
  return {
    tools: OPERATIONS.map(functionOf),
    run: async (call, options) => (await answer(call, options)).message,
    async runAll(calls, options) {
      const answers = []
      for (const call of calls) answers.push(await answer(call, options))
      const images = answers.flatMap(({ shown }) => shown ?? [])
      return [...answers.map(({ message }) => message), ...images]
    },
  }
}

const imageMessage = (tool: string, { mime, base64 }: NonNullable<Result['image']>): ImageMessage => ({
  role: 'user',
  content: [
    { type: 'text', text: `The image that \`${tool}\` shows:` },
    { type: 'image_url', image_url: { url: `data:${mime};base64,${base64}` } },
  ],
})
