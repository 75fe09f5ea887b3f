import { homedir } from 'node:os'
import { resolve } from 'node:path'
import type { Action, Decision } from '../../model/decision.ts'
import { SandboxError } from '../../model/errors.ts'
import { RISK_NAMES, RISKS } from '../../model/risk.ts'
import { visible, visibleJson } from '../../model/text/visible.ts'
import { type Context, type Inspection, inspectLine, judgeLine } from '../../policy/commands/judge.ts'
import { type CommandPolicy, compilePolicy } from '../../policy/policy.ts'
import { parseOptions, usage } from '../options/options.ts'
import { SANDBOX_OPTIONS } from '../options/sandbox-options.ts'
import type { CliIo } from '../terminal/io.ts'
import { isTerminalStream } from '../terminal/output.ts'
import { behindPlan, type Wall } from './behind.ts'
import { jsonLine, type LoadConfig, linesOf } from './path.ts'

const OPTIONS = {
  ...SANDBOX_OPTIONS,
  home: { type: 'string' },
  shell: { type: 'string' },
  cwd: { type: 'string' },
  batch: { type: 'boolean' },
  behind: { type: 'boolean' },
  explain: { type: 'boolean' },
} as const

type Values = ReturnType<typeof parseOptions<typeof OPTIONS>>['values']

/** `ringfence check command "…"`: exit 0 for allow and sandbox, 3 for ask, 4 for deny; `--batch` always exits 0. */
export async function checkCommand(
  args: readonly string[],
  io: CliIo,
  loadConfig?: LoadConfig,
): Promise<number> {
  const { values, positionals } = parseOptions('check', args, OPTIONS)
  refuseStrayFlags(values)
  const policy = compilePolicy((await loadConfig?.(values.policy ?? values.config)) ?? {})
  const host = hostContext(values)
  const wall = values.behind || values.explain ? await behindPlan(values, host) : undefined
  const context = values.behind && wall ? wall.context : host
  if (values.batch) return batch(policy, context, io)
  const [line, ...more] = positionals
  if (line === undefined || more.length > 0)
    throw new SandboxError('invalid-input', 'check command needs exactly one shell line', {
      hint: 'ringfence check command "git status | head"',
    })
  const inspection = inspectLine(policy, line, context)
  const isJson = io.json || values.json === true
  if (values.explain && wall)
    io.out(explained(inspectLine(policy, line, host), inspectLine(policy, line, wall.context), wall, isJson))
  else if (isJson) io.out(`${visibleJson(inspection.decision)}\n`)
  else io.out(tree(inspection, paint()))
  return EXIT[inspection.decision.action]
}

const hostContext = (values: Values): Context => ({
  workspace: resolve(values.workspace ?? '.'),
  home: values.home ?? homedir(),
  ...(values.shell === undefined ? {} : { shell: values.shell }),
  ...(values.cwd === undefined ? {} : { cwd: resolve(values.cwd) }),
})

/** Flags of `run` have no meaning for a command on the host. */
function refuseStrayFlags(values: Values): void {
  if (values.behind || values.explain) return
  const stray = Object.keys(SANDBOX_OPTIONS).find(
    (name) => name !== 'workspace' && values[name as keyof Values] !== undefined,
  )
  if (stray !== undefined) throw usage('check', `--${stray} describes a sandbox; add --behind`)
}

/** The host's decision and the one behind the plan, with what the plan contains. */
function explained(onHost: Inspection, inside: Inspection, wall: Wall, isJson: boolean): string {
  const { backend, level, contains } = wall
  if (isJson)
    return `${visibleJson({ host: onHost.decision, behind: inside.decision, backend, level, contains })}\n`
  const rows = RISK_NAMES.map(
    (risk) => `  ${risk.padEnd(22)} ${(contains[risk] ?? 'not contained').padEnd(16)} ${RISKS[risk]}\n`,
  )
  return [
    `on the host: ${tree(onHost, paint())}`,
    `behind ${backend} (${level}): ${tree(inside, paint())}`,
    `risks behind ${backend}:\n${rows.join('')}`,
  ].join('\n')
}

const EXIT: Readonly<Record<Action, number>> = { allow: 0, sandbox: 0, ask: 3, deny: 4 }

async function batch(policy: CommandPolicy, context: Context, io: CliIo): Promise<number> {
  warmUp(policy, context)
  for await (const line of linesOf(process.stdin))
    if (line.trim() !== '') io.out(jsonLine(answerCommandLine(policy, context, line)))
  return 0
}

/** Ordinary lines that warm up the engine before the first answer is timed. */
const WARM_UP = [
  'git log --oneline | head -5 && echo "$HOME" > out.txt',
  "find src -name '*.ts' -exec grep -l TODO {} +",
  'for f in *.md; do cat "$f"; done',
  'env A=1 timeout 5 bash -c "npm test; rm -rf dist"',
  'x=$(pwd); cd "$x" && tar czf a.tgz src | tee log',
  "python3 -c 'print(1)' <<< a; sed -i s/a/b/ src/x.ts",
  'curl -s https://example.com/x | jq . ; git -C a status',
  'if [ -f a ]; then cp a b; else mv "$a" c; fi',
]

/** Pays the parser's start-up cost before the first timed decision. */
function warmUp(policy: CommandPolicy, context: Context): void {
  for (let round = 0; round < 40; round++) for (const line of WARM_UP) judgeLine(policy, line, context)
}

/** One line of the `--batch` output. */
export type CommandAnswer = {
  readonly id: unknown
  readonly action: Action
  readonly reason: string
  readonly us: number
}

/** One answer for one line of `--batch`; a line that cannot be parsed is denied, never dropped. */
export function answerCommandLine(policy: CommandPolicy, context: Context, line: string): CommandAnswer {
  let id: unknown = null
  const started = performance.now()
  let decision: Pick<Decision, 'action' | 'reason'>
  try {
    const { id: given, cmd, shell } = JSON.parse(line) as { id?: unknown; cmd?: unknown; shell?: unknown }
    id = given ?? null
    if (typeof cmd !== 'string') throw new Error('`cmd` is not a string')
    decision = judgeLine(policy, cmd, typeof shell === 'string' ? { ...context, shell } : context)
  } catch (error) {
    decision = { action: 'deny', reason: error instanceof Error ? error.message : 'invalid line' }
  }
  return {
    id,
    action: decision.action,
    reason: decision.reason,
    us: Math.round((performance.now() - started) * 1000),
  }
}

type Paint = (action: Action, text: string) => string

const CODES: Readonly<Record<Action, number>> = { deny: 31, ask: 33, sandbox: 36, allow: 32 }

const paint =
  (terminal = isTerminalStream('stdout')): Paint =>
  (action, text) =>
    terminal ? `\u001b[${CODES[action]}m${text}\u001b[0m` : text

/** What would let the command run. */
const PASS: Readonly<Record<Action, string>> = {
  allow: 'runs directly on the host',
  sandbox: 'runs in a sandbox: `ringfence run -c …`',
  ask: 'needs approval, or a policy rule that allows it',
  deny: 'remove the denied part; it cannot be approved',
}

function passOf({ decision, nodes }: Inspection): string {
  if (decision.action !== 'deny' && decision.action !== 'ask') return PASS[decision.action]
  const relaxable = nodes.filter((node) => node.action === decision.action).every((node) => !node.hard)
  if (decision.action === 'deny' && relaxable)
    return 'remove the denied part, or add a policy rule that allows it'
  return decision.action === 'ask' && !relaxable
    ? 'needs approval; a rule cannot allow it, because the command that would run is unknown'
    : PASS[decision.action]
}

/** The commands of the line as a tree, each with its decision, rule and reason. */
export function tree(inspection: Inspection, painted: Paint): string {
  const { decision, nodes } = inspection
  const rows = nodes.map((node) => {
    const command = clip(node.argv.map(printable).join(' '), 70)
    const rule = node.rule === undefined ? '' : ` [${node.rule}]`
    return `${'  '.repeat(node.depth + 1)}${painted(node.action, node.action.padEnd(7))} ${command}\n${'  '.repeat(node.depth + 1)}        ${visible(node.reason)}${rule}\n`
  })
  return `${painted(decision.action, decision.action)}: ${visible(decision.reason)}\n${rows.join('')}to run it: ${passOf(inspection)}\n`
}

const clip = (text: string, size: number): string =>
  text.length > size ? `${text.slice(0, size - 1)}…` : text

// SECURITY: agent input must not move the cursor or hide text in the reviewer's terminal.
const printable = (text: string): string => {
  const shown = visible(text)
  return shown === '' || /[\s'"]/.test(shown) ? `'${shown}'` : shown
}
