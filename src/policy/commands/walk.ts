import type { Action, ContainedRule } from '../../model/decision.ts'
import type { Containment } from '../../model/risk.ts'
import type { CommandPolicy } from '../rules/match.ts'
import type { Finding } from './finding.ts'
import type { Scope, Stream } from './shell/scope.ts'

/** Where a line would run. */
export type Context = {
  readonly workspace: string
  /** Other directories that are as good as it. */
  readonly own?: readonly string[]
  /** Other paths of the host that the sandbox shows: credentials below them can be read in it. */
  readonly mounted?: readonly string[]
  readonly home: string
  /** What `~` means in the directories of rules; absent: `home`. */
  readonly rulesHome?: string
  readonly cwd?: string
  readonly shell?: string
  /** git at the workspace's root starts nothing that a sandbox could have planted (tools/git-repository.ts). */
  readonly inertGit?: boolean
  /** The risks that the sandbox contains in which the line would run; absent: it would run on the host. */
  readonly contains?: Containment
}

/** One simple command found anywhere in a line, with everything found about it. */
export type Node = {
  /** With marks. */
  readonly argv: readonly string[]
  /** The program's plain name, or undefined when it is an assignment, a redirection or not known. */
  program: string | undefined
  /** The program and its arguments without global options: what rules are matched against. */
  canonical: readonly string[]
  readonly depth: number
  readonly findings: Finding[]
  /** `rules`: rules and the default action decide; `none`: only the findings (its inner commands are judged too). */
  base: 'rules' | 'none'
  /** Where it could run; empty when that is not known. */
  cwds: readonly string[]
  /** Started by its bare name or from a system directory, so a rule may grant it by name. */
  trusted: boolean
}

/** The state of one judgement. Handlers reach the interpreter through it, so that no two files import each other. */
export type Walk = {
  readonly policy: CommandPolicy
  readonly context: Context
  readonly nodes: Node[]
  readonly line: Finding[]
  /** What is assumed of variables whose value is not known, where `${name:+word}` asks whether they hold one. */
  readonly outside: 'unset' | 'set'
  /** The variables for which that assumption mattered. */
  readonly doubts: Set<string>
  steps: number
  depth: number
  /** Rules that the sandbox answered, by id. */
  readonly contained: Map<string, ContainedRule>
  /** Sources of the substitutions inside the words of the command being read. */
  sources: Set<string>
  /** Judges an argv as if it stood in the line. */
  readonly run: (scope: Scope, argv: readonly string[], stdin: Stream) => Stream
  /** Judges text as shell source in this scope. */
  readonly source: (scope: Scope, text: string, stdin: Stream) => Stream
  /** The action that shell text would get on its own, without noting anything. */
  readonly probe: (scope: Scope, text: string) => Action
}

/** Everything a program's handler may look at. */
export type Call = {
  readonly walk: Walk
  readonly scope: Scope
  readonly node: Node
  /** Plain name of the program, family name for versions (`python3.12` is `python`). */
  readonly name: string
  readonly args: readonly string[]
  readonly stdin: Stream
}

/** Checks the arguments of one program and returns what it prints, if that is known. */
export type Handler = (call: Call) => Stream | undefined

/** Thrown when a line costs more steps than any honest one; never leaves the room. */
export class BudgetError extends Error {}

const MAX_STEPS = 1200
const MAX_DEPTH = 40

/** Counts one unit of work. */
export function spend(walk: Walk, steps = 1): void {
  walk.steps += steps
  if (walk.steps > MAX_STEPS) throw new BudgetError('too much work')
}

/** Runs something one level deeper in the tree that people see. */
export function deeper<T>(walk: Walk, act: () => T): T {
  if (walk.depth >= MAX_DEPTH) throw new BudgetError('too deep')
  walk.depth++
  try {
    return act()
  } finally {
    walk.depth--
  }
}

/** Adds a command to the tree of the line. */
export function newNode(walk: Walk, argv: readonly string[]): Node {
  const node: Node = {
    argv,
    program: undefined,
    canonical: argv,
    depth: walk.depth,
    findings: [],
    base: 'none',
    cwds: [],
    trusted: false,
  }
  walk.nodes.push(node)
  return node
}
