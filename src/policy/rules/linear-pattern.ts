import { ANY, BELOW, HIDDEN, ONE, SPLIT, STAR } from '../commands/shell/unknown-text.ts'

/**
 * Glob and regular-expression matching in time linear in the text: a Thompson automaton, simulated on sets of states with
 * cached transitions. No back-references and no look-around, so no pattern can make it slow.
 */
export type Pattern = {
  /** The whole text matches; unknown parts match only if any text would. */
  readonly test: (text: string) => boolean
  /** The whole text could match once its unknown parts are known. */
  readonly could: (text: string) => boolean
}

type Match = (code: number) => boolean
type State = { readonly match?: Match; out: number; alternative?: number }

const MAX_STATES = 2000

/** Why a pattern is rejected. */
export class PatternError extends Error {}

type Fragment = {
  readonly start: number
  readonly ends: readonly (readonly [number, 'out' | 'alternative'])[]
}

class Builder {
  readonly states: State[] = []

  add(state: State): number {
    if (this.states.length >= MAX_STATES) throw new PatternError('the pattern is too large')
    return this.states.push(state) - 1
  }

  one(match: Match): Fragment {
    const start = this.add({ match, out: -1 })
    return { start, ends: [[start, 'out']] }
  }

  empty(): Fragment {
    const start = this.add({ out: -1 })
    return { start, ends: [[start, 'out']] }
  }

  patch(ends: Fragment['ends'], to: number): void {
    for (const [index, side] of ends) (this.states[index] as State)[side] = to
  }

  chain(a: Fragment, b: Fragment): Fragment {
    this.patch(a.ends, b.start)
    return { start: a.start, ends: b.ends }
  }

  either(a: Fragment, b: Fragment): Fragment {
    const start = this.add({ out: a.start, alternative: b.start })
    return { start, ends: [...a.ends, ...b.ends] }
  }

  optional(a: Fragment): Fragment {
    const start = this.add({ out: a.start, alternative: -1 })
    return { start, ends: [...a.ends, [start, 'alternative']] }
  }

  star(a: Fragment): Fragment {
    const start = this.add({ out: a.start, alternative: -1 })
    this.patch(a.ends, start)
    return { start, ends: [[start, 'alternative']] }
  }
}

const any: Match = () => true
const exactly = (char: string): Match => {
  const code = char.codePointAt(0) as number
  return (other) => other === code
}

/** `*` any text, `?` one character, `[…]` one of; the whole text. */
export function compileGlob(glob: string): Pattern {
  const builder = new Builder()
  let fragment = builder.empty()
  for (let at = 0; at < glob.length; at++) {
    const char = glob[at] as string
    const close = char === '[' ? glob.indexOf(']', at + 2) : -1
    if (char === '*') fragment = builder.chain(fragment, builder.star(builder.one(any)))
    else if (char === '?') fragment = builder.chain(fragment, builder.one(any))
    else if (close !== -1) {
      fragment = builder.chain(fragment, builder.one(classOf(glob.slice(at + 1, close).replace(/^!/, '^'))))
      at = close
    } else fragment = builder.chain(fragment, builder.one(exactly(char)))
  }
  return automaton(builder, fragment)
}

/** The usual syntax without back-references and look-around; matches the whole text, so `.*` opens either end. */
export function compileRegex(source: string): Pattern {
  const builder = new Builder()
  const reader = { source: source.replace(/^\^/, '').replace(/(?<!\\)\$$/, ''), at: 0 }
  const fragment = alternation(builder, reader)
  if (reader.at < reader.source.length) throw new PatternError(`unexpected \`${reader.source[reader.at]}\``)
  return automaton(builder, fragment)
}

type Reader = { readonly source: string; at: number }

function alternation(builder: Builder, reader: Reader): Fragment {
  let fragment = sequence(builder, reader)
  while (reader.source[reader.at] === '|') {
    reader.at++
    fragment = builder.either(fragment, sequence(builder, reader))
  }
  return fragment
}

function sequence(builder: Builder, reader: Reader): Fragment {
  let fragment = builder.empty()
  while (reader.at < reader.source.length && !'|)'.includes(reader.source[reader.at] as string)) {
    const start = reader.at
    const piece = atom(builder, reader)
    fragment = builder.chain(fragment, repeated(builder, reader, { piece, start }))
  }
  return fragment
}

type Piece = { readonly piece: Fragment; readonly start: number }

function repeated(builder: Builder, reader: Reader, { piece, start }: Piece): Fragment {
  const end = reader.at
  const counted = /^\{(\d+)(,(\d*))?\}/.exec(reader.source.slice(reader.at))
  const char = reader.source[reader.at]
  const copy = (): Fragment => {
    const inner = { source: reader.source.slice(0, end), at: start }
    return atom(builder, inner)
  }
  let out = piece
  if (char === '*') out = builder.star(piece)
  else if (char === '+') out = builder.chain(piece, builder.star(copy()))
  else if (char === '?') out = builder.optional(piece)
  else if (counted) out = times(builder, counted, { piece, copy })
  else return piece
  reader.at += counted ? counted[0].length : 1
  if (reader.source[reader.at] === '?') reader.at++
  if (/[*+?{]/.test(reader.source[reader.at] ?? '')) throw new PatternError('a repetition of a repetition')
  return out
}

type Counted = { readonly piece: Fragment; readonly copy: () => Fragment }

function times(builder: Builder, counted: RegExpExecArray, { piece, copy }: Counted): Fragment {
  const least = Number(counted[1])
  const most =
    counted[2] === undefined ? least : counted[3] === '' ? Number.POSITIVE_INFINITY : Number(counted[3])
  if (least > 100 || (most !== Number.POSITIVE_INFINITY && most > 100) || most < least)
    throw new PatternError('a repetition of more than 100')
  let out =
    least === 0 ? builder.optional(most === Number.POSITIVE_INFINITY ? builder.star(piece) : piece) : piece
  for (let count = 1; count < least; count++) out = builder.chain(out, copy())
  if (most === Number.POSITIVE_INFINITY) return least === 0 ? out : builder.chain(out, builder.star(copy()))
  for (let count = Math.max(1, least); count < most; count++)
    out = builder.chain(out, builder.optional(copy()))
  return out
}

function atom(builder: Builder, reader: Reader): Fragment {
  const char = reader.source[reader.at++] as string
  if (char === '(') return group(builder, reader)
  if (char === '.') return builder.one(any)
  if (char === '[') {
    const close = classEnd(reader)
    const body = reader.source.slice(reader.at, close)
    reader.at = close + 1
    return builder.one(classOf(body))
  }
  if (char === '\\') return builder.one(escaped(reader.source[reader.at++]))
  if ('*+?'.includes(char)) throw new PatternError(`nothing to repeat before \`${char}\``)
  if (char === '^' || char === '$')
    throw new PatternError('an anchor inside the pattern: the whole text is matched')
  return builder.one(exactly(char))
}

function group(builder: Builder, reader: Reader): Fragment {
  if (reader.source.startsWith('?:', reader.at)) reader.at += 2
  else if (reader.source[reader.at] === '?')
    throw new PatternError('look-around and named groups are not supported')
  const fragment = alternation(builder, reader)
  if (reader.source[reader.at++] !== ')') throw new PatternError('a group that is not closed')
  return fragment
}

function classEnd(reader: Reader): number {
  for (
    let at = reader.at + (/^\^?\]/.exec(reader.source.slice(reader.at))?.[0].length ?? 0);
    at < reader.source.length;
    at++
  ) {
    if (reader.source[at] === '\\') at++
    else if (reader.source[at] === ']') return at
  }
  throw new PatternError('a class that is not closed')
}

const CLASSES: Readonly<Record<string, Match>> = {
  d: (code) => code >= 48 && code <= 57,
  w: (code) =>
    (code >= 48 && code <= 57) || (code >= 65 && code <= 90) || (code >= 97 && code <= 122) || code === 95,
  s: (code) => code === 32 || (code >= 9 && code <= 13),
}

function escaped(char: string | undefined): Match {
  if (char === undefined) throw new PatternError('a backslash at the end')
  const known = CLASSES[char.toLowerCase()]
  if (known) return char === char.toLowerCase() ? known : (code) => !known(code)
  if (char === 'n' || char === 't') return exactly(char === 'n' ? '\n' : '\t')
  if (/[A-Za-z0-9]/.test(char)) throw new PatternError(`\`\\${char}\` is not supported`)
  return exactly(char)
}

function classOf(body: string): Match {
  const negated = body[0] === '^'
  const text = negated ? body.slice(1) : body
  const parts: Match[] = []
  for (let at = 0; at < text.length; at++) {
    if (text[at] === '\\') parts.push(escaped(text[++at]))
    else if (text[at + 1] === '-' && at + 2 < text.length) {
      const [from, to] = [text.codePointAt(at) as number, text.codePointAt(at + 2) as number]
      parts.push((code) => code >= from && code <= to)
      at += 2
    } else parts.push(exactly(text[at] as string))
  }
  return (code) => parts.some((part) => part(code)) !== negated
}

const END = -2
const OPEN = new Set([ANY, SPLIT, STAR, BELOW, HIDDEN].map((mark) => mark.codePointAt(0) as number))
const SINGLE = ONE.codePointAt(0) as number

function automaton(builder: Builder, fragment: Fragment): Pattern {
  builder.patch(fragment.ends, END)
  const { states } = builder
  const first = closure(states, [fragment.start])
  const memory = new Map<string, readonly number[]>()
  const step = (set: readonly number[], code: number, open: boolean): readonly number[] => {
    const key = `${open ? 'o' : 'c'}${code}:${set.join()}`
    const known = memory.get(key)
    if (known) return known
    if (memory.size > 4096) memory.clear()
    const next = open && OPEN.has(code) ? reachable(states, set) : advance(states, set, code, open)
    memory.set(key, next)
    return next
  }
  const run = (text: string, open: boolean): boolean => {
    let set = first
    for (const char of text) {
      set = step(set, char.codePointAt(0) as number, open)
      if (set.length === 0) return false
    }
    return set.includes(END)
  }
  return { test: (text) => run(text, false), could: (text) => run(text, true) }
}

function closure(states: readonly State[], from: readonly number[]): readonly number[] {
  const seen = new Set<number>()
  const todo = [...from]
  while (todo.length > 0) {
    const index = todo.pop() as number
    if (index === -1 || seen.has(index)) continue
    const state = states[index]
    seen.add(index)
    if (!state || state.match) continue
    todo.push(state.out)
    if (state.alternative !== undefined) todo.push(state.alternative)
  }
  return [...seen].filter((index) => index === END || states[index]?.match).sort((a, b) => a - b)
}

function advance(
  states: readonly State[],
  set: readonly number[],
  code: number,
  open: boolean,
): readonly number[] {
  const next: number[] = []
  for (const index of set) {
    const state = states[index]
    if (state?.match && ((open && code === SINGLE) || state.match(code))) next.push(state.out)
  }
  return closure(states, next)
}

/** Every state that some text can reach: the possible matches of an unknown part. */
function reachable(states: readonly State[], set: readonly number[]): readonly number[] {
  let all = set
  for (;;) {
    const next = closure(states, [
      ...all,
      ...all.flatMap((index) => (states[index]?.match ? [(states[index] as State).out] : [])),
    ])
    if (next.length === all.length) return all
    all = next
  }
}
