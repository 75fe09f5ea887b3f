import { ANY, isStatic, SPLIT } from './shell/unknown-text.ts'

/**
 * The effect of one option or operand. Paths: `read`, `tree`, `write`, `delete`. Text that is executed: `shell` (a line),
 * `program` (one program), `code`. `url`, `upload` (`@file`), `data` (no effect). A word followed by `:` and a reason is
 * the minimum action if the option is present: `ask: …`, `deny: …`, `box: …`.
 */
export type Effect = string

/** How a program parses its arguments. */
export type OptionSpec = {
  /** Every option of the program in getopt's notation (tools/option-tables.ts). If absent, only relevant options are listed. */
  readonly exact?: string
  /** Letters of short options that take a value. */
  readonly short?: string
  /** Long options that take a value, separated by spaces, without dashes. */
  readonly long?: string
  /** `-o`, `--output`, or a single-dash word for programs that use those. */
  readonly effects?: Readonly<Record<string, Effect>>
  /** Options end at the first operand: wrappers, whose operand is another command line. */
  readonly prefix?: boolean
  /** Long options start with one dash (`java -cp`); short options are not bundled. */
  readonly single?: boolean
}

/** One option on a command line. */
export type Option = {
  readonly name: string
  readonly value: string | undefined
  readonly effect: Effect | undefined
  /** The option is not in the program's table. */
  readonly unknown?: boolean
}
/** The options and operands of a command. */
export type Parsed = {
  readonly options: readonly Option[]
  readonly operands: readonly string[]
  /** An argument that could be an option but is known only at run time. */
  readonly open: boolean
}

const FLAG = /^(ask|deny|box):/

const takesValue = (effect: Effect | undefined): boolean =>
  effect !== undefined && !(effect.includes(':') && FLAG.test(effect))

/** Whether an option takes a value: never, attached or as the next word, or only attached. */
type Arity = 'none' | 'next' | 'attached'

type Table = { readonly short: ReadonlyMap<string, Arity>; readonly long: ReadonlyMap<string, Arity> }

const ARITIES: Readonly<Record<string, Arity>> = { '': 'none', ':': 'next', '::': 'attached' }

const compiled = new Map<string, Table>()

/** Compiled on first use: most lines use few programs. */
function tableOf(exact: string): Table {
  let table = compiled.get(exact)
  if (!table) {
    const short = new Map<string, Arity>()
    const long = new Map<string, Arity>()
    for (const word of exact.split(/\s+/)) {
      if (word[0] === '-')
        for (const [, letter, marks] of word.slice(1).matchAll(/([^:])(:{0,2})/g))
          short.set(letter as string, ARITIES[marks as string] as Arity)
      else if (word !== '') long.set(word.replace(/:+$/, ''), ARITIES[/:*$/.exec(word)?.[0] ?? ''] as Arity)
    }
    table = { short, long }
    compiled.set(exact, table)
  }
  return table
}

/** A word that starts with a mark could be an option: `"$x"`, or a glob that meets a file called `-f`. */
const startsOpen = (arg: string): boolean => {
  const code = arg.charCodeAt(0)
  return code >= 0xfdd0 && code <= 0xfdef
}

/** Parses arguments like getopt_long: bundles, attached values, abbreviations, `--`. */
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
    if (arg[0] === ANY || arg[0] === SPLIT || (spec.exact !== undefined && startsOpen(arg))) open = true
    if (arg[0] !== '-' || arg === '-') {
      if (spec.prefix) break
      operands.push(arg)
    } else if (arg[1] === '-' || spec.single) at += long(spec, arg, args[at + 1], options)
    else at += bundle(spec, arg, args[at + 1], options)
  }
  if (spec.prefix) operands.push(...args.slice(at))
  return { options, operands, open }
}

/** Both return the number of following arguments that they consumed. */
function long(spec: OptionSpec, arg: string, next: string | undefined, out: Option[]): number {
  const equals = arg.indexOf('=')
  const given = equals === -1 ? arg : arg.slice(0, equals)
  const attached = equals === -1 ? undefined : arg.slice(equals + 1)
  if (spec.exact !== undefined && !spec.single) return exactLong(spec, { given, attached, next }, out)
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

type Given = {
  readonly given: string
  readonly attached: string | undefined
  readonly next: string | undefined
}

function exactLong(spec: OptionSpec, { given, attached, next }: Given, out: Option[]): number {
  const { long: table } = tableOf(spec.exact as string)
  const name = exactName(table, given.slice(2))
  const arity = name === undefined ? undefined : table.get(name)
  const shown = name === undefined ? given : `--${name}`
  const effect = spec.effects?.[shown]
  const takes = attached === undefined && (arity ?? looseArity(spec, '', effect)) === 'next'
  const unknown = arity === undefined || (arity === 'none' && attached !== undefined)
  out.push({ name: shown, value: takes ? next : attached, effect, unknown })
  return takes ? 1 : 0
}

/** SECURITY: GNU programs accept any unambiguous prefix of a long option; an ambiguous prefix is an error for them. */
function exactName(table: ReadonlyMap<string, Arity>, given: string): string | undefined {
  if (table.has(given)) return given
  let found: string | undefined
  for (const name of table.keys()) {
    if (!name.startsWith(given)) continue
    if (found !== undefined) return undefined
    found = name
  }
  return found
}

/** An option with a value that the description does not list; its effect is unknown. */
export const isUnlisted = (spec: OptionSpec, { name, value, effect, unknown }: Option): boolean =>
  unknown === true ||
  (spec.exact === undefined &&
    effect === undefined &&
    value !== undefined &&
    name.startsWith('--') &&
    !longValues(spec).has(name.slice(2)))

const valueSets = new WeakMap<OptionSpec, ReadonlySet<string>>()

function longValues(spec: OptionSpec): ReadonlySet<string> {
  let found = valueSets.get(spec)
  if (!found) {
    found = new Set((spec.long ?? '').split(/\s+/))
    valueSets.set(spec, found)
  }
  return found
}

// SECURITY: GNU programs accept any unambiguous prefix of a long option, so a prefix counts as the option.
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
  const table = spec.exact === undefined ? undefined : tableOf(spec.exact).short
  if (table?.has('#') && /^-\d+$/.test(arg)) return 0
  for (let at = 1; at < arg.length; at++) {
    const letter = arg[at] as string
    const name = `-${letter}`
    const effect = spec.effects?.[name]
    const attached = arg.slice(at + 1)
    const arity = table ? table.get(letter) : looseArity(spec, letter, effect)
    if (arity === undefined) {
      // The next word could be its value; it is treated as an operand and checked as one.
      const takes = attached === '' && takesValue(effect)
      out.push({ name, value: takes ? next : attached === '' ? undefined : attached, effect, unknown: true })
      return takes ? 1 : 0
    }
    if (arity === 'none') {
      out.push({ name, value: undefined, effect })
      continue
    }
    const takes = attached === '' && arity === 'next'
    out.push({ name, value: takes ? next : attached === '' ? undefined : unequal(spec, attached), effect })
    return takes ? 1 : 0
  }
  return 0
}

const looseArity = (spec: OptionSpec, letter: string, effect: Effect | undefined): Arity =>
  takesValue(effect) || (letter !== '' && spec.short?.includes(letter)) ? 'next' : 'none'

/** Some programs accept `-o=file`; getopt treats the `=` as part of the value. */
const unequal = (spec: OptionSpec, attached: string): string =>
  spec.exact === undefined ? attached.replace(/^=/, '') : attached
