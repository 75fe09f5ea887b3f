import {
  ACTIONS,
  type Action,
  type CommandJudgement,
  type ContainedRule,
  type Decision,
  stricter,
  strictest,
} from '../../model/decision.ts'
import type { Guarantee } from '../../model/guarantee.ts'
import type { Containment, Risk } from '../../model/risk.ts'
import { builtInMatches, type CommandPolicy, type Rule, ruleMatches, type Subject } from '../rules/match.ts'
import { isContainable, type RuleId, risksOf } from '../rules/risks.ts'
import type { BuiltInRule } from '../rules/rule.ts'
import { isStatic, show } from './shell/unknown-text.ts'
import type { Context, Node, Walk } from './walk.ts'

/** One command of a line, for display. */
export type JudgedNode = CommandJudgement & {
  readonly depth: number
  readonly hard: boolean
  /** Every rule that requires this action, the displayed rule first. */
  readonly rules: readonly string[]
  /** Ids of the operator rules that match it. */
  readonly matched: readonly string[]
}

/** Shell builtins and keywords; an allowlist of programs does not apply to them. */
const SHELL_WORDS = new Set(
  ': cd exit return break continue shift wait set unset export local readonly declare typeset true false [ test read pushd popd umask trap eval command builtin exec'.split(
    ' ',
  ),
)

type Reason = {
  readonly action: Action
  readonly rule: string
  readonly reason: string
  readonly hard: boolean
  readonly isAnswered?: boolean
}

/** A reason of a built-in rule, which a sandbox can contain; a reason of an operator rule cannot be contained. */
type OwnReason = Reason & { readonly rule: RuleId; readonly risks: readonly Risk[] }

const isOwn = (reason: Reason): reason is OwnReason => 'risks' in reason

type Answer = { readonly contained: ContainedRule; readonly names: string }

/** Cache by containment and rule: a sandbox gets the same questions again and again. */
const ANSWERS = new WeakMap<Containment, Map<string, Answer | null>>()

/** The guarantees that contain every risk of a rule, or `null`. SECURITY: a rule without risks is never contained. */
function answerFor(contains: Containment, { action, rule, risks }: OwnReason): Answer | null {
  if ((action !== 'ask' && action !== 'deny') || risks.length === 0 || !isContainable(rule)) return null
  const by: Partial<Record<Risk, Guarantee>> = {}
  for (const risk of risks) {
    const guarantee = contains[risk]
    if (guarantee === undefined) return null
    by[risk] = guarantee
  }
  return { contained: { rule, action, by }, names: [...new Set(Object.values(by))].join(', ') }
}

/**
 * If the sandbox contains every risk of an `ask` or `deny`, the action becomes `sandbox`.
 * SECURITY: never `allow`.
 */
function behindWall<T extends OwnReason>(walk: Walk, own: T): T {
  const { contains } = walk.context
  if (!contains || own.action === 'sandbox' || own.action === 'allow') return own
  const known = ANSWERS.get(contains) ?? new Map<string, Answer | null>()
  ANSWERS.set(contains, known)
  const key = `${own.action} ${own.rule}`
  let answer = known.get(key)
  if (answer === undefined) {
    answer = answerFor(contains, own)
    known.set(key, answer)
  }
  if (answer === null) return own
  walk.contained.set(own.rule, answer.contained)
  return {
    ...own,
    action: 'sandbox',
    isAnswered: true,
    reason: `${own.reason}; contained by ${answer.names}`,
  }
}

const answeredBy = (
  walk: Walk,
  reasons: readonly Reason[],
  builtIn: readonly Reason[],
): readonly Reason[] => {
  if (!reasons.some(isStrict)) return reasons
  // SECURITY: an operator who is asked about every program without a rule is asked about those with one, too.
  const kept = isStrict({ action: walk.policy.defaultAction }) ? builtIn : []
  return reasons.map((one) => (isOwn(one) && !kept.includes(one) ? behindWall(walk, one) : one))
}

const isStrict = ({ action }: Pick<Reason, 'action'>): boolean => action === 'ask' || action === 'deny'

/** Of equally strict reasons, the contained one is displayed because it says more. */
const rank = ({ action, isAnswered }: Reason): number => ACTIONS.indexOf(action) - (isAnswered ? 0.5 : 0)

const worst = (reasons: readonly Reason[]): Reason | undefined => {
  let found: Reason | undefined
  let least = Number.POSITIVE_INFINITY
  for (const reason of reasons) {
    const own = rank(reason)
    if (own >= least) continue
    found = reason
    least = own
  }
  return found
}

const subjectOf = (node: Node, context: Context): Subject => ({
  spellings:
    node.program === undefined
      ? [node.argv]
      : [node.argv, [node.program, ...node.argv.slice(1)], node.canonical],
  trusted: node.trusted,
  cwds: node.cwds,
  home: context.rulesHome ?? context.home,
})

/** Among equally strict rules, priority and then length decide which reason is displayed. */
function operatorReason(rules: readonly Rule[]): Reason {
  const action = strictest(rules.map((rule) => rule.action))
  const [shown] = rules
    .filter((rule) => rule.action === action)
    .sort(
      (a, b) =>
        b.priority - a.priority ||
        (b.prefix?.length ?? 0) - (a.prefix?.length ?? 0) ||
        (a.id < b.id ? -1 : 1),
    )
  return { action, rule: shown?.id ?? '', reason: shown?.why ?? '', hard: false }
}

function builtInReasons({ policy }: Walk, node: Node): readonly OwnReason[] {
  const known = policy.builtIn.get(node.program ?? '')
  if (known === undefined) return NO_REASONS
  const { argv, canonical } = node
  const asWritten = node.program === argv[0] ? argv : [node.program ?? '', ...argv.slice(1)]
  const found: OwnReason[] = []
  for (const rule of known) {
    if (rule.action === 'allow' && !node.trusted) continue
    if (builtInMatches(rule, canonical) || (asWritten !== canonical && builtInMatches(rule, asWritten)))
      found.push(reasonOf(rule))
  }
  return found
}

const NO_REASONS: readonly OwnReason[] = []

const REASONS = new WeakMap<BuiltInRule, OwnReason>()

/** The reason of a built-in rule; it depends on nothing else. */
function reasonOf(rule: BuiltInRule): OwnReason {
  let reason = REASONS.get(rule)
  if (!reason) {
    const { action, id, why, hard = false } = rule
    reason = { action, rule: id, reason: why, hard, risks: risksOf(id) }
    REASONS.set(rule, reason)
  }
  return reason
}

/** What applies to a command that no rule matches. */
const DEFAULT_REASONS = Object.fromEntries(
  ACTIONS.map((action) => [
    action,
    { action, rule: 'default', reason: 'no rule matches this command', hard: false },
  ]),
) as Readonly<Record<Action, Reason>>

/** Hard reasons first; they occur among the others again. */
function ownReasons(
  policy: CommandPolicy,
  node: Node,
  hard: readonly Reason[],
  builtIn: readonly Reason[],
): readonly Reason[] {
  const all = hard.slice()
  for (const finding of node.findings) all.push(finding)
  if (node.base === 'none') {
    for (const reason of builtIn) if (reason.action !== 'allow') all.push(reason)
  } else if (builtIn.length === 0) all.push(DEFAULT_REASONS[policy.defaultAction])
  else for (const reason of builtIn) all.push(reason)
  return all
}

/** The verdict on one command: hard findings first, then the operator's rules, else the built-in rules. */
function judgeNode(walk: Walk, node: Node): JudgedNode {
  const { policy, context } = walk
  const builtIn = node.program === undefined ? NO_REASONS : builtInReasons(walk, node)
  const hard: Reason[] = []
  for (const finding of node.findings) if (finding.hard) hard.push(finding)
  for (const reason of builtIn) if (reason.hard) hard.push(reason)
  if (policy.allowed && node.program !== undefined && !listed(policy.allowed, node))
    hard.push({
      action: 'deny',
      rule: 'commands/allowed',
      reason: `\`${node.program}\` is not among the allowed programs`,
      hard: true,
    })
  const rules: readonly Rule[] =
    policy.rules.length === 0 || node.argv.length === 0
      ? NO_RULES
      : policy.rules.filter((rule) => ruleMatches(rule, subjectOf(node, context)))
  const given = rules.length > 0 ? [...hard, operatorReason(rules)] : ownReasons(policy, node, hard, builtIn)
  const reasons = context.contains ? answeredBy(walk, given, builtIn) : given
  const shown = worst(reasons) ?? NOTHING_FOUND
  const judged: Writable<JudgedNode> = {
    argv: shownArgv(node.argv),
    action: shown.action,
    reason: shown.reason,
    depth: node.depth,
    hard: shown.hard,
    rules: rulesFor(shown, reasons),
    matched: rules === NO_RULES ? NOT_MATCHED : rules.map((rule) => rule.id),
  }
  if (shown.rule !== '') judged.rule = shown.rule
  return judged
}

type Writable<T> = { -readonly [K in keyof T]: T[K] }

const NO_RULES: readonly Rule[] = []
const NOT_MATCHED: readonly string[] = []

const NOTHING_FOUND: Reason = {
  action: 'allow',
  rule: '',
  reason: 'runs only the commands checked below',
  hard: false,
}

const MAX_WORDS = 256
const MAX_WORD = 4096

/** The words for display; nearly always they are as they were written. */
const shownArgv = (argv: readonly string[]): readonly string[] =>
  argv.length <= MAX_WORDS && argv.every((word) => word.length <= MAX_WORD && isStatic(word))
    ? argv
    : argv.slice(0, MAX_WORDS).map((word) => show(word, MAX_WORD))

/** The displayed rule first, then every other rule that requires the same action. */
function rulesFor(shown: Reason, reasons: readonly Reason[]): readonly string[] {
  const rules: string[] = []
  if (shown.rule !== '') rules.push(shown.rule)
  for (const { action, rule } of reasons) if (action === shown.action && rule !== '') rules.push(rule)
  return rules
}

function listed(allowed: ReadonlySet<string>, node: Node): boolean {
  if (SHELL_WORDS.has(node.program ?? '') && node.argv[0] === node.program) return true
  return allowed.has(node.argv[0] ?? '') || (node.trusted && allowed.has(node.program ?? ''))
}

/** The strictest action of all parts, with the reason. */
export function decide(walk: Walk): { readonly decision: Decision; readonly nodes: readonly JudgedNode[] } {
  const nodes: JudgedNode[] = []
  const commands: CommandJudgement[] = []
  for (const node of walk.nodes) {
    const judged = judgeNode(walk, node)
    nodes.push(judged)
    commands.push(judgementOf(judged))
  }
  const parts = partsOf(walk, nodes)
  let action: Action = parts.length === 0 ? 'sandbox' : 'allow'
  for (const part of parts) action = stricter(action, part.action)
  const rules: string[] = []
  let decisive: Part | undefined
  let answered: Part | undefined
  for (const part of parts) {
    if (part.action !== action) continue
    decisive ??= part
    if (walk.contained.size > 0 && walk.contained.has(part.rules[0] ?? '')) answered ??= part
    for (const rule of part.rules) if (!rules.includes(rule)) rules.push(rule)
  }
  const reason = (answered ?? decisive)?.reason ?? 'nothing in it runs'
  const decision = { action, reason, rules, commands }
  if (walk.contained.size === 0) return { decision, nodes }
  return { decision: { ...decision, contained: [...walk.contained.values()] }, nodes }
}

type Part = Pick<JudgedNode, 'action' | 'reason' | 'rules'>

/** The findings about the line itself, then its commands. */
function partsOf(walk: Walk, nodes: readonly JudgedNode[]): readonly Part[] {
  if (walk.line.length === 0) return nodes
  const line = walk.context.contains ? walk.line.map((own) => behindWall(walk, own)) : walk.line
  const parts: Part[] = line.map(({ action, reason, rule }) => ({ action, reason, rules: [rule] }))
  for (const node of nodes) parts.push(node)
  return parts
}

/** What a decision shows of a command. Written out: this runs for every command, and conditional spreads are slow. */
function judgementOf({ argv, action, reason, rule, depth }: JudgedNode): CommandJudgement {
  if (rule === undefined) return depth > 0 ? { argv, action, reason, depth } : { argv, action, reason }
  return depth > 0 ? { argv, action, reason, rule, depth } : { argv, action, reason, rule }
}
