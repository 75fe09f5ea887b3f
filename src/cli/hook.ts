import { existsSync, readFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import {
  actOf,
  answerFor,
  blocked,
  HOOK_FILES,
  HOOKED,
  type HookAnswer,
  type Hooked,
  type HookedAct,
  type HookVerdict,
  quoted,
  withHook,
} from '../adapters/hook.ts'
import { compose, type Ringfence } from '../compose.ts'
import { writeAtomically } from '../host/atomic-file.ts'
import { SandboxError } from '../model/errors.ts'
import { redact } from '../model/redact.ts'
import { DEFAULT_BLOCKED, DEFAULT_PROTECTED } from '../policy/paths.ts'
import { judgeHere } from '../supervisor/judge-path.ts'
import { askYes } from './ask.ts'
import { parseOptions, usage } from './options.ts'

const OPTIONS = {
  /** The agent's own sandbox is on: what may only run in a sandbox may run. */
  sandboxed: { type: 'boolean' },
  /** Rewrites what may only run in a sandbox to `ringfence run`; Claude Code only. */
  wrap: { type: 'boolean' },
  project: { type: 'boolean' },
  yes: { type: 'boolean', short: 'y' },
} as const
type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']

const MAX_INPUT = 16 * 1024 * 1024

/** `ringfence hook AGENT` judges the tool call on stdin; `ringfence hook install AGENT` writes the agent's settings. */
export async function hook(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('hook', args, OPTIONS)
  if (positionals[0] === 'install') return install(agentOf(positionals[1]), values)
  const agent = agentOf(positionals[0])
  if (values.wrap && agent !== 'claude-code')
    throw usage('hook', 'only Claude Code lets a hook change a command')
  const { stdout, stderr, code } = await answer(agent, values)
  process.stdout.write(stdout)
  process.stderr.write(stderr)
  return code
}

function agentOf(name: string | undefined): Hooked {
  const found = HOOKED.find((one) => one === name)
  if (found) return found
  throw usage(
    'hook',
    name === undefined ? 'which agent?' : `unknown agent \`${name}\`; one of: ${HOOKED.join(', ')}`,
  )
}

/** SECURITY: an agent lets a tool pass when its hook fails in any other way, so every failure is a block. */
async function answer(agent: Hooked, values: Values): Promise<HookAnswer> {
  try {
    const input: unknown = JSON.parse(await standardInput())
    const act = actOf(input)
    const ringfence = await compose({ config: values.config, policy: values.policy })
    try {
      const verdict = await judge(ringfence, act, values)
      if (act.kind !== 'other') await note(ringfence, agent, act, verdict)
      return answerFor(agent, verdict, input)
    } finally {
      await ringfence.close()
    }
  } catch (error) {
    return blocked(error instanceof SandboxError ? error.message : 'the tool call cannot be read')
  }
}

async function standardInput(): Promise<string> {
  const chunks: Buffer[] = []
  let size = 0
  for await (const chunk of process.stdin) {
    size += (chunk as Buffer).length
    if (size > MAX_INPUT) throw new SandboxError('too-large', 'the tool call is too large to judge')
    chunks.push(chunk as Buffer)
  }
  return Buffer.concat(chunks).toString('utf8')
}

async function judge(ringfence: Ringfence, act: HookedAct, values: Values): Promise<HookVerdict> {
  if (act.kind === 'other') return { verdict: 'none', reason: '' }
  const workspace = resolve(act.cwd)
  if (act.kind === 'file') return judgeFile(ringfence, act, workspace)
  const { action, reason } = await ringfence.judge({ line: act.line }, { workspace, cwd: workspace })
  if (action !== 'sandbox') return { verdict: action, reason }
  if (values.sandboxed) return { verdict: 'allow', reason }
  if (values.wrap)
    return { verdict: 'allow', reason: 'runs in a sandbox', instead: `ringfence run -c ${quoted(act.line)}` }
  return { verdict: 'ask', reason: `${reason}; policy lets it run only in a sandbox` }
}

function judgeFile(
  { config }: Ringfence,
  act: Extract<HookedAct, { kind: 'file' }>,
  workspace: string,
): HookVerdict {
  const policy = {
    allowed: [{ path: workspace, mode: 'rw' as const }],
    blocked: config.policy?.blocked_host_patterns ?? DEFAULT_BLOCKED,
    protected: DEFAULT_PROTECTED,
  }
  const path = resolve(workspace, act.path)
  const op = act.op === 'write' && !existsSync(path) ? 'create' : act.op
  const { verdict, reason } = judgeHere(policy, { path, op })
  return verdict === 'allow' ? { verdict: 'none', reason } : { verdict: 'deny', reason }
}

/** On record before the agent hears it. */
async function note(
  { trail }: Ringfence,
  agent: Hooked,
  act: HookedAct,
  { verdict, reason }: HookVerdict,
): Promise<void> {
  const what =
    act.kind === 'command'
      ? { subject: 'command', command: redact(act.line) }
      : { subject: 'file', ...(act.kind === 'file' ? { operation: act.op, path: redact(act.path) } : {}) }
  const action = verdict === 'none' ? 'allow' : verdict
  await trail.append({ event: 'PolicyDecision', agent_id: agent, ...what, action, reason: redact(reason) })
}

/** Shows the settings first; writes them after a yes. */
async function install(agent: Hooked, values: Values): Promise<number> {
  const { home, cwd, close } = await compose({ config: values.config })
  await close()
  const file = join(values.project ? cwd : home, HOOK_FILES[agent])
  const flags = `${values.sandboxed ? ' --sandboxed' : ''}${values.wrap ? ' --wrap' : ''}`
  const settings = withHook(agent, settingsIn(file), `ringfence hook ${agent}${flags}`)
  const text = `${JSON.stringify(settings, null, 2)}\n`
  process.stdout.write(values.json ? `${JSON.stringify({ file, settings })}\n` : `${file}:\n${text}`)
  if (!values.yes && !(await askYes(`write ${file}? [y/N] `, values.json === true))) {
    process.stderr.write('ringfence: nothing was written; --yes writes it\n')
    return 126
  }
  writeAtomically(file, text)
  return 0
}

function settingsIn(file: string): unknown {
  if (!existsSync(file)) return undefined
  try {
    return JSON.parse(readFileSync(file, 'utf8'))
  } catch {
    throw new SandboxError('invalid-config', `\`${file}\` is not JSON`, {
      hint: 'mend it first; it was not changed',
    })
  }
}
