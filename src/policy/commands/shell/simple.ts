import type { Assignment, Command, Redirection, Word } from 'unbash'
import { type CommandContext, wordsOf } from '../command-context.ts'
import { type CalledFunction, runArgv } from '../execute.ts'
import { denied, dynamic, type Finding, unseen } from '../finding.ts'
import { LazySet } from '../lazy-map.ts'
import { deeper, newNode, spend, type Walk } from '../walk.ts'
import { arithmeticText } from './arithmetic.ts'
import { assign, assignArray } from './assign.ts'
import { redirections } from './redirections.ts'
import {
  EMPTY,
  type FunctionBody,
  fork,
  joined,
  mergeInto,
  type Scope,
  type Stream,
  UNKNOWN,
} from './scope.ts'
import { ANY, INTEGER, SPLIT } from './unknown-text.ts'
import { expandInto, expandText, type Words } from './words.ts'

/** Judges one simple command: its words, assignments and redirections, then the program itself. */
export function runCommand(walk: Walk, scope: Scope, command: Command, around: CommandContext): Stream {
  const words = wordsOf(walk, scope, around)
  const sources = new LazySet()
  walk.sources = sources
  if (hasSplitValue(command))
    walk.line.push(unseen('shell/unreadable', 'the value of an assignment continues in a substitution'))
  const { prefix } = command
  const assignments = prefix.length === 0 ? NO_ASSIGNMENTS : prefix.filter(isAssignment)
  const redirects: Redirection[] = []
  for (const part of prefix) if (!isAssignment(part)) redirects.push(part)
  const argv: string[] = []
  if (command.name) expandInto(argv, words, command.name)
  let declared: readonly Assignment[] = NO_ASSIGNMENTS
  for (const part of command.suffix) {
    if (part.type === 'Word') expandInto(argv, words, part)
    else if (part.type === 'Assignment') {
      declared = [...declared, part]
      argv.push(declarationOf(words, part))
    } else redirects.push(part)
  }
  return runSimple(walk, {
    scope,
    around,
    words,
    argv,
    assignments,
    declared,
    redirects,
    sources,
    named: command.name !== undefined,
  })
}

/** SECURITY: our parser ends the value of `w=<(…)` at the `<`, and would read the rest as another word; bash does not. */
function hasSplitValue({ prefix, name, suffix }: Command): boolean {
  if (!prefix.some(isAssignment) && !suffix.some(isAssignment)) return false
  const parts = [...prefix, ...(name ? [name] : []), ...suffix]
  return parts.some((part, index) => part.type === 'Assignment' && part.end === parts[index + 1]?.pos)
}

const isAssignment = (part: Assignment | Redirection | Word): part is Assignment => part.type === 'Assignment'

const NO_ASSIGNMENTS: readonly Assignment[] = []

type Simple = {
  readonly scope: Scope
  readonly around: CommandContext
  readonly words: Words
  readonly argv: readonly string[]
  readonly assignments: readonly Assignment[]
  readonly declared: readonly Assignment[]
  readonly redirects: readonly Redirection[]
  readonly sources: LazySet
  /** Whether a command word was present, even if it expanded to nothing. */
  readonly named: boolean
}

function runSimple(walk: Walk, simple: Simple): Stream {
  const { scope, around, words, argv, assignments } = simple
  const env = assignments.length === 0 ? NO_VALUES : assignments.map((assignment) => read(words, assignment))
  const findings: Finding[] = []
  const { stdin, finish } = redirections(walk, scope, simple.redirects, { around, findings })
  // SECURITY: from here on every command reads from that file, and a shell reads its commands from it.
  if (argv.length === 1 && argv[0] === 'exec' && stdin && !simple.redirects.every(isNull))
    findings.push(unseen('shell/exec-input', 'the rest of the line reads from somewhere else'))
  for (const { name, value } of env) findings.push(...assign.findings(walk, name, value))
  if (argv.length === 0) {
    const node = newNode(
      walk,
      env.map(({ name, value }) => `${name}=${value}`),
    )
    node.findings.push(...findings)
    if (simple.named) node.findings.push(dynamic('what it runs is nothing unless a substitution says so'))
    for (const [index, { name, value }] of env.entries())
      store(words, assignments[index] as Assignment, name, value)
    return finish(EMPTY)
  }
  walk.sources = simple.sources
  const inside = env.length > 0 ? fork(scope) : scope
  for (const { name, value } of env) inside.vars.set(name, value)
  const out = runArgv(walk, inside, argv, {
    stdin: stdin ?? around.stdin,
    findings,
    sources: simple.sources,
    call:
      scope.functions.size === 0
        ? undefined
        : (name, args) => callFunction(walk, scope, name, { args, around }),
  })
  if (inside !== scope) scope.cwds = inside.cwds
  // Declaration builtins leave a name or a whole assignment in `$_`, depending on the builtin.
  const last = argv[argv.length - 1] ?? ''
  scope.lastArgument = last.includes('=') ? ANY : last
  for (const assignment of simple.declared) declare(words, argv, assignment)
  return finish(out)
}

const isNull = (redirect: Redirection): boolean =>
  redirect.type === 'Redirect' && redirect.target?.value === '/dev/null'

type Value = { readonly name: string; readonly value: string }

const NO_VALUES: readonly Value[] = []

function read(words: Words, assignment: Assignment): Value {
  spend(words.walk, 2)
  if (assignment.index) arithmeticText(words, assignment.index)
  const { value } = assignment
  if (value.type === 'ArrayValue') return { name: assignment.name, value: ANY }
  const text = expandNoting(words, assignment.name, value)
  const before = assignment.append ? (words.scope.vars.get(assignment.name) ?? ANY) : ''
  return { name: assignment.name, value: before + text }
}

/** Expands a value and tracks its sources: a download stored in a variable is still a download. */
function expandNoting(words: Words, name: string, value: Word): string {
  const outer = words.walk.sources
  const own = new LazySet()
  words.walk.sources = own
  const text = expandText(words, value)
  words.walk.sources = outer
  for (const source of own.values()) outer.add(source)
  if (own.size > 0) words.scope.origins.set(name, own)
  else words.scope.origins.delete(name)
  return text
}

function store(words: Words, assignment: Assignment, name: string, value: string): void {
  const { scope } = words
  // SECURITY: bash evaluates values assigned to a variable with the integer attribute.
  if (scope.vars.has(`${INTEGER}${name}`)) words.runHidden(words, value)
  if (assignment.value.type === 'ArrayValue') {
    assignArray(words, assignment)
    return
  }
  if (assignment.index) {
    scope.arrays.set(name, [SPLIT])
    return
  }
  scope.vars.set(scope.references.get(name) ?? name, value)
}

function declarationOf(words: Words, part: Assignment): string {
  const { name, value } = read(words, part)
  return `${name}=${value}`
}

/** `declare`, `export`, `local` and similar builtins keep the values they set. */
function declare(words: Words, argv: readonly string[], assignment: Assignment): void {
  const { name, value } = read(words.uncovering(), assignment)
  if (argv.slice(1).some((arg) => /^-\w*n/.test(arg)) && argv[0] !== 'export')
    words.scope.references.set(name, value)
  else store(words, assignment, name, value)
}

type CallAround = { readonly args: readonly string[]; readonly around: CommandContext }

/** Runs every body that the name may have; each starts from the same state. */
function callFunction(walk: Walk, scope: Scope, name: string, given: CallAround): CalledFunction | undefined {
  const found = scope.functions.get(name)
  if (!found) return undefined
  const { bodies, mayBeProgram } = found
  const [only] = bodies
  if (only && bodies.length === 1 && !mayBeProgram)
    return { out: callBody(walk, scope, name, { ...given, body: only }), mayBeProgram }
  let out: Stream = EMPTY
  const ends = bodies.map((body) => {
    const branch = fork(scope)
    out = joined(out, callBody(walk, branch, name, { ...given, body }))
    return branch
  })
  for (const end of ends) mergeInto(scope, end)
  return { out: { ...out, text: ANY }, mayBeProgram }
}

function callBody(
  walk: Walk,
  scope: Scope,
  name: string,
  { args, around, body }: CallAround & { readonly body: FunctionBody },
): Stream {
  body.called = true
  if (scope.calling.includes(body)) {
    if (scope.detached)
      walk.line.push(
        denied('resource/fork-bomb', `\`${name}\` starts itself again and again in the background`),
      )
    // SECURITY: the body was judged with the arguments and variables of the first call, and these are others.
    walk.line.push(dynamic(`\`${name}\` calls itself, so what it runs depends on how often`))
    return UNKNOWN
  }
  const positional = scope.positional
  const inside: Scope = {
    ...scope,
    calling: [...scope.calling, body],
    positional: [name, ...args],
    detached: false,
  }
  const out = deeper(walk, () => around.runNode(walk, inside, body.body, { ...around, cover: body.cover }))
  scope.cwds = inside.cwds
  scope.positional = positional
  return out
}
