import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/** A model on loopback for real coding agents: it calls the given tools one after the other, then says that it is done. */

/** `namespace` is Codex's name for the tools of one MCP server; `inputOf` makes the input of what the client sent last. */
export type ToolCall = {
  readonly tool: string
  readonly input?: unknown
  readonly inputOf?: (sent: string) => unknown
  readonly namespace?: string
}
export type ClientModel = { readonly url: string; readonly close: () => void; readonly results: () => string }

export async function clientModel(calls: readonly ToolCall[]): Promise<ClientModel> {
  const left = [...calls]
  let last = ''
  const server = createServer(async (request, response) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk as Buffer)
    const text = Buffer.concat(chunks).toString('utf8')
    const path = request.url ?? ''
    if (path.includes('/messages') && !path.includes('count_tokens') && text.includes('"tools":[{')) {
      last = text
      anthropic(response, left.shift())
    } else if (path.includes('/messages')) anthropic(response, undefined)
    else if (path.includes('/responses')) {
      last = text
      const call = left.shift()
      responses(response, call?.inputOf ? { ...call, input: call.inputOf(text) } : call)
    } else if (path.includes('/chat/completions')) {
      if (text.includes('"tools":[{')) last = text
      chat(response, text.includes('"tools":[{') ? left.shift() : undefined)
    } else if (path.includes(':streamGenerateContent') && text.includes('functionDeclarations')) {
      last = text
      gemini(response, left.shift())
    } else if (path.includes('GenerateContent') || path.includes(':generateContent'))
      gemini(response, undefined)
    else response.writeHead(404).end('{}')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const close = (): void => {
    server.closeAllConnections()
    server.close()
  }
  return { url: `http://127.0.0.1:${port}`, close, results: () => last }
}

type ServerEvent = { readonly type: string } & Readonly<Record<string, unknown>>

function stream(response: ServerResponse, events: readonly ServerEvent[]): void {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  for (const event of events) response.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`)
  response.end()
}

let turn = 0

function anthropic(response: ServerResponse, call: ToolCall | undefined): void {
  turn++
  const usage = { input_tokens: 1, output_tokens: 1 }
  const message = {
    id: `msg_${turn}`,
    type: 'message',
    role: 'assistant',
    model: 'scripted',
    content: [],
    usage,
  }
  const block = call
    ? { type: 'tool_use', id: `toolu_${turn}`, name: call.tool, input: {} }
    : { type: 'text', text: '' }
  const delta = call
    ? { type: 'input_json_delta', partial_json: JSON.stringify(call.input) }
    : { type: 'text_delta', text: 'done' }
  stream(response, [
    { type: 'message_start', message },
    { type: 'content_block_start', index: 0, content_block: block },
    { type: 'content_block_delta', index: 0, delta },
    { type: 'content_block_stop', index: 0 },
    { type: 'message_delta', delta: { stop_reason: call ? 'tool_use' : 'end_turn' }, usage },
    { type: 'message_stop' },
  ])
}

function gemini(response: ServerResponse, call: ToolCall | undefined): void {
  const part = call ? { functionCall: { name: call.tool, args: call.input } } : { text: 'done' }
  const answer = {
    candidates: [{ content: { role: 'model', parts: [part] }, finishReason: 'STOP', index: 0 }],
    usageMetadata: { promptTokenCount: 1, candidatesTokenCount: 1, totalTokenCount: 2 },
    modelVersion: 'scripted',
  }
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  response.end(`data: ${JSON.stringify(answer)}\n\n`)
}

function chat(response: ServerResponse, call: ToolCall | undefined): void {
  turn++
  const asked = call && {
    index: 0,
    id: `call_${turn}`,
    type: 'function',
    function: { name: call.tool, arguments: JSON.stringify(call.input) },
  }
  const chunk = (delta: object, finish_reason: string | null): string =>
    `data: ${JSON.stringify({ id: `chat_${turn}`, object: 'chat.completion.chunk', created: 1, model: 'scripted', choices: [{ index: 0, delta, finish_reason }] })}\n\n`
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  response.write(
    chunk({ role: 'assistant', ...(asked ? { tool_calls: [asked] } : { content: 'done' }) }, null),
  )
  response.end(`${chunk({}, asked ? 'tool_calls' : 'stop')}data: [DONE]\n\n`)
}

function responses(response: ServerResponse, call: ToolCall | undefined): void {
  turn++
  const item = itemOf(call)
  const usage = {
    input_tokens: 1,
    output_tokens: 1,
    total_tokens: 2,
    input_tokens_details: { cached_tokens: 0 },
    output_tokens_details: { reasoning_tokens: 0 },
  }
  const whole = {
    id: `resp_${turn}`,
    object: 'response',
    created_at: 1,
    status: 'completed',
    output: [item],
    usage,
  }
  stream(response, [
    { type: 'response.created', response: { ...whole, status: 'in_progress', output: [] } },
    { type: 'response.output_item.done', output_index: 0, item },
    { type: 'response.completed', response: whole },
  ])
}

/** A patch is a free text for Codex; every other tool has JSON. */
function itemOf(call: ToolCall | undefined): object {
  const ids = { id: `item_${turn}`, call_id: `call_${turn}`, status: 'completed' }
  if (call === undefined) {
    const content = [{ type: 'output_text', text: 'done', annotations: [] }]
    return { type: 'message', id: ids.id, role: 'assistant', status: 'completed', content }
  }
  if (typeof call.input === 'string')
    return { ...ids, type: 'custom_tool_call', name: call.tool, input: call.input }
  const { tool: name, namespace } = call
  return {
    ...ids,
    type: 'function_call',
    name,
    ...(namespace === undefined ? {} : { namespace }),
    arguments: JSON.stringify(call.input),
  }
}
