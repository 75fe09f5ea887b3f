import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'

/** A model on loopback that says what the test wrote down, in the provider's wire format, and keeps what it was sent. */

type Asked = {
  readonly path: string
  readonly headers: Readonly<Record<string, unknown>>
  readonly body: Body
}
type Body = Readonly<Record<string, unknown>> & { readonly stream?: boolean }
type Script = (asked: Asked, turn: number) => unknown

export type ModelServer = {
  readonly url: string
  readonly asked: Asked[]
  readonly close: () => Promise<void>
}

/** `script` gives the whole answer for each turn. */
export async function modelServer(script: Script): Promise<ModelServer> {
  const asked: Asked[] = []
  const server: Server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const body = JSON.parse(Buffer.concat(chunks).toString('utf8') || '{}') as Body
    const one = { path: request.url ?? '', headers: request.headers, body }
    asked.push(one)
    response.setHeader('content-type', 'application/json')
    response.end(JSON.stringify(script(one, asked.length - 1)))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    asked,
    close: () =>
      new Promise((resolve) => {
        server.closeAllConnections()
        server.close(() => resolve())
      }),
  }
}

/** A chat completion that calls tools, or ends with text. */
export function chatAnswer(
  said: string | readonly (readonly [name: string, args: string])[],
  turn: number,
): unknown {
  const calls =
    typeof said === 'string'
      ? undefined
      : said.map(([name, args], at) => ({
          id: `call_${turn}_${at}`,
          type: 'function',
          function: { name, arguments: args },
        }))
  return {
    id: `chat_${turn}`,
    object: 'chat.completion',
    created: 1,
    model: 'scripted',
    choices: [
      {
        index: 0,
        finish_reason: calls ? 'tool_calls' : 'stop',
        message: { role: 'assistant', content: calls ? null : said, ...(calls && { tool_calls: calls }) },
      },
    ],
    usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
  }
}

/** A response of the Responses API with these output items. */
export const responsesAnswer = (output: readonly object[], turn: number): unknown => ({
  id: `resp_${turn}`,
  object: 'response',
  created_at: 1,
  status: 'completed',
  model: 'scripted',
  output,
  parallel_tool_calls: false,
  tool_choice: 'auto',
  tools: [],
  error: null,
  incomplete_details: null,
  instructions: null,
  metadata: {},
  usage: {
    input_tokens: 1,
    output_tokens: 1,
    total_tokens: 2,
    input_tokens_details: { cached_tokens: 0 },
    output_tokens_details: { reasoning_tokens: 0 },
  },
})

export const responsesText = (text: string): object => ({
  id: 'msg_1',
  type: 'message',
  role: 'assistant',
  status: 'completed',
  content: [{ type: 'output_text', text, annotations: [] }],
})
