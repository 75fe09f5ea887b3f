import { type Action, type ContainedRule, type Decision, strictest } from '../../model/decision.ts'
import type { CommandPolicy } from '../rules/match.ts'
import { runArgv } from './execute.ts'
import { type Finding, unseen } from './finding.ts'
import { LazyMap, LazySet } from './lazy-map.ts'
import { lexicalFindings } from './lexical.ts'
import { interpret, runUncalled } from './shell/interpret.ts'
import { CLOSED, fork, newScope, type Scope, type Stream } from './shell/scope.ts'
import { fromZsh } from './tools/shells.ts'
import { decide, type JudgedNode } from './verdict.ts'
import { BudgetError, type Context, type Node, type Walk } from './walk.ts'

export type { Context } from './walk.ts'

/** A decision with the tree of commands that led to it, for display. */
export type Inspection = { readonly decision: Decision; readonly nodes: readonly JudgedNode[] }

class LineWalk implements Walk {
  readonly policy: CommandPolicy
  readonly context: Context
  readonly text: string
  readonly outside: Walk['outside']
  readonly nodes: Node[] = []
  readonly line: Finding[] = []
  readonly doubts = new LazySet()
  steps = 0
  depth = 0
  readonly contained = new LazyMap<ContainedRule>()
  sources = new LazySet()

  constructor(policy: CommandPolicy, context: Context, text: string, outside: Walk['outside'] = 'unset') {
    this.policy = policy
    this.context = context
    this.text = text
    this.outside = outside
  }

  run(scope: Scope, argv: readonly string[], stdin: Stream): Stream {
    return runArgv(this, scope, argv, { stdin })
  }

  source(scope: Scope, text: string, stdin: Stream): Stream {
    return interpret(this, scope, text, stdin)
  }

  probe(scope: Scope, text: string): Action {
    return probe(this, scope, text)
  }
}

const MAX_PROBES = 3

/** SECURITY: a probe costs as much as a full judgement, so its steps are charged to the line that caused it. */
function probe(walk: Walk, scope: Scope, text: string): Action {
  if (walk.depth > MAX_PROBES * 4) return 'ask'
  const inner = new LineWalk(walk.policy, walk.context, walk.text, walk.outside)
  inner.steps = walk.steps
  inner.depth = walk.depth + 4
  const action = attempt(inner, () =>
    interpret(inner, fork(scope, { files: scope.files.copy() }), text, CLOSED),
  )
  walk.steps = inner.steps
  for (const name of inner.doubts.values()) walk.doubts.add(name)
  for (const [rule, answered] of inner.contained.entries()) walk.contained.set(rule, answered)
  return action.decision.action
}

function attempt(walk: Walk, act: () => void): Inspection {
  try {
    act()
  } catch (error) {
    // INVARIANT: if the walk is aborted for any reason, the line is never allowed.
    const why =
      error instanceof BudgetError
        ? 'it costs more to read than any honest line'
        : 'it could not be read to its end'
    walk.line.push(unseen('shell/budget', why))
  }
  return decide(walk)
}

/** Judges a shell line and returns the tree of commands too. */
export function inspectLine(policy: CommandPolicy, line: string, context: Context): Inspection {
  const walk = new LineWalk(policy, context, line)
  const first = inspectOnce(walk, line, context)
  if (walk.doubts.size === 0) return first
  const other = new LineWalk(policy, context, line, 'set')
  // Two readings cover one unknown variable; several would need one reading per combination.
  if (walk.doubts.size > 1)
    other.line.push(unseen('shell/doubt', 'what runs depends on several values that are not known'))
  return eitherOf(first, inspectOnce(other, line, context))
}

/** Either reading may happen: the stricter decides, and the commands of both are shown. */
function eitherOf(first: Inspection, second: Inspection): Inspection {
  const [shown, hidden] =
    strictest([first.decision.action, second.decision.action]) === first.decision.action
      ? [first, second]
      : [second, first]
  const seen = new Set(shown.nodes.map(({ argv }) => argv.join('\0')))
  const extra = (argv: readonly string[]): boolean => !seen.has(argv.join('\0'))
  const commands = [...shown.decision.commands, ...hidden.decision.commands.filter(({ argv }) => extra(argv))]
  const contained = new Map(
    [...(shown.decision.contained ?? []), ...(hidden.decision.contained ?? [])].map((one) => [one.rule, one]),
  )
  return {
    decision: {
      ...shown.decision,
      commands,
      ...(contained.size > 0 ? { contained: [...contained.values()] } : {}),
    },
    nodes: [...shown.nodes, ...hidden.nodes.filter(({ argv }) => extra(argv))],
  }
}

function inspectOnce(walk: Walk, line: string, context: Context): Inspection {
  const lexical = lexicalFindings(line)
  walk.line.push(...lexical.findings)
  if (lexical.stop) return decide(walk)
  return attempt(walk, () => {
    const scope = newScope(context.cwd ?? context.workspace)
    if (context.shell !== undefined && !/^(|.*\/)(ba|da|z|k|mk|a)?sh$/.test(context.shell))
      walk.line.push(unseen('shell/foreign', `\`${context.shell}\` has a syntax of its own that is not read`))
    if (context.shell?.endsWith('zsh') && /[*?\]]\(|\$\{\(/.test(line))
      walk.line.push(unseen('shell/zsh', 'a glob qualifier or flag of zsh can run code'))
    interpret(walk, scope, context.shell?.endsWith('zsh') ? fromZsh(line) : line, CLOSED)
    runUncalled(walk, scope)
  })
}

/** Judges a shell line. */
export function judgeLine(policy: CommandPolicy, line: string, context: Context): Decision {
  return inspectLine(policy, line, context).decision
}

/** Judges a command that is started without a shell. */
export function inspectArgv(policy: CommandPolicy, argv: readonly string[], context: Context): Inspection {
  const text = argv.join(' ')
  const walk = new LineWalk(policy, context, text)
  const lexical = lexicalFindings(text === '' ? ' ' : text)
  walk.line.push(...lexical.findings)
  if (
    lexical.stop &&
    !lexical.findings.every(({ rule }) => rule === 'shell/too-deep' || rule === 'shell/too-many')
  )
    return decide(walk)
  return attempt(walk, () => {
    // The decision keeps the words; a copy, because the array belongs to the caller.
    runArgv(walk, newScope(context.cwd ?? context.workspace), argv.slice(), { stdin: CLOSED })
  })
}

/** Judges a command that is started without a shell. */
export function judgeArgv(policy: CommandPolicy, argv: readonly string[], context: Context): Decision {
  return inspectArgv(policy, argv, context).decision
}
