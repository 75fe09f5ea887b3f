/**
 * Text with unknown parts. Each part that bash fills in at run time is represented by one mark from Unicode's
 * noncharacters, so that a value stays a plain string; a line that already contains a mark is refused (lexical.ts).
 */

/** Any text, as one word: `"$x"`. */
export const ANY = '\uFDD0'
/** Any text, which may be empty or split into several words: `$x`. */
export const SPLIT = '\uFDD1'
/** A glob's `*`: any text without a slash. */
export const STAR = '\uFDD2'
/** A glob's `?` or bracket: one character except a slash. */
export const ONE = '\uFDD3'
/** A path below the preceding path, without `..`: the output of `find` and `ls`. */
export const BELOW = '\uFDD4'
/** A `*` or `?` that also matches hidden files: `shopt -s dotglob`, and the patterns of `find`, `grep` and git. */
export const HIDDEN = '\uFDD5'

/** A name that no variable can have; a scope records under it that globs match hidden files. */
export const DOTGLOB = '*dotglob'
/** The same, followed by a variable's name: records that it has the integer attribute. */
export const INTEGER = '*integer '

const MARK = /[\uFDD0-\uFDEF]/
const OPEN = /[\uFDD0\uFDD1]/
const SHOWN: Readonly<Record<string, string>> = {
  [ANY]: '…',
  [SPLIT]: '…',
  [STAR]: '*',
  [ONE]: '?',
  [BELOW]: '…',
  [HIDDEN]: '*',
}

/** Whether every part of a text is known. */
export const isStatic = (text: string): boolean => !MARK.test(text)

/** Whether some part could be any text (a glob is limited to existing files). */
export const isOpen = (text: string): boolean => OPEN.test(text)

/** For display: marks become `…`, `*` and `?`, and the text is shortened to one line. */
export function show(text: string, size = 200): string {
  const shown = isStatic(text) ? text : text.replace(/[\uFDD0-\uFDEF]/g, (mark) => SHOWN[mark] ?? '…')
  return shown.length > size ? `${shown.slice(0, size - 1)}…` : shown
}

/** Converts the glob characters of unquoted text to marks, as bash does after an unquoted expansion. */
export const globbed = (text: string): string =>
  /[*?[]/.test(text)
    ? text
        .replace(/\[[^\]/]+\]/g, ONE)
        .replace(/\*/g, STAR)
        .replace(/\?/g, ONE)
    : text

/** A pattern that a program reads itself (`find -name`, `grep --include`, a pathspec): it meets hidden files too. */
export const patternText = (text: string): string =>
  globbed(text)
    .replace(/\uFDD2/g, HIDDEN)
    .replace(/(^|\/)\uFDD3/g, `$1${HIDDEN}`)

const isStar = (char: string): boolean =>
  char === ANY || char === SPLIT || char === STAR || char === BELOW || char === HIDDEN

/** Above this length, two patterns count as matching: real patterns are shorter. */
const MAX_PATTERN = 600

/**
 * Whether one text could match both patterns. Both may contain marks; no state is visited twice, so the cost is the
 * product of the two lengths.
 */
export function meets(a: string, b: string): boolean {
  if (isStatic(a) && isStatic(b)) return a === b
  // In bash, a leading wildcard never matches a hidden file.
  if ((a[0] === STAR || a[0] === ONE) && b[0] === '.') return false
  if (differ(a[0] ?? '', b[0] ?? '') || differ(a.at(-1) ?? '', b.at(-1) ?? '')) return false
  if (a.length + b.length > MAX_PATTERN) return true
  if (isStatic(b)) return fits(a, b)
  let row = reach(b)
  for (const char of a) row = step(row, char, b)
  return row[b.length] === true
}

/** Whether a pattern stands for a text, without any memory: the last star takes one more character until it fits. */
function fits(pattern: string, text: string): boolean {
  let at = 0
  let star = -1
  let taken = 0
  for (let index = 0; index < text.length; ) {
    const char = pattern[at]
    if (char !== undefined && isStar(char)) {
      star = at++
      taken = index
    } else if (char === text[index] || char === ONE) {
      at++
      index++
    } else if (star === -1) return false
    else {
      at = star + 1
      index = ++taken
    }
  }
  while (at < pattern.length && isStar(pattern[at] as string)) at++
  return at === pattern.length
}

/** Two plain characters that are not the same one. */
const differ = (a: string, b: string): boolean =>
  a !== b && a !== '' && b !== '' && !MARK.test(a) && !MARK.test(b)

function reach(b: string): boolean[] {
  const row = [true]
  for (let j = 0; j < b.length; j++) row.push(row[j] === true && isStar(b[j] as string))
  return row
}

function step(row: readonly boolean[], char: string, b: string): boolean[] {
  const star = isStar(char)
  const next = [star && row[0] === true]
  for (let j = 0; j < b.length; j++) {
    const other = b[j] as string
    const both = row[j] === true && (char === other || char === ONE || other === ONE)
    const left = star && (row[j + 1] === true || next[j] === true)
    const right = isStar(other) && (next[j] === true || row[j + 1] === true)
    next.push(both || left || right)
  }
  return next
}
