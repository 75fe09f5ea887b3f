// LangChain's deepagents with Ringfence as its sandbox.
import { ChatOpenAI } from '@langchain/openai'
import { BaseSandbox, createDeepAgent } from 'deepagents'
import { deepagentsSandbox, localSession } from 'ringfence/agents'

const session = localSession({ workspace: process.cwd(), agentId: 'deepagents-example' })
const backend = deepagentsSandbox(BaseSandbox, session, { initialFiles: { 'notes/plan.md': '# Plan\n' } })
const agent = createDeepAgent({ model: new ChatOpenAI({ model: 'local-model' }), backend })

const { messages } = await agent.invoke({
  messages: [{ role: 'user', content: process.argv[2] ?? 'List the files here.' }],
})
console.log(messages.at(-1)?.content)
await backend.close()
