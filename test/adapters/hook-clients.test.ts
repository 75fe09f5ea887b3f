import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { packageRoot } from '../conformance/world.ts'
import { type ClientModel, clientModel, type ToolCall } from './client-model.ts'
import { HookKit, patchAdding, program } from './hook-kit.ts'

/** The real coding agents with the hook that we install, on a model that calls what we wrote down. Large: full run only. */

const bin = (name: string): string =>
  join(packageRoot(), 'test', 'adapters', 'full', 'node_modules', '.bin', name)
const full = process.env.RINGFENCE_FULL && existsSync(bin('claude')) && existsSync(bin('codex'))

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
    timeout: 50_000,
  })
  await new Promise((resolve) => child.on('close', resolve))
  model.close()
  return model.results()
}

const claude = (calls: readonly ToolCall[]): Promise<string> =>
  client(
    bin('claude'),
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
    bin('codex'),
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

const made = (name: string): boolean => existsSync(join(kit.workspace, name))
const bash = (command: string): ToolCall => ({ tool: 'Bash', input: { command, description: 'x' } })

describe.runIf(full)('Claude Code', () => {
  const settings = join(kit.base, '.claude', 'settings.json')

  test('asks the hook and hears it', async () => {
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
    writeFileSync(settings, text.replace(program, '/no/such/ringfence.cjs'))
    const told = await claude([bash('touch never')])
    expect(made('never')).toBe(false)
    expect(told).toContain('this call is blocked')
  })

  test('the bare name of older versions let everything pass: that is what this test can see', async () => {
    const bare = { type: 'command', command: 'no-such-ringfence hook claude-code' }
    writeFileSync(settings, JSON.stringify({ hooks: { PreToolUse: [{ matcher: 'Bash', hooks: [bare] }] } }))
    await claude([bash('touch passed')])
    expect(made('passed')).toBe(true)
  })
})

describe.runIf(full)('Codex', () => {
  test('does not ask before it is trusted, and hook test says so', async () => {
    mkdirSync(join(kit.base, '.codex'), { recursive: true })
    expect(kit.hook(['install', 'codex', '--sandboxed', '--yes'], '').status).toBe(0)
    const path = { PATH: `${join(bin('codex'), '..')}:${process.env.PATH}` }
    const { status, stdout } = kit.hook(['test', 'codex', '--json'], '', path)
    expect([status, JSON.parse(stdout).status]).toEqual([1, 'incomplete'])
    expect(JSON.parse(stdout).left[0]).toContain('/hooks')
  })

  test('a patch that writes a protected name is denied, also in a here-document', async () => {
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
})
