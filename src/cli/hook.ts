import { realpathSync } from 'node:fs'
import {
  answerFor,
  blocked,
  HOOK_AGENTS,
  type HookAgent,
  type HookAnswer,
  type HookToolCall,
  type HookVerdict,
  toolCallOf,
} from '../adapters/hooks/hook.ts'
import { compose, type Ringfence } from '../compose/compose.ts'
import { servedCaller } from '../host/broker/served-caller.ts'
import { killOwnProcessAfter } from '../host/process/process-deadline.ts'
import { SandboxError } from '../model/errors.ts'
import { redact } from '../model/text/redact.ts'
import { hookContextOf, judgeToolCall, type OwnProgram } from './hook/judge.ts'
import { parseOptions, usage } from './options/options.ts'
import { err, inputStream, out } from './terminal/output.ts'

const OPTIONS = {
  /** The agent's own sandbox is enabled: commands that need a sandbox are allowed. */
  sandboxed: { type: 'boolean' },
  /** Rewrites commands that need a sandbox to `ringfence run`; Claude Code only. */
  wrap: { type: 'boolean' },
  project: { type: 'boolean' },
  yes: { type: 'boolean', short: 'y' },
} as const
/** The parsed flags of `ringfence hook`. */
export type HookValues = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']

const MAX_INPUT = 16 * 1024 * 1024
/** Agents ignore a hook that times out (60 s in the settings we install), so we answer well before that. */
const ANSWER_MS = 15_000
const KILL_MS = 20_000

/** `ringfence hook AGENT` checks the tool call on stdin; `install` and `test` write and test the agent's settings. */
export async function hook(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('hook', args, OPTIONS)
  const [first, second] = positionals
  const agent = agentOf(first === 'install' || first === 'test' ? second : first)
  if (values.wrap && agent !== 'claude-code')
    throw usage(
      'hook',
      '--wrap is supported only for claude-code: other agents do not let a hook change a command',
    )
  if (first === 'install') return (await import('./hook/install.ts')).install(agent, values, ownProgram())
  if (first === 'test') return (await import('./hook/test.ts')).testInstalled(agent, values)
  const { stdout, stderr, code } = await inTime(answer(agent, values))
  out(stdout)
  err(stderr)
  return code
}

function agentOf(name: string | undefined): HookAgent {
  const found = HOOK_AGENTS.find((one) => one === name)
  if (found) return found
  throw usage(
    'hook',
    `${name === undefined ? 'missing agent' : `unknown agent \`${name}\``}; one of: ${HOOK_AGENTS.join(', ')}`,
  )
}

const ownProgram = (): OwnProgram => ({
  node: process.execPath,
  script: realpathSync(process.argv[1] as string),
})

/** SECURITY: agents let a tool call pass when its hook times out, so a late answer must be a block. */
async function inTime(answering: Promise<HookAnswer>): Promise<HookAnswer> {
  // A front ends itself after the same time.
  if (!servedCaller()) killOwnProcessAfter(KILL_MS)
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<HookAnswer>((resolve) => {
    timer = setTimeout(() => resolve(blocked('the policy check took too long')), ANSWER_MS)
  })
  try {
    return await Promise.race([answering, late])
  } finally {
    clearTimeout(timer)
    inputStream().destroy()
  }
}

/** SECURITY: an agent lets a tool call pass when its hook fails in any other way, so every failure is a block. */
async function answer(agent: HookAgent, values: HookValues): Promise<HookAnswer> {
  try {
    const input: unknown = JSON.parse(await standardInput())
    const act = toolCallOf(input)
    const ringfence = await compose({ config: values.config, policy: values.policy })
    try {
      const mode = { sandboxed: values.sandboxed, wrap: values.wrap, program: ownProgram() }
      const verdict = await judgeToolCall(ringfence, act, hookContextOf(agent, input, ringfence), mode)
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
  for await (const chunk of inputStream()) {
    size += (chunk as Buffer).length
    if (size > MAX_INPUT) throw new SandboxError('too-large', 'the tool call is too large to check')
    chunks.push(chunk as Buffer)
  }
  return Buffer.concat(chunks).toString('utf8')
}

/** Records the decision before the agent receives it. */
async function note(
  { trail }: Ringfence,
  agent: HookAgent,
  act: Exclude<HookToolCall, { readonly kind: 'other' }>,
  { verdict, reason }: HookVerdict,
): Promise<void> {
  const [first] = act.files
  const what =
    act.kind === 'command'
      ? { subject: 'command', command: redact(act.line) }
      : {
          subject: 'file',
          ...(first && { operation: first.op, path: redact(act.files.map(({ path }) => path).join('\n')) }),
        }
  const action = verdict === 'none' ? 'allow' : verdict
  await trail.append({ event: 'PolicyDecision', agent_id: agent, ...what, action, reason: redact(reason) })
}
