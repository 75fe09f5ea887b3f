import { execFileSync, spawn } from 'node:child_process'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { chatAnswer, type ModelServer, modelServer, responsesAnswer, responsesText } from './model-server.ts'
import { installed } from './sdk.ts'

/**
 * The examples for agent SDKs, as a reader would use them: compiled with `tsc --strict` against the real packages and the
 * built ringfence, then run with a model on loopback that calls one tool and ends.
 */

const here = join(packageRoot(), 'test', 'adapters')
/** Below the packages, so that imports resolve to them. */
const built = join(here, 'node_modules', '.examples')
const base = mkdtempSync(join(tmpdir(), 'rf-examples-'))

type Example = {
  readonly source: string
  readonly command: readonly [tool: string, args: object]
  /** Packages of another version, by the name under which the example imports them. */
  readonly instead?: Readonly<Record<string, string>>
}
const SHELL = 'echo made > made.txt; cat made.txt'
const EXAMPLES: Readonly<Record<string, Example>> = {
  anthropic: { source: 'anthropic', command: ['bash', { command: SHELL }] },
  'anthropic-tool-runner': { source: 'anthropic-tool-runner', command: ['bash', { command: SHELL }] },
  'openai-responses': { source: 'openai-responses', command: ['exec_command', { cmd: SHELL }] },
  'openai-agents': { source: 'openai-agents', command: ['exec_command', { cmd: SHELL }] },
  'chat-completions': { source: 'chat-completions', command: ['exec', { command: SHELL }] },
  'ai-sdk-6': { source: 'ai-sdk', command: ['exec', { command: SHELL }] },
  'ai-sdk-5': {
    source: 'ai-sdk',
    command: ['exec', { command: SHELL }],
    instead: { ai: 'ai-5', '@ai-sdk/openai-compatible': 'ai-5-openai-compatible' },
  },
  deepagents: { source: 'deepagents', command: ['execute', { command: SHELL }] },
  mastra: { source: 'mastra', command: ['exec', { command: SHELL }] },
}

function compile(): void {
  rmSync(built, { recursive: true, force: true })
  for (const [name, { source, instead = {} }] of Object.entries(EXAMPLES)) {
    cpSync(join(packageRoot(), 'examples', 'agents', source), join(built, name), { recursive: true })
    for (const [imported, real] of Object.entries({ ringfence: '', ...instead })) {
      const link = join(built, name, 'node_modules', imported)
      mkdirSync(join(link, '..'), { recursive: true })
      symlinkSync(real === '' ? packageRoot() : join(here, 'node_modules', real), link)
    }
  }
  const options = { strict: true, target: 'es2023', module: 'nodenext', skipLibCheck: true, types: ['node'] }
  writeFileSync(
    join(built, 'tsconfig.json'),
    JSON.stringify({ compilerOptions: options, include: ['*/main.ts'] }),
  )
  writeFileSync(join(built, 'package.json'), '{"type":"module"}')
  const tsc = join(packageRoot(), 'node_modules', 'typescript', 'bin', 'tsc')
  execFileSync(process.execPath, [tsc, '-p', built], { stdio: 'pipe' })
}

/** Calls the tool once, then ends, in the format that the request is in. */
function answer(path: string, [tool, args]: Example['command'], isFirst: boolean): unknown {
  const called = {
    type: 'function_call',
    id: 'fc_1',
    call_id: 'call_1',
    status: 'completed',
    name: tool,
    arguments: JSON.stringify(args),
  }
  if (path.includes('/chat/completions'))
    return chatAnswer(isFirst ? [[tool, JSON.stringify(args)]] : 'finished', isFirst ? 0 : 1)
  if (path.includes('/responses'))
    return responsesAnswer([isFirst ? called : responsesText('finished')], isFirst ? 0 : 1)
  return {
    id: 'msg',
    type: 'message',
    role: 'assistant',
    model: 'scripted',
    stop_reason: isFirst ? 'tool_use' : 'end_turn',
    stop_sequence: null,
    usage: { input_tokens: 1, output_tokens: 1 },
    content: isFirst
      ? [{ type: 'tool_use', id: 'tu', name: tool, input: args }]
      : [{ type: 'text', text: 'finished' }],
  }
}

async function run(name: string, workspace: string, model: ModelServer): Promise<string> {
  const child = spawn(process.execPath, [join(built, name, 'main.js'), 'make a file'], {
    cwd: workspace,
    env: {
      HOME: base,
      PATH: process.env.PATH,
      RINGFENCE_HOME: join(base, 'state'),
      ANTHROPIC_API_KEY: 'k',
      ANTHROPIC_BASE_URL: model.url,
      OPENAI_API_KEY: 'k',
      OPENAI_BASE_URL: `${model.url}/v1`,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: 60_000,
  })
  let said = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (said += String(chunk)))
  const code = await new Promise((resolve) => child.on('close', resolve))
  return `${said}\n[exit ${code}]`
}

beforeAll(() => {
  installed()
  compile()
}, 180_000)
afterAll(() => rmSync(base, { recursive: true, force: true }))

describe.each(Object.entries(EXAMPLES))('the example %s', (name, { command }) => {
  test('compiles with strict types, runs its tool in a sandbox, and ends with the model’s answer', async () => {
    const workspace = join(base, name)
    mkdirSync(workspace)
    let turns = 0
    const model = await modelServer(({ path }) => answer(path, command, turns++ === 0))
    const said = await run(name, workspace, model)
    await model.close()
    expect(said).toMatch(/finished\n\n\[exit 0\]/)
    expect(existsSync(join(workspace, 'made.txt')) && readFileSync(join(workspace, 'made.txt'), 'utf8')).toBe(
      'made\n',
    )
    expect(JSON.stringify(model.asked.at(-1)?.body), 'the model received the output').toContain('made\\n')
  }, 90_000)
})
