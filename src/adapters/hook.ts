import { SandboxError } from '../model/errors.ts'

/** The hook formats of coding agents: what they send before a tool runs, and what they understand as an answer. */

export const HOOKED = ['claude-code', 'codex', 'gemini'] as const
export type Hooked = (typeof HOOKED)[number]

/** What a tool call would do, as far as policy has a word for it. */
export type HookedAct =
  | { readonly kind: 'command'; readonly line: string; readonly cwd: string }
  | { readonly kind: 'file'; readonly op: 'read' | 'write'; readonly path: string; readonly cwd: string }
  /** Nothing that we judge: the agent's own rules decide. */
  | { readonly kind: 'other'; readonly tool: string }

export type HookVerdict = {
  readonly verdict: 'allow' | 'ask' | 'deny' | 'none'
  readonly reason: string
  /** Runs this line instead; only where the agent can. */
  readonly instead?: string
}

/** Exit code 2 with a reason on stderr blocks in all three; used for what they have no other word for. */
export type HookAnswer = { readonly stdout: string; readonly stderr: string; readonly code: number }

const SHELLS = [
  'Bash',
  'bash',
  'shell',
  'exec_command',
  'local_shell',
  'unified_exec',
  'run_shell_command',
  'container.exec',
]
const WRITERS = ['Write', 'Edit', 'MultiEdit', 'NotebookEdit', 'write_file', 'replace']
const READERS = ['Read', 'read_file']

/** SECURITY: what cannot be read is refused, never waved through. */
export function actOf(input: unknown): HookedAct {
  const { tool_name, tool_input, cwd } = record(input, 'the hook input')
  const where = typeof cwd === 'string' && cwd !== '' ? cwd : '.'
  if (typeof tool_name !== 'string') throw unreadable('`tool_name` is missing')
  const args = tool_input === undefined ? {} : record(tool_input, '`tool_input`')
  if (SHELLS.includes(tool_name)) return commandOf(args, where)
  const op = WRITERS.includes(tool_name) ? 'write' : READERS.includes(tool_name) ? 'read' : undefined
  if (op === undefined) return { kind: 'other', tool: tool_name }
  const path = args.file_path ?? args.notebook_path ?? args.path ?? args.absolute_path
  if (typeof path !== 'string') throw unreadable(`\`${tool_name}\` names no file`)
  return { kind: 'file', op, path, cwd: where }
}

function commandOf(args: Readonly<Record<string, unknown>>, cwd: string): HookedAct {
  const given = args.command ?? args.cmd
  const directory = args.workdir ?? args.directory ?? args.dir_path
  const place = typeof directory === 'string' && directory !== '' ? directory : cwd
  if (typeof given === 'string') return { kind: 'command', line: given, cwd: place }
  if (Array.isArray(given) && given.every((word) => typeof word === 'string'))
    return { kind: 'command', line: lineOf(given), cwd: place }
  throw unreadable('there is no command in it')
}

/** `["bash", "-lc", line]` is the line; any other list is quoted into one. */
function lineOf(argv: readonly string[]): string {
  const [shell, flag, line] = argv
  if (argv.length === 3 && /(^|\/)(ba|z)?sh$/.test(shell ?? '') && /^-l?c$/.test(flag ?? ''))
    return line ?? ''
  return argv.map(quoted).join(' ')
}

/** One word of a POSIX shell. */
export const quoted = (word: string): string => `'${word.replaceAll("'", "'\\''")}'`

/** The answer in the agent's own format. Codex and Gemini cannot ask: what needs a person is refused there. */
export function answerFor(agent: Hooked, verdict: HookVerdict, input: unknown): HookAnswer {
  if (verdict.verdict === 'none') return json({})
  if (agent === 'claude-code') return json(claude(verdict, input))
  if (verdict.verdict === 'allow') return json(agent === 'gemini' ? { decision: 'allow' } : {})
  const reason =
    verdict.verdict === 'ask' ? `${verdict.reason}; a person must run it or allow it` : verdict.reason
  if (agent === 'gemini') return json({ decision: 'deny', reason })
  return json({
    hookSpecificOutput: {
      hookEventName: 'PreToolUse',
      permissionDecision: 'deny',
      permissionDecisionReason: reason,
    },
  })
}

function claude({ verdict, reason, instead }: HookVerdict, input: unknown): Record<string, unknown> {
  const { tool_input } = input as { readonly tool_input?: Readonly<Record<string, unknown>> }
  return {
    hookSpecificOutput: {
      hookEventName: 'PreToolUse',
      permissionDecision: verdict,
      permissionDecisionReason: reason,
      ...(instead === undefined ? {} : { updatedInput: { ...tool_input, command: instead } }),
    },
  }
}

/** When we cannot judge, the call is blocked. */
export const blocked = (why: string): HookAnswer => ({ stdout: '', stderr: `ringfence: ${why}\n`, code: 2 })

const json = (value: unknown): HookAnswer => ({ stdout: `${JSON.stringify(value)}\n`, stderr: '', code: 0 })

function record(value: unknown, what: string): Readonly<Record<string, unknown>> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value))
    return value as Record<string, unknown>
  throw unreadable(`${what} is no object`)
}

const unreadable = (why: string): SandboxError =>
  new SandboxError('invalid-input', `the tool call cannot be read: ${why}`)

/** Where each agent keeps its hooks, below the home directory or the project. */
export const HOOK_FILES: Readonly<Record<Hooked, string>> = {
  'claude-code': '.claude/settings.json',
  codex: '.codex/hooks.json',
  gemini: '.gemini/settings.json',
}

const EVENTS: Readonly<Record<Hooked, readonly [string, string]>> = {
  'claude-code': ['PreToolUse', 'Bash|Write|Edit|MultiEdit|NotebookEdit|Read'],
  codex: ['PreToolUse', 'Bash'],
  gemini: ['BeforeTool', 'run_shell_command|write_file|replace|read_file'],
}

/** The settings with our hook in them, and everything else as it was. Twice changes nothing. */
export function withHook(
  agent: Hooked,
  settings: unknown,
  command: string,
): Readonly<Record<string, unknown>> {
  const all = settings === undefined ? {} : record(settings, 'the settings file')
  const hooks = all.hooks === undefined ? {} : record(all.hooks, '`hooks`')
  const [event, matcher] = EVENTS[agent]
  const groups = Array.isArray(hooks[event]) ? (hooks[event] as readonly unknown[]) : []
  const ours = { matcher, hooks: [{ type: 'command', command }] }
  const others = groups.filter((group) => !JSON.stringify(group).includes(`hook ${agent}`))
  return { ...all, hooks: { ...hooks, [event]: [...others, ours] } }
}
