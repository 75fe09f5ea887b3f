import type {
  AndOr,
  Assignment,
  Case,
  Command,
  CommandNode,
  CompoundList,
  For,
  ParsedScript,
  Pipeline,
  PipelineNode,
  Redirection,
  Select,
  Function as ShellFunction,
  Statement,
  TestExpression,
  While,
} from 'unbash'
import { assign, assignArray } from './assign.ts'
import { runArgv } from './execute.ts'
import { denied, dynamic, type Finding, unseen } from './finding.ts'
import { uncovered } from './lexical.ts'
import { ANY, SPLIT } from './marks.ts'
import { parseShell } from './parse.ts'
import { redirectTo } from './redirect.ts'
import {
  CLOSED,
  EMPTY,
  fork,
  joined,
  mergeInto,
  type Scope,
  type Source,
  type Stream,
  textStream,
  UNKNOWN,
} from './scope.ts'
import { arithmeticText } from './subscript.ts'
import { deeper, newNode, spend, type Walk } from './walk.ts'
import { arithmetic, expandBody, expandText, expandWord, runHidden, type Words } from './words.ts'

/** What surrounds a command: its input, whether it is detached, and the notes for the lexical veto. */
type Around = {
  readonly stdin: Stream
  readonly cover: (at: number, end: number) => void
}

const unreadable = (walk: Walk): void => {
  walk.line.push(
    unseen('shell/unreadable', 'it is not complete shell syntax, so what would run is not known'),
  )
}

/** Judges shell source text. Never throws for bad syntax; it is noted as unreadable instead. */
export function interpret(walk: Walk, scope: Scope, source: string, stdin: Stream): Stream {
  spend(walk, 1 + Math.floor(source.length / 256))
  const script = parseShell(source)
  if (!script) {
    unreadable(walk)
    return UNKNOWN
  }
  const covered = new Set<number>()
  const cover = (at: number, end: number): void => {
    covered.add(at)
    covered.add(-end)
  }
  const out = runScript(walk, scope, script, { stdin, cover })
  if (uncovered(source, covered))
    walk.line.push(dynamic('quoted or escaped text looks like a substitution, which other programs may run'))
  return out
}

function runScript(walk: Walk, scope: Scope, script: ParsedScript, around: Around): Stream {
  const out = runStatements(walk, scope, script.commands, around)
  // INVARIANT: nested scripts are parsed when they are reached, so errors are complete only after the walk.
  if (script.errors?.length) unreadable(walk)
  return out
}

const runList = (walk: Walk, scope: Scope, list: CompoundList, around: Around): Stream =>
  runStatements(walk, scope, list.commands, around)

function runStatements(walk: Walk, scope: Scope, list: readonly Statement[], around: Around): Stream {
  let out: Stream = EMPTY
  for (const statement of list) {
    spend(walk)
    const inside = statement.background ? fork(scope, { detached: true }) : scope
    out = joined(out, runAndOr(walk, inside, statement.command, around))
  }
  return out
}

function runAndOr(walk: Walk, scope: Scope, node: PipelineNode | AndOr, around: Around): Stream {
  if (node.type !== 'AndOr') return runPipeline(walk, scope, node, around)
  let out = runPipeline(walk, scope, node.commands[0] as PipelineNode, around)
  const ends: Scope[] = []
  for (const [index, command] of node.commands.slice(1).entries()) {
    const before = fork(scope)
    // `||` runs when something before it failed, so any earlier state is possible; `&&` continues the last one.
    if (node.operators[index] === '||') for (const end of ends) mergeInto(scope, end)
    out = joined(out, runPipeline(walk, scope, command, around))
    ends.push(before)
  }
  for (const end of ends) mergeInto(scope, end)
  return out
}

function runPipeline(walk: Walk, scope: Scope, node: PipelineNode, around: Around): Stream {
  if (node.type !== 'Pipeline') return runNode(walk, scope, node, around)
  if (node.commands.length === 1)
    return runNode(walk, scope, (node as Pipeline).commands[0] as CommandNode, around)
  let stream = around.stdin
  for (const command of node.commands) {
    stream = runNode(walk, fork(scope, { detached: true }), command, { ...around, stdin: stream })
    if (!stream.piped) stream = { ...stream, piped: true }
  }
  return stream
}

function runNode(walk: Walk, scope: Scope, node: CommandNode | CompoundList, around: Around): Stream {
  spend(walk)
  switch (node.type) {
    case 'Command':
      return runCommand(walk, scope, node, around)
    case 'CompoundList':
      return runList(walk, scope, node, around)
    case 'BraceGroup':
      return runList(walk, scope, node.body, around)
    case 'Subshell':
      return deeper(walk, () => runList(walk, fork(scope), node.body, around))
    case 'Redirected':
      return runRedirected(walk, scope, node, around)
    case 'If':
      return runIf(walk, scope, node, around)
    case 'While':
      return runWhile(walk, scope, node, around)
    case 'For':
    case 'Select':
      return runFor(walk, scope, node, around)
    case 'ArithmeticFor': {
      const words = wordsOf(walk, scope, around)
      for (const part of [node.initialize, node.test, node.update]) if (part) arithmetic(words, part)
      return repeat(walk, scope, () => runList(walk, scope, node.body, around))
    }
    case 'Case':
      return runCase(walk, scope, node, around)
    case 'Function':
      return defineFunction(scope, node, around)
    case 'Coproc':
      return runNode(walk, fork(scope, { detached: true }), node.body, { ...around, stdin: UNKNOWN })
    case 'TestCommand':
      runTest(wordsOf(walk, scope, around), node.expression)
      return EMPTY
    case 'ArithmeticCommand':
      return runArithmetic(walk, scope, node, around)
    default:
      return node satisfies never
  }
}

/** `((` also opens two subshells in other shells, and in bash where it cannot be arithmetic. */
function runArithmetic(
  walk: Walk,
  scope: Scope,
  node: Extract<CommandNode, { type: 'ArithmeticCommand' }>,
  around: Around,
): Stream {
  arithmetic(wordsOf(walk, scope, around), node.expression)
  if (/[A-Za-z_]\w*\s+[-\w/"'$]/.test(node.body)) {
    walk.line.push(
      unseen('shell/arithmetic', 'it reads as arithmetic in one shell and as commands in another'),
    )
    deeper(walk, () => interpret(walk, fork(scope), node.body.replace(/^[\s(]+|[\s)]+$/g, ''), around.stdin))
  }
  return EMPTY
}

function runRedirected(
  walk: Walk,
  scope: Scope,
  node: Extract<CommandNode, { type: 'Redirected' }>,
  around: Around,
): Stream {
  const shown = newNode(walk, [`${node.command.type.toLowerCase()}`])
  const { stdin, finish } = redirections(walk, scope, node.redirects, { around, findings: shown.findings })
  return finish(runNode(walk, scope, node.command, { ...around, stdin: stdin ?? around.stdin }))
}

function runIf(walk: Walk, scope: Scope, node: Extract<CommandNode, { type: 'If' }>, around: Around): Stream {
  let out = runList(walk, scope, node.clause, around)
  const ends: Scope[] = []
  const branch = (body: CompoundList): void => {
    const inside = fork(scope)
    out = joined(out, runList(walk, inside, body, around))
    ends.push(inside)
  }
  branch(node.then)
  for (const other of node.elif) {
    out = joined(out, runList(walk, scope, other.clause, around))
    branch(other.then)
  }
  if (node.else) branch(node.else)
  for (const end of ends) mergeInto(scope, end)
  return ends.length > 1 ? { ...out, text: ANY } : out
}

/** Runs a body until what it may have changed no longer changes; twice is nearly always enough. */
function repeat(walk: Walk, scope: Scope, body: () => Stream): Stream {
  let out: Stream = EMPTY
  for (let round = 0; round < 3; round++) {
    const before = fork(scope)
    const first = walk.nodes.length
    out = joined(out, body())
    const again = mergeInto(scope, before)
    if (round > 0) dropRepeated(walk, first)
    if (!again) break
    if (round === 1) scope.cwds = scope.cwds.length > 1 ? [] : scope.cwds
  }
  return { ...out, text: ANY }
}

/** The second round is shown only where it found something new. */
function dropRepeated(walk: Walk, from: number): void {
  const fresh = walk.nodes.splice(from)
  const seen = new Set(walk.nodes.map((node) => node.argv.join('\0')))
  walk.nodes.push(...fresh.filter((node) => node.findings.length > 0 || !seen.has(node.argv.join('\0'))))
}

const ENDLESS = new Set(['true', ':'])

function runWhile(walk: Walk, scope: Scope, node: While, around: Around): Stream {
  const first = node.clause.commands[0]?.command
  const name = first?.type === 'Command' ? first.name?.value : undefined
  const endless = node.kind === 'while' ? ENDLESS.has(name ?? '') : name === 'false'
  if (endless && hasBackground(node.body))
    walk.line.push(unseen('resource/flood', 'an endless loop that starts background processes'))
  return repeat(walk, scope, () =>
    joined(runList(walk, scope, node.clause, around), runList(walk, scope, node.body, around)),
  )
}

const hasBackground = (list: CompoundList): boolean =>
  list.commands.some((statement) => statement.background === true)

const MAX_ROUNDS = 12

function runFor(walk: Walk, scope: Scope, node: For | Select, around: Around): Stream {
  const words = wordsOf(walk, scope, around)
  const list = node.wordlist
    ? node.wordlist.flatMap((word) => expandWord(words, word))
    : (scope.positional?.slice(1) ?? [SPLIT])
  const name = node.name.value
  const known = list.length <= MAX_ROUNDS && walk.steps < 600
  const values = known ? list : [ANY]
  return repeat(walk, scope, () => {
    let out: Stream = EMPTY
    for (const value of values) {
      scope.vars.set(name, value.replaceAll(SPLIT, ANY))
      out = joined(out, runList(walk, scope, node.body, around))
    }
    // The list is walked in each round, so the variable itself is no reason for another.
    scope.vars.set(name, ANY)
    return out
  })
}

function runCase(walk: Walk, scope: Scope, node: Case, around: Around): Stream {
  const words = wordsOf(walk, scope, around)
  expandText(words, node.word)
  let out: Stream = EMPTY
  const ends: Scope[] = []
  for (const item of node.items) {
    for (const pattern of item.pattern) expandText(words, pattern)
    const inside = fork(scope)
    out = joined(out, runList(walk, inside, item.body, around))
    ends.push(inside)
  }
  for (const end of ends) mergeInto(scope, end)
  return { ...out, text: ANY }
}

function defineFunction(scope: Scope, node: ShellFunction, around: Around): Stream {
  scope.functions.set(node.name.value, { body: node.body, cover: around.cover, called: false })
  return EMPTY
}

const ARITHMETIC_TESTS = new Set(['-eq', '-ne', '-lt', '-le', '-gt', '-ge'])

function runTest(words: Words, expression: TestExpression): void {
  spend(words.walk)
  switch (expression.type) {
    case 'TestUnary': {
      const text = expandText(words, expression.operand)
      if (expression.operator === '-v' || expression.operator === '-R') runHidden(words, text)
      return
    }
    case 'TestBinary': {
      const sides = [expression.left, expression.right]
      if (!ARITHMETIC_TESTS.has(expression.operator)) for (const side of sides) expandText(words, side)
      else for (const side of sides) arithmeticText(words, side)
      return
    }
    case 'TestLogical':
      for (const operand of expression.operands) runTest(words, operand)
      return
    case 'TestNot':
      return runTest(words, expression.operand)
    case 'TestGroup':
      return runTest(words, expression.expression)
    default:
      return expression satisfies never
  }
}

/** The services that words need, bound to one place in the line. */
function wordsOf(walk: Walk, scope: Scope, around: Around): Words {
  const inside = (source: string | undefined): Around =>
    source === undefined ? { ...around, stdin: CLOSED } : { stdin: CLOSED, cover: () => {} }
  return {
    walk,
    scope,
    cover: around.cover,
    substitute(script, _at) {
      if (!script) return unknownText(walk)
      const outer = walk.sources
      const out = deeper(walk, () => runScript(walk, fork(scope), script, inside(script.source)))
      walk.sources = outer
      for (const source of out.from) outer.add(source)
      return out.text.replace(/\n+$/, '')
    },
    process(script, operator, at) {
      if (!script) return unknownText(walk)
      const stdin = operator === '>' ? UNKNOWN : CLOSED
      const outer = walk.sources
      const out = deeper(walk, () =>
        runScript(walk, fork(scope), script, { ...inside(script.source), stdin }),
      )
      walk.sources = outer
      const path = `/dev/fd/${1000 + at}`
      scope.files.set(path, { kind: 'content', stream: out })
      return path
    },
  }
}

function unknownText(walk: Walk): string {
  unreadable(walk)
  return ANY
}

type Redirecting = { readonly around: Around; readonly findings: Finding[] }

/** Judges redirections; `finish` says what is left of the output once it has been written elsewhere. */
function redirections(
  walk: Walk,
  scope: Scope,
  list: readonly Redirection[],
  { around, findings }: Redirecting,
) {
  const words = wordsOf(walk, scope, around)
  let stdin: Stream | undefined
  const sinks: ((out: Stream) => Stream)[] = []
  for (const redirect of list) {
    spend(walk, 4)
    if (redirect.type === 'HereDoc') {
      stdin = fed(walk, () =>
        redirect.delimiter?.quoted ? redirect.body.text : expandBody(words, redirect.body),
      )
    } else if (redirect.type === 'HereString') {
      const { target } = redirect
      stdin = fed(walk, () => (target ? `${expandText(words, target)}\n` : ''))
    } else if (redirect.target) {
      const feeds = feedsProcess(redirect.target.parts)
      if (feeds) sinks.push((out) => feed(walk, scope, feeds, { ...around, stdin: { ...out, piped: true } }))
      else {
        const descriptor =
          redirect.descriptor?.type === 'FileDescriptor' ? redirect.descriptor.value : undefined
        const target = { operator: redirect.operator, path: targetOf(walk, words, redirect), descriptor }
        const change = redirectTo({ walk, scope, findings }, target)
        if (change.stdin) stdin = change.stdin
        if (change.sink) sinks.push(change.sink)
      }
    }
  }
  return { stdin, finish: (out: Stream): Stream => sinks.reduce((stream, sink) => sink(stream), out) }
}

/** A here-document carries what the substitutions in it carry. */
function fed(walk: Walk, read: () => string): Stream {
  const outer = walk.sources
  walk.sources = new Set()
  const text = read()
  const from = [...walk.sources].filter((source): source is Source => source[0] !== '$')
  for (const source of walk.sources) outer.add(source)
  walk.sources = outer
  return textStream(text, from)
}

function targetOf(walk: Walk, words: Words, redirect: Extract<Redirection, { type: 'Redirect' }>): string {
  const target = redirect.target
  if (!target) return ANY
  words.cover(target.pos, target.pos)
  const fields = expandWord(words, target)
  if (fields.length === 1) return fields[0] as string
  walk.line.push(dynamic('a redirection whose target is not one word'))
  return ANY
}

type Parts = NonNullable<Extract<Redirection, { type: 'Redirect' }>['target']>['parts']

function feedsProcess(parts: Parts) {
  const part = parts?.[0]
  return parts?.length === 1 && part?.type === 'ProcessSubstitution' && part.operator === '>'
    ? part
    : undefined
}

function feed(
  walk: Walk,
  scope: Scope,
  part: NonNullable<ReturnType<typeof feedsProcess>>,
  around: Around,
): Stream {
  around.cover(part.pos, part.end)
  if (part.script) deeper(walk, () => runScript(walk, fork(scope), part.script as ParsedScript, around))
  else unreadable(walk)
  return EMPTY
}

function runCommand(walk: Walk, scope: Scope, command: Command, around: Around): Stream {
  const words = wordsOf(walk, scope, around)
  const sources = new Set<string>()
  walk.sources = sources
  const assignments: Assignment[] = []
  const redirects: Redirection[] = []
  for (const part of command.prefix) {
    if (part.type === 'Assignment') assignments.push(part)
    else redirects.push(part)
  }
  const argv: string[] = command.name ? [...expandWord(words, command.name)] : []
  const declared: Assignment[] = []
  for (const part of command.suffix) {
    if (part.type === 'Word') argv.push(...expandWord(words, part))
    else if (part.type === 'Assignment') {
      declared.push(part)
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

type Simple = {
  readonly scope: Scope
  readonly around: Around
  readonly words: Words
  readonly argv: readonly string[]
  readonly assignments: readonly Assignment[]
  readonly declared: readonly Assignment[]
  readonly redirects: readonly Redirection[]
  readonly sources: Set<string>
  /** A command word stood there, even if nothing is left of it. */
  readonly named: boolean
}

function runSimple(walk: Walk, simple: Simple): Stream {
  const { scope, around, words, argv, assignments } = simple
  const env = assignments.map((assignment) => read(words, assignment))
  const findings: Finding[] = []
  const { stdin, finish } = redirections(walk, scope, simple.redirects, { around, findings })
  const poison = env.flatMap(({ name, value }) => assign.findings(walk, name, value))
  if (argv.length === 0) {
    const node = newNode(
      walk,
      env.map(({ name, value }) => `${name}=${value}`),
    )
    node.findings.push(...findings, ...poison)
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
    findings: [...findings, ...poison],
    sources: simple.sources,
    call: (name, args) => callFunction(walk, scope, name, { args, around }),
  })
  if (inside !== scope) scope.cwds = inside.cwds
  scope.lastArgument = argv.at(-1) ?? ''
  for (const assignment of simple.declared) declare(words, argv, assignment)
  return finish(out)
}

function read(words: Words, assignment: Assignment): { readonly name: string; readonly value: string } {
  spend(words.walk, 2)
  if (assignment.index) arithmeticText(words, assignment.index)
  const { value } = assignment
  if (value.type === 'ArrayValue') return { name: assignment.name, value: ANY }
  const text = expandText(words, value)
  const before = assignment.append ? (words.scope.vars.get(assignment.name) ?? ANY) : ''
  return { name: assignment.name, value: before + text }
}

function store(words: Words, assignment: Assignment, name: string, value: string): void {
  const { scope } = words
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

/** `declare`, `export`, `local` and the like keep what they set. */
function declare(words: Words, argv: readonly string[], assignment: Assignment): void {
  const { name, value } = read({ ...words, cover: () => {} }, assignment)
  if (argv.slice(1).some((arg) => /^-\w*n/.test(arg)) && argv[0] !== 'export')
    words.scope.references.set(name, value)
  else store(words, assignment, name, value)
}

type CallAround = { readonly args: readonly string[]; readonly around: Around }

function callFunction(
  walk: Walk,
  scope: Scope,
  name: string,
  { args, around }: CallAround,
): Stream | undefined {
  const found = scope.functions.get(name)
  if (!found) return undefined
  found.called = true
  if (scope.calling.includes(name)) {
    if (scope.detached)
      walk.line.push(
        denied('resource/fork-bomb', `\`${name}\` starts itself again and again in the background`),
      )
    return UNKNOWN
  }
  const positional = scope.positional
  const inside: Scope = {
    ...scope,
    calling: [...scope.calling, name],
    positional: [name, ...args],
    detached: false,
  }
  const out = deeper(walk, () => runNode(walk, inside, found.body, { ...around, cover: found.cover }))
  scope.cwds = inside.cwds
  scope.positional = positional
  return out
}

/** Judges functions that the line defines and never calls by name: a handler or a later line may call them. */
export function runUncalled(walk: Walk, scope: Scope): void {
  for (const [name, found] of scope.functions) {
    if (found.called) continue
    found.called = true
    const inside = fork(scope, { positional: undefined, calling: [name] })
    deeper(walk, () => runNode(walk, inside, found.body, { stdin: CLOSED, cover: () => {} }))
  }
}
