import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { OPERATIONS } from '../../src/agents.ts'
import { packageRoot } from '../conformance/world.ts'
import { type ClientModel, clientModel, type ToolCall } from './client-model.ts'
import { areInstalled, claudeProgram, codexProgram, geminiProgram, opencodeProgram } from './coding-agents.ts'

/** The real coding agents with `ringfence mcp`, on a model that calls what we wrote down. What counts is what the model receives. */

const base = mkdtempSync(join(tmpdir(), 'rf-mcp-clients-'))
const workspace = join(base, 'work')
const ringfence = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
const state = join(base, 'state')
mkdirSync(workspace)
afterAll(() => rmSync(base, { recursive: true, force: true }))

/** The smallest PNG. */
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII='

async function client(
  file: string,
  args: (model: ClientModel) => readonly string[],
  env: (model: ClientModel) => Readonly<Record<string, string>>,
  calls: readonly ToolCall[],
): Promise<string> {
  const model = await clientModel(calls)
  const child = spawn(file, args(model), {
    cwd: workspace,
    env: { HOME: base, PATH: '/usr/bin:/bin', ...env(model) },
    stdio: 'ignore',
    timeout: 150_000,
  })
  await new Promise((resolve) => child.on('close', resolve))
  model.close()
  return model.results()
}

const server = { command: process.execPath, args: [ringfence, 'mcp'], env: { RINGFENCE_HOME: state } }

function claude(calls: readonly ToolCall[]): Promise<string> {
  const config = join(base, 'mcp.json')
  writeFileSync(config, JSON.stringify({ mcpServers: { ringfence: { type: 'stdio', ...server } } }))
  return client(
    claudeProgram,
    () => ['-p', '--dangerously-skip-permissions', '--mcp-config', config, '--', 'go'],
    ({ url }) => ({
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_API_KEY: 'k',
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      DISABLE_AUTOUPDATER: '1',
      IS_SANDBOX: '1',
    }),
    calls.map(({ tool, input }) => ({ tool: `mcp__ringfence__${tool}`, input })),
  )
}

function codex(calls: readonly ToolCall[]): Promise<string> {
  const set = (name: string, value: unknown): string[] => ['-c', `${name}=${JSON.stringify(value)}`]
  return client(
    codexProgram,
    ({ url }) => [
      ...['exec', '--skip-git-repo-check', '--sandbox', 'read-only'],
      ...set('model', 'gpt-5.5'),
      ...set('model_provider', 'scripted'),
      ...set('model_providers.scripted.name', 's'),
      ...set('model_providers.scripted.base_url', `${url}/v1`),
      ...set('model_providers.scripted.wire_api', 'responses'),
      ...set('mcp_servers.ringfence.command', server.command),
      ...set('mcp_servers.ringfence.args', server.args),
      ...['-c', `mcp_servers.ringfence.env={RINGFENCE_HOME=${JSON.stringify(state)}}`],
      'go',
    ],
    () => ({}),
    calls.map((call) => ({ ...call, namespace: 'mcp__ringfence' })),
  )
}

function gemini(calls: readonly ToolCall[]): Promise<string> {
  mkdirSync(join(base, '.gemini'), { recursive: true })
  const settings = {
    mcpServers: { ringfence: { ...server, trust: true } },
    security: { auth: { selectedType: 'gemini-api-key' } },
  }
  writeFileSync(join(base, '.gemini', 'settings.json'), JSON.stringify(settings))
  return client(
    geminiProgram,
    () => ['-p', 'go', '--approval-mode', 'yolo', '--skip-trust', '-m', 'gemini-2.5-pro'],
    ({ url }) => ({ GOOGLE_GEMINI_BASE_URL: url, GEMINI_API_KEY: 'k', PATH: process.env.PATH ?? '' }),
    calls.map(({ tool, input }) => ({ tool: `mcp_ringfence_${tool}`, input })),
  )
}

function opencode(calls: readonly ToolCall[]): Promise<string> {
  const config = (url: string): string =>
    JSON.stringify({
      model: 'scripted/m',
      provider: {
        scripted: {
          npm: '@ai-sdk/openai-compatible',
          options: { baseURL: `${url}/v1`, apiKey: 'k' },
          models: { m: { attachment: true, modalities: { input: ['text', 'image'], output: ['text'] } } },
        },
      },
      mcp: {
        ringfence: {
          type: 'local',
          command: [server.command, ...server.args],
          environment: server.env,
          enabled: true,
        },
      },
      autoupdate: false,
    })
  return client(
    opencodeProgram,
    () => ['run', 'go'],
    ({ url }) => ({ OPENCODE_CONFIG_CONTENT: config(url) }),
    calls.map(({ tool, input }) => ({ tool: `ringfence_${tool}`, input })),
  )
}

const CALLS: readonly ToolCall[] = [
  { tool: 'exec', input: { command: 'printf "a\\tb\\n"; echo "{\\"k\\": 1}"' } },
  { tool: 'file_write', input: { path: 'note.txt', content: 'one\ntwo\n' } },
  { tool: 'file_read', input: { path: 'note.txt' } },
  { tool: 'file_write', input: { path: '.envrc', content: 'x' } },
  { tool: 'exec', input: { command: 'git reset --hard' } },
  { tool: 'view_image', input: { path: 'pixel.png' } },
]

describe.runIf(areInstalled).each([
  ['Claude Code', claude],
  ['Codex', codex],
  ['Gemini CLI', gemini],
  ['opencode', opencode],
] as const)('%s over MCP', (_, run) => {
  test('runs the tools without a prompt, and its model gets plain text and the image', async () => {
    writeFileSync(join(workspace, 'pixel.png'), Buffer.from(PIXEL, 'base64'))
    const told = await run(CALLS)
    expect(told, 'output as text, not as JSON in JSON').toContain(
      JSON.stringify('a\tb\n{"k": 1}\n\n[exit code 0]').slice(1, -1),
    )
    expect(told).toContain('one\\ntwo')
    expect(told).toContain('is a protected name')
    expect(told).toContain('approval-required')
    expect(told, 'the picture').toContain(PIXEL.slice(0, 60))
    expect(told).not.toContain('structuredContent')
  }, 180_000)
})

/** One call of every tool, with arguments that work. */
const EVERY: readonly ToolCall[] = [
  { tool: 'exec', input: { command: 'echo ran' } },
  { tool: 'process_start', input: { command: 'cat' } },
  { tool: 'process_write', input: { process_id: 1, data: 'x\n' } },
  { tool: 'process_poll', input: { process_id: 1 } },
  { tool: 'process_kill', input: { process_id: 1 } },
  { tool: 'run_code', input: { code: '1 + 1' } },
  { tool: 'file_write', input: { path: 'a.txt', content: 'a' } },
  { tool: 'file_edit', input: { path: 'a.txt', old_text: 'a', new_text: 'b' } },
  { tool: 'apply_patch', input: { patch: '*** Begin Patch\n*** Add File: p.txt\n+p\n*** End Patch' } },
  { tool: 'file_read', input: { path: 'a.txt' } },
  { tool: 'file_list', input: { path: '.' } },
  { tool: 'file_glob', input: { pattern: '*.txt' } },
  { tool: 'file_grep', input: { pattern: 'p' } },
  { tool: 'view_image', input: { path: 'pixel.png' } },
  { tool: 'expose_port', input: { port: 8080 } },
  { tool: 'policy_check', input: { command: 'ls' } },
  { tool: 'sandbox_info', input: {} },
  { tool: 'sandbox_reset', input: {} },
]

test.runIf(areInstalled)(
  'Codex without a user runs every tool',
  async () => {
    const offered = OPERATIONS.map(({ name }) => name).filter((name) => name !== 'request_host')
    expect(EVERY.map(({ tool }) => tool).toSorted()).toEqual(offered.toSorted())
    const { input } = JSON.parse(await codex(EVERY)) as { readonly input: readonly Item[] }
    const outputs = input
      .filter(({ type }) => type === 'function_call_output')
      .map(({ output }) => JSON.stringify(output))
    expect(outputs).toHaveLength(EVERY.length)
    for (const [index, output] of outputs.entries())
      expect(output, EVERY[index]?.tool).not.toMatch(/cancelled|rejected|error:/)
  },
  180_000,
)

type Item = { readonly type: string; readonly output?: unknown }
