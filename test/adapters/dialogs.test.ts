import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { clientModel, type ToolCall } from './client-model.ts'
import { areInstalled, claudeProgram, codexProgram, geminiProgram, opencodeProgram } from './coding-agents.ts'
import { full } from './sdk.ts'
import { Terminal } from './terminal.ts'

/**
 * Coding agents at a real terminal. Claude Code and Codex: the person sees our question in the agent's own dialog, and answers it
 * there. Gemini CLI and opencode have no such dialog: the person sees what ran, and why a command did not.
 */

const base = mkdtempSync(join(tmpdir(), 'rf-dialog-'))
const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))
// The agents and their servers still write while they end.
afterAll(async () => {
  await pause(3000)
  rmSync(base, { recursive: true, force: true })
}, 20_000)

/** A home in which Claude Code asks nothing at its start. */
function home(workspace: string): string {
  const dir = join(base, 'home')
  mkdirSync(dir, { recursive: true })
  const settings = {
    hasCompletedOnboarding: true,
    theme: 'dark',
    numStartups: 5,
    bypassPermissionsModeAccepted: true,
    customApiKeyResponses: { approved: ['sk-ant-scripted-key-0001'.slice(-20)], rejected: [] },
    projects: {
      [workspace]: { hasTrustDialogAccepted: true, hasCompletedProjectOnboarding: true, allowedTools: [] },
    },
  }
  writeFileSync(join(dir, '.claude.json'), JSON.stringify(settings))
  return dir
}

async function claude(name: string, calls: Parameters<typeof clientModel>[0]) {
  const workspace = join(base, name)
  mkdirSync(workspace)
  const model = await clientModel(calls)
  const config = join(base, `${name}.json`)
  const cli = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
  const env = { RINGFENCE_HOME: join(base, 'state') }
  writeFileSync(
    config,
    JSON.stringify({
      mcpServers: { ringfence: { type: 'stdio', command: process.execPath, args: [cli, 'mcp'], env } },
    }),
  )
  const terminal = Terminal.start(
    name,
    [claudeProgram, '--mcp-config', config, '--strict-mcp-config', '--allowedTools', 'mcp__ringfence__exec'],
    {
      cwd: workspace,
      env: {
        HOME: home(workspace),
        PATH: process.env.PATH ?? '',
        TERM: 'xterm-256color',
        LANG: 'C.UTF-8',
        ANTHROPIC_BASE_URL: model.url,
        ANTHROPIC_API_KEY: 'sk-ant-scripted-key-0001',
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
        DISABLE_AUTOUPDATER: '1',
        DISABLE_TELEMETRY: '1',
      },
    },
  )
  return { terminal, model, workspace }
}

async function codex(name: string, calls: Parameters<typeof clientModel>[0]) {
  const workspace = join(base, name)
  mkdirSync(workspace)
  const model = await clientModel(calls.map((call) => ({ ...call, namespace: 'mcp__ringfence' })))
  const set = (key: string, value: unknown): string[] => ['-c', `${key}=${JSON.stringify(value)}`]
  const cli = join(packageRoot(), 'dist', 'cli', 'ringfence.cjs')
  const terminal = Terminal.start(
    name,
    [
      codexProgram,
      ...set('model', 'gpt-5.5'),
      ...set('model_provider', 'scripted'),
      ...set('model_providers.scripted.name', 's'),
      ...set('model_providers.scripted.base_url', `${model.url}/v1`),
      ...set('model_providers.scripted.wire_api', 'responses'),
      ...set('mcp_servers.ringfence.command', process.execPath),
      ...set('mcp_servers.ringfence.args', [cli, 'mcp']),
      ...['-c', `mcp_servers.ringfence.env={RINGFENCE_HOME=${JSON.stringify(join(base, 'state'))}}`],
    ],
    {
      cwd: workspace,
      env: { HOME: base, PATH: process.env.PATH ?? '', TERM: 'xterm-256color', LANG: 'C.UTF-8' },
    },
  )
  return { terminal, model, workspace }
}

const server = () => ({
  command: process.execPath,
  args: [join(packageRoot(), 'dist', 'cli', 'ringfence.cjs'), 'mcp'],
  env: { RINGFENCE_HOME: join(base, 'state') },
})
const TERMINAL = { TERM: 'xterm-256color', COLORTERM: 'truecolor', LANG: 'C.UTF-8' }

async function gemini(name: string, calls: readonly ToolCall[]) {
  const [workspace, dir] = [join(base, name), join(base, `${name}-home`)]
  for (const one of [workspace, join(dir, '.gemini')]) mkdirSync(one, { recursive: true })
  const model = await clientModel(calls.map((call) => ({ ...call, tool: `mcp_ringfence_${call.tool}` })))
  const settings = {
    mcpServers: { ringfence: { ...server(), trust: true } },
    security: { auth: { selectedType: 'gemini-api-key' } },
    general: { disableAutoUpdate: true, enableAutoUpdate: false },
    // By default it shows only calls that succeeded.
    ui: { hideTips: true, errorVerbosity: 'full' },
  }
  writeFileSync(join(dir, '.gemini', 'settings.json'), JSON.stringify(settings))
  const env = { HOME: dir, PATH: process.env.PATH ?? '', ...TERMINAL }
  const terminal = Terminal.start(name, [geminiProgram, '--skip-trust', '-m', 'gemini-2.5-pro'], {
    cwd: workspace,
    env: { ...env, GOOGLE_GEMINI_BASE_URL: model.url, GEMINI_API_KEY: 'k' },
  })
  return { terminal, model }
}

async function opencode(name: string, calls: readonly ToolCall[]) {
  const [workspace, dir] = [join(base, name), join(base, `${name}-home`)]
  for (const one of [workspace, dir]) mkdirSync(one, { recursive: true })
  const model = await clientModel(calls.map((call) => ({ ...call, tool: `ringfence_${call.tool}` })))
  const { command, args, env: environment } = server()
  const provider = {
    npm: '@ai-sdk/openai-compatible',
    options: { baseURL: `${model.url}/v1`, apiKey: 'k' },
    models: { m: { name: 'scripted' } },
  }
  const settings = {
    model: 'scripted/m',
    provider: { scripted: provider },
    mcp: { ringfence: { type: 'local', command: [command, ...args], environment, enabled: true } },
    autoupdate: false,
  }
  const terminal = Terminal.start(name, [opencodeProgram], {
    cwd: workspace,
    env: {
      HOME: dir,
      PATH: process.env.PATH ?? '',
      ...TERMINAL,
      OPENCODE_CONFIG_CONTENT: JSON.stringify(settings),
      OPENCODE_DISABLE_MODELS_FETCH: '1',
      OPENCODE_DISABLE_AUTOUPDATE: '1',
      OPENCODE_DISABLE_DEFAULT_PLUGINS: '1',
    },
  })
  return { terminal, model }
}

const hasTmux = existsSync('/usr/bin/tmux')
const command = 'git init -q . && git reset --hard; echo was-run'

/** Keeps the screen for the pictures of the documentation (scripts/terminal-picture.mjs). */
function keep(name: string, terminal: Terminal): void {
  const dir = process.env.RINGFENCE_SCREENS
  if (dir) writeFileSync(join(dir, `${name}.ansi`), terminal.screen(true))
}

describe.runIf(full && areInstalled && hasTmux)('an agent at a terminal', () => {
  test.each([
    ['claude-accepts', claude, 'mcp__ringfence__exec', [], ['Enter'], true],
    ['claude-declines', claude, 'mcp__ringfence__exec', [], ['Escape'], false],
    // Codex advertises another model first.
    ['codex-accepts', codex, 'exec', ['Enter'], ['Enter'], true],
    ['codex-declines', codex, 'exec', ['Enter'], ['Down', 'Enter'], false],
  ] as const)(
    '%s: an approval is answered in the dialog of the agent',
    async (name, start, tool, before, keys, isRun) => {
      const { terminal, model } = await start(name, [{ tool, input: { command } }])
      try {
        await expect.poll(() => terminal.screen(), { timeout: 30_000 }).toMatch(/❯|›|>/)
        await pause(4000)
        for (const key of before) if (/Meet|Try new/.test(terminal.screen())) terminal.type(key)
        await pause(2000)
        terminal.type('-l', 'please clean up')
        await pause(500)
        terminal.type('Enter')
        await expect.poll(() => terminal.screen(), { timeout: 40_000 }).toMatch(/Allow this in the sandbox/)
        expect(terminal.screen()).toMatch(/git reset --hard/)
        keep(name, terminal)
        for (const key of keys) {
          terminal.type(key)
          await pause(300)
        }
        await expect
          .poll(() => model.results(), { timeout: 40_000 })
          .toMatch(isRun ? /\[exit code/ : /not approved/)
      } catch (error) {
        process.stdout.write(`${terminal.screen()}\n`)
        throw error
      } finally {
        terminal.close()
        model.close()
      }
    },
    120_000,
  )

  test.each([
    ['gemini', gemini, /Type your message/, /x +exec .*git reset --hard/],
    ['opencode', opencode, /Ask anything|ctrl\+p/, /ringfence_exec \[command=git init/],
  ] as const)(
    '%s shows each call; the reason of a refusal goes to the model',
    async (name, start, ready, shown) => {
      const calls = ['echo "hello from the sandbox"', command].map((line) => ({
        tool: 'exec',
        input: { command: line },
      }))
      const { terminal, model } = await start(name, calls)
      try {
        await expect.poll(() => terminal.screen(), { timeout: 120_000 }).toMatch(ready)
        await pause(6000)
        terminal.type('-l', 'please clean up')
        await pause(500)
        terminal.type('Enter')
        await expect
          .poll(() => /approval-required: discards/.test(model.results()), { timeout: 90_000 })
          .toBe(true)
        expect(/hello from the sandbox/.test(model.results())).toBe(true)
        await expect.poll(() => terminal.screen(), { timeout: 20_000 }).toMatch(/done/)
        expect(terminal.screen()).toMatch(shown)
        keep(name, terminal)
      } catch (error) {
        process.stdout.write(`${terminal.screen()}\n`)
        throw error
      } finally {
        terminal.close()
        model.close()
      }
    },
    300_000,
  )
})
