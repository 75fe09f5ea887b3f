// Chat completions, for local model servers (Ollama, vLLM, llama.cpp, LM Studio): set OPENAI_BASE_URL to yours.
import OpenAI from 'openai'
import { functionTools, localSession } from 'ringfence/agents'

await using session = localSession({ workspace: process.cwd(), agentId: 'chat-example' })
const { tools, runAll } = functionTools(session)
const client = new OpenAI()
const messages: OpenAI.ChatCompletionMessageParam[] = [
  { role: 'user', content: process.argv[2] ?? 'List the files here.' },
]

for (;;) {
  const { choices } = await client.chat.completions.create({ model: 'local-model', tools, messages })
  const message = choices[0]?.message
  if (!message) throw new Error('the model gave no answer')
  messages.push(message)
  const calls = (message.tool_calls ?? []).filter((call) => call.type === 'function')
  if (calls.length === 0) {
    console.log(message.content)
    break
  }
  messages.push(...(await runAll(calls)))
}
