// The OpenAI Agents SDK with Ringfence as its sandbox provider.
import { OpenAIProvider, Runner } from '@openai/agents'
import { Manifest, SandboxAgent } from '@openai/agents/sandbox'
import { localSession, OpenAiSandboxClient } from 'ringfence/agents'

const open = () => localSession({ workspace: process.cwd(), agentId: 'agents-example' })
const client = new OpenAiSandboxClient(open, Manifest)
const agent = new SandboxAgent({ name: 'worker', model: 'gpt-5.1', instructions: 'Work in the sandbox.' })
const runner = new Runner({
  modelProvider: new OpenAIProvider({ useResponses: true }),
  tracingDisabled: true,
})

const { finalOutput } = await runner.run(agent, process.argv[2] ?? 'List the files here.', {
  sandbox: { client },
})
console.log(finalOutput)
