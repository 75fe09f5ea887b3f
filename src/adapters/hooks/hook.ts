import { SandboxError } from '../../model/errors.ts'
import { shellQuote } from '../../model/text/shell-quote.ts'
import { visible } from '../../model/text/visible.ts'

/** The hook formats of coding agents: their input before a tool call, and the answers they understand. */

export const HOOK_AGENTS = ['claude-code', 'codex', 'gemini'] as const
/** A coding agent whose hooks are supported. */
export type HookAgent = (typeof HOOK_AGENTS)[number]

/** One file access of a tool call. */
export type ToolCallFile = { readonly op: 'read' | 'write'; readonly path: string }

/** What a tool call would do, as far as the policy covers it. */
export type HookToolCall =
  /** `files`: files that a patch inside the line would change. */
  | {
      readonly kind: 'command'
      readonly line: string
      readonly cwd: string
      readonly files: readonly ToolCallFile[]
    }
  | { readonly kind: 'files'; readonly files: readonly ToolCallFile[]; readonly cwd: string }
  /** Not covered by the policy: the agent's own rules decide. */
  | { readonly kind: 'other'; readonly tool: string }

/** What the policy answers to a tool call. */
export type HookVerdict = {
  readonly verdict: 'allow' | 'ask' | 'deny' | 'none'
  readonly reason: string
  /** Replacement command; only if the agent supports it. */
  readonly instead?: string
}

/** Exit code 2 with a reason on stderr blocks in all three agents. */
export type HookAnswer = { readonly stdout: string; readonly stderr: string; readonly code: number }

const SHELLS = [
  'Bash',
  'bash',
  'Monitor',
  'shell',
  'exec_command',
  'local_shell',
  'unified_exec',
  'run_shell_command',
  'container.exec',
]
const WRITERS = ['Write', 'Edit', 'MultiEdit', 'NotebookEdit', 'write_file', 'replace']
const READERS = ['Read', 'read_file', 'view_image']
/** Tools that search a directory, by default the current one. */
const SEARCHERS = ['Grep', 'Glob', 'grep_search', 'search_file_content', 'glob', 'list_directory']

/** SECURITY: a tool call that cannot be parsed is rejected. */
export function toolCallOf(input: unknown): HookToolCall {
  const { tool_name, tool_input, cwd } = record(input, 'the hook input')
  const where = typeof cwd === 'string' && cwd !== '' ? cwd : '.'
  if (typeof tool_name !== 'string') throw unreadable('`tool_name` is missing')
  const args = tool_input === undefined ? {} : record(tool_input, '`tool_input`')
  if (SHELLS.includes(tool_name)) return commandOf(args, where)
  if (tool_name === 'apply_patch') return { kind: 'files', files: patchOf(args), cwd: where }
  if (tool_name === 'read_many_files') return { kind: 'files', files: manyOf(args), cwd: where }
  const op = WRITERS.includes(tool_name) ? 'write' : READERS.includes(tool_name) ? 'read' : undefined
  const searches = SEARCHERS.includes(tool_name)
  if (op === undefined && !searches) return { kind: 'other', tool: tool_name }
  const path =
    args.file_path ??
    args.notebook_path ??
    args.path ??
    args.absolute_path ??
    args.dir_path ??
    searched(searches)
  if (typeof path !== 'string') throw unreadable(`\`${tool_name}\` names no file`)
  return { kind: 'files', files: [{ op: op ?? 'read', path }], cwd: where }
}

const searched = (searches: boolean): string | undefined => (searches ? '.' : undefined)

function commandOf(args: Readonly<Record<string, unknown>>, cwd: string): HookToolCall {
  const given = args.command ?? args.cmd
  const directory = args.workdir ?? args.directory ?? args.dir_path
  const workdir = typeof directory === 'string' && directory !== '' ? directory : cwd
  const line = Array.isArray(given) && given.every((word) => typeof word === 'string') ? lineOf(given) : given
  if (typeof line !== 'string') throw unreadable('`command` is missing')
  return { kind: 'command', line, cwd: workdir, files: patchedBy(line) }
}

function patchOf(args: Readonly<Record<string, unknown>>): readonly ToolCallFile[] {
  const patch = args.command ?? args.input ?? args.patch
  if (typeof patch !== 'string') throw unreadable('the patch is missing')
  const files = filesOfPatch(patch)
  if (files.length === 0) throw unreadable('the patch names no file')
  return files
}

/** The names in `include` are patterns; the part before the first wildcard is the directory that is read. */
function manyOf({ include, paths }: Readonly<Record<string, unknown>>): readonly ToolCallFile[] {
  const given = include ?? paths
  if (!Array.isArray(given) || !given.every((one) => typeof one === 'string'))
    throw unreadable('`read_many_files` names no files')
  return given.map((pattern: string) => {
    const wild = pattern.search(/[*?[{(!]/)
    return {
      op: 'read',
      path: wild < 0 ? pattern : pattern.slice(0, pattern.lastIndexOf('/', wild) + 1) || '.',
    }
  })
}

/** Codex itself applies a patch in a here-document: `apply_patch <<'EOF'`, also after `cd DIR &&`. */
function patchedBy(line: string): readonly ToolCallFile[] {
  if (!/apply_?patch/.test(line)) return []
  const files = filesOfPatch(line)
  const into = /^\s*cd\s+(?:'([^']+)'|"([^"]+)"|(\S+))\s*&&/.exec(line)
  const directory = into?.[1] ?? into?.[2] ?? into?.[3]
  if (directory === undefined) return files
  return [...files, ...files.map(({ op, path }) => ({ op, path: joined(directory, path) }))]
}

const joined = (directory: string, path: string): string =>
  path.startsWith('/') ? path : `${directory}/${path}`

/**
 * SECURITY: finds every file header of a patch: Codex also accepts an indented header, or one after a deletion. Only
 * content lines (`+`, `-`) are not headers.
 */
export function filesOfPatch(patch: string): readonly ToolCallFile[] {
  const files: ToolCallFile[] = []
  for (const line of patch.split('\n').filter((one) => !/^[+-]/.test(one))) {
    const path = /\*\*\* (?:(?:Add|Update|Delete) File|Move to): ?(.*)$/s.exec(line)?.[1]?.trim()
    if (path) files.push({ op: 'write', path })
  }
  return files
}

/** `["bash", "-lc", line]` becomes the line; any other list is quoted into a line. */
function lineOf(argv: readonly string[]): string {
  const [shell, flag, line] = argv
  if (argv.length === 3 && /(^|\/)(ba|z)?sh$/.test(shell ?? '') && /^-l?c$/.test(flag ?? ''))
    return line ?? ''
  return argv.map(shellQuote).join(' ')
}

/** The answer in the agent's format. Codex and Gemini cannot ask the user, so `ask` becomes a denial. */
export function answerFor(agent: HookAgent, judged: HookVerdict, input: unknown): HookAnswer {
  // SECURITY: agents print the reason, which may contain model output.
  const verdict = { ...judged, reason: visible(judged.reason) }
  if (verdict.verdict === 'none') return json({})
  if (agent === 'claude-code') return json(claude(verdict, input))
  if (verdict.verdict === 'allow') return json(agent === 'gemini' ? { decision: 'allow' } : {})
  const reason =
    verdict.verdict === 'ask'
      ? `${verdict.reason}. This agent cannot ask, so the user must run the command or allow it in the policy`
      : verdict.reason
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

/** Blocks the call because it could not be checked. */
export const blocked = (why: string): HookAnswer => ({
  stdout: '',
  stderr: `ringfence: ${visible(why)}\n`,
  code: 2,
})

const json = (value: unknown): HookAnswer => ({ stdout: `${JSON.stringify(value)}\n`, stderr: '', code: 0 })

/** Returns the value if it is an object; throws with its name otherwise. */
export function record(value: unknown, what: string): Readonly<Record<string, unknown>> {
  if (typeof value === 'object' && value !== null && !Array.isArray(value))
    return value as Record<string, unknown>
  throw unreadable(`${what} is not an object`)
}

const unreadable = (why: string): SandboxError =>
  new SandboxError('invalid-input', `the tool call cannot be read: ${why}`)
