import type { ParameterExpansionPart, ParameterOperation, Word } from 'unbash'
import { dynamic, unseen } from '../finding.ts'
import { arithmeticText } from './arithmetic.ts'
import { ANY, BELOW, globbed, isOpen, isStatic, meets, SPLIT } from './unknown-text.ts'
import type { Words } from './words.ts'

type Value = string | readonly string[]
/** The operand of a default value replaces the parameter; its own quotes still apply. */
export type Chosen = { readonly operand: Word }

const NUMBERS = new Set([
  '?',
  '$',
  '!',
  '#',
  'RANDOM',
  'LINENO',
  'SECONDS',
  'EPOCHSECONDS',
  'UID',
  'EUID',
  'PPID',
])

/** The value of a parameter: text with marks, or a list for `@`, `*` and whole arrays. */
export function lookup(words: Words, name: string): Value {
  const { scope } = words
  const real = scope.references.get(name) ?? name
  const origins = scope.origins.get(real)
  if (origins) for (const source of origins.values()) words.walk.sources.add(source)
  if (real === 'PPID') words.walk.sources.add('$PPID')
  const set = scope.vars.get(real)
  if (set !== undefined) return set
  const array = scope.arrays.get(real)
  if (array) return array[0] ?? ''
  if (/^\d$/.test(real)) return scope.positional ? (scope.positional[Number(real)] ?? '') : ANY
  if (real === '@' || real === '*') return scope.positional ? scope.positional.slice(1) : [SPLIT]
  return NUMBERS.has(real) ? ANY : inherited(words, real)
}

function inherited({ walk, scope }: Words, name: string): string {
  const cwd = scope.cwds.length === 1 ? (scope.cwds[0] as string) : ANY
  const previous = scope.previousCwds.length === 1 ? (scope.previousCwds[0] as string) : ANY
  const { home } = walk.context
  switch (name) {
    case 'HOME':
      return home
    case 'PWD':
      return cwd
    case 'OLDPWD':
      return previous
    case 'USER':
    case 'LOGNAME':
      return home.slice(home.lastIndexOf('/') + 1)
    case 'IFS':
      return ' \t\n'
    case 'PATH':
      return '/usr/local/bin:/usr/bin:/bin'
    case 'TMPDIR':
      return '/tmp'
    case 'SHELL':
    case 'BASH':
      return '/bin/bash'
    case '_':
      return scope.lastArgument
    case '-':
      return 'hB'
    default:
      walk.sources.add(`$${name}`)
      return ANY
  }
}

/** `${…}` in all its forms. */
export function expandParameter(
  words: Words,
  part: ParameterExpansionPart,
  inQuotes: boolean,
): Value | Chosen {
  const base = baseValue(words, part)
  if (part.prefix === '#') return typeof base === 'string' && isStatic(base) ? String(base.length) : ANY
  if (!part.operation) return base
  return operate(words, { name: part.parameter, base, operation: part.operation, inQuotes })
}

function baseValue(words: Words, part: ParameterExpansionPart): Value {
  const { scope } = words
  if (part.index) {
    const index = part.index.value
    const list = scope.arrays.get(part.parameter)
    if (index === '@' || index === '*') return list ?? indexless(words, part.parameter)
    arithmeticText(words, part.index)
    return list && /^\d+$/.test(index) ? (list[Number(index)] ?? '') : ANY
  }
  if (part.prefix === '!') {
    const target = scope.references.get(part.parameter) ?? lookup(words, part.parameter)
    if (typeof target !== 'string' || !isStatic(target)) return ANY
    words.runHidden(words, target)
    return /^\w+$/.test(target) ? lookup(words, target) : ANY
  }
  return lookup(words, part.parameter)
}

const indexless = (words: Words, name: string): Value => {
  const found = lookup(words, name)
  return found === ANY ? [SPLIT] : found
}

type Operand = {
  readonly name: string
  readonly base: Value
  readonly operation: ParameterOperation
  readonly inQuotes: boolean
}

function operate(words: Words, { name, base, operation, inQuotes }: Operand): Value | Chosen {
  const text = (word: Word): string => words.expandText(words, word)
  switch (operation.type) {
    case 'Default':
      return withDefault(words, {
        name,
        base,
        inQuotes,
        operator: operation.operator,
        operand: operation.operand,
      })
    case 'Remove':
      return trim(base, operation.operator, globbed(text(operation.operand)))
    case 'Replace':
      return replaceIn(base, operation.operator, text(operation.pattern), text(operation.replacement))
    case 'Slice':
      return slice(words, base, operation.offset, operation.length)
    case 'CaseModification':
      if (operation.operand) text(operation.operand)
      return mapText(base, (value) => changeCase(value, operation.operator))
    case 'Transform':
      return transform(words, base, text(operation.operand))
    case 'Names':
      return [SPLIT]
    case 'Unknown':
      words.walk.line.push(unseen('shell/unknown-expansion', 'an expansion that the parser does not know'))
      return ANY
    default:
      return operation satisfies never
  }
}

function mapText(base: Value, change: (text: string) => string): Value {
  if (typeof base === 'string') return isStatic(base) ? change(base) : ANY
  return base.map((entry) => (isStatic(entry) ? change(entry) : SPLIT))
}

type Default = {
  readonly name: string
  readonly base: Value
  readonly operator: string
  readonly operand: Word
  readonly inQuotes: boolean
}

function withDefault(words: Words, given: Default): Value | Chosen {
  const { name, base, operator, operand, inQuotes } = given
  // SECURITY: inside a here-document or double quotes, single quotes in the operand do not protect it.
  if (inQuotes)
    for (const part of operand.parts ?? [])
      if (part.type === 'SingleQuoted') words.runHidden(words, part.value)
  const text = words.expandText(words, operand)
  const choose = (): Chosen => {
    if (operator.includes('=')) words.scope.vars.set(name, text)
    return { operand }
  }
  const outside = base === ANY ? !words.scope.vars.has(name) : typeof base !== 'string' && base[0] === SPLIT
  // Not set by the line, so probably unset. In both cases it never runs on the host.
  if (outside) words.walk.line.push(dynamic(`\`${name}\` comes from outside`))
  if (operator.endsWith('+') && (outside || mayBeEmpty(base))) {
    // SECURITY: both cases are possible, so the line is judged a second time as if the variable were set (judge.ts).
    words.walk.doubts.add(name)
    return words.walk.outside === 'set' ? choose() : ''
  }
  if (outside) return operator.endsWith('?') ? base : choose()
  const empty = base === '' || (typeof base !== 'string' && base.length === 0)
  if (operator.endsWith('+')) return empty ? '' : choose()
  return !empty || operator.endsWith('?') ? base : choose()
}

/** Whether nothing is known about the value, not even whether it is set. */
const mayBeEmpty = (base: Value): boolean =>
  typeof base === 'string'
    ? base !== '' && base.replace(/[\uFDD0\uFDD1\uFDD4]/g, '') === ''
    : base.length > 0 && base.every((entry) => mayBeEmpty(entry))

/** A substring of a name that a glob or a listing produced is treated as such a name too. */
function trim(base: Value, operator: string, pattern: string): Value {
  if (typeof base === 'string' && !isStatic(base) && !isOpen(base) && base[0] !== '/') {
    const end = operator[0] === '%' && isStatic(pattern) && base.endsWith(pattern)
    return end ? base.slice(0, -pattern.length) : BELOW
  }
  return mapText(base, (value) => remove(value, operator, pattern))
}

const MAX_TRIMMED = 256

function remove(value: string, operator: string, pattern: string): string {
  const front = operator[0] === '#'
  if (isStatic(pattern)) {
    if (front) return value.startsWith(pattern) ? value.slice(pattern.length) : value
    return value.endsWith(pattern) ? value.slice(0, value.length - pattern.length) : value
  }
  if (value.length > MAX_TRIMMED || pattern.length > MAX_TRIMMED) return ANY
  const longest = operator.length === 2
  const sizes = Array.from({ length: value.length + 1 }, (_, size) => size)
  if (longest) sizes.reverse()
  for (const size of sizes) {
    const piece = front ? value.slice(0, size) : value.slice(value.length - size)
    if (meets(pattern, piece)) return front ? value.slice(size) : value.slice(0, value.length - size)
  }
  return value
}

function replaceIn(base: Value, operator: string, pattern: string, replacement: string): Value {
  if (!isStatic(pattern) || /[*?[]/.test(pattern) || !isStatic(replacement) || pattern === '')
    return typeof base === 'string' ? ANY : base.map(() => SPLIT)
  return mapText(base, (value) => {
    if (operator === '//') return value.replaceAll(pattern, replacement)
    if (operator === '/#')
      return value.startsWith(pattern) ? replacement + value.slice(pattern.length) : value
    if (operator === '/%')
      return value.endsWith(pattern) ? value.slice(0, -pattern.length) + replacement : value
    return value.replace(pattern, () => replacement)
  })
}

function slice(words: Words, base: Value, offset: Word, length: Word | undefined): Value {
  const [from, size] = [offset, length].map((word) => {
    if (!word) return undefined
    arithmeticText(words, word)
    const text = words.expandText(words, word).trim()
    return /^-?\d+$/.test(text) ? Number(text) : Number.NaN
  })
  if (Number.isNaN(from) || Number.isNaN(size)) return typeof base === 'string' ? ANY : [SPLIT]
  if (typeof base !== 'string')
    return base.slice(Math.max(0, (from ?? 0) - 1), size === undefined ? undefined : (from ?? 0) - 1 + size)
  if (!isStatic(base)) return ANY
  const start = (from ?? 0) < 0 ? base.length + (from ?? 0) : (from ?? 0)
  return base.slice(start, size === undefined ? undefined : size < 0 ? base.length + size : start + size)
}

function changeCase(value: string, operator: string): string {
  const change = (text: string): string => (operator[0] === '^' ? text.toUpperCase() : text.toLowerCase())
  return operator.length === 2 ? change(value) : change(value.slice(0, 1)) + value.slice(1)
}

function transform(words: Words, base: Value, kind: string): Value {
  if (kind === 'U' || kind === 'u')
    return mapText(base, (value) => changeCase(value, kind === 'U' ? '^^' : '^'))
  if (kind === 'L') return mapText(base, (value) => value.toLowerCase())
  if (kind === 'P') {
    // A prompt string is expanded once more, substitutions included.
    if (typeof base === 'string' && isStatic(base)) words.runHidden(words, base)
    else
      words.walk.line.push(
        unseen('shell/double-evaluation', 'a value that is not known is expanded as a prompt'),
      )
  }
  return typeof base === 'string' ? ANY : base.map(() => SPLIT)
}
