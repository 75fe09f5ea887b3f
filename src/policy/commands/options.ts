import { ANY, isStatic, SPLIT } from './shell/unknown-text.ts'

/**
 * What a program does with one option or operand. Paths: `read`, `tree`, `write`, `delete`. Text that is run:
 * `shell` (a line), `program` (one program), `code`. `url`, `upload` (`@file`), `data` (nothing). A word followed by
 * `:` and a reason is the least action for the option's mere presence: `ask: …`, `deny: …`, `box: …`.
 */
export type Effect = string

/** How a program reads its arguments. Only what matters is listed: options with values, and options with effects. */
export type OptionSpec = {
  /** Letters of short options that take a value. */
  readonly short?: string
  /** Long options that take a value, blank-separated, without dashes. */
  readonly long?: string
  /** `-o`, `--output`, or a single-dash word for programs of that kind. */
  readonly effects?: Readonly<Record<string, Effect>>
  /** Options stop at the first operand: wrappers, whose operand is another command line. */
  readonly prefix?: boolean
  /** Long options start with one dash (`java -cp`); letters are not bundled. */
  readonly single?: boolean
}

/** One option as it stands on a command line. */
export type Option = {
  readonly name: string
  readonly value: string | undefined
  readonly effect: Effect | undefined
}
/** The options and operands of a command. */
export type Parsed = {
  readonly options: readonly Option[]
  readonly operands: readonly string[]
  /** An argument that could be an option and is known only at run time. */
  readonly open: boolean
}

const FLAG = /^(ask|deny|box):/

const takesValue = (effect: Effect | undefined): boolean => effect !== undefined && !FLAG.test(effect)

/** Reads arguments the way getopt_long does: bundles, attached values, abbreviations, `--`. */
export function parseOptions(spec: OptionSpec, args: readonly string[]): Parsed {
  const options: Option[] = []
  const operands: string[] = []
  let open = false
  let at = 0
  for (; at < args.length; at++) {
    const arg = args[at] as string
    if (arg === '--') {
      operands.push(...args.slice(at + 1))
      return { options, operands, open }
    }
    if (arg[0] === ANY || arg[0] === SPLIT) open = true
    if (arg[0] !== '-' || arg === '-') {
      if (spec.prefix) break
      operands.push(arg)
    } else if (arg[1] === '-' || spec.single) at += long(spec, arg, args[at + 1], options)
    else at += bundle(spec, arg, args[at + 1], options)
  }
  if (spec.prefix) operands.push(...args.slice(at))
  return { options, operands, open }
}

/** Both return how many following arguments they used. */
function long(spec: OptionSpec, arg: string, next: string | undefined, out: Option[]): number {
  const equals = arg.indexOf('=')
  const given = equals === -1 ? arg : arg.slice(0, equals)
  const attached = equals === -1 ? undefined : arg.slice(equals + 1)
  const name = spec.single ? given : fullName(spec, given)
  const effect = spec.effects?.[name]
  const wants = takesValue(effect) || longValues(spec).has(name.replace(/^-+/, ''))
  if (attached !== undefined || !wants) {
    out.push({ name, value: attached, effect })
    return 0
  }
  out.push({ name, value: next, effect })
  return 1
}

/** An option with a value that the description does not list: whatever it does, nobody looked at it. */
export const isUnlisted = (spec: OptionSpec, { name, value, effect }: Option): boolean =>
  effect === undefined && value !== undefined && name.startsWith('--') && !longValues(spec).has(name.slice(2))

const valueSets = new WeakMap<OptionSpec, ReadonlySet<string>>()

function longValues(spec: OptionSpec): ReadonlySet<string> {
  let found = valueSets.get(spec)
  if (!found) {
    found = new Set((spec.long ?? '').split(/\s+/))
    valueSets.set(spec, found)
  }
  return found
}

// SECURITY: GNU programs take any unambiguous beginning of a long option, so a beginning counts as the option.
function fullName(spec: OptionSpec, given: string): string {
  if (spec.effects && Object.hasOwn(spec.effects, given)) return given
  if (!isStatic(given)) return given
  const bare = given.slice(2)
  if (longValues(spec).has(bare)) return given
  for (const name of Object.keys(spec.effects ?? {})) if (name.startsWith(given)) return name
  for (const name of longValues(spec)) if (name !== '' && name.startsWith(bare)) return `--${name}`
  return given
}

function bundle(spec: OptionSpec, arg: string, next: string | undefined, out: Option[]): number {
  for (let at = 1; at < arg.length; at++) {
    const letter = arg[at] as string
    const name = `-${letter}`
    const effect = spec.effects?.[name]
    if (!takesValue(effect) && !spec.short?.includes(letter)) {
      out.push({ name, value: undefined, effect })
      continue
    }
    const attached = arg.slice(at + 1)
    out.push({ name, value: attached !== '' ? attached.replace(/^=/, '') : next, effect })
    return attached !== '' ? 0 : 1
  }
  return 0
}
