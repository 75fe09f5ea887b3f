import { SandboxError } from './errors.ts'

/**
 * Parsers for untrusted input: strict (an unknown field is an error), total (NaN, holes and
 * prototypes are rejected) and self-describing (each shape is also a JSON Schema).
 *
 * Not a library, because `ringfence run` loads it and a schema library would add too much start-up time
 * (docs/decisions/0002).
 */
export type Shape<T> = {
  readonly parse: (value: unknown, at: string) => T
  readonly schema: JsonSchema
  readonly optional?: boolean
}

/** A JSON schema, as OpenAPI and tool definitions show it. */
export type JsonSchema = { readonly [key: string]: unknown }
/** The type that a shape parses to. */
export type Infer<S> = S extends Shape<infer T> ? T : never

const show = (value: unknown): string => {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object') return 'an object'
  const text = typeof value === 'string' ? value : String(value)
  return `\`${text.length > 60 ? `${text.slice(0, 57)}…` : text}\``
}

/** Throws the validation error of all shapes. */
export function refuse(at: string, problem: string, hint?: string): never {
  throw new SandboxError('invalid-input', at ? `${at}: ${problem}` : problem, hint ? { hint } : {})
}

/** A string; not empty unless `empty` is set. */
export const text = (options: { readonly empty?: boolean; readonly max?: number } = {}): Shape<string> => ({
  schema: { type: 'string', ...(options.empty ? {} : { minLength: 1 }) },
  parse(value, at) {
    if (typeof value !== 'string') refuse(at, `expected text, got ${show(value)}`)
    if (!options.empty && value.length === 0) refuse(at, 'must not be empty')
    if (value.length > (options.max ?? 131_072))
      refuse(at, `longer than ${options.max ?? 131_072} characters`)
    if (value.includes('\0')) refuse(at, 'must not contain a NUL character')
    return value
  },
})

/** The bounds of a number. */
export type NumberRange = {
  readonly min?: number
  readonly above?: number
  readonly max?: number
  readonly integer?: boolean
}

/** A finite number within bounds. */
export const number = (range: NumberRange = {}): Shape<number> => ({
  schema: {
    type: range.integer ? 'integer' : 'number',
    ...(range.min === undefined ? {} : { minimum: range.min }),
    ...(range.above === undefined ? {} : { exclusiveMinimum: range.above }),
    ...(range.max === undefined ? {} : { maximum: range.max }),
  },
  parse(value, at) {
    if (typeof value !== 'number' || !Number.isFinite(value))
      refuse(at, `expected a number, got ${show(value)}`)
    if (range.integer && !Number.isSafeInteger(value))
      refuse(at, `expected a whole number, got ${show(value)}`)
    if (range.above !== undefined && value <= range.above)
      refuse(at, `must be above ${range.above}, got ${show(value)}`)
    if (range.min !== undefined && value < range.min)
      refuse(at, `must be at least ${range.min}, got ${show(value)}`)
    if (range.max !== undefined && value > range.max)
      refuse(at, `must be at most ${range.max}, got ${show(value)}`)
    return value
  },
})

/** `true` or `false`. */
export const boolean = (): Shape<boolean> => ({
  schema: { type: 'boolean' },
  parse: (value, at) =>
    typeof value === 'boolean' ? value : refuse(at, `expected true or false, got ${show(value)}`),
})

/** One of these strings. */
export const oneOf = <const T extends readonly string[]>(...choices: T): Shape<T[number]> => ({
  schema: { enum: choices },
  parse: (value, at) =>
    choices.includes(value as string)
      ? (value as T[number])
      : refuse(at, `unknown value ${show(value)}`, `one of: ${choices.join(', ')}`),
})

/** An array whose items have one shape. */
export const list = <T>(item: Shape<T>, max = 4096): Shape<readonly T[]> => ({
  schema: { type: 'array', items: item.schema, maxItems: max },
  parse(value, at) {
    if (!Array.isArray(value)) refuse(at, `expected a list, got ${show(value)}`)
    if (value.length > max) refuse(at, `more than ${max} entries`)
    return Object.freeze(Array.from(value, (entry, index) => item.parse(entry, `${at}[${index}]`)))
  },
})

/** An object whose values have one shape. */
export const record = <T>(item: Shape<T>, key = /^[^\0=]+$/): Shape<Readonly<Record<string, T>>> => ({
  schema: { type: 'object', additionalProperties: item.schema },
  parse(value, at) {
    const out: Record<string, T> = Object.create(null)
    for (const [name, entry] of entriesOf(value, at)) {
      if (!key.test(name)) refuse(at, `invalid name ${show(name)}`)
      out[name] = item.parse(entry, `${at}.${name}`)
    }
    return Object.freeze(out)
  },
})

/** A field that may be absent. */
export const optional = <T>(inner: Shape<T>): Shape<T | undefined> & { readonly optional: true } => ({
  schema: inner.schema,
  optional: true,
  parse: (value, at) => (value === undefined ? undefined : inner.parse(value, at)),
})

/** Tries each shape in turn; reports the error of the last one. */
export const either = <A, B>(first: Shape<A>, second: Shape<B>): Shape<A | B> => ({
  schema: { anyOf: [first.schema, second.schema] },
  parse(value, at) {
    try {
      return first.parse(value, at)
    } catch {
      return second.parse(value, at)
    }
  },
})

type Fields = Readonly<Record<string, Shape<unknown>>>
type OptionalKeys<F extends Fields> = { [K in keyof F]: F[K] extends { optional: true } ? K : never }[keyof F]
/** One object type instead of an intersection, which is what error messages then show. */
type Flat<T> = { [K in keyof T]: T[K] } & {}
type Parsed<F extends Fields> = Flat<
  { readonly [K in Exclude<keyof F, OptionalKeys<F>>]: Infer<F[K]> } & {
    readonly [K in OptionalKeys<F>]?: Exclude<Infer<F[K]>, undefined>
  }
>

/** An object with exactly these fields. */
export const object = <F extends Fields>(fields: F): Shape<Parsed<F>> => ({
  schema: {
    type: 'object',
    additionalProperties: false,
    properties: Object.fromEntries(Object.entries(fields).map(([name, shape]) => [name, shape.schema])),
    required: Object.keys(fields).filter((name) => !fields[name]?.optional),
  },
  parse(value, at) {
    const out: Record<string, unknown> = {}
    const given = new Map(entriesOf(value, at))
    for (const name of given.keys()) {
      if (!Object.hasOwn(fields, name))
        refuse(at, `unknown field \`${name}\``, `known: ${Object.keys(fields).join(', ')}`)
    }
    for (const [name, shape] of Object.entries(fields)) {
      const parsed = shape.parse(given.get(name), at ? `${at}.${name}` : name)
      if (parsed !== undefined) out[name] = parsed
    }
    return Object.freeze(out) as Parsed<F>
  },
})

function entriesOf(value: unknown, at: string): [string, unknown][] {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    refuse(at, `expected an object, got ${show(value)}`)
  }
  // A map, a date or an instance would pass for an object without fields.
  const prototype: unknown = Object.getPrototypeOf(value)
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) refuse(at, 'expected a plain object')
  return Object.entries(value)
}
