import { constants } from 'node:os'
import { resolve } from 'node:path'
import { compose, type Ringfence } from '../compose/compose.ts'
import type { Review } from '../host/review/review.ts'
import { exitCodeOf } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'
import { visible, visibleJson } from '../model/visible.ts'
import type { AskHost } from '../supervisor/approvals/host-questions.ts'
import { execResultJson } from '../supervisor/exec/exec-json.ts'
import type { Executed, Sandbox } from '../supervisor/sandbox.ts'
import { numberOption, parseOptions, usage } from './options.ts'
import { approver } from './terminal/approver.ts'
import { askReview } from './terminal/ask.ts'
import { err, out } from './terminal/output.ts'
import { explain } from './terminal/plan-text.ts'
import { isTerminal, runInTerminal, SignalForwarder } from './terminal/terminal.ts'
import { TerminalLease } from './terminal/terminal-lease.ts'

const OPTIONS = {
  preset: { type: 'string' },
  workspace: { type: 'string', short: 'w' },
  read: { type: 'string', multiple: true },
  write: { type: 'string', multiple: true },
  deny: { type: 'string', multiple: true },
  mount: { type: 'string', multiple: true },
  network: { type: 'string' },
  'allow-host': { type: 'string', multiple: true },
  'ask-hosts': { type: 'boolean' },
  'unix-socket': { type: 'string', multiple: true },
  env: { type: 'string', short: 'e', multiple: true },
  secret: { type: 'string', multiple: true },
  cpus: { type: 'string' },
  memory: { type: 'string' },
  disk: { type: 'string' },
  pids: { type: 'string' },
  timeout: { type: 'string' },
  idle: { type: 'string' },
  output: { type: 'string' },
  backend: { type: 'string' },
  'min-isolation': { type: 'string' },
  waive: { type: 'string', multiple: true },
  review: { type: 'boolean' },
  yes: { type: 'boolean', short: 'y' },
  explain: { type: 'boolean' },
  image: { type: 'string' },
  'agent-id': { type: 'string' },
  command: { type: 'string', short: 'c' },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']
type Limits = Plan['limits']

/** `ringfence run`: one command, one sandbox. */
export async function run(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('run', args, OPTIONS)
  const command = commandOf(values, positionals, args)
  const onProgress = (text: string): void => {
    if (!values.quiet && !values.json) err(`ringfence: ${text}\n`)
  }
  const ringfence = await compose({ config: values.config, policy: values.policy, onProgress })
  try {
    const spec = specOf(values, ringfence)
    return values.explain
      ? await explainRun(ringfence, spec, command, values)
      : await runIn(ringfence, spec, command, values)
  } finally {
    await ringfence.close()
  }
}

function commandOf(
  values: Values,
  positionals: readonly string[],
  args: readonly string[],
): string | readonly string[] {
  if (values.command !== undefined && positionals.length > 0)
    throw usage('run', 'use either -c or a command after `--`, not both')
  if (values.command !== undefined) return values.command
  if (positionals.length > 0 && !args.includes('--'))
    throw usage('run', `put the command after \`--\`: ringfence run -- ${positionals.join(' ')}`)
  if (positionals.length === 0)
    throw new SandboxError('no-command', 'no command given', {
      hint: 'ringfence run -- program, or -c "shell line"',
    })
  return positionals
}

function specOf(values: Values, { cwd, env }: Ringfence): Record<string, unknown> {
  const agentId = values['agent-id'] ?? env.RINGFENCE_AGENT_ID
  return defined({
    backend: values.backend,
    minIsolation: values['min-isolation'],
    preset: values.preset,
    workspace: resolve(cwd, values.workspace ?? '.'),
    read: values.read,
    write: values.write,
    deny: values.deny,
    mounts: values.mount?.map(mountOf),
    network: networkOf(values),
    secrets: values.secret,
    unixSockets: values['unix-socket'],
    env: environmentOf(values, env),
    limits: limitsOf(values),
    review: values.review,
    waive: values.waive,
    image: values.image,
    agentId,
  })
}

function networkOf(values: Values): Record<string, unknown> | undefined {
  const { network, 'allow-host': hosts, 'ask-hosts': asks } = values
  if (network === undefined && hosts === undefined && asks === undefined) return undefined
  return defined({ mode: network, allowHosts: hosts, unlisted: asks ? 'ask' : undefined })
}

const defined = (fields: Record<string, unknown>): Record<string, unknown> =>
  Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))

function mountOf(text: string): Record<string, string> {
  const [source = '', target = '', mode = 'rw', ...rest] = text.split(':')
  if (rest.length > 0 || !source || !target || (mode !== 'ro' && mode !== 'rw'))
    throw usage('run', `--mount takes SRC:DST[:ro], not \`${text}\``)
  return { source, target, mode }
}

function environmentOf(values: Values, env: Readonly<Record<string, string>>): Record<string, string> {
  const terminal: Record<string, string> = env.TERM && process.stdout.isTTY ? { TERM: env.TERM } : {}
  for (const pair of values.env ?? []) {
    const at = pair.indexOf('=')
    const name = at < 0 ? pair : pair.slice(0, at)
    const value = at < 0 ? env[name] : pair.slice(at + 1)
    if (value === undefined) throw usage('run', `--env ${name}: not set in this environment`)
    terminal[name] = value
  }
  return terminal
}

function limitsOf(values: Values): Record<string, number> {
  const seconds = (flag: 'timeout' | 'idle'): number | undefined => {
    const value = numberOption(`--${flag}`, values[flag])
    return value === undefined ? undefined : Math.max(value > 0 ? 1 : 0, Math.round(value * 1000))
  }
  return defined({
    cpus: numberOption('--cpus', values.cpus),
    memoryMb: numberOption('--memory', values.memory),
    diskMb: numberOption('--disk', values.disk),
    pids: numberOption('--pids', values.pids),
    wallMs: seconds('timeout'),
    idleMs: seconds('idle'),
    outputBytes: numberOption('--output', values.output) ?? (values.json ? CAPTURED_BYTES : undefined),
  }) as Record<string, number>
}

/** Default output limit with `--json`. */
const CAPTURED_BYTES = 64 * 1024 * 1024

async function explainRun(
  ringfence: Ringfence,
  spec: unknown,
  command: string | readonly string[],
  values: Values,
): Promise<number> {
  const plan = ringfence.gate.plan(spec)
  const backend = await ringfence.registry.select(plan)
  const asked = typeof command === 'string' ? { line: command } : { argv: command as [string, ...string[]] }
  const decision = await ringfence.gate.judge(asked, plan)
  const text = values.json
    ? visibleJson({ backend: backend.name, level: backend.level, decision, plan })
    : explain(plan, backend, decision, command)
  out(`${text}\n`)
  return 0
}

async function runIn(
  ringfence: Ringfence,
  spec: unknown,
  command: string | readonly string[],
  values: Values,
): Promise<number> {
  const signals = new SignalForwarder()
  const lease = new TerminalLease()
  const inTerminal = !values.json && isTerminal()
  const askHost = inTerminal && (await hostAskerFor(ringfence, values, lease))
  const sandbox = await ringfence.gate.open(spec, askHost ? { askHost } : {})
  sandbox.onClose(() => ringfence.close())
  if (sandbox.plan.network.unlisted === 'ask' && !askHost && !values.quiet)
    err('ringfence: no terminal to ask at: hosts that are not on the list are refused\n')
  const approving = approver(values)
  try {
    const done = inTerminal
      ? await runInTerminal(sandbox, command, { ...approving, signal: signals.stop }, lease)
      : await sandbox.exec(command, {
          last: true,
          stdin: 'inherit',
          output: values.json ? undefined : 'inherit',
          signal: signals.stop,
          onStarted: (send) => signals.passTo(send),
          ...approving,
        })
    // Close first: nothing may write during the review, and closing must not touch applied or dropped changes.
    if (sandbox.review) await sandbox.close()
    const reviewed = sandbox.review && (await reviewRun(sandbox.review, ringfence, values))
    if (values.json) out(`${visibleJson({ ...resultJson(sandbox, done), ...reviewed })}\n`)
    else if (!values.quiet && process.stderr.isTTY) printViolations(done, sandbox.plan.limits)
    return exitCodeOf(done.outcome, constants.signals)
  } finally {
    await sandbox.close()
    signals.dispose()
  }
}

/** Loaded only where the configuration or a flag may ask about hosts. */
async function hostAskerFor(
  ringfence: Ringfence,
  values: Values,
  lease: TerminalLease,
): Promise<AskHost | undefined> {
  if (!values['ask-hosts'] && ringfence.config.network?.unlisted !== 'ask') return undefined
  const { hostAsker } = await import('./terminal/ask-host.ts')
  return hostAsker(ringfence, lease)
}

/** Shows the changes and applies or drops them as the user answers; without a terminal they wait. */
async function reviewRun(
  review: Review,
  { cwd }: Ringfence,
  values: Values,
): Promise<Record<string, unknown>> {
  const { changesText } = await import('./review.ts')
  const changes = await review.changes()
  if (changes.length === 0) review.drop()
  if (!values.json) err(`${changesText(changes, cwd)}\n`)
  const answer = changes.length === 0 ? 'drop' : values.yes ? 'apply' : await askReview(values.json === true)
  if (answer === 'drop') review.drop()
  const refused = answer === 'apply' ? await review.apply() : []
  for (const { path, why } of refused) err(`ringfence: not applied: ${visible(path)}: ${visible(why)}\n`)
  const waits = answer === 'wait' || refused.length > 0
  if (waits) err(`changes not applied yet; run: ringfence review apply|drop ${review.id}\n`)
  return { review: { ...(waits ? { id: review.id } : {}), applied: answer === 'apply', refused, changes } }
}

function printViolations({ violations, outcome }: Executed, limits: Limits): void {
  const hit = outcome.kind === 'stopped' ? stopText(outcome.limit, limits) : undefined
  if (hit) err(`ringfence: ${hit}\n`)
  const stop = outcome.kind === 'stopped' ? `limit.${outcome.limit}` : ''
  for (const { guarantee, details } of violations)
    if (!hit || guarantee !== stop) err(`ringfence: blocked: ${visible(details)} (${guarantee})\n`)
}

/** Which limit stopped the command, and the flag that sets it. */
function stopText(limit: string, { wallMs, idleMs, outputBytes }: Limits): string | undefined {
  if (limit === 'wall' && wallMs) return `timed out after ${wallMs / 1000} s (--timeout)`
  if (limit === 'idle' && idleMs) return `stopped after ${idleMs / 1000} s without output (--idle)`
  if (limit === 'output' && outputBytes) return `stopped after ${outputBytes} bytes of output (--output)`
  return undefined
}

/** A finished command in the `--json` output. */
export function resultJson(sandbox: Sandbox, done: Executed) {
  const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString('utf8')
  const said = { execId: done.execId, stdout: text(done.stdout), stderr: text(done.stderr) }
  return execResultJson(sandbox, said, done)
}
