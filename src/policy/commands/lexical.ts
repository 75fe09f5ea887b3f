import { denied, type Finding, unseen } from './finding.ts'

/** Maximum length of a line that is parsed. */
const MAX_BYTES = 16 * 1024

const BIDI_OR_INVISIBLE =
  // biome-ignore lint/suspicious/noMisleadingCharacterClass: each of these characters is meant by itself
  /[\u00AD\u034F\u061C\u115F\u1160\u17B4\u17B5\u180E\u200B\u200E\u200F\u202A-\u202E\u2060-\u206F\u3164\uFEFF\uFFA0\uFFF9-\uFFFD]|[\u{E0000}-\u{E007F}]/u
const CONTROL = /[\u0000-\u0008\u000B-\u001F\u007F-\u009F]/
const JOINER = /[\u200C\u200D]/g
const JOINS =
  // biome-ignore lint/suspicious/noMisleadingCharacterClass: each of these characters is meant by itself
  /[\p{Extended_Pictographic}\uFE0F\u{1F3FB}-\u{1F3FF}\p{Script=Arabic}\p{Script=Devanagari}\p{Script=Bengali}\p{Script=Tamil}\p{Script=Telugu}\p{Script=Malayalam}\p{Script=Sinhala}\p{Script=Khmer}\p{Script=Myanmar}]$/u
/** Spaces that do not separate words, and dashes that do not start an option. */
const LOOKALIKE =
  /[\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]|(^|\s)[\u2010-\u2015\u2212\uFE58\uFE63\uFF0D]/
const MAX_NESTING = 80

/** ASCII without control characters, except those that separate words. */
const PLAIN = /^[\t\n\x20-\x7E]*$/

type Lexical = { readonly stop: boolean; readonly findings: readonly Finding[] }

const NOTHING_ODD: Lexical = { stop: false, findings: [] }

/** Reasons not to trust the text of a line before parsing; `stop` means that it must not be parsed. */
export function lexicalFindings(line: string): Lexical {
  const isPlain = PLAIN.test(line)
  const stopped = tooMuch(line, isPlain)
  if (stopped) return { stop: true, findings: [stopped] }
  const found = isPlain ? undefined : odd(line)
  return found ? { stop: false, findings: [found] } : NOTHING_ODD
}

function tooMuch(line: string, isPlain: boolean): Finding | undefined {
  if (line.trim() === '') return denied('shell/empty', 'empty command')
  if (line.includes('\0'))
    return denied('shell/nul', 'contains a NUL character, which some programs treat as the end of the text')
  if (line.length > MAX_BYTES)
    return unseen('shell/too-long', `longer than ${MAX_BYTES} characters, so it was not read`)
  if (
    !isPlain &&
    /[\uFDD0-\uFDEF\uFFFE\uFFFF]|[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/.test(
      line,
    )
  )
    return unseen('shell/noncharacter', 'holds characters that no text has')
  if (line.length > MAX_NESTING && nesting(line) > MAX_NESTING)
    return unseen('shell/too-deep', 'nested too deeply to be read')
  if (count(line, '<<') > 60) return unseen('shell/too-many', 'too many here-documents to be read')
  if (line.length > 4000 && separators(line) > 800)
    return unseen('shell/too-many', 'too many commands to be read')
  return undefined
}

function count(line: string, piece: string): number {
  let found = 0
  for (let at = line.indexOf(piece); at !== -1; at = line.indexOf(piece, at + piece.length)) found++
  return found
}

// INVARIANT: an upper bound that ignores quotes, so that the parser never meets deeper nesting than this reports.
function nesting(line: string): number {
  let open = 0
  let deepest = 0
  for (let at = 0; at < line.length; at++) {
    const char = line[at]
    if (char === '(' || char === '[' || char === '{') deepest = Math.max(deepest, ++open)
    else if (char === ')' || char === ']' || char === '}') open = Math.max(0, open - 1)
  }
  return deepest
}

function separators(line: string): number {
  let found = 0
  for (const char of line) if (char === ';' || char === '|' || char === '&') found++
  return found
}

function odd(line: string): Finding | undefined {
  if (CONTROL.test(line)) return unseen('unicode/control', 'holds control characters that hide or split text')
  if (BIDI_OR_INVISIBLE.test(line))
    return unseen(
      'unicode/invisible',
      'holds invisible or direction-changing characters, so it reads differently',
    )
  if (LOOKALIKE.test(line.replace(/'[^']*'|"[^"]*"/g, '')))
    return unseen('unicode/lookalike', 'holds blanks or dashes that only look like those of the shell')
  for (const joiner of line.matchAll(JOINER)) {
    if (!JOINS.test(line.slice(Math.max(0, joiner.index - 2), joiner.index)))
      return unseen('unicode/invisible', 'holds a zero-width character outside of a script that uses it')
  }
  return undefined
}

const SUBSTITUTION = /\$\(|`|\$\{|[<>]\(/g
const MAY_SUBSTITUTE = /[`({]/

/** Whether a text has a character of which every substitution contains one. */
export const maySubstitute = (source: string): boolean => MAY_SUBSTITUTE.test(source)

/** SECURITY: the parser is not trusted. True if text that looks like a substitution is not part of any node of the tree. */
export function uncovered(source: string, covered: ReadonlySet<number>): boolean {
  for (const match of source.matchAll(SUBSTITUTION)) {
    if (covered.has(match.index)) continue
    // A closing backtick is covered by the substitution that it closes.
    if (match[0] === '`' && covered.has(-1 - match.index)) continue
    return true
  }
  return false
}
