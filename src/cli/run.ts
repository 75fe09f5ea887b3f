import { constants } from 'node:os'
import { compose, type Ringfence } from '../compose/compose.ts'
import type { Review } from '../host/review/review.ts'
import { exitCodeOf } from '../model/command.ts'
import { SandboxError } from '../model/errors.ts'
import type { Plan } from '../model/plan.ts'
import { visible, visibleJson } from '../model/text/visible.ts'
import type { AskHost } from '../supervisor/approvals/host-questions.ts'
import { execResultJson } from '../supervisor/exec/exec-json.ts'
import type { Executed, Sandbox } from '../supervisor/sandbox.ts'
import { acceptRun } from './broker/servable-run.ts'
import { printHelp } from './help/help.ts'
import { parseOptions, usage, withSeparator } from './options/options.ts'
import { SANDBOX_OPTIONS, specOf } from './options/sandbox-options.ts'
import { approver } from './terminal/approver.ts'
import { askReview } from './terminal/ask.ts'
import { err, isTerminalStream, out, outJson } from './terminal/output.ts'
import { explain } from './terminal/plan-text.ts'
import { isTerminal, runInTerminal, SignalForwarder } from './terminal/terminal.ts'
import { TerminalLease } from './terminal/terminal-lease.ts'

const OPTIONS = {
  ...SANDBOX_OPTIONS,
  yes: { type: 'boolean', short: 'y' },
  explain: { type: 'boolean' },
  command: { type: 'string', short: 'c' },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']
type Limits = Plan['limits']

/** `ringfence run`: one command, one sandbox. */
export async function run(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseOptions('run', withSeparator(args, OPTIONS), OPTIONS)
  if (values.help) return printHelp('run')
  const command = commandOf(values, positionals)
  const onProgress = (text: string): void => {
    if (!values.quiet && !values.json) err(`ringfence: ${text}\n`)
  }
  const ringfence = await compose({ config: values.config, policy: values.policy, onProgress })
  try {
    const spec = specOf(values, ringfence)
    await acceptRun(ringfence, spec, values)
    return values.explain
      ? await explainRun(ringfence, spec, command, values)
      : await runIn(ringfence, spec, command, values)
  } finally {
    await ringfence.close()
  }
}

function commandOf(values: Values, positionals: readonly string[]): string | readonly string[] {
  if (values.command !== undefined && positionals.length > 0)
    throw usage('run', 'use either -c or a program with its arguments, not both')
  if (values.command !== undefined) return values.command
  if (positionals.length === 0)
    throw new SandboxError('no-command', 'no command given', {
      hint: 'ringfence run -- program, or -c "shell line"',
    })
  return positionals
}

async function explainRun(
  ringfence: Ringfence,
  spec: unknown,
  command: string | readonly string[],
  values: Values,
): Promise<number> {
  const plan = ringfence.gate.plan(spec)
  const backend = await ringfence.registry.select(plan)
  const asked = typeof command === 'string' ? { line: command } : { argv: command as [string, ...string[]] }
  const decision = await ringfence.gate.judge(asked, plan, { backend: backend.name })
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
  // SECURITY: questions are written to stderr; keys must not answer a question that nobody sees.
  const askHost = inTerminal && isTerminalStream('stderr') && (await hostAskerFor(ringfence, values, lease))
  const sandbox = await ringfence.gate.open(spec, askHost ? { askHost } : {})
  sandbox.onClose(() => ringfence.close())
  if (sandbox.plan.network.unlisted === 'ask' && !askHost && !values.quiet)
    err('ringfence: no terminal to ask at: hosts that are not on the list are refused\n')
  // The only command of its sandbox has all that the sandbox was given.
  const { isolation, secrets } = sandbox.plan
  const approving = { ...approver(values), ...(isolation === 'command' ? { secrets } : {}) }
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
    if (values.json) await outJson({ ...resultJson(sandbox, done), ...reviewed })
    else if (!values.quiet) {
      printStop(done, sandbox.plan.limits)
      if (isTerminalStream('stderr')) printViolations(done, sandbox.plan.limits)
      if (done.hint !== undefined) err(`ringfence: hint: ${visible(done.hint)}\n`)
    }
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

function printStop({ outcome }: Executed, limits: Limits): void {
  const hit = outcome.kind === 'stopped' ? stopText(outcome.limit, limits) : undefined
  if (hit) err(`ringfence: ${hit}\n`)
}

function printViolations({ violations, outcome }: Executed, limits: Limits): void {
  const hit = outcome.kind === 'stopped' && stopText(outcome.limit, limits)
  const stop = outcome.kind === 'stopped' ? `limit.${outcome.limit}` : ''
  for (const { guarantee, details } of violations)
    if (!hit || guarantee !== stop) err(`ringfence: blocked: ${visible(details)} (${guarantee})\n`)
}

/** Which limit stopped the command, and the flag that sets it. */
function stopText(
  limit: string,
  { wallMs, idleMs, outputBytes, memoryMb, diskMb, pids }: Limits,
): string | undefined {
  if (limit === 'wall' && wallMs) return `timed out after ${wallMs / 1000} s (--timeout)`
  if (limit === 'idle' && idleMs) return `stopped after ${idleMs / 1000} s without output (--idle)`
  if (limit === 'output' && outputBytes) return `stopped after ${outputBytes} bytes of output (--output)`
  if (limit === 'memory' && memoryMb) return `stopped at its limit of ${memoryMb} MB of memory (--memory)`
  if (limit === 'disk' && diskMb) return `stopped at its limit of ${diskMb} MB of disk (--disk)`
  if (limit === 'pids' && pids) return `stopped at its limit of ${pids} processes (--pids)`
  return undefined
}

/** A finished command in the `--json` output. */
export function resultJson(sandbox: Sandbox, done: Executed) {
  const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString('utf8')
  const said = { execId: done.execId, stdout: text(done.stdout), stderr: text(done.stderr) }
  return execResultJson(sandbox, said, done)
}
