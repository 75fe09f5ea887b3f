/**
 * Makes untrusted text (from a sandbox, an agent, a skill, a file name) safe to print. It must not move the reader's
 * cursor, hide or reorder words, or forge a line.
 */

/**
 * Control characters (ESC, C1), format characters (bidirectional controls, zero width, tags), line and paragraph
 * separators, lone surrogates, private use, and invisible letters.
 */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Default_Ignorable_Code_Point}]/gu

const escaped = (char: string): string =>
  char
    .split('')
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
    .join('')

/** Escapes every such character as `\uXXXX`, including line feeds; the result is one line. */
export const visible = (text: string): string => text.replace(INVISIBLE, escaped)

/** Like `visible`, but keeps line feeds and tabs. */
export const visibleLines = (text: string): string =>
  text.replace(INVISIBLE, (char) => (char === '\n' || char === '\t' ? char : escaped(char)))

/** Code units that are escaped at a time. */
const PIECE = 64 * 1024

/** `visibleJson` of an object whose texts may be large, in pieces of about the same size: escaping all of it takes seconds. */
export function* visibleJsonPieces(value: Readonly<Record<string, unknown>>): Generator<string> {
  let text = '{'
  let separator = ''
  for (const [name, item] of Object.entries(value).filter((entry) => entry[1] !== undefined)) {
    text += `${separator}${visibleJson(name)}:`
    separator = ','
    if (typeof item !== 'string' || item.length <= PIECE) {
      text += visibleJson(item)
      continue
    }
    yield `${text}"`
    for (const slice of slicesOf(item)) yield visibleJson(slice).slice(1, -1)
    text = '"'
  }
  yield `${text}}`
}

/** Never between the halves of a surrogate pair. */
function* slicesOf(text: string): Generator<string> {
  for (let at = 0, end = 0; at < text.length; at = end) {
    end = at + PIECE
    if (/[\ud800-\udbff]/.test(text.charAt(end - 1))) end++
    yield text.slice(at, end)
  }
}

/** JSON of a value, with all such characters escaped. */
export const visibleJson = (value: unknown): string =>
  (JSON.stringify(value) ?? 'null').replace(INVISIBLE, escaped)
