// Vercel's AI SDK, versions 5 and 6: all tools in a sandbox on the current directory.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, jsonSchema, stepCountIs } from 'ai'
import { aiSdkTools, localSession } from 'ringfence/agents'

await using session = localSession({ workspace: process.cwd(), agentId: 'ai-sdk-example' })
const provider = createOpenAICompatible({
  name: 'local',
  baseURL: process.env.OPENAI_BASE_URL ?? 'http://127.0.0.1:11434/v1',
  ...(process.env.OPENAI_API_KEY === undefined ? {} : { apiKey: process.env.OPENAI_API_KEY }),
})

const { text } = await generateText({
  model: provider('local-model'),
  tools: aiSdkTools(session, jsonSchema<Record<string, unknown>>),
  stopWhen: stepCountIs(20),
  prompt: process.argv[2] ?? 'List the files here.',
})
console.log(text)
