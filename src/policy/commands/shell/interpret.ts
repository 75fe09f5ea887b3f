import type {
  AndOr,
  Case,
  CommandNode,
  CompoundList,
  For,
  ParsedScript,
  Pipeline,
  PipelineNode,
  Select,
  Function as ShellFunction,
  Statement,
  TestExpression,
  While,
} from 'unbash'
import { type CommandContext, NOT_COVERING, unreadable, wordsOf } from '../command-context.ts'
import { dynamic, unseen } from '../finding.ts'
import { maySubstitute, uncovered } from '../lexical.ts'
import { deeper, newNode, spend, type Walk } from '../walk.ts'
import { arithmeticText } from './arithmetic.ts'
import { parseShell } from './parse.ts'
import { redirections } from './redirections.ts'
import {
  CLOSED,
  EMPTY,
  fork,
  forkDetached,
  joined,
  mergeInto,
  type Scope,
  type Stream,
  UNKNOWN,
} from './scope.ts'
import { runCommand } from './simple.ts'
import { ANY, SPLIT } from './unknown-text.ts'
import { arithmetic, expandText, expandWord, runHidden, type Words } from './words.ts'

/** Judges shell source text. Never throws for invalid syntax, which is recorded as unreadable. */
export function interpret(walk: Walk, scope: Scope, source: string, stdin: Stream): Stream {
  spend(walk, 1 + Math.floor(source.length / 256))
  const script = parseShell(source)
  if (!script) {
    unreadable(walk)
    return UNKNOWN
  }
  if (!maySubstitute(source))
    return runScript(walk, scope, script, { stdin, cover: NOT_COVERING, runScript, runNode })
  const covered = new Set<number>()
  const cover = (at: number, end: number): void => {
    covered.add(at)
    covered.add(-end)
  }
  const out = runScript(walk, scope, script, { stdin, cover, runScript, runNode })
  if (uncovered(source, covered))
    walk.line.push(dynamic('quoted or escaped text looks like a substitution, which other programs may run'))
  return out
}

function runScript(walk: Walk, scope: Scope, script: ParsedScript, around: CommandContext): Stream {
  const out = runStatements(walk, scope, script.commands, around)
  // INVARIANT: nested scripts are parsed when the walk reaches them, so errors are complete only after the walk.
  if (script.errors?.length) unreadable(walk)
  return out
}

const runList = (walk: Walk, scope: Scope, list: CompoundList, around: CommandContext): Stream =>
  runStatements(walk, scope, list.commands, around)

function runStatements(walk: Walk, scope: Scope, list: readonly Statement[], around: CommandContext): Stream {
  let out: Stream = EMPTY
  for (const statement of list) {
    spend(walk)
    const inside = statement.background ? forkDetached(scope) : scope
    out = joined(out, runAndOr(walk, inside, statement.command, around))
  }
  return out
}

function runAndOr(walk: Walk, scope: Scope, node: PipelineNode | AndOr, around: CommandContext): Stream {
  if (node.type !== 'AndOr') return runPipeline(walk, scope, node, around)
  let out = runPipeline(walk, scope, node.commands[0] as PipelineNode, around)
  const ends: Scope[] = []
  for (let index = 1; index < node.commands.length; index++) {
    const before = fork(scope)
    // `||` runs after a failure, so any earlier state is possible; `&&` continues from the last state.
    if (node.operators[index - 1] === '||') for (const end of ends) mergeInto(scope, end)
    out = joined(out, runPipeline(walk, scope, node.commands[index] as PipelineNode, around))
    ends.push(before)
  }
  for (const end of ends) mergeInto(scope, end)
  return out
}

function runPipeline(walk: Walk, scope: Scope, node: PipelineNode, around: CommandContext): Stream {
  if (node.type !== 'Pipeline') return runNode(walk, scope, node, around)
  if (node.commands.length === 1)
    return runNode(walk, scope, (node as Pipeline).commands[0] as CommandNode, around)
  let stream = around.stdin
  for (const command of node.commands) {
    stream = runNode(walk, forkDetached(scope), command, withStdin(around, stream))
    if (!stream.piped) stream = { text: stream.text, from: stream.from, piped: true }
  }
  return stream
}

const withStdin = ({ cover }: CommandContext, stdin: Stream): CommandContext => ({
  stdin,
  cover,
  runScript,
  runNode,
})

function runNode(walk: Walk, scope: Scope, node: CommandNode | CompoundList, around: CommandContext): Stream {
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
      if (!node.test)
        walk.line.push(
          hasBackground(node.body)
            ? unseen('resource/flood', 'an endless loop that starts background processes')
            : dynamic('a loop without an end'),
        )
      return repeat(walk, scope, () => runList(walk, scope, node.body, around))
    }
    case 'Case':
      return runCase(walk, scope, node, around)
    case 'Function':
      return defineFunction(scope, node, around)
    case 'Coproc':
      return runNode(walk, forkDetached(scope), node.body, withStdin(around, UNKNOWN))
    case 'TestCommand':
      runTest(wordsOf(walk, scope, around), node.expression)
      return EMPTY
    case 'ArithmeticCommand':
      return runArithmetic(walk, scope, node, around)
    default:
      return node satisfies never
  }
}

/** `((` also opens two subshells in other shells, and in bash if the text is not valid arithmetic. */
function runArithmetic(
  walk: Walk,
  scope: Scope,
  node: Extract<CommandNode, { type: 'ArithmeticCommand' }>,
  around: CommandContext,
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
  around: CommandContext,
): Stream {
  const shown = newNode(walk, [`${node.command.type.toLowerCase()}`])
  const { stdin, finish } = redirections(walk, scope, node.redirects, { around, findings: shown.findings })
  return finish(runNode(walk, scope, node.command, withStdin(around, stdin ?? around.stdin)))
}

function runIf(
  walk: Walk,
  scope: Scope,
  node: Extract<CommandNode, { type: 'If' }>,
  around: CommandContext,
): Stream {
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

/** Repeats a loop body until the state no longer changes; two rounds are nearly always enough. */
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

/** The second round is shown only if it found something new. */
function dropRepeated(walk: Walk, from: number): void {
  const fresh = walk.nodes.splice(from)
  const seen = new Set(walk.nodes.map((node) => node.argv.join('\0')))
  walk.nodes.push(...fresh.filter((node) => node.findings.length > 0 || !seen.has(node.argv.join('\0'))))
}

const ENDLESS = new Set(['true', ':'])

function runWhile(walk: Walk, scope: Scope, node: While, around: CommandContext): Stream {
  const first = node.clause.commands[0]?.command
  const name = first?.type === 'Command' ? first.name?.value : undefined
  const endless = node.kind === 'while' ? ENDLESS.has(name ?? '') : name === 'false'
  if (endless) walk.line.push(dynamic('a loop without an end'))
  if (endless && hasBackground(node.body))
    walk.line.push(unseen('resource/flood', 'an endless loop that starts background processes'))
  return repeat(walk, scope, () =>
    joined(runList(walk, scope, node.clause, around), runList(walk, scope, node.body, around)),
  )
}

const hasBackground = (list: CompoundList): boolean =>
  list.commands.some((statement) => statement.background === true)

const MAX_ROUNDS = 12

function runFor(walk: Walk, scope: Scope, node: For | Select, around: CommandContext): Stream {
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
    // The list is walked in each round, so a change of the loop variable alone needs no further round.
    scope.vars.set(name, ANY)
    return out
  })
}

function runCase(walk: Walk, scope: Scope, node: Case, around: CommandContext): Stream {
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

function defineFunction(scope: Scope, node: ShellFunction, around: CommandContext): Stream {
  const body = { body: node.body, cover: around.cover, called: false }
  scope.functions.set(node.name.value, { bodies: [body], mayBeProgram: false })
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
      runTest(words, expression.operand)
      return
    case 'TestGroup':
      runTest(words, expression.expression)
      return
    default:
      expression satisfies never
  }
}

/** Judges functions that the line defines but does not call by name: a trap or a later line may call them. */
export function runUncalled(walk: Walk, scope: Scope): void {
  if (scope.functions.size === 0) return
  for (const found of [...scope.functions.values()].flatMap(({ bodies }) => bodies)) {
    if (found.called) continue
    found.called = true
    const inside = fork(scope, { positional: undefined, calling: [found] })
    deeper(walk, () =>
      runNode(walk, inside, found.body, { stdin: CLOSED, cover: NOT_COVERING, runScript, runNode }),
    )
  }
}
