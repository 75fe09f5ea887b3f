// Anthropic's SDK runs the loop itself (`toolRunner`); each tool runs in a sandbox on the current directory.
import Anthropic from '@anthropic-ai/sdk'
import { anthropicTools, localSession } from 'ringfence/agents'

await using session = localSession({ workspace: process.cwd(), agentId: 'tool-runner-example' })
const { runnable } = anthropicTools(session)
const client = new Anthropic()

const message = await client.beta.messages.toolRunner({
  model: 'claude-sonnet-4-5',
  max_tokens: 4096,
  tools: runnable,
  messages: [{ role: 'user', content: process.argv[2] ?? 'List the files here.' }],
})
for (const block of message.content) if (block.type === 'text') console.log(block.text)
