/** Brace expansion on the raw text of a word: bash does it first, before quotes and expansions are processed. */

const MAX_WORDS = 128

/** The words that a raw word expands to, or undefined if there are too many to check. */
export function expandBraces(raw: string): readonly string[] | undefined {
  const out: string[] = []
  return expand(raw, '', out) ? out : undefined
}

function expand(rest: string, done: string, out: string[]): boolean {
  const group = firstGroup(rest)
  if (!group) {
    out.push(done + rest)
    return out.length <= MAX_WORDS
  }
  const tail = rest.slice(group.end)
  for (const item of group.items) {
    const inner = group.sequence ? [item] : expandBraces(item)
    if (!inner) return false
    for (const text of inner) if (!expand(tail, done + rest.slice(0, group.start) + text, out)) return false
  }
  return true
}

type Group = {
  readonly start: number
  readonly end: number
  readonly items: readonly string[]
  readonly sequence: boolean
}

function firstGroup(raw: string): Group | undefined {
  for (let at = 0; at < raw.length; at++) {
    const skipped = skipQuoted(raw, at)
    if (skipped > at) at = skipped - 1
    else if (raw[at] === '{') {
      const group = groupAt(raw, at)
      if (group) return group
    }
  }
  return undefined
}

function groupAt(raw: string, start: number): Group | undefined {
  const commas: number[] = []
  let depth = 0
  for (let at = start; at < raw.length; at++) {
    const skipped = skipQuoted(raw, at)
    if (skipped > at) at = skipped - 1
    else if (raw[at] === '{') depth++
    else if (raw[at] === ',' && depth === 1) commas.push(at)
    else if (raw[at] === '}' && --depth === 0) return closeGroup(raw, start, at, commas)
  }
  return undefined
}

function closeGroup(raw: string, start: number, close: number, commas: readonly number[]): Group | undefined {
  if (commas.length === 0) {
    const items = sequence(raw.slice(start + 1, close))
    return items && { start, end: close + 1, items, sequence: true }
  }
  const edges = [start, ...commas, close]
  const items = edges.slice(0, -1).map((edge, index) => raw.slice(edge + 1, edges[index + 1]))
  return { start, end: close + 1, items, sequence: false }
}

function sequence(body: string): readonly string[] | undefined {
  const match = /^(-?\d+|[a-zA-Z])\.\.(-?\d+|[a-zA-Z])(?:\.\.(-?\d+))?$/.exec(body)
  if (!match) return undefined
  const numeric = /\d/.test(match[1] as string) && /\d/.test(match[2] as string)
  const [from, to] = [match[1] as string, match[2] as string].map((end) =>
    numeric ? Number(end) : (end.codePointAt(0) as number),
  ) as [number, number]
  const step = Math.max(1, Math.abs(Number(match[3] ?? 1)))
  const items: string[] = []
  for (let value = from; from <= to ? value <= to : value >= to; value += from <= to ? step : -step) {
    items.push(numeric ? String(value) : String.fromCodePoint(value))
    if (items.length > MAX_WORDS) return items
  }
  return items
}

/** The index after the quoted, escaped or substituted part that starts at `at`, or `at` if there is none. */
function skipQuoted(raw: string, at: number): number {
  const char = raw[at]
  if (char === '\\') return at + 2
  if (char === "'") return after(raw, raw.indexOf("'", at + 1))
  if (char === '"' || char === '`') return skipDouble(raw, at + 1, char)
  if (char === '$' && (raw[at + 1] === '{' || raw[at + 1] === '(')) return skipNested(raw, at + 1)
  return at
}

const after = (raw: string, close: number): number => (close === -1 ? raw.length : close + 1)

function skipDouble(raw: string, from: number, quote: string): number {
  for (let at = from; at < raw.length; at++) {
    if (raw[at] === '\\') at++
    else if (raw[at] === quote) return at + 1
  }
  return raw.length
}

function skipNested(raw: string, from: number): number {
  const [open, close] = raw[from] === '{' ? ['{', '}'] : ['(', ')']
  let depth = 0
  for (let at = from; at < raw.length; at++) {
    if (raw[at] === '\\') at++
    else if (raw[at] === open) depth++
    else if (raw[at] === close && --depth === 0) return at + 1
  }
  return raw.length
}
