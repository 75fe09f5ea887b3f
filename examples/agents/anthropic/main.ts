// Anthropic's Messages API: its own bash and text editor tools, run in a sandbox on the current directory.
import Anthropic from '@anthropic-ai/sdk'
import { anthropicTools, localSession } from 'ringfence/agents'

await using session = localSession({ workspace: process.cwd(), agentId: 'anthropic-example' })
const { tools, run } = anthropicTools(session)
const client = new Anthropic()
const messages: Anthropic.MessageParam[] = [
  { role: 'user', content: process.argv[2] ?? 'List the files here.' },
]

for (;;) {
  const { content, stop_reason } = await client.messages.create({
    model: 'claude-sonnet-4-5',
    max_tokens: 4096,
    tools: [...tools],
    messages,
  })
  messages.push({ role: 'assistant', content })
  for (const block of content) if (block.type === 'text') console.log(block.text)
  if (stop_reason !== 'tool_use') break
  const results: Anthropic.ToolResultBlockParam[] = []
  for (const block of content) if (block.type === 'tool_use') results.push(await run(block))
  messages.push({ role: 'user', content: results })
}
