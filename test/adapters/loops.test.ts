import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import {
  type AgentSession,
  aiSdkTools,
  anthropicTools,
  deepagentsSandbox,
  functionTools,
  localSession,
  OpenAiSandboxClient,
  openaiTools,
} from '../../src/agents.ts'
import { readTrail } from '../../src/audit/read.ts'
import { chatAnswer, type ModelServer, modelServer, responsesAnswer, responsesText } from './model-server.ts'
import { sdk } from './sdk.ts'

/**
 * A whole loop for each adapter: the provider's real SDK, a scripted model on loopback in the provider's format, our
 * tools in a real sandbox, and the results in the model's next request.
 */

const base = mkdtempSync(join(tmpdir(), 'rf-loops-'))
const KEY = 'canary-model-key-4711'
let workspace: string
let session: AgentSession
let model: ModelServer | undefined
let count = 0

const open = (): AgentSession =>
  localSession(
    { workspace, agentId: 'looper' },
    { env: { HOME: base, PATH: process.env.PATH, RINGFENCE_HOME: join(base, 'state') }, cwd: workspace },
  )

beforeAll(() => void sdk('openai'), 180_000)
beforeEach(async () => {
  await session?.close()
  await model?.close()
  workspace = join(base, `work-${count++}`)
  mkdirSync(workspace)
  session = open()
})
afterAll(async () => {
  await session.close()
  await model?.close()
  rmSync(base, { recursive: true, force: true })
})

const file = (name: string): string => readFileSync(join(workspace, name), 'utf8')
const sent = (): string => JSON.stringify(model?.asked.at(-1)?.body)

describe('Anthropic', () => {
  type Block = {
    readonly type: string
    readonly id: string
    readonly name: string
    readonly input: unknown
    readonly text?: string
  }
  type Anthropic = new (
    options: object,
  ) => {
    readonly messages: {
      create(asked: object): Promise<{ readonly content: readonly Block[]; readonly stop_reason: string }>
    }
  }

  test('bash with state, the text editor and the toolset work', async () => {
    const { default: Client } = await sdk<{ default: Anthropic }>('@anthropic-ai/sdk')
    const script: readonly (readonly (readonly [string, object])[])[] = [
      [['bash', { command: 'mkdir sub && cd sub && export A=7' }]],
      [['bash', { command: 'echo $A in $PWD' }]],
      [['str_replace_based_edit_tool', { command: 'create', path: 'f.txt', file_text: 'one\ntwo\n' }]],
      [
        [
          'str_replace_based_edit_tool',
          { command: 'str_replace', path: 'f.txt', old_str: 'two', new_str: '2' },
        ],
        [
          'str_replace_based_edit_tool',
          { command: 'insert', path: 'f.txt', insert_line: 1, insert_text: 'between' },
        ],
        ['str_replace_based_edit_tool', { command: 'view', path: 'f.txt' }],
        ['grep', { pattern: 'betw' }],
        ['bash', { restart: true }],
      ],
      [
        ['bash', { command: 'echo "A=$A"' }],
        ['bash', { command: 'rm -rf /' }],
        ['teleport', {}],
      ],
    ]
    model = await modelServer((_, turn) => ({
      id: `msg_${turn}`,
      type: 'message',
      role: 'assistant',
      model: 'scripted',
      stop_reason: script[turn] ? 'tool_use' : 'end_turn',
      stop_sequence: null,
      usage: { input_tokens: 1, output_tokens: 1 },
      content: script[turn]?.map(([name, input], at) => ({
        type: 'tool_use',
        id: `tu_${turn}_${at}`,
        name,
        input,
      })) ?? [{ type: 'text', text: 'done' }],
    }))
    const client = new Client({ apiKey: KEY, baseURL: model.url })
    const { tools, run } = anthropicTools(session)
    const messages: object[] = [{ role: 'user', content: 'go' }]
    const results: string[] = []
    for (;;) {
      const { content, stop_reason } = await client.messages.create({
        model: 'm',
        max_tokens: 99,
        tools,
        messages,
      })
      messages.push({ role: 'assistant', content })
      if (stop_reason !== 'tool_use') break
      const answers = []
      for (const block of content) answers.push(await run(block))
      results.push(...answers.map((answer) => JSON.stringify(answer)))
      messages.push({ role: 'user', content: answers })
    }
    expect(results[1]).toContain(`7 in ${workspace}/sub`)
    expect(file('f.txt')).toBe('one\nbetween\n2\n')
    expect(results[5]).toContain('2\\tbetween')
    expect(results[6]).toContain('f.txt:2:between')
    expect(results[8]).toContain('A=\\n')
    expect(results[9]).toMatch(/forbidden-command.*"is_error":true/)
    expect(results[10]).toMatch(/no tool named `teleport`/)
    expect(model.asked).toHaveLength(6)
    expect(model.asked[0]?.body.tools).toEqual(tools)
  })
})

describe('OpenAI', () => {
  type Item = { readonly type: string; readonly call_id?: string; readonly name?: string }
  type OpenAi = new (
    options: object,
  ) => {
    readonly responses: { create(asked: object): Promise<{ readonly output: readonly Item[] }> }
    readonly chat: {
      readonly completions: {
        create(asked: object): Promise<{ readonly choices: readonly { readonly message: ChatMessage }[] }>
      }
    }
  }
  type ChatMessage = {
    readonly tool_calls?: readonly { id: string; function: { name: string; arguments: string } }[]
  }

  test('Responses API: exec_command, write_stdin, shell and apply_patch work', async () => {
    const { default: Client } = await sdk<{ default: OpenAi }>('openai')
    const fn = (name: string, args: object, at: number) => ({
      type: 'function_call',
      id: `fc_${at}`,
      call_id: `c${at}`,
      name,
      arguments: JSON.stringify(args),
      status: 'completed',
    })
    const script: readonly (readonly object[])[] = [
      [fn('exec_command', { cmd: 'read x; echo got $x', tty: true, yield_time_ms: 300 }, 1)],
      [fn('write_stdin', { session_id: 1, chars: 'it\n', yield_time_ms: 5000 }, 2)],
      [
        {
          type: 'shell_call',
          id: 's',
          call_id: 'c3',
          status: 'completed',
          action: { commands: ['echo a; exit 3', 'sleep 9'], timeout_ms: 500, max_output_length: 1000 },
        },
      ],
      [
        {
          type: 'apply_patch_call',
          id: 'p',
          call_id: 'c4',
          status: 'completed',
          operation: { type: 'create_file', path: 'n.txt', diff: '+new\n' },
        },
      ],
      [
        {
          type: 'apply_patch_call',
          id: 'q',
          call_id: 'c5',
          status: 'completed',
          operation: { type: 'update_file', path: 'n.txt', diff: '@@\n-absent\n+x\n' },
        },
      ],
      [responsesText('done')],
    ]
    model = await modelServer((_, turn) => responsesAnswer(script[turn] ?? [], turn))
    const client = new Client({ apiKey: KEY, baseURL: model.url })
    const { tools, run } = openaiTools(session)
    const input: object[] = [{ role: 'user', content: 'go' }]
    const results: string[] = []
    for (let more = true; more; ) {
      const { output } = await client.responses.create({
        model: 'm',
        tools: [...tools, { type: 'shell' }, { type: 'apply_patch' }],
        input,
      })
      input.push(...output)
      more = false
      for (const item of output.filter(({ type }) => type.endsWith('_call'))) {
        const result = await run(item)
        results.push(JSON.stringify(result))
        input.push(result)
        more = true
      }
    }
    expect(results[0]).toContain('Process running with session ID 1')
    expect(results[1]).toMatch(/got it.*/)
    expect(results[1]).toContain('Process exited with code 0')
    expect(results[2]).toContain('"outcome":{"type":"exit","exit_code":3}')
    expect(results[2]).toContain('{"type":"timeout"}')
    expect(file('n.txt')).toBe('new\n')
    expect(results[4]).toMatch(/"status":"failed".*does not apply/)
    expect(sent()).toContain('does not apply')
  })

  test('local models: chat completions with malformed arguments work', async () => {
    const { default: Client } = await sdk<{ default: OpenAi }>('openai')
    model = await modelServer((_, turn) =>
      chatAnswer(
        [
          [['file_write', '```json\n{"path": "x.py", "content": "print(6*7)"}\n```']],
          [['exec', '{"command": "python3 x.py", "timeout_ms": "20000",}']],
          [
            ['exec', '{"command": "rm -r bui'],
            ['no_tool', '{}'],
          ],
          'done',
        ][turn] as string,
        turn,
      ),
    )
    const client = new Client({ apiKey: 'none', baseURL: model.url })
    const { tools, run } = functionTools(session)
    const messages: object[] = [{ role: 'user', content: 'go' }]
    const results: string[] = []
    for (;;) {
      const { choices } = await client.chat.completions.create({ model: 'm', tools, messages })
      const message = choices[0]?.message
      messages.push(message as object)
      if (!message?.tool_calls) break
      for (const call of message.tool_calls) {
        const result = await run(call)
        results.push(result.content)
        messages.push(result)
      }
    }
    expect(results[1]).toContain('42')
    expect(results[2]).toMatch(/^error: invalid-input: the arguments are not a JSON object/)
    expect(results[3]).toMatch(/no tool named/)
  })

  test('Agents SDK: shell and apply_patch tools work', async () => {
    const agents = await sdk<AgentsSdk>('@openai/agents')
    const script: readonly (readonly object[])[] = [
      [
        {
          type: 'shell_call',
          id: 's',
          call_id: 'c1',
          status: 'completed',
          action: { commands: ['echo from-shell; pwd'], timeout_ms: 5000, max_output_length: 4000 },
        },
      ],
      [
        {
          type: 'apply_patch_call',
          id: 'p',
          call_id: 'c2',
          status: 'completed',
          operation: { type: 'create_file', path: 'made.txt', diff: '+by patch\n' },
        },
      ],
      [responsesText('finished')],
    ]
    model = await modelServer((_, turn) => responsesAnswer(script[turn] ?? [], turn))
    const { shell, editor } = openaiTools(session)
    const agent = new agents.Agent({
      name: 'a',
      model: 'scripted',
      tools: [
        agents.shellTool({ shell, needsApproval: false }),
        agents.applyPatchTool({ editor, needsApproval: false }),
      ],
    })
    const result = await runner(agents, model.url).run(agent, 'go')
    expect(result.finalOutput).toBe('finished')
    expect(file('made.txt')).toBe('by patch\n')
    expect(sent()).toContain(`from-shell\\n${workspace}`)
  })

  test('Agents SDK: our SandboxClient works in a sandbox agent', async () => {
    const agents = await sdk<AgentsSdk>('@openai/agents')
    const { SandboxAgent, Manifest } = await sdk<SandboxSdk>('@openai/agents/sandbox')
    const fn = (name: string, args: object, at: number) => ({
      type: 'function_call',
      id: `fc_${at}`,
      call_id: `c${at}`,
      name,
      arguments: JSON.stringify(args),
      status: 'completed',
    })
    const script: readonly (readonly object[])[] = [
      [fn('exec_command', { cmd: 'cat notes.md; echo made > out.txt' }, 1)],
      [responsesText('finished')],
    ]
    model = await modelServer((_, turn) => responsesAnswer(script[turn] ?? [], turn))
    const manifest = new Manifest({
      entries: { 'notes.md': { type: 'file', content: 'from the manifest\n' } },
    })
    const agent = new SandboxAgent({
      name: 's',
      model: 'scripted',
      instructions: 'work',
      defaultManifest: manifest,
    })
    const client = new OpenAiSandboxClient(open)
    const result = await runner(agents, model.url).run(agent, 'go', { sandbox: { client } })
    expect(result.finalOutput).toBe('finished')
    expect(sent()).toContain('from the manifest')
    expect(file('out.txt')).toBe('made\n')
  })
})

type AgentsSdk = {
  readonly Agent: new (options: object) => object
  readonly Runner: new (
    options: object,
  ) => { run(agent: object, input: string, options?: object): Promise<{ readonly finalOutput?: string }> }
  readonly OpenAIProvider: new (options: object) => object
  readonly shellTool: (options: object) => object
  readonly applyPatchTool: (options: object) => object
}
type SandboxSdk = {
  readonly SandboxAgent: new (options: object) => object
  readonly Manifest: new (options: object) => object
}

const runner = (agents: AgentsSdk, baseURL: string) =>
  new agents.Runner({
    modelProvider: new agents.OpenAIProvider({ apiKey: KEY, baseURL, useResponses: true }),
    tracingDisabled: true,
  })

test('Vercel AI SDK: the tools work in a loop', async () => {
  type Ai = {
    generateText(asked: object): Promise<{ readonly text: string; readonly steps: readonly unknown[] }>
    jsonSchema(schema: object): object
    stepCountIs(count: number): object
  }
  const { generateText, jsonSchema, stepCountIs } = await sdk<Ai>('ai')
  const { createOpenAICompatible } = await sdk<{
    createOpenAICompatible(o: object): (name: string) => object
  }>('@ai-sdk/openai-compatible')
  model = await modelServer((_, turn) =>
    chatAnswer(
      [
        [['exec', '{"command":"echo ai > made.txt; cat made.txt"}']],
        [['exec', '{"command":"rm -rf /"}']],
        'finished',
      ][turn] as string,
      turn,
    ),
  )
  const provider = createOpenAICompatible({ name: 'scripted', apiKey: KEY, baseURL: model.url })
  const tools = aiSdkTools(session, jsonSchema)
  const { text, steps } = await generateText({
    model: provider('m'),
    tools,
    prompt: 'go',
    stopWhen: stepCountIs(5),
  })
  expect([text, steps.length]).toEqual(['finished', 3])
  expect(file('made.txt')).toBe('ai\n')
  expect(sent()).toContain('[exit code 0]')
  expect(sent()).toContain('error: forbidden-command')
})

test('LangChain deepagents: the sandbox works in a loop', async () => {
  type Deep = {
    readonly BaseSandbox: abstract new () => object
    createDeepAgent(options: object): {
      invoke(input: object): Promise<{ readonly messages: readonly { readonly content: unknown }[] }>
    }
  }
  const { BaseSandbox, createDeepAgent } = await sdk<Deep>('deepagents')
  const { ChatOpenAI } = await sdk<{ ChatOpenAI: new (options: object) => object }>('@langchain/openai')
  model = await modelServer((_, turn) =>
    chatAnswer(
      [
        [['write_file', JSON.stringify({ file_path: join(workspace, 'd.txt'), content: 'deep\n' })]],
        [['execute', '{"command":"cat d.txt; echo ran"}']],
        [['read_file', JSON.stringify({ file_path: join(workspace, 'd.txt') })]],
        'finished',
      ][turn] as string,
      turn,
    ),
  )
  const llm = new ChatOpenAI({
    model: 'scripted',
    apiKey: KEY,
    streaming: false,
    configuration: { baseURL: model.url },
  })
  const agent = createDeepAgent({ model: llm, backend: deepagentsSandbox(BaseSandbox, session) })
  const { messages } = await agent.invoke({ messages: [{ role: 'user', content: 'go' }] })
  expect(messages.at(-1)?.content).toBe('finished')
  expect(file('d.txt')).toBe('deep\n')
  expect(sent()).toContain('deep\\nran')
})

test('a deepagents sandbox writes its initial files, reports whether it runs, and closes', async () => {
  class Base {}
  const sandbox = deepagentsSandbox(Base, session, { initialFiles: { 'notes/plan.md': '# Plan\n' } })
  expect((await sandbox.execute('cat notes/plan.md')).output).toBe('# Plan\n')
  expect(sandbox.isRunning).toBe(true)
  await sandbox.close()
  expect(sandbox.isRunning).toBe(false)
  expect((await sandbox.execute('true')).exitCode).toBe(126)
})

test('chat completions get an image as a user message after the tool messages', async () => {
  const pixel = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII='
  writeFileSync(join(workspace, 'p.png'), Buffer.from(pixel, 'base64'))
  const call = (id: string, name: string, args: object) => ({
    id,
    function: { name, arguments: JSON.stringify(args) },
  })
  const messages = await functionTools(session).runAll([
    call('a', 'view_image', { path: 'p.png' }),
    call('b', 'exec', { command: 'true' }),
  ])
  expect(messages.map(({ role }) => role)).toEqual(['tool', 'tool', 'user'])
  expect(JSON.stringify(messages[2])).toContain(`data:image/png;base64,${pixel}`)
})

test('no audit record contains a model key', () => {
  const records = [...readTrail(join(base, 'state'))]
  expect(records.length).toBeGreaterThan(20)
  expect(JSON.stringify(records)).not.toContain('canary-model-key')
})
