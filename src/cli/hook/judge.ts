import { existsSync, lstatSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, isAbsolute, join, resolve } from 'node:path'
import type { HookAgent, HookToolCall, HookVerdict, ToolCallFile } from '../../adapters/hooks/hook.ts'
import { agentDirectory } from '../../adapters/hooks/settings.ts'
import type { Ringfence } from '../../compose/compose.ts'
import { observeProgram } from '../../host/process/program.ts'
import { caller } from '../../host/system.ts'
import type { Decision } from '../../model/decision.ts'
import { SandboxError } from '../../model/errors.ts'
import { isWithin } from '../../model/files/path.ts'
import { shellQuote } from '../../model/text/shell-quote.ts'
import { explainDecision, explainPath, explainSandboxOnly } from '../../policy/explain.ts'
import { type AllowedRoot, DEFAULT_BLOCKED, DEFAULT_PROTECTED } from '../../policy/paths/paths.ts'
import { judgeHere } from '../../supervisor/judge-path.ts'
import { withoutLinks } from '../check/host-decision.ts'

/** Checks one tool call of a coding agent against the policy. */

export type HookMode = { readonly sandboxed?: boolean | undefined; readonly wrap?: boolean | undefined }

/** How to start ringfence itself again. */
export type OwnProgram = { readonly node: string; readonly script: string }

/** The project and directories that a hook decides for. */
export type HookContext = {
  /** The project directory, which the agent may change. */
  readonly workspace: string
  /** Directories of the agent itself. */
  readonly own: readonly AllowedRoot[]
}

/**
 * SECURITY: the project directory comes from the environment that the client sets. The `cwd` of a call may be chosen by
 * the model (Codex reports the command's `workdir` there) and must not widen what may be changed.
 */
export function hookContextOf(
  agent: HookAgent,
  input: unknown,
  { home, env, cwd }: Pick<Ringfence, 'home' | 'env' | 'cwd'>,
): HookContext {
  const told = (input ?? {}) as { readonly cwd?: unknown; readonly transcript_path?: unknown }
  const reported = typeof told.cwd === 'string' && isAbsolute(told.cwd) ? told.cwd : cwd
  const workspaces: Record<HookAgent, string> = {
    'claude-code': env.CLAUDE_PROJECT_DIR || reported,
    codex: cwd,
    gemini: env.GEMINI_PROJECT_DIR || reported,
  }
  return { workspace: resolve(workspaces[agent]), own: ownRoots(agent, told.transcript_path, { home, env }) }
}

/**
 * The agent's own files about this project: notes, plans, the output of long commands. Not its whole directory, which
 * contains credentials, settings and the transcripts of other projects.
 */
function ownRoots(
  agent: HookAgent,
  transcript: unknown,
  location: { readonly home: string; readonly env: Readonly<Record<string, string>> },
): readonly AllowedRoot[] {
  const base = agentDirectory(agent, location)
  const rw = (path: string): AllowedRoot => ({ path, mode: 'rw' })
  const ro = (path: string): AllowedRoot => ({ path, mode: 'ro' })
  const known = ['CLAUDE.md', 'AGENTS.md', 'GEMINI.md', 'skills', 'commands', 'agents', 'rules', 'plugins']
  const session = sessionDirectory(base, transcript)
  const project = session === undefined ? [] : [ro(session), rw(`${session}/memory`)]
  const scratch = agent === 'claude-code' ? [rw(`${tmpdir()}/claude-${caller().uid}`)] : []
  const planned = agent === 'gemini' ? (location.env.GEMINI_PLANS_DIR ?? '') : `${base}/plans`
  const plans = isStrictlyWithin(planned, base) ? [rw(planned)] : []
  return [
    ...known.map((name) => ro(`${base}/${name}`)),
    ro(`${base}/memories`),
    ...project,
    ...plans,
    ...scratch,
  ]
}

/** The directory of this project's sessions: the transcript's directory, or the parent of `chats`. */
function sessionDirectory(base: string, transcript: unknown): string | undefined {
  if (typeof transcript !== 'string' || !isAbsolute(transcript)) return undefined
  const directory = dirname(resolve(transcript))
  const session = directory.endsWith('/chats') ? dirname(directory) : directory
  return isStrictlyWithin(session, `${base}/projects`) || isStrictlyWithin(session, `${base}/tmp`)
    ? session
    : undefined
}

const isStrictlyWithin = (path: string, directory: string): boolean => {
  const real = resolve(path)
  return isAbsolute(path) && real !== directory && isWithin(real, directory)
}

/** Checks the files and the command of a tool call. */
export async function judgeToolCall(
  ringfence: Ringfence,
  act: HookToolCall,
  context: HookContext,
  mode: HookMode & { readonly program: OwnProgram },
): Promise<HookVerdict> {
  if (act.kind === 'other') return { verdict: 'none', reason: '' }
  const cwd = resolve(context.workspace, act.cwd)
  for (const file of act.files) {
    const verdict = judgeFile(ringfence, file, cwd, context)
    if (verdict.verdict !== 'none') return verdict
  }
  if (act.kind === 'files') return { verdict: 'none', reason: '' }
  const { workspace } = context
  const inertGit = hasOwnRepository(workspace)
  const onHost = withoutLinks(
    await ringfence.judge({ line: act.line }, { workspace, cwd, inertGit }),
    act.line,
    { workspace, cwd },
  )
  const isWrapped = mode.wrap && !mode.sandboxed && onHost.action !== 'allow'
  const decision = isWrapped ? await judgeWrapped(ringfence, act.line, cwd, onHost) : onHost
  const { action, reason } = decision
  if (action === 'ask' || action === 'deny') return { verdict: action, reason: explainDecision(decision) }
  if ((action === 'allow' && !isWrapped) || mode.sandboxed) return { verdict: 'allow', reason }
  if (mode.wrap)
    return {
      verdict: 'allow',
      reason: 'runs in a sandbox',
      instead: wrapped(ringfence, mode.program, act.line),
    }
  return { verdict: 'ask', reason: explainSandboxOnly(decision) }
}

/**
 * SECURITY: git uses the `.git` of the directory first, whose settings no sandbox can change; without one, the directory
 * itself could be a bare repository that was planted.
 */
const hasOwnRepository = (workspace: string): boolean =>
  lstatSync(join(workspace, '.git'), { throwIfNoEntry: false })?.isDirectory() === true

/** The decision behind the plan of the `ringfence run` that the line is wrapped into; without one, the host's. */
async function judgeWrapped(
  { gate, registry }: Ringfence,
  line: string,
  cwd: string,
  onHost: Decision,
): Promise<Decision> {
  try {
    const plan = gate.plan({ workspace: cwd })
    const { name } = await registry.select(plan)
    return await gate.judge({ line }, plan, { backend: name, cwd })
  } catch (error) {
    if (error instanceof SandboxError) return onHost
    throw error
  }
}

/** Runs `ringfence` by name if it is on PATH, otherwise by absolute path. */
function wrapped({ env, cwd }: Ringfence, { node, script }: OwnProgram, line: string): string {
  const onPath = observeProgram('ringfence', cwd, env.PATH) !== null
  const program = onPath ? 'ringfence' : `${shellQuote(node)} ${shellQuote(script)}`
  return `${program} run -c ${shellQuote(line)}`
}

/** System programs and libraries, which every sandbox can read too. */
const SYSTEM = [
  '/usr',
  '/bin',
  '/sbin',
  '/lib',
  '/lib32',
  '/lib64',
  '/opt',
  '/nix/store',
  '/Library/Developer',
]

function judgeFile(
  { config }: Ringfence,
  file: ToolCallFile,
  cwd: string,
  context: HookContext,
): HookVerdict {
  const path = resolve(cwd, file.path)
  const op = file.op === 'write' && !existsSync(path) ? 'create' : file.op
  const within = (allowed: readonly AllowedRoot[]): HookVerdict => {
    const blocked = config.policy?.blocked_host_patterns ?? DEFAULT_BLOCKED
    const { verdict, reason } = judgeHere({ allowed, blocked, protected: DEFAULT_PROTECTED }, { path, op })
    if (verdict === 'allow') return { verdict: 'none', reason }
    return { verdict: 'deny', reason: explainPath(reason, op, context.workspace) }
  }
  const inside = within([{ path: context.workspace, mode: 'rw' }])
  if (inside.verdict === 'none') return inside
  const system = file.op === 'read' ? SYSTEM.map((root) => ({ path: root, mode: 'ro' as const })) : []
  return within([...system, ...context.own]).verdict === 'none' ? { verdict: 'none', reason: '' } : inside
}
