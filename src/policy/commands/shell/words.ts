import type {
  ArithmeticExpression,
  DoubleQuotedChild,
  HereDocBody,
  ParsedScript,
  Word,
  WordPart,
} from 'unbash'
import { dynamic, unseen } from '../finding.ts'
import { spend, type Walk } from '../walk.ts'
import { expandBraces } from './braces.ts'
import { expandParameter, lookup } from './parameters.ts'
import { parseWord } from './parse.ts'
import type { Scope } from './scope.ts'
import { ANY, DOTGLOB, globbed, HIDDEN, isStatic, ONE, SPLIT, STAR } from './unknown-text.ts'

/** Functions of the interpreter for word expansion: judge nested scripts and return their output. */
export type Words = {
  readonly walk: Walk
  readonly scope: Scope
  /** Records that a node of the tree starts here (see lexical.ts). */
  readonly cover: (at: number, end: number) => void
  substitute(script: ParsedScript | undefined, at: number): string
  process(script: ParsedScript | undefined, operator: '<' | '>', at: number): string
  /** `expandText` and `runHidden`, for the modules that this module imports. */
  expandText(words: Words, word: Word): string
  runHidden(words: Words, text: string): void
  /** The same for text that is not part of the line. */
  uncovering(): Words
}

/** A part of a word after expansion. Unquoted expansions are split into fields; `list` is the result of `"$@"`. */
type Piece = {
  readonly text: string
  readonly quoted: boolean
  readonly split: boolean
  readonly list?: readonly string[]
}

const quoted = (text: string): Piece => ({ text, quoted: true, split: false })
const literal = (text: string): Piece => ({ text, quoted: false, split: false })

/** The fields that a word expands to as an argument. */
export function expandWord(words: Words, word: Word): readonly string[] {
  const { parts } = word
  if (!parts) return [tilde(words, word, word.value)]
  for (const part of parts) if (part.type === 'BraceExpansion') return expandBraced(words, word)
  return fieldsOf(words, pieces(words, word))
}

/** Adds the fields of a word to a list. */
export function expandInto(out: string[], words: Words, word: Word): void {
  if (!word.parts) out.push(tilde(words, word, word.value))
  else for (const field of expandWord(words, word)) out.push(field)
}

/** The single text that a word expands to where bash does not split: assignments, redirections, `case`. */
export function expandText(words: Words, word: Word): string {
  if (!word.parts) return tilde(words, word, word.value)
  return joinPieces(words, pieces(words, word))
}

const MAX_VALUE = 16_384

/** SECURITY: `x=$x$x` doubles the value, so a value above this length is no longer tracked. */
function joinPieces(words: Words, all: readonly Piece[]): string {
  let size = 0
  for (const piece of all)
    size += piece.list ? piece.list.reduce((sum, entry) => sum + entry.length + 1, 0) : piece.text.length
  spend(words.walk, Math.floor(size / 1024))
  if (size > MAX_VALUE) {
    words.walk.line.push(dynamic('a value grows too long to be followed'))
    return ANY
  }
  let text = ''
  for (const piece of all) text += piece.list ? piece.list.join(' ') : piece.text
  return text
}

/** The text of a here-document after expansion. */
export function expandBody(words: Words, body: HereDocBody): string {
  if (!body.parts) return body.text
  return joinPieces(
    words,
    body.parts.flatMap((part) =>
      part.type === 'Literal' ? [quoted(part.value)] : partPieces(words, part, true),
    ),
  )
}

function expandBraced(words: Words, word: Word): readonly string[] {
  words.cover(word.pos, word.end)
  const raws = expandBraces(word.text)
  if (!raws) {
    words.walk.line.push(unseen('shell/too-many', 'a brace expansion makes too many words to look at'))
    return [SPLIT]
  }
  spend(words.walk, raws.length)
  const inner = words.uncovering()
  return raws.flatMap((raw) => {
    const parsed = parseWord(raw)
    // A word that does not parse alone is still expanded from the tree, so that every nested command is judged.
    if (!parsed) return fieldsOf(inner, pieces(inner, word)).map(() => SPLIT)
    return parsed.parts ? fieldsOf(inner, pieces(inner, parsed)) : [tilde(inner, parsed, parsed.value)]
  })
}

function pieces(words: Words, word: Word): readonly Piece[] {
  const out: Piece[] = []
  const { parts } = word
  if (!parts) return out
  for (const part of parts) {
    if (part.type === 'Literal')
      out.push(
        literal(part === parts[0] && part.text[0] === '~' ? tilde(words, word, part.value) : part.value),
      )
    // A URL does not match a file name, and a glob without a match stays unchanged.
    else if (part.type === 'Glob' && ADDRESS.test(word.text)) out.push(literal(part.text))
    else for (const piece of partPieces(words, part, false)) out.push(piece)
  }
  return out
}

const ADDRESS = /^["']?[a-z][a-z0-9+.-]*:\/\//i

function partPieces(words: Words, part: WordPart, inQuotes: boolean): readonly Piece[] {
  switch (part.type) {
    case 'Literal':
      return [inQuotes ? quoted(part.value) : literal(part.value)]
    case 'SingleQuoted':
      // SECURITY: inside a here-document, quotes are text and do not protect.
      if (inQuotes) runHidden(words, part.value)
      return [quoted(part.value)]
    case 'AnsiCQuoted':
      return [quoted(part.value)]
    case 'DoubleQuoted':
    case 'LocaleString':
      return quotedPieces(words, part.parts)
    case 'Glob':
      for (const inner of part.parts ?? []) partPieces(words, inner, false)
      return [literal(meetsHidden(words) ? HIDDEN : part.kind === 'star' ? STAR : ONE)]
    case 'ExtendedGlob':
      for (const inner of part.parts ?? []) partPieces(words, inner, false)
      return [literal(STAR)]
    case 'BraceExpansion':
      for (const inner of part.parts ?? []) partPieces(words, inner, false)
      return [literal(SPLIT)]
    default:
      return expansionPieces(words, part, inQuotes)
  }
}

function quotedPieces(words: Words, children: readonly DoubleQuotedChild[]): readonly Piece[] {
  const out = [quoted('')]
  for (const child of children) {
    if (child.type === 'Literal') out.push(quoted(child.value))
    else for (const piece of partPieces(words, child, true)) out.push(piece)
  }
  return out
}

/** bash's `dotglob`, which setting GLOBIGNORE also enables. */
const meetsHidden = ({ scope }: Words): boolean => scope.vars.has(DOTGLOB) || scope.vars.has('GLOBIGNORE')

type Expansion = Extract<
  WordPart,
  {
    type:
      | 'SimpleExpansion'
      | 'ParameterExpansion'
      | 'CommandExpansion'
      | 'ArithmeticExpansion'
      | 'ProcessSubstitution'
  }
>

function expansionPieces(words: Words, part: Expansion, inQuotes: boolean): readonly Piece[] {
  spend(words.walk)
  words.cover(part.pos, part.end)
  switch (part.type) {
    case 'SimpleExpansion':
      return value(lookup(words, part.text.slice(1)), inQuotes, part.text.slice(1))
    case 'ParameterExpansion': {
      const found = expandParameter(words, part, inQuotes)
      if (typeof found === 'object' && 'operand' in found)
        return operandPieces(words, found.operand, inQuotes)
      return value(found, inQuotes, part.index?.value ?? part.parameter)
    }
    case 'CommandExpansion':
      hereDocumentBeforeCase(words, part.text)
      return value(words.substitute(part.script, part.pos), inQuotes, '')
    case 'ProcessSubstitution':
      hereDocumentBeforeCase(words, part.text)
      return [literal(words.process(part.script, part.operator, part.pos))]
    case 'ArithmeticExpansion':
      ambiguous(words, part.text)
      return value(arithmetic(words, part.expression), inQuotes, '')
    default:
      return part satisfies never
  }
}

/** SECURITY: bash itself loses track when a `case` follows a here-document inside a substitution: it runs the pattern. */
function hereDocumentBeforeCase(words: Words, text: string): void {
  if (/<<[\s\S]*\bcase\b/.test(text))
    words.walk.line.push(unseen('shell/unreadable', 'shells differ in how they read it'))
}

/** SECURITY: if the parentheses do not balance, bash parses `$((` as a subshell inside a substitution. */
function ambiguous(words: Words, text: string): void {
  if (text.split('(').length !== text.split(')').length)
    words.walk.line.push(
      unseen('shell/arithmetic', 'it reads as arithmetic or as commands, depending on the shell'),
    )
}

/** The operand of `${x:-…}`: split where it is not quoted. */
function operandPieces(words: Words, operand: Word, inQuotes: boolean): readonly Piece[] {
  if (inQuotes) return [quoted(expandText(words, operand))]
  if (!operand.parts)
    return [
      { text: tilde(words, operand, operand.value), quoted: false, split: operand.text === operand.value },
    ]
  return pieces(words, operand).map((piece) => (piece.quoted ? piece : { ...piece, split: true }))
}

function value(found: string | readonly string[], inQuotes: boolean, name: string): readonly Piece[] {
  if (typeof found === 'string') {
    if (inQuotes) return [quoted(found)]
    return [{ text: globbed(found.replaceAll(ANY, SPLIT)), quoted: false, split: true }]
  }
  if (inQuotes && name === '*') return [quoted(found.join(' '))]
  const list = inQuotes ? found : found.map((entry) => globbed(entry.replaceAll(ANY, SPLIT)))
  return [{ text: '', quoted: inQuotes, split: !inQuotes, list }]
}

const DEFAULT_IFS = ' \t\n'

/** Whether nothing is split, and something remains even if it is empty. */
function isOneField(all: readonly Piece[]): boolean {
  let started = false
  for (const piece of all) {
    if (piece.split || piece.list) return false
    if (piece.quoted || piece.text !== '') started = true
  }
  return started
}

function fieldsOf(words: Words, all: readonly Piece[]): readonly string[] {
  const whole = all.length > 1 ? joinPieces(words, all) : undefined
  if (whole === ANY) return [SPLIT]
  if (isOneField(all)) return [whole ?? (all[0] as Piece).text]
  const ifs = words.scope.vars.get('IFS') ?? DEFAULT_IFS
  const fields: string[] = []
  let field = ''
  let started = false
  const close = (): void => {
    if (started) fields.push(field)
    field = ''
    started = false
  }
  const add = (text: string, keepEmpty: boolean): void => {
    field += text
    if (text !== '' || keepEmpty) started = true
  }
  const addSplit = (text: string): void => {
    let from = 0
    for (let at = 0; at < text.length; at++) {
      if (!ifs.includes(text[at] as string)) continue
      add(text.slice(from, at), false)
      close()
      from = at + 1
    }
    add(text.slice(from), false)
  }
  for (const piece of all) {
    if (piece.list) {
      for (const [index, entry] of piece.list.entries()) {
        if (index > 0) close()
        if (piece.split) addSplit(entry)
        else add(entry, true)
      }
    } else if (piece.split) addSplit(isStatic(ifs) ? piece.text : SPLIT)
    else add(piece.text, piece.quoted)
  }
  close()
  return fields
}

function tilde(words: Words, word: Word, text: string): string {
  if (word.text[0] !== '~') return text
  const match = /^~([A-Za-z_][\w.-]*|\+|-)?(?=\/|$|:)/.exec(text)
  if (!match) return text
  const rest = text.slice(match[0].length)
  const who = match[1]
  if (who === undefined) return asText(lookup(words, 'HOME')) + rest
  if (who === '+') return asText(lookup(words, 'PWD')) + rest
  if (who === '-') return asText(lookup(words, 'OLDPWD')) + rest
  return (who === 'root' ? '/root' : `${parentOf(words.walk.context.home)}/${who}`) + rest
}

const parentOf = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf('/')))

const asText = (found: string | readonly string[]): string =>
  typeof found === 'string' ? found : found.join(' ')

/** Judges commands inside arithmetic; the result itself is rarely needed and stays unknown. */
export function arithmetic(words: Words, expression: ArithmeticExpression | undefined): string {
  if (!expression) return ANY
  spend(words.walk)
  switch (expression.type) {
    case 'ArithmeticBinary':
      arithmetic(words, expression.left)
      arithmetic(words, expression.right)
      return ANY
    case 'ArithmeticUnary':
      arithmetic(words, expression.operand)
      return ANY
    case 'ArithmeticTernary':
      for (const part of [expression.test, expression.consequent, expression.alternate])
        arithmetic(words, part)
      return ANY
    case 'ArithmeticGroup':
      return arithmetic(words, expression.expression)
    case 'ArithmeticCommandExpansion':
      words.cover(expression.pos, expression.end)
      words.substitute(expression.script, expression.pos)
      return ANY
    case 'ArithmeticWord':
      return arithmeticWord(words, expression.value, expression.parts)
    default:
      return expression satisfies never
  }
}

function arithmeticWord(words: Words, text: string, parts: readonly WordPart[] | undefined): string {
  for (const part of parts ?? []) {
    partPieces(words, part, false)
    // SECURITY: quotes do not protect here; bash expands inside them.
    if (part.type === 'SingleQuoted' || part.type === 'AnsiCQuoted') runHidden(words, part.value)
  }
  evaluateNames(words, text)
  return /^\d+$/.test(text) ? text : ANY
}

/** SECURITY: in arithmetic, bash evaluates a variable's value again, including `a[$(cmd)]`. */
function evaluateNames(words: Words, text: string): void {
  for (const [name] of text.matchAll(/[A-Za-z_]\w*/g)) {
    const known = words.scope.vars.get(name)
    if (known === undefined) continue
    if (isStatic(known)) runHidden(words, known)
    else words.walk.line.push(dynamic(`arithmetic evaluates the value of \`${name}\`, which is not known`))
  }
}

/** Judges substitutions inside text that bash evaluates a second time. */
export function runHidden(words: Words, text: string): void {
  if (!/\$\(|`|\$\{|\$\[/.test(text)) return
  words.walk.line.push(
    unseen('shell/double-evaluation', 'text that bash evaluates a second time holds a substitution'),
  )
  const parsed = parseWord(`"${text.replace(/["\\]/g, '')}"`)
  if (parsed) expandText(words.uncovering(), parsed)
}
