import { SandboxError } from '../../model/errors.ts'

/** The part of JSONPath (RFC 9535) that rules need: names, indexes, `*` and descendants. No filters, no scripts. */

/** One step from a value to values inside it. */
type Step =
  | { readonly kind: 'name'; readonly name: string }
  | { readonly kind: 'index'; readonly index: number }
  | { readonly kind: 'every' }
  | { readonly kind: 'descendants' }

/** A parsed path. */
export type JsonPath = readonly Step[]

const STEP =
  /\.\.(?=[A-Za-z_*[])|\.?\*|\.([A-Za-z_][\w-]*)|([A-Za-z_][\w-]*)|\[(?:(\d{1,9})|(\*)|'((?:[^'\\]|\\['\\])*)'|"((?:[^"\\]|\\["\\])*)")\]/y

/** Parses `$.a.b`, `$['a b'][0]`, `$.list[*].name`, `$..name`. */
export function parseJsonPath(text: string): JsonPath {
  if (!text.startsWith('$')) throw wrong(text)
  const steps: Step[] = []
  STEP.lastIndex = 1
  while (STEP.lastIndex < text.length) {
    const found = STEP.exec(text)
    if (!found) throw wrong(text)
    // A bare name or `*` is valid only behind `..`.
    const [all, dotted, bare, index, , single, double] = found
    if ((bare !== undefined || all === '*') && steps.at(-1)?.kind !== 'descendants') throw wrong(text)
    const name = dotted ?? bare ?? unquoted(single ?? double)
    if (all === '..') steps.push({ kind: 'descendants' })
    else if (name !== undefined) steps.push({ kind: 'name', name })
    else if (index !== undefined) steps.push({ kind: 'index', index: Number(index) })
    else steps.push({ kind: 'every' })
  }
  return steps
}

const unquoted = (text: string | undefined): string | undefined => text?.replace(/\\(.)/g, '$1')

const wrong = (text: string): SandboxError =>
  new SandboxError('invalid-config', `\`${text.slice(0, 100)}\` is not a JSON path that rules can use`, {
    hint: 'for example `$.path`, `$.items[*].url`, `$..query`; no filters',
  })

/** Whether two names of members are the same. */
type SameName = (name: string, wanted: string) => boolean

const isEqual: SameName = (name, wanted) => name === wanted

/** Many JSON libraries find a member whatever its case is, and some compare letters after Unicode folding. */
const isAlike: SameName = (name, wanted) => folded(name) === folded(wanted)
const folded = (name: string): string => name.normalize('NFKC').toLowerCase()

/** The values at a path. */
export const valuesAt = (value: unknown, path: JsonPath): readonly unknown[] => walk(value, path, isEqual)

/** The values that a server could take for those at a path. */
export const possibleValuesAt = (value: unknown, path: JsonPath): readonly unknown[] =>
  walk(value, path, isAlike)

function walk(value: unknown, path: JsonPath, isSame: SameName): readonly unknown[] {
  let found: readonly unknown[] = [value]
  for (const step of path) found = found.flatMap((one) => follow(one, step, isSame))
  return found
}

function follow(value: unknown, step: Step, isSame: SameName): readonly unknown[] {
  if (step.kind === 'descendants') return withDescendants(value)
  if (typeof value !== 'object' || value === null) return []
  if (step.kind === 'every') return Object.values(value)
  if (step.kind === 'index')
    return Array.isArray(value) && step.index < value.length ? [value[step.index]] : []
  if (Array.isArray(value)) return []
  return Object.entries(value).flatMap(([name, inner]) => (isSame(name, step.name) ? [inner] : []))
}

/** Iterative, because an argument may be nested deeply. */
function withDescendants(value: unknown): readonly unknown[] {
  const all = [value]
  for (let index = 0; index < all.length; index++) {
    const one = all[index]
    if (typeof one === 'object' && one !== null) for (const inner of Object.values(one)) all.push(inner)
  }
  return all
}
