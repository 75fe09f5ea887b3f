import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { clientModel } from './client-model.ts'
import { areInstalled, claudeProgram, codexProgram } from './coding-agents.ts'
import { full } from './sdk.ts'
import { Terminal } from './terminal.ts'

/** Claude Code and Codex at a real terminal: the person sees our question in the agent's own dialog, and answers it there. */

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
    '%s: the person answers our question in the dialog of the agent',
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
})
