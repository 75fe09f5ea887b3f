import type { Action, ContainedRule } from '../../model/decision.ts'
import type { Containment } from '../../model/risk.ts'
import type { CommandPolicy } from '../rules/match.ts'
import type { Finding } from './finding.ts'
import type { LazyMap, LazySet } from './lazy-map.ts'
import type { Scope, Stream } from './shell/scope.ts'

/** Where a line would run. */
export type Context = {
  readonly workspace: string
  /** Other directories that are treated like the workspace. */
  readonly own?: readonly string[]
  /** Other host paths that are mounted in the sandbox: credentials below them can be read there. */
  readonly mounted?: readonly string[]
  readonly home: string
  /** The value of `~` in the directories of rules; default: `home`. */
  readonly rulesHome?: string
  readonly cwd?: string
  readonly shell?: string
  /** git at the workspace's root starts no program that a sandbox could have planted (tools/git/git-repository.ts). */
  readonly inertGit?: boolean
  /** The risks contained by the sandbox in which the line would run; absent: it would run on the host. */
  readonly contains?: Containment
}

/** One simple command found anywhere in a line, with its findings. */
export type Node = {
  /** Words with marks for unknown parts. */
  readonly argv: readonly string[]
  /** The program's plain name; undefined for an assignment, a redirection or an unknown program. */
  program: string | undefined
  /** The program and its arguments without global options; rules are matched against it. */
  canonical: readonly string[]
  readonly depth: number
  readonly findings: Finding[]
  /** `rules`: rules and the default action decide; `none`: only the findings (its inner commands are judged too). */
  base: 'rules' | 'none'
  /** The directories it could run in; empty if not known. */
  cwds: readonly string[]
  /** Started by its bare name or from a system directory, so a rule may grant it by name. */
  trusted: boolean
}

/** The state of one judgement. Handlers call the interpreter through it, which avoids circular imports. */
export type Walk = {
  readonly policy: CommandPolicy
  readonly context: Context
  /** The whole line. */
  readonly text: string
  readonly nodes: Node[]
  readonly line: Finding[]
  /** How `${name:+word}` treats variables with an unknown value. */
  readonly outside: 'unset' | 'set'
  /** The variables for which that assumption changed the result. */
  readonly doubts: LazySet
  steps: number
  depth: number
  /** Rules whose risks the sandbox contains, by id. */
  readonly contained: LazyMap<ContainedRule>
  /** Sources of the substitutions inside the words of the command being read. */
  sources: LazySet
  /** Judges an argv as if it were part of the line. */
  run(scope: Scope, argv: readonly string[], stdin: Stream): Stream
  /** Judges text as shell source in this scope. */
  source(scope: Scope, text: string, stdin: Stream): Stream
  /** The action for shell text on its own, without recording findings. */
  probe(scope: Scope, text: string): Action
}

/** The arguments of a program's handler. */
export type Call = {
  readonly walk: Walk
  readonly scope: Scope
  readonly node: Node
  /** Plain name of the program, family name for versions (`python3.12` is `python`). */
  readonly name: string
  readonly args: readonly string[]
  readonly stdin: Stream
}

/** Checks the arguments of one program and returns its output, if known. */
export type Handler = (call: Call) => Stream | undefined

/** Thrown when judging a line takes more steps than the limit; always caught inside this module. */
export class BudgetError extends Error {}

const MAX_STEPS = 1200
const MAX_DEPTH = 40

/** Charges units of work. */
export function spend(walk: Walk, steps = 1): void {
  walk.steps += steps
  if (walk.steps > MAX_STEPS) throw new BudgetError('too much work')
}

/** Runs a function one level deeper in the displayed tree. */
export function deeper<T>(walk: Walk, act: () => T): T {
  if (walk.depth >= MAX_DEPTH) throw new BudgetError('too deep')
  walk.depth++
  try {
    return act()
  } finally {
    walk.depth--
  }
}

const NOWHERE: readonly string[] = []

/** Adds a command to the tree of the line. */
export function newNode(walk: Walk, argv: readonly string[]): Node {
  const node: Node = {
    argv,
    program: undefined,
    canonical: argv,
    depth: walk.depth,
    findings: [],
    base: 'none',
    cwds: NOWHERE,
    trusted: false,
  }
  walk.nodes.push(node)
  return node
}
