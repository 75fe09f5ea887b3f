// OpenAI's Responses API: exec_command, write_stdin and view_image in a sandbox on the current directory.
import OpenAI from 'openai'
import { localSession, openaiTools } from 'ringfence/agents'

await using session = localSession({ workspace: process.cwd(), agentId: 'responses-example' })
const { tools, run } = openaiTools(session)
const client = new OpenAI()
const model = 'gpt-5.1'

let response = await client.responses.create({
  model,
  tools,
  input: process.argv[2] ?? 'List the files here.',
})
for (;;) {
  const calls = response.output.filter((item) => item.type === 'function_call')
  if (calls.length === 0) break
  const input: OpenAI.Responses.ResponseInput = []
  for (const call of calls) input.push(await run(call))
  response = await client.responses.create({ model, tools, input, previous_response_id: response.id })
}
console.log(response.output_text)
