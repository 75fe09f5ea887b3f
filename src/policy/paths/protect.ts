import type { Protection } from '../../model/plan.ts'
import { ANYWHERE, DEPENDENCIES, IN_REPOSITORY, type ProtectedRow, REPOSITORIES } from './protect-table.ts'

const namesOf = (rows: readonly ProtectedRow[]): readonly string[] => rows.map(({ name }) => name)

/** The table in the form that backends use. Nothing in it can be changed or created from inside. */
export const PROTECTION: Protection = {
  roots: namesOf(REPOSITORIES),
  inner: namesOf(IN_REPOSITORY),
  names: namesOf(ANYWHERE),
  exceptBelow: DEPENDENCIES,
  pinned: [],
}

/** Protected paths inside a repository, relative to its directory. */
const INSIDE_GIT: readonly string[] = PROTECTION.inner
  .filter((pattern) => pattern.startsWith('.git/'))
  .map((pattern) => pattern.slice(5))

/** The protection of a workspace with repositories elsewhere, and with files that git or a link refers to. */
export function pinnedTo(repositories: readonly string[], files: readonly string[] = []): Protection {
  const inside = repositories.flatMap((repository) => INSIDE_GIT.map((rest) => `${repository}/${rest}`))
  return { ...PROTECTION, pinned: [...new Set([...inside, ...files])] }
}

const same = (a: string, b: string): boolean => a.toLowerCase() === b.toLowerCase()

/** Whether the pattern `a/b` occurs in the path at `start`. */
const stands = (pattern: string, segments: readonly string[], start: number): boolean =>
  pattern.split('/').every((part, index) => same(part, segments[start + index] ?? ''))

/** Whether the path ends in the middle of a pattern: `.github` of `.github/workflows`. */
const endsWithin = (pattern: string, segments: readonly string[], start: number): boolean => {
  const parts = pattern.split('/')
  const rest = segments.slice(start)
  return rest.length < parts.length && rest.every((segment, index) => same(segment, parts[index] as string))
}

/** The protected pattern that a symlink at this path could redirect. */
function leadsTo({ inner, names }: Protection, relative: string): string | undefined {
  const segments = relative.split('/').filter((segment) => segment !== '' && segment !== '.')
  return [...inner, ...names].find((pattern) =>
    segments.some((_, start) => endsWithin(pattern, segments, start)),
  )
}

/** Checks a path that comes back from a guest: by its name, and for a link also by the patterns it could redirect. */
export const refusedBy = (protection: Protection, relative: string, leads = false): string | undefined =>
  protectedBy(protection, relative) ?? (leads ? leadsTo(protection, relative) : undefined)

/** Why changing this relative path is refused, or `undefined`. The guest agent implements the same rules in C. */
export function protectedBy(protection: Protection, relative: string): string | undefined {
  const segments = relative.split('/').filter((segment) => segment !== '' && segment !== '.')
  const dependency = segments.findIndex((segment) =>
    protection.exceptBelow.some((name) => same(name, segment)),
  )
  const last = segments.at(-1)
  if (last !== undefined && protection.roots.some((name) => same(name, last))) return last
  for (let start = 0; start < segments.length; start++) {
    for (const pattern of protection.inner) {
      if (stands(pattern, segments, start)) return pattern
    }
    const name = segments[start] as string
    const below = dependency !== -1 && dependency < start
    const named = below ? undefined : protection.names.find((entry) => stands(entry, segments, start))
    if (named !== undefined) return named.includes('/') ? named : name
  }
  return undefined
}
