/**
 * Recognises sed, awk and jq scripts that only filter: they start no programs, open no other files, end with their input
 * and print at most a small multiple of it. Other scripts may be harmless too, but do not run on the host.
 */

const SED_ADDRESS = /(?:\d+|\$|\/(?:[^/\\\n]|\\[^\n])*\/I?)/y
const SED_STEP = /(?:[+~]\d+)/y
const SED_COMMAND = /(?:[pdqQ=lnNP]|q\d+)(?=[\s;}]|$)/y
const SED_LIMIT = 512

/** Addresses with `p`, `d`, `q`, `=`, `l`, `n`, and substitutions without the flags `e` and `w`. No branches, no hold space. */
export function isPlainSed(script: string): boolean {
  if (script.length > SED_LIMIT) return false
  let at = 0
  const take = (pattern: RegExp): boolean => {
    pattern.lastIndex = at
    const found = pattern.exec(script)
    if (found) at += found[0].length
    return found !== null
  }
  while (at < script.length) {
    take(/[\s;{}]+/y)
    if (at >= script.length) return true
    if (take(SED_ADDRESS) && take(/,/y) && !take(SED_ADDRESS) && !take(SED_STEP)) return false
    take(/~\d+/y)
    take(/\s*!?\s*/y)
    if (script[at] === '{') continue
    if (take(SED_COMMAND)) continue
    const end = substitution(script, at)
    if (end === -1) return false
    at = end
  }
  return true
}

/** The index after `s/a/b/flags` or `y/a/b/`, or -1. */
function substitution(script: string, start: number): number {
  const [kind, mark = ''] = [script[start], script[start + 1]]
  if ((kind !== 's' && kind !== 'y') || !/[/|#,@:!_%+]/.test(mark)) return -1
  let at = start + 2
  for (let part = 0; part < 2; part++, at++) {
    while (at < script.length && script[at] !== mark) {
      // Implementations of sed differ in how they parse a newline or an unfinished bracket here.
      if (script[at] === '\n' || (script[at] === '[' && part === 0 && unsafeBracket(script, at, mark)))
        return -1
      at += script[at] === '\\' ? 2 : 1
    }
    if (at >= script.length) return -1
  }
  const flags = /^[gpiIM\d]*(?=[\s;}]|$)/.exec(script.slice(at))
  return flags && !/\d{4}/.test(flags[0]) ? at + flags[0].length : -1
}

/** Whether the delimiter is inside a bracket expression, where it does not end the pattern in some seds. */
function unsafeBracket(script: string, at: number, mark: string): boolean {
  const close = script.indexOf(']', at + 2)
  return close !== -1 && script.slice(at, close).includes(mark)
}

const AWK_LIMIT = 512
const AWK_WORDS = new Set(
  `BEGIN END print printf if else in next exit NF NR FNR FILENAME FS OFS RS ORS SUBSEP length substr index split sub
  gsub match tolower toupper int delete RSTART RLENGTH`.split(/\s+/),
)

/** Patterns with `print` and `if`, sums and counts. No loops, functions, redirections, pipes, or growing strings. */
export function isPlainAwk(program: string): boolean {
  if (program.length > AWK_LIMIT || /[@\\`]|[|>]\s*["(a-zA-Z_$&]|<\s*["(]|>>|\|&/.test(awkBare(program)))
    return false
  const bare = awkBare(program)
  // `>` inside print is a redirection; outside of braces it is a comparison in a pattern.
  if (/print[^;}]*>/.test(bare)) return false
  for (const [word] of bare.matchAll(/[A-Za-z_]\w*/g)) {
    if (AWK_WORDS.has(word)) continue
    if (
      /^(system|getline|close|fflush|while|for|do|func|function|sprintf|ENVIRON|ARGV|ARGC|PROCINFO|srand|rand|eval|include|load|namespace|nextfile|getline)$/.test(
        word,
      )
    )
      return false
  }
  if (/%[^a-zA-Z%]*(\d{4}|\*)/.test(program)) return false
  // An assignment takes a constant, a field or a number; `x = x x` would double with every line.
  return [...bare.matchAll(/(?<![=!<>+\-*/%^~])=(?![=~])([^;}\n]*)/g)].every(([, value]) =>
    /^\s*(""|\$?\d+(\.\d+)?|\$?N[FR]|\$\(NF-\d+\))?\s*$/.test(value as string),
  )
}

/** The program text without its strings and regular expressions. */
const awkBare = (program: string): string =>
  program
    .replace(/"(?:[^"\\\n]|\\.)*"/g, '""')
    .replace(/(^|[(,!~{;&|\n]|\s)\s*\/(?:[^/\\\n]|\\.)+\//g, '$1""')

const JQ_LIMIT = 256
const JQ_WORDS = new Set(
  `select map keys keys_unsorted length to_entries from_entries with_entries type tostring tonumber test startswith
  endswith contains has in inside add any all first last sort sort_by group_by unique unique_by min max min_by max_by
  flatten join split ascii_downcase ascii_upcase tojson fromjson values not and or if then elif else end empty error
  null true false as del paths leaf_paths reverse ltrimstr rtrimstr map_values arrays objects strings numbers
  booleans scalars nulls floor round todate csv tsv json text html uri sh base64 base64d index rindex indices`.split(
    /\s+/,
  ),
)

/** Paths, construction and filters that terminate. No definitions, loops, inputs, environment or multiplication. */
export function isPlainJq(program: string): boolean {
  if (/^\.[\w.[\]]*$/.test(program) && program.length <= JQ_LIMIT) return true
  if (program.length > JQ_LIMIT || (program.match(/[|,+]/g)?.length ?? 0) > 12) return false
  const bare = program.replace(/"(?:[^"\\]|\\[^(])*"/g, '""')
  if (/["\\*]|\$ENV|\$__|\d{6}/.test(bare.replaceAll('""', ''))) return false
  for (const [word] of bare.matchAll(/[.$]?[A-Za-z_]\w*/g))
    if (word[0] !== '.' && word[0] !== '$' && !JQ_WORDS.has(word) && !isKey(bare, word)) return false
  return true
}

/** `{name: .x}`: a word before a colon is a key. */
const isKey = (bare: string, word: string): boolean =>
  [...bare.matchAll(new RegExp(`\\b${word}\\b\\s*(.?)`, 'g'))].every(
    ([, after], index, all) =>
      after === ':' ||
      (after === ',' || after === '}' ? /[{,]\s*$/.test(bare.slice(0, all[index]?.index)) : false),
  )
