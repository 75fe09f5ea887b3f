import { type ParseArgsConfig, parseArgs } from 'node:util'
import { SandboxError } from '../model/errors.ts'

type Options = NonNullable<ParseArgsConfig['options']>
type Parsed<T extends Options> = ReturnType<
  typeof parseArgs<{ options: T & typeof COMMON; allowPositionals: true }>
>

/** Accepted by every command. */
const COMMON = {
  json: { type: 'boolean' },
  config: { type: 'string' },
  policy: { type: 'string' },
  quiet: { type: 'boolean', short: 'q' },
  help: { type: 'boolean', short: 'h' },
} as const

/** Parses arguments strictly: an unknown flag or a missing value throws a usage error. */
export function parseOptions<T extends Options>(
  command: string,
  args: readonly string[],
  options: T,
): Parsed<T> {
  try {
    return parseArgs({
      args: [...args],
      options: { ...options, ...COMMON },
      allowPositionals: true,
      strict: true,
    }) as Parsed<T>
  } catch (cause) {
    throw usage(command, friendly((cause as Error).message))
  }
}

/** A wrong-usage error that points to the command's help. */
export const usage = (command: string, message: string): SandboxError =>
  new SandboxError('invalid-input', message, { hint: `see \`ringfence ${command} --help\`` })

/** Shortens the messages of `parseArgs`, which end in advice for programmers. */
function friendly(message: string): string {
  const unknown = /Unknown option '([^']+)'/.exec(message)
  if (unknown) return `unknown flag \`${unknown[1]}\``
  const first = message.split(/\.\s|\n/)[0] ?? message
  return first.replaceAll("'", '`').replace(/^Option/, 'flag')
}

/** Parses a plain decimal number: no `0x`, no spaces, no exponent. */
export function numberOption(flag: string, value: string | undefined): number | undefined {
  if (value === undefined) return undefined
  if (!/^\d+(\.\d+)?$/.test(value))
    throw new SandboxError('invalid-input', `${flag} takes a number above 0, not \`${value}\``)
  return Number(value)
}
