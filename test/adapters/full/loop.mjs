// A whole loop of the AI SDK's newest major with our tools, for a Node that it runs on: MODEL_URL WORKSPACE LIBRARY.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, jsonSchema, stepCountIs } from 'ai'

const [, , modelUrl, workspace, library] = process.argv
const { aiSdkTools, localSession } = await import(library)
const session = localSession({ workspace, agentId: 'looper' }, { env: process.env, cwd: workspace })
const provider = createOpenAICompatible({ name: 'scripted', apiKey: 'canary-model-key', baseURL: modelUrl })
const { text, steps } = await generateText({
  model: provider('m'),
  tools: aiSdkTools(session, jsonSchema),
  prompt: 'go',
  stopWhen: stepCountIs(5),
})
await session.close()
process.stdout.write(JSON.stringify({ node: process.version, text, steps: steps.length }))
