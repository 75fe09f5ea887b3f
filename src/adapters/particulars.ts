import { redactPlainValues } from '../model/text/redact.ts'
import { shellWord } from '../model/text/shell-quote.ts'
import type { Particulars } from './operations/operation.ts'
import type { StartOptions } from './tool-sandbox.ts'

/** Details shown with an approval besides the command: everything that affects what the command does. */

export type Asked = Pick<StartOptions, 'cwd' | 'env' | 'stdin' | 'stdinOpen'>

/** The command as text, with each argument quoted. */
export const commandText = (command: string | readonly string[]): string =>
  typeof command === 'string' ? command : command.map(shellWord).join(' ')

/** The details of a command that an approval question shows. */
export function particularsOf({ cwd, env = {}, stdin, stdinOpen }: Asked): Particulars {
  const particulars: [string, string][] = []
  if (cwd !== undefined) particulars.push(['in the directory', cwd])
  const variables = Object.entries(env).map(([name, value]) =>
    redactPlainValues(`${name}=${shellWord(value)}`),
  )
  if (variables.length > 0) particulars.push(['with the variables', variables.join(' ')])
  if (stdin !== undefined) particulars.push(['with the standard input', redactPlainValues(textOf(stdin))])
  if (stdinOpen) particulars.push(['and', 'more standard input that is not known yet'])
  return particulars
}

const textOf = (stdin: NonNullable<Asked['stdin']>): string =>
  typeof stdin === 'string' ? stdin : Buffer.from(stdin).toString('utf8')
