import { type ParsedScript, parse, type Word } from 'unbash'

/** Parses shell source; undefined if the parser fails. */
export function parseShell(source: string): ParsedScript | undefined {
  try {
    return parse(source)
  } catch {
    // Nested quotes can overflow the parser's stack (RangeError); every other failure is treated as unreadable too.
    return undefined
  }
}

/** Parses the raw text of one word. */
export function parseWord(raw: string): Word | undefined {
  const script = parseShell(`: ${raw}`)
  if (!script || script.errors?.length || script.commands.length !== 1) return undefined
  const command = script.commands[0]?.command
  if (command?.type !== 'Command' || command.suffix.length !== 1) return undefined
  const word = command.suffix[0]
  return word?.type === 'Word' ? word : undefined
}
