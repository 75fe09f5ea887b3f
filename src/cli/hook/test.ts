import { existsSync } from 'node:fs'
import type { HookAgent } from '../../adapters/hooks/hook.ts'
import { installedHook, switchedOff } from '../../adapters/hooks/settings.ts'
import { compose, type Ringfence } from '../../compose/compose.ts'
import { run } from '../../host/process/run.ts'
import type { HookValues } from '../hook.ts'
import { out } from '../terminal/output.ts'
import { codexTrust } from './codex-trust.ts'
import { settingsFile, settingsIn } from './settings-file.ts'

/** Runs the installed hook as its client would, and reports whether it checks tool calls. */

export type HookTest = {
  readonly agent: HookAgent
  readonly file: string
  readonly status: 'works' | 'incomplete' | 'broken' | 'not-installed'
  readonly checks: readonly HookCheck[]
  /** Steps left for the user before the client calls the hook. */
  readonly left: readonly string[]
}

type HookCheck = {
  readonly name: string
  readonly ok: boolean
  readonly detail: string
}

const TRY_MS = 30_000
const MAX_ANSWER = 1024 * 1024

/** `ringfence hook test AGENT`: exit 0 when the client calls the hook and understands its answer. */
export async function testInstalled(agent: HookAgent, values: HookValues): Promise<number> {
  const ringfence = await compose({ config: values.config })
  await ringfence.close()
  const file = chosenFile(agent, ringfence, values.project)
  const test = await runTest(agent, file, ringfence)
  out(values.json ? `${JSON.stringify(test)}\n` : lines(test))
  return test.status === 'works' ? 0 : 1
}

/** Without `--project`: the user's settings, or the project's if only those contain the hook. */
function chosenFile(agent: HookAgent, ringfence: Ringfence, project: boolean | undefined): string {
  const own = settingsFile(agent, ringfence, false)
  const shared = settingsFile(agent, ringfence, true)
  const has = (file: string): boolean => installedHook(agent, settingsIn(file)) !== undefined
  return project || (!has(own) && has(shared)) ? shared : own
}

/** Tests the hook in a settings file. */
export async function runTest(agent: HookAgent, file: string, ringfence: Ringfence): Promise<HookTest> {
  const settings = settingsIn(file)
  const hook = installedHook(agent, settings)
  if (hook === undefined) {
    const left = [
      `${existsSync(file) ? 'no ringfence hook in this file' : 'no such file'}: ringfence hook install ${agent}`,
    ]
    return { agent, file, status: 'not-installed', checks: [], left }
  }
  const checks = [
    covered(hook.missed),
    ...(await Promise.all(CALLS[agent].map((call) => tryCall(agent, hook.command, call, ringfence)))),
  ]
  const off = switchedOff(agent, settings)
  const trust = agent === 'codex' ? await codexTrust(hook.command, ringfence) : undefined
  const left = [off, trust].filter((one): one is string => one !== undefined)
  const works = checks.every(({ ok }) => ok)
  return { agent, file, status: !works ? 'broken' : left.length > 0 ? 'incomplete' : 'works', checks, left }
}

const covered = (missed: readonly string[]): HookCheck => ({
  name: 'the hook is called for every tool it checks',
  ok: missed.length === 0,
  detail: missed.length === 0 ? 'yes' : `the matcher misses ${missed.join(', ')}; install the hook again`,
})

type Call = {
  readonly name: string
  readonly tool: string
  readonly input: Readonly<Record<string, string>>
  readonly passes: boolean
}

const PATCH = '*** Begin Patch\n*** Add File: .git/hooks/pre-commit\n+exit 0\n*** End Patch\n'

const shell = (tool: string): readonly Call[] => [
  { name: 'a harmless command passes', tool, input: { command: 'pwd' }, passes: true },
  { name: 'a forbidden command is blocked', tool, input: { command: 'rm -rf /' }, passes: false },
]
const writer = (tool: string, input: Readonly<Record<string, string>>): Call => ({
  name: 'a change to .git/hooks is blocked',
  tool,
  input,
  passes: false,
})

const CALLS: Readonly<Record<HookAgent, readonly Call[]>> = {
  'claude-code': [...shell('Bash'), writer('Write', { file_path: '.git/hooks/pre-commit', content: '' })],
  codex: [...shell('Bash'), writer('apply_patch', { command: PATCH })],
  gemini: [
    ...shell('run_shell_command'),
    writer('write_file', { file_path: '.git/hooks/pre-commit', content: '' }),
  ],
}

/** Runs the configured hook command in a shell in the project, with the tool call on stdin. */
async function tryCall(
  agent: HookAgent,
  command: string,
  call: Call,
  { env, cwd }: Ringfence,
): Promise<HookCheck> {
  const event = agent === 'gemini' ? 'BeforeTool' : 'PreToolUse'
  const input = {
    session_id: 'ringfence-hook-test',
    hook_event_name: event,
    cwd,
    tool_name: call.tool,
    tool_input: call.input,
  }
  const project = { CLAUDE_PROJECT_DIR: cwd, ...(agent === 'gemini' && { GEMINI_PROJECT_DIR: cwd }) }
  const { exit, stdout, stderr } = await run(
    { file: '/bin/sh', args: ['-c', command], env: { ...env, ...project }, cwd, control: false },
    { wallMs: TRY_MS, outputBytes: MAX_ANSWER },
    { stdin: Buffer.from(JSON.stringify(input)) },
  )
  const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString('utf8').trim()
  return checked(call, exit.code, text(stdout), text(stderr))
}

function checked({ name, passes }: Call, code: number | null, stdout: string, stderr: string): HookCheck {
  const said = verdictOf(code, stdout)
  if (said === undefined)
    return {
      name,
      ok: false,
      detail: `no answer that the client understands (exit ${code}): ${stderr || stdout}`,
    }
  // A hook that cannot start blocks too, but it checks nothing.
  if (said === 'blocked' && code === 2)
    return { name, ok: false, detail: `the hook blocks every call: ${stderr || 'no reason given'}` }
  return { name, ok: (said === 'passes') === passes, detail: said }
}

/** How the client interprets an answer. */
function verdictOf(code: number | null, stdout: string): 'passes' | 'blocked' | undefined {
  if (code === 2) return 'blocked'
  if (code !== 0) return undefined
  try {
    const { decision, hookSpecificOutput } = JSON.parse(stdout) as {
      readonly decision?: string
      readonly hookSpecificOutput?: { readonly permissionDecision?: string }
    }
    const said = hookSpecificOutput?.permissionDecision ?? decision
    return said === 'deny' || said === 'block' ? 'blocked' : 'passes'
  } catch {
    return undefined
  }
}

const VERDICTS: Readonly<Record<HookTest['status'], string>> = {
  works: 'works',
  incomplete: 'the hook works, but the client does not call it yet',
  broken: 'does not work',
  'not-installed': 'not installed',
}

/** The result of a hook test as text. */
export function lines({ agent, file, status, checks, left }: HookTest): string {
  const checked = checks.map(
    ({ name, ok, detail }) => `  ${ok ? 'ok    ' : 'FAILED'}  ${name}${ok ? '' : `: ${detail}`}\n`,
  )
  const todo = left.map((one) => `  left to do: ${one}\n`)
  return `hook for ${agent}: ${VERDICTS[status]} (${file})\n${[...checked, ...todo].join('')}`
}
