import { shellQuote } from '../../model/text/shell-quote.ts'
import { type HookAgent, record } from './hook.ts'

/** The settings files of coding agents, and our hook in them. */

type SettingsLocation = {
  readonly home: string
  readonly env: Readonly<Record<string, string | undefined>>
}

/** An agent's directory for this user; the agent's own variable takes precedence, as in the agent. */
export function agentDirectory(agent: HookAgent, { home, env }: SettingsLocation): string {
  switch (agent) {
    case 'claude-code':
      return env.CLAUDE_CONFIG_DIR || `${home}/.claude`
    case 'codex':
      return env.CODEX_HOME || `${home}/.codex`
    case 'gemini':
      return `${env.GEMINI_CLI_HOME || home}/.gemini`
    default:
      return agent satisfies never
  }
}

const FILES: Readonly<Record<HookAgent, readonly [directory: string, file: string]>> = {
  'claude-code': ['.claude', 'settings.json'],
  codex: ['.codex', 'hooks.json'],
  gemini: ['.gemini', 'settings.json'],
}

/** The settings file of the user. */
export const userSettings = (agent: HookAgent, location: SettingsLocation): string =>
  `${agentDirectory(agent, location)}/${FILES[agent][1]}`

/** The settings file of a project. */
export const projectSettings = (agent: HookAgent, project: string): string =>
  `${project}/${FILES[agent].join('/')}`

type HookEvent = { readonly event: string; readonly tools: readonly string[]; readonly timeout: number }

/** After this time the agent ignores the hook, so the hook answers well before. PLATFORM: Gemini uses milliseconds. */
const TIMEOUT_SECS = 60

/** The tools whose calls are checked. The hook is not called for other tools. */
const HOOK_EVENTS: Readonly<Record<HookAgent, HookEvent>> = {
  'claude-code': {
    event: 'PreToolUse',
    tools: ['Bash', 'Monitor', 'Write', 'Edit', 'MultiEdit', 'NotebookEdit', 'Read', 'Grep', 'Glob'],
    timeout: TIMEOUT_SECS,
  },
  codex: { event: 'PreToolUse', tools: ['Bash', 'apply_patch', 'view_image'], timeout: TIMEOUT_SECS },
  gemini: {
    event: 'BeforeTool',
    tools: [
      'run_shell_command',
      'write_file',
      'replace',
      'read_file',
      'read_many_files',
      'list_directory',
      'grep_search',
      'search_file_content',
      'glob',
    ],
    timeout: TIMEOUT_SECS * 1000,
  },
}

/** How the hook is started: by absolute paths in a user's settings, by name in shared settings. */
export type HookProgram =
  | {
      readonly kind: 'absolute'
      readonly node: string
      readonly script: string
      /** The native front, which asks the broker and starts `node` only without one. */
      readonly front?: string | undefined
    }
  | { readonly kind: 'name' }

/**
 * The command that goes into the settings.
 *
 * SECURITY: all three agents continue when a hook exits with a code other than 0 or 2, and treat empty output as approval.
 * So everything that is not a valid answer (no such program, a crash, a signal, empty output) becomes exit code 2, which blocks.
 * The launcher may be a chain of programs (version managers start others), and what is left of it after its end must not keep the
 * call waiting: it has no output of the agent's, and a line of ours ends the reading, not the end of the pipe.
 * PLATFORM: agents start hooks with different shells; those parse only the outer words, /bin/sh parses the rest.
 */
export function hookCommand(agent: HookAgent, flags: readonly string[], program: HookProgram): string {
  const call = [...startOf(program), 'hook', agent, ...flags].join(' ')
  const run = `{ ${call} <&3 3<&- 2>&1 & p=$!; ${watchdog}; wait $p; s=$?; kill $w; echo; echo "${STATUS} $s"; }`
  const read = `while IFS= read -r l; do case "$l" in "${STATUS} "*) s=\${l##* }; break;; "{"*"}") a=$l; n=$((n+1));; ?*) printf "%s\\n" "$l" >&2;; esac; done`
  const answer = `[ $s$n = 01 ] && { printf "%s\\n" "$a"; exit 0; }; [ $s = 2 ] || echo "${helpless(agent, program)}" >&2; exit 2`
  const script = `exec 3<&0; ${run} | { s=1; n=0; ${read}; ${answer}; }`
  return `/bin/sh -c ${shellQuote(script)} || exit 2`
}

function startOf(program: HookProgram): readonly string[] {
  if (program.kind === 'name') return ['ringfence']
  const { node, script, front } = program
  return front === undefined
    ? [shellQuote(node), shellQuote(script)]
    : [`RINGFENCE_NODE=${shellQuote(node)}`, shellQuote(front)]
}

/** The line after the output of the hook. */
const STATUS = 'ringfence-hook-status'

/**
 * Ends a program that hangs before it could end itself. SECURITY: an agent that waited for its whole time-out goes on without an answer.
 * The trap takes the `sleep` along, so that a call which was answered leaves nothing behind.
 */
const WATCHDOG_SECS = 30
const watchdog = `(trap "kill \\$c; exit" TERM; PATH=/usr/bin:/bin; sleep ${WATCHDOG_SECS} & c=$!; wait $c && kill -9 $p) 3<&- >/dev/null 2>&1 & w=$!`

const helpless = (agent: HookAgent, { kind }: HookProgram): string =>
  kind === 'name'
    ? `ringfence: the hook did not run, so this call is blocked; put ringfence on PATH, then: ringfence hook test ${agent} --project`
    : `ringfence: the hook did not run, so this call is blocked; install it again: ringfence hook install ${agent}`

type Entry = Readonly<Record<string, unknown>>

/** Whether an entry is our hook, including those of older versions. */
const isOurs = (agent: HookAgent, entry: unknown): boolean => {
  const { command } = (entry ?? {}) as Entry
  return typeof command === 'string' && command.includes('ringfence') && command.includes(`hook ${agent}`)
}

const groupsOf = (agent: HookAgent, settings: unknown): readonly unknown[] => {
  const all = settings === undefined ? {} : record(settings, 'the settings file')
  const hooks = all.hooks === undefined ? {} : record(all.hooks, '`hooks`')
  const groups = hooks[HOOK_EVENTS[agent].event]
  return Array.isArray(groups) ? groups : []
}

const entriesOf = (group: unknown): readonly unknown[] => {
  const { hooks } = (group ?? {}) as Entry
  return Array.isArray(hooks) ? hooks : []
}

/** The settings with our hook added and everything else unchanged. Idempotent. */
export function withHook(agent: HookAgent, settings: unknown, command: string): Entry {
  const { event, tools, timeout } = HOOK_EVENTS[agent]
  const others = groupsOf(agent, settings).flatMap((group) => withoutOurs(agent, group))
  const ours = { matcher: tools.join('|'), hooks: [{ type: 'command', command, timeout }] }
  const all = settings === undefined ? {} : record(settings, 'the settings file')
  return { ...all, hooks: { ...(all.hooks as Entry | undefined), [event]: [...others, ours] } }
}

/** Removes our entries from the groups; a group that becomes empty is removed. */
function withoutOurs(agent: HookAgent, group: unknown): readonly unknown[] {
  const entries = entriesOf(group)
  const others = entries.filter((entry) => !isOurs(agent, entry))
  if (others.length === entries.length) return [group]
  return others.length === 0 ? [] : [{ ...(group as Entry), hooks: others }]
}

/** Our hook in the settings. */
export type InstalledHook = {
  readonly command: string
  /** Tools that the agent runs without calling the hook. */
  readonly missed: readonly string[]
}

/** Finds our hook in an agent's settings. */
export function installedHook(agent: HookAgent, settings: unknown): InstalledHook | undefined {
  for (const group of groupsOf(agent, settings)) {
    const ours = entriesOf(group).find((entry) => isOurs(agent, entry))
    if (ours === undefined) continue
    const { matcher } = group as Entry
    const missed = HOOK_EVENTS[agent].tools.filter((tool) => !covers(matcher, tool))
    return { command: (ours as Entry).command as string, missed }
  }
  return undefined
}

function covers(matcher: unknown, tool: string): boolean {
  if (matcher === undefined || matcher === '' || matcher === '*') return true
  if (typeof matcher !== 'string') return false
  try {
    return new RegExp(`^(?:${matcher})$`).test(tool)
  } catch {
    return false
  }
}

/** Why the settings disable hooks; undefined if they do not. */
export function switchedOff(agent: HookAgent, settings: unknown): string | undefined {
  const all = settings === undefined ? {} : record(settings, 'the settings file')
  if (agent === 'claude-code' && all.disableAllHooks === true)
    return '`disableAllHooks` is set, so Claude Code runs no hooks; remove it'
  const gemini = (all.hooksConfig ?? {}) as Entry
  if (agent === 'gemini' && gemini.enabled === false)
    return '`hooksConfig.enabled` is false, so Gemini CLI runs no hooks; remove it'
  const ours = installedHook(agent, settings)?.command
  if (agent === 'gemini' && Array.isArray(gemini.disabled) && gemini.disabled.includes(ours))
    return '`hooksConfig.disabled` lists this hook; remove it from the list'
  return undefined
}
