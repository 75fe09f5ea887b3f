/**
 * Text that somebody else chose (a sandbox, an agent, a skill, a file name), made safe to show. It must not move the
 * cursor of whoever reads it, hide or reorder words, or write a line of its own.
 */

/**
 * Control characters (ESC, C1), format characters (bidirectional controls, zero width, tags), line and paragraph
 * separators, halves of pairs, private use, and letters that show nothing.
 */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Default_Ignorable_Code_Point}]/gu

const escaped = (char: string): string =>
  char
    .split('')
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
    .join('')

/** One line, whatever the text held: every such character as `\uXXXX`, line feeds too. */
export const visible = (text: string): string => text.replace(INVISIBLE, escaped)

/** The same, but line feeds and tabs stay: for a text that may have lines. */
export const visibleLines = (text: string): string =>
  text.replace(INVISIBLE, (char) => (char === '\n' || char === '\t' ? char : escaped(char)))

/** JSON of the same value, with all such characters as escapes. */
export const visibleJson = (value: unknown): string =>
  (JSON.stringify(value) ?? 'null').replace(INVISIBLE, escaped)
