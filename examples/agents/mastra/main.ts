// Mastra: each operation becomes one of its tools, run in a sandbox on the current directory.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Agent } from '@mastra/core/agent'
import { createTool } from '@mastra/core/tools'
import { localSession, OPERATIONS, perform } from 'ringfence/agents'

await using session = localSession({ workspace: process.cwd(), agentId: 'mastra-example' })
const tools = OPERATIONS.map(({ name, about, input }) =>
  createTool({
    id: name,
    description: about,
    inputSchema: input.schema,
    execute: async (args) => (await perform(OPERATIONS, session, name, args)).text,
  }),
)
const provider = createOpenAICompatible({
  name: 'local',
  baseURL: process.env.OPENAI_BASE_URL ?? 'http://127.0.0.1:11434/v1',
  ...(process.env.OPENAI_API_KEY === undefined ? {} : { apiKey: process.env.OPENAI_API_KEY }),
})

const agent = new Agent({
  id: 'worker',
  name: 'worker',
  instructions: 'Work in the sandbox.',
  model: provider('local-model'),
  tools: Object.fromEntries(tools.map((tool) => [tool.id, tool])),
})
const { text } = await agent.generate(process.argv[2] ?? 'List the files here.', { maxSteps: 20 })
console.log(text)
