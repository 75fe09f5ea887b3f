/** Patterns as lists of tokens, and one comparison for both matching and containment. */

/** One position of a pattern: a text, or a wildcard. */
export type Token =
  | { readonly kind: 'is'; readonly text: string }
  /** Exactly one token: `?` in a name, `*` as a label of a host. */
  | { readonly kind: 'one' }
  /** Zero or more tokens. */
  | { readonly kind: 'many' }

/** A pattern, or a plain value in the same form. */
export type Pattern = readonly Token[]

/** The wildcard for exactly one token. */
export const ONE: Token = Object.freeze({ kind: 'one' })
/** The wildcard for any number of tokens. */
export const MANY: Token = Object.freeze({ kind: 'many' })
/** A token that matches exactly this text. */
export const is = (text: string): Token => Object.freeze({ kind: 'is', text })

type Same = (mine: string, other: string) => boolean

function admits(mine: Token, other: Token, same: Same): boolean {
  if (mine.kind === 'many') return true
  if (mine.kind === 'one') return other.kind !== 'many'
  return other.kind === 'is' && same(mine.text, other.text)
}

/**
 * Whether the pattern matches everything that the other pattern matches. A wildcard of the other pattern is covered only
 * by a wildcard at least as wide, so the answer may be a false `no` but never a false `yes`.
 *
 * Two positions and one backtracking point, no recursion: hostile patterns cost at most the product of the lengths.
 */
export function contains(pattern: Pattern, other: Pattern, same: Same = (a, b) => a === b): boolean {
  let at = 0
  let wide = -1
  let resume = 0
  let index = 0
  while (index < other.length) {
    const token = pattern[at]
    if (token?.kind === 'many') {
      wide = at++
      resume = index
    } else if (token && admits(token, other[index] as Token, same)) {
      at++
      index++
    } else if (wide >= 0) {
      at = wide + 1
      index = ++resume
    } else {
      return false
    }
  }
  return pattern.slice(at).every(({ kind }) => kind === 'many')
}

/** A name with `*` for any run of characters; with `single`, also `?` for one. */
export const nameTokens = (text: string, single: boolean): Pattern =>
  Array.from(text, (unit) => (unit === '*' ? MANY : single && unit === '?' ? ONE : is(unit)))

/** A name that matches only itself, including any special characters. */
export const literalTokens = (text: string): Pattern => Array.from(text, is)

/** Segments of a path glob: `**` matches any number of segments, anything else one segment with `*` and `?` in it. */
export const pathTokens = (segments: readonly string[]): Pattern =>
  segments.map((segment) => (segment === '**' ? MANY : segment === '*' ? ONE : is(segment)))

/** Compares one segment's pattern with a plain segment or another pattern. */
export const sameSegment = (mine: string, other: string): boolean =>
  mine === other || (/[*?]/.test(mine) && contains(nameTokens(mine, true), nameTokens(other, true)))

/** The same for the segment of an existing path, where `*` is an ordinary character. */
export const matchesSegment = (mine: string, other: string): boolean =>
  /[*?]/.test(mine) ? contains(nameTokens(mine, true), literalTokens(other)) : mine === other
