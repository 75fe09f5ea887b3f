import { type ParseArgsConfig, parseArgs } from 'node:util'
import { SandboxError } from '../../model/errors.ts'
import { closest } from './closest.ts'

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
  /** Read by the native front; Node itself never uses the broker. */
  'no-broker': { type: 'boolean' },
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
    throw usage(
      command,
      friendly((cause as Error).message, [...Object.keys(options), ...Object.keys(COMMON)]),
    )
  }
}

/**
 * Puts `--` before the program that the arguments name, so that `run ls -la` needs none: everything after the program's name
 * belongs to it. `before` is the number of other words in front of the program.
 */
export function withSeparator(args: readonly string[], options: Options, before = 0): readonly string[] {
  let words = 0
  for (let at = 0; at < args.length; at++) {
    const arg = args[at] as string
    if (arg === '--') return args
    if (arg.length > 1 && arg[0] === '-') at += takesNext(arg, { ...options, ...COMMON }) ? 1 : 0
    else if (words++ === before) return [...args.slice(0, at), '--', ...args.slice(at)]
  }
  return args
}

/** Whether the value of this flag is the next argument. */
function takesNext(arg: string, options: Options): boolean {
  if (arg.startsWith('--')) return !arg.includes('=') && options[arg.slice(2)]?.type === 'string'
  const letters = [...arg.slice(1)]
  const ofLetter = (letter: string) => Object.values(options).find(({ short }) => short === letter)
  const valued = letters.findIndex((letter) => ofLetter(letter)?.type === 'string')
  return valued >= 0 && valued === letters.length - 1
}

/** A wrong-usage error that points to the command's help. */
export const usage = (command: string, message: string): SandboxError =>
  new SandboxError('invalid-input', message, { hint: `see \`ringfence ${command} --help\`` })

/** The error for an unknown or missing action of a command. */
export function unknownAction(
  command: string,
  name: string | undefined,
  known: readonly string[],
): SandboxError {
  const meant = name === undefined ? undefined : closest(name, known)
  const problem = name === undefined ? 'missing action' : `unknown action \`${name}\``
  return usage(command, `${problem}: ${meant ? `did you mean \`${meant}\`?` : known.join(', ')}`)
}

/** Shortens the messages of `parseArgs`, which end in advice for programmers. */
function friendly(message: string, flags: readonly string[]): string {
  const unknown = /Unknown option '([^']+)'/.exec(message)?.[1]
  if (unknown) {
    const meant = unknown.startsWith('--') ? closest(unknown.slice(2), flags) : undefined
    return `unknown flag \`${unknown}\`${meant ? `; did you mean \`--${meant}\`?` : ''}`
  }
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

const SIZE_MB: Readonly<Record<string, number>> = { '': 1, m: 1, g: 1024, t: 1024 * 1024 }

/** A size in MB: a plain number, or one with a unit such as `512m` or `2g`. */
export function sizeOption(flag: string, value: string | undefined): number | undefined {
  if (value === undefined) return undefined
  const [, number, unit = ''] = /^(\d+(?:\.\d+)?)([mgt]?)(?:i?b)?$/i.exec(value) ?? []
  if (number === undefined)
    throw new SandboxError(
      'invalid-input',
      `${flag} takes a size in MB such as 512, 512m or 2g, not \`${value}\``,
    )
  return Number(number) * (SIZE_MB[unit.toLowerCase()] as number)
}

const SECONDS: Readonly<Record<string, number>> = { ms: 0.001, '': 1, s: 1, m: 60, h: 3600, d: 86_400 }

/** A time in milliseconds: a plain number of seconds, or one with a unit such as `30s`, `5m` or `500ms`. */
export function durationOption(flag: string, value: string | undefined): number | undefined {
  if (value === undefined) return undefined
  const [, number, unit = ''] = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)?$/.exec(value) ?? []
  if (number === undefined)
    throw new SandboxError(
      'invalid-input',
      `${flag} takes seconds, or a time such as 30s, 5m or 1h, not \`${value}\``,
    )
  const ms = Number(number) * (SECONDS[unit] as number) * 1000
  return Math.max(ms > 0 ? 1 : 0, Math.round(ms))
}
