/** Patterns as lists of tokens, and one comparison that serves matching as well as containment. */

/** One place of a pattern: a text, or a wildcard. */
export type Token =
  | { readonly kind: 'is'; readonly text: string }
  /** Exactly one token: `?` in a name, `*` as a label of a host. */
  | { readonly kind: 'one' }
  /** Any number of tokens, also none. */
  | { readonly kind: 'many' }

/** A pattern, or something plain in the same form. */
export type Pattern = readonly Token[]

/** The wildcard for exactly one token. */
export const ONE: Token = Object.freeze({ kind: 'one' })
/** The wildcard for any number of tokens. */
export const MANY: Token = Object.freeze({ kind: 'many' })
/** A token that means this text. */
export const is = (text: string): Token => Object.freeze({ kind: 'is', text })

type Same = (mine: string, other: string) => boolean

function admits(mine: Token, other: Token, same: Same): boolean {
  if (mine.kind === 'many') return true
  if (mine.kind === 'one') return other.kind !== 'many'
  return other.kind === 'is' && same(mine.text, other.text)
}

/**
 * Does the pattern admit everything that the other one stands for? A wildcard of the other is admitted by a
 * wildcard at least as wide and by nothing else, so the answer may be a no too many but never a yes.
 *
 * Two positions and one step back, no recursion: hostile patterns cost at most the product of the lengths.
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

/** A name that means itself, whatever characters it holds. */
export const literalTokens = (text: string): Pattern => Array.from(text, is)

/** Segments of a path glob: `**` is any number of them, anything else one segment with `*` and `?` in it. */
export const pathTokens = (segments: readonly string[]): Pattern =>
  segments.map((segment) => (segment === '**' ? MANY : segment === '*' ? ONE : is(segment)))

/** One segment's pattern against a plain segment or another pattern. */
export const sameSegment = (mine: string, other: string): boolean =>
  mine === other || (/[*?]/.test(mine) && contains(nameTokens(mine, true), nameTokens(other, true)))

/** The same against a segment that exists, whose `*` is only a character. */
export const matchesSegment = (mine: string, other: string): boolean =>
  /[*?]/.test(mine) ? contains(nameTokens(mine, true), literalTokens(other)) : mine === other
