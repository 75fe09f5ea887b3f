import type { Json } from '../event.ts'
import { type Infer, type JsonSchema, object, refuse, type Shape } from '../shape.ts'

/**
 * The building blocks of answers, beside those of `shape.ts`. An answer's shape is strict like any other, so that tests
 * find a field that is sent and not declared; `/openapi.json` describes its objects as open, because clients must
 * ignore fields that they do not know.
 */

/** Text of any length. */
export const string = (schema: JsonSchema = {}): Shape<string> => ({
  schema: { type: 'string', ...schema },
  parse: (value, at) => (typeof value === 'string' ? value : refuse(at, 'expected text')),
})

/** A time as ISO 8601, in UTC. */
export const time = (): Shape<string> => ({
  schema: { type: 'string', format: 'date-time' },
  parse: (value, at) =>
    typeof value === 'string' && /^\d{4}-\d\d-\d\dT[\d:.]+Z$/.test(value)
      ? value
      : refuse(at, 'expected a time'),
})

/** Exactly this value. */
export const literal = <const T extends string | boolean | null>(expected: T): Shape<T> => ({
  schema: { const: expected },
  parse: (value, at) => (value === expected ? expected : refuse(at, `expected \`${expected}\``)),
})

/** The value, or `null` where there is none. */
export const nullable = <T>(inner: Shape<T>): Shape<T | null> => ({
  schema: orNull(inner.schema),
  parse: (value, at) => (value === null ? null : inner.parse(value, at)),
})

function orNull(schema: JsonSchema): JsonSchema {
  return typeof schema.type === 'string' && schema.enum === undefined
    ? { ...schema, type: [schema.type, 'null'] }
    : { anyOf: [schema, { type: 'null' }] }
}

/** A list of any length. */
export const arrayOf = <T>(item: Shape<T>): Shape<readonly T[]> => ({
  schema: { type: 'array', items: item.schema },
  parse: (value, at) =>
    Array.isArray(value)
      ? value.map((one, index) => item.parse(one, `${at}[${index}]`))
      : refuse(at, 'expected a list'),
})

/** One of several forms. When none fits, the error names what is wrong with each. */
export const variants = <const S extends readonly Shape<unknown>[]>(
  ...shapes: S
): Shape<Infer<S[number]>> => ({
  schema: { anyOf: shapes.map(({ schema }) => schema) },
  parse(value, at) {
    const problems: string[] = []
    for (const shape of shapes)
      try {
        return shape.parse(value, at) as Infer<S[number]>
      } catch (error) {
        problems.push((error as Error).message)
      }
    return refuse(at, problems.join('; or '))
  },
})

/** Any JSON value. */
export const json = (): Shape<Json> => ({ schema: {}, parse: (value) => value as Json })

/** The same shape with a sentence for `/openapi.json`. */
export const described = <S extends Shape<unknown>>(description: string, shape: S): S => ({
  ...shape,
  schema: { ...shape.schema, description },
})

/** One page of a list; `next` is the cursor of the page that follows. */
export const pageOf = <T>(item: Shape<T>) => object(pageFields(item))

/** The same for a page that says more. */
export const pageFields = <T>(item: Shape<T>) => ({ items: arrayOf(item), next: nullable(string()) })

/** One page of a list. */
export type Page<T> = { readonly items: readonly T[]; readonly next: string | null }
