/** One word of a shell line in single quotes, whatever it contains. */
export const shellQuote = (word: string): string => `'${word.replaceAll("'", "'\\''")}'`

const PLAIN = /^[\w@%+=:,./-]+$/

/** One word of a shell line, quoted only if a shell would read it differently. */
export const shellWord = (word: string): string => (PLAIN.test(word) ? word : shellQuote(word))

const UNQUOTED = /^[^\s'"\\]+$/

/** Words as one text for people and for patterns: only words with spaces or quotes are quoted, so that `a b` differs from `a` and `b`. */
export const commandText = (argv: readonly string[]): string =>
  argv.map((word) => (UNQUOTED.test(word) ? word : shellQuote(word))).join(' ')
