import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { frontOf } from '../cli/program.ts'
import { type ClientModel, clientModel, type ToolCall } from './client-model.ts'
import { areInstalled, claudeProgram, codexProgram, geminiProgram } from './coding-agents.ts'
import { HookKit, patchAdding } from './hook-kit.ts'

/** The real coding agents with the hook that we install, on a model that calls what we wrote down. */

const kit = new HookKit()
afterAll(() => kit.remove())

async function client(
  file: string,
  args: (model: ClientModel) => readonly string[],
  env: (model: ClientModel) => Readonly<Record<string, string>>,
  calls: readonly ToolCall[],
): Promise<string> {
  const model = await clientModel(calls)
  const child = spawn(file, args(model), {
    cwd: kit.workspace,
    env: { ...kit.env, PATH: '/usr/bin:/bin', ...env(model) },
    stdio: 'ignore',
    timeout: 100_000,
  })
  await new Promise((resolve) => child.on('close', resolve))
  model.close()
  return model.results()
}

const claude = (calls: readonly ToolCall[]): Promise<string> =>
  client(
    claudeProgram,
    () => ['-p', '--dangerously-skip-permissions', '--', 'go'],
    ({ url }) => ({
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_API_KEY: 'k',
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
      DISABLE_AUTOUPDATER: '1',
      IS_SANDBOX: '1',
    }),
    calls,
  )

const codex = (calls: readonly ToolCall[], ...flags: readonly string[]): Promise<string> =>
  client(
    codexProgram,
    ({ url }) => [
      'exec',
      '--skip-git-repo-check',
      ...['--sandbox', 'danger-full-access', ...flags],
      ...[
        '-c',
        'model="gpt-5.5"',
        '-c',
        'model_provider="scripted"',
        '-c',
        'model_providers.scripted.name="s"',
      ],
      ...['-c', `model_providers.scripted.base_url="${url}/v1"`],
      ...['-c', 'model_providers.scripted.wire_api="responses"', 'go'],
    ],
    () => ({}),
    calls,
  )

const gemini = (calls: readonly ToolCall[]): Promise<string> =>
  client(
    geminiProgram,
    () => ['-p', 'go', '--approval-mode', 'yolo', '--skip-trust', '-m', 'gemini-2.5-pro'],
    ({ url }) => ({ GOOGLE_GEMINI_BASE_URL: url, GEMINI_API_KEY: 'k' }),
    calls,
  )

/** A program that never answers and does not hear that it should end. */
const hanging = join(kit.base, 'hanging.cjs')
writeFileSync(
  hanging,
  `#!${process.execPath}\nprocess.on("SIGTERM", () => {}); setInterval(() => {}, 1000)`,
  {
    mode: 0o755,
  },
)

/** The settings with our hook hanging, and the time after which it is ended a short one. */
function hang(settings: string): void {
  const text = readFileSync(settings, 'utf8')
  writeFileSync(settings, text.replace(frontOf(), hanging).replace('sleep 30', 'sleep 1'))
}

/** A hook that is not ours, takes longer than the client waits, and would then block. */
const late = (event: string, matcher: string, timeout: number): object => ({
  hooks: { [event]: [{ matcher, hooks: [{ type: 'command', command: 'sleep 8; exit 2', timeout }] }] },
})

const made = (name: string): boolean => existsSync(join(kit.workspace, name))
const bash = (command: string): ToolCall => ({ tool: 'Bash', input: { command, description: 'x' } })

describe.runIf(areInstalled)('Claude Code', () => {
  const settings = join(kit.base, '.claude', 'settings.json')

  test('calls the hook and follows its decision', async () => {
    expect(kit.hook(['install', 'claude-code', '--sandboxed', '--yes'], '').status).toBe(0)
    const write = (name: string): ToolCall => ({
      tool: 'Write',
      input: { file_path: join(kit.workspace, name), content: 'x' },
    })
    const told = await claude([bash('touch made'), write('.envrc'), write('ok.txt')])
    expect([made('made'), made('.envrc'), made('ok.txt')]).toEqual([true, false, true])
    expect(told).toContain('is a protected name')
  })

  test('runs nothing when the hook cannot start', async () => {
    const text = readFileSync(settings, 'utf8')
    writeFileSync(settings, text.replace(frontOf(), '/no/such/front'))
    const told = await claude([bash('touch never')])
    expect(made('never')).toBe(false)
    expect(told).toContain('this call is blocked')
  })

  test('runs nothing when the hook hangs', async () => {
    kit.hook(['install', 'claude-code', '--sandboxed', '--yes'], '')
    hang(settings)
    expect(await claude([bash('touch hung')])).toContain('this call is blocked')
    expect(made('hung')).toBe(false)
  })

  test('runs the command after its own timeout of the hook (known limit of the client)', async () => {
    writeFileSync(settings, JSON.stringify(late('PreToolUse', 'Bash', 1)))
    await claude([bash('touch late')])
    expect(made('late')).toBe(true)
  })

  test('control: a command that is not found lets every call pass', async () => {
    const bare = { type: 'command', command: 'no-such-ringfence hook claude-code' }
    writeFileSync(settings, JSON.stringify({ hooks: { PreToolUse: [{ matcher: 'Bash', hooks: [bare] }] } }))
    await claude([bash('touch passed')])
    expect(made('passed')).toBe(true)
  })
})

describe.runIf(areInstalled)('Codex', () => {
  test('does not call the hook before it is trusted, and `hook test` reports that', async () => {
    mkdirSync(join(kit.base, '.codex'), { recursive: true })
    expect(kit.hook(['install', 'codex', '--sandboxed', '--yes'], '').status).toBe(0)
    const path = { PATH: `${join(codexProgram, '..')}:${process.env.PATH}` }
    const { status, stdout } = kit.hook(['test', 'codex', '--json'], '', path)
    expect([status, JSON.parse(stdout).status]).toEqual([1, 'incomplete'])
    expect(JSON.parse(stdout).left[0]).toContain('/hooks')
  })

  test('denies a patch that writes a protected name, also in a here-document', async () => {
    const trusted = '--dangerously-bypass-hook-trust'
    const patch = (path: string): ToolCall => ({ tool: 'apply_patch', input: patchAdding(path) })
    const inShell = {
      tool: 'exec_command',
      input: { cmd: `apply_patch <<'EOF'\n${patchAdding('.envrc')}EOF\n` },
    }
    const told = await codex([patch('.git/hooks/pre-commit'), inShell, patch('fine.txt')], trusted)
    expect([made('.git/hooks/pre-commit'), made('.envrc'), made('fine.txt')]).toEqual([false, false, true])
    expect(told).toContain('blocked by PreToolUse hook')
  })

  test('runs nothing when the hook cannot start or hangs', async () => {
    const trusted = '--dangerously-bypass-hook-trust'
    const settings = join(kit.base, '.codex', 'hooks.json')
    const touch = (name: string): ToolCall => ({ tool: 'exec_command', input: { cmd: `touch ${name}` } })
    const text = readFileSync(settings, 'utf8')
    writeFileSync(settings, text.replace(frontOf(), '/no/such/front'))
    await codex([touch('codex-missing')], trusted)
    writeFileSync(settings, text)
    hang(settings)
    await codex([touch('codex-hung')], trusted)
    expect([made('codex-missing'), made('codex-hung')]).toEqual([false, false])
    // The control, and what no hook can keep: Codex goes on after its own time-out.
    writeFileSync(settings, JSON.stringify(late('PreToolUse', 'Bash', 1)))
    await codex([touch('codex-late')], trusted)
    expect(made('codex-late')).toBe(true)
  })
})

describe.runIf(areInstalled)('Gemini CLI', () => {
  const settings = join(kit.base, '.gemini', 'settings.json')
  const own = { security: { auth: { selectedType: 'gemini-api-key' } } }
  const run = (command: string): ToolCall => ({ tool: 'run_shell_command', input: { command } })
  const install = (): void => {
    mkdirSync(join(kit.base, '.gemini'), { recursive: true })
    writeFileSync(settings, JSON.stringify(own))
    expect(kit.hook(['install', 'gemini', '--sandboxed', '--yes'], '').status).toBe(0)
  }

  test('calls the hook and follows its decision', async () => {
    install()
    const write = (name: string): ToolCall => ({
      tool: 'write_file',
      input: { file_path: join(kit.workspace, name), content: 'x' },
    })
    const told = await gemini([run('touch by-gemini'), write('.envrc'), write('gemini.txt')])
    expect([made('by-gemini'), made('.envrc'), made('gemini.txt')]).toEqual([true, false, true])
    expect(told).toContain('is a protected name')
  })

  test.runIf(process.env.RINGFENCE_FULL)('runs nothing when the hook cannot start or hangs', async () => {
    install()
    writeFileSync(settings, readFileSync(settings, 'utf8').replace(frontOf(), '/no/such/front'))
    expect(await gemini([run('touch gemini-missing')])).toContain('this call is blocked')
    install()
    hang(settings)
    await gemini([run('touch gemini-hung')])
    expect([made('gemini-missing'), made('gemini-hung')]).toEqual([false, false])
    // The control, and what no hook can keep: Gemini goes on after its own time-out.
    writeFileSync(settings, JSON.stringify({ ...own, ...late('BeforeTool', 'run_shell_command', 1000) }))
    await gemini([run('touch gemini-late')])
    expect(made('gemini-late')).toBe(true)
  })
})
