import { PROTECTION, protectedBy } from '../paths/protect.ts'
import { HIDDEN, isOpen, isStatic, meets, STAR } from './shell/unknown-text.ts'

/** Matches paths, which may contain globs and unknown parts, against lists of sensitive names. */

/** A path as segments; marks are kept. */
export type PathPattern = {
  readonly segments: readonly string[]
  readonly text: string
  readonly open: boolean
}

type Entry = readonly string[]
/** Patterns indexed by first segment, so that a plain path is compared with few of them. */
export type Entries = {
  readonly all: readonly Entry[]
  readonly byFirst: ReadonlyMap<string, readonly Entry[]>
  /** Patterns whose first segment contains a wildcard. */
  readonly loose: readonly Entry[]
  /** The same, by the last character of that segment; in the order of the list, with those that end with a wildcard. */
  readonly looseByEnd: ReadonlyMap<string, readonly Entry[]>
  /** Those that end with a wildcard. */
  readonly looseOpenEnd: readonly Entry[]
  /** Those that a glob meets, for the globs seen last. */
  readonly byGlob: Map<string, readonly Entry[]>
}

const NONE: readonly Entry[] = []

const segmentsOf = (path: string): readonly string[] => path.split('/').filter((segment) => segment !== '')

/** Compiles a list of paths or names; `*` inside a segment matches any text. */
export function entriesOf(list: readonly string[]): Entries {
  const all = list.map((line) => segmentsOf(line.replaceAll('*', STAR)).map(folded))
  const byFirst = new Map<string, Entry[]>()
  for (const entry of all) {
    const first = entry[0] as string
    if (isStatic(first)) byFirst.set(first, [...(byFirst.get(first) ?? []), entry])
  }
  const loose = all.filter((entry) => !isStatic(entry[0] as string))
  return { all, byFirst, loose, ...byEnd(loose), byGlob: new Map() }
}

const endOf = (entry: Entry): string => (entry[0] as string).at(-1) ?? ''

function byEnd(loose: readonly Entry[]): Pick<Entries, 'looseByEnd' | 'looseOpenEnd'> {
  const ends = new Set(loose.map(endOf).filter(isStatic))
  const fitting = (end: string): readonly Entry[] =>
    loose.filter((entry) => endOf(entry) === end || !isStatic(endOf(entry)))
  return {
    looseByEnd: new Map([...ends].map((end) => [end, fitting(end)])),
    looseOpenEnd: loose.filter((entry) => !isStatic(endOf(entry))),
  }
}

const PLAIN = /^[a-z0-9_.-]*[a-z0-9_-]$/

/** Normalises a name as file systems do that ignore case, trailing dots or Unicode forms. */
function folded(segment: string): string {
  if (PLAIN.test(segment)) return segment
  const plain = segment.normalize('NFKC').toLowerCase()
  let end = plain.length
  while (end > 0 && (plain[end - 1] === '.' || plain[end - 1] === ' ')) end--
  return plain.slice(0, end) || plain
}

const MAX_GLOBS = 512

function globCandidates({ all, byGlob }: Entries, segment: string): readonly Entry[] {
  let found = byGlob.get(segment)
  if (!found) {
    found = all.filter((entry) => meets(segment, entry[0] as string))
    if (byGlob.size >= MAX_GLOBS) byGlob.clear()
    byGlob.set(segment, found)
  }
  return found
}

/** The entries that could start at a segment. Of those with a wildcard, only the ones that can end like the segment. */
function candidates(entries: Entries, segment: string): readonly Entry[] {
  if (!isStatic(segment)) return globCandidates(entries, segment)
  const found = entries.byFirst.get(segment) ?? NONE
  if (entries.loose.length === 0) return found
  const loose = entries.looseByEnd.get(segment.at(-1) ?? '') ?? entries.looseOpenEnd
  if (found.length === 0) return loose
  return loose.length === 0 ? found : [...found, ...loose]
}

/** Whether the absolute path is the entry or below it. */
export const startsWith = (at: PathPattern, entry: Entry): boolean =>
  entry.every((segment, index) => meets(folded(at.segments[index] ?? ''), segment))

/** The first entry that the absolute path is at or below. */
export const firstBelow = (
  at: PathPattern,
  entries: Entries,
  fits: (entry: Entry) => boolean = () => true,
): Entry | undefined =>
  candidates(entries, folded(at.segments[0] ?? '')).find((entry) => startsWith(at, entry) && fits(entry))

/** Whether the absolute path is at or below one of the entries. */
export const below = (at: PathPattern, entries: Entries): boolean => firstBelow(at, entries) !== undefined

/** The first entry that occurs in the path, at any position from a segment on. */
export function firstOf(
  at: PathPattern,
  entries: Entries,
  from = 0,
  fits: (segment: string, name: string) => boolean = aimsAt,
): Entry | undefined {
  const { segments } = at
  for (let start = from; start < segments.length; start++) {
    const segment = segments[start] as string
    // A segment of wildcards alone is meant for nothing.
    if (fits === aimsAt && NOTHING.test(segment)) continue
    for (const entry of candidates(entries, folded(segment))) {
      if (start + entry.length > segments.length) continue
      if (entry.every((name, index) => fits(folded(segments[start + index] as string), name))) return entry
    }
  }
  return undefined
}

const NOTHING = /^[\uFDD0-\uFDD4]+$/
const MARKS = /[\uFDD0-\uFDEF]/g

/**
 * Whether a segment is meant for a name. A plain segment is what it says; a glob is meant for it when it meets the name
 * and says something of it: a leading dot, a beginning, or at least half of it.
 */
function aimsAt(segment: string, name: string): boolean {
  if (isStatic(segment)) return meets(segment, name)
  if (!meets(segment, name)) return false
  if (!isStatic(name)) return endsAlike(segment, name)
  if ((segment[0] === '.' && !isOpen(segment)) || (segment === HIDDEN && name[0] === '.')) return true
  const known = segment.replace(MARKS, '').length
  return /^[^\uFDD0-\uFDEF]{3}/.test(segment) || known * 2 >= name.length
}

/** Whether every text that the glob matches has the suffix of the name's pattern: `*.pem`, `tls-*.pem`. */
function endsAlike(segment: string, name: string): boolean {
  const ending = name.slice(Math.max(name.lastIndexOf(STAR), 0) + 1)
  const begin = name.slice(0, name.indexOf(STAR))
  return ending + begin !== '' && segment.endsWith(ending) && segment.startsWith(begin)
}

/** Segments of which every protected path contains one; few other paths do. */
const PROTECTED_SEGMENTS: ReadonlySet<string> = new Set(
  [...PROTECTION.roots, ...PROTECTION.inner, ...PROTECTION.names].map((name) =>
    (name.split('/')[0] as string).toLowerCase(),
  ),
)

/** The protected name that a change of a relative path would affect. */
export function protectedName(relative: string): string | undefined {
  const segments = relative.split('/').map((segment) => (isStatic(segment) ? folded(segment) : segment))
  if (!segments.some((segment) => PROTECTED_SEGMENTS.has(segment))) return undefined
  return protectedBy(PROTECTION, segments.join('/'))
}

const PROTECTED_ENTRIES = entriesOf([...PROTECTION.roots, ...PROTECTION.inner, ...PROTECTION.names])

/** The protected name that a glob targets. */
export function protectedGlob(segments: readonly string[]): string | undefined {
  if (segments.every(isStatic)) return undefined
  return firstOf({ segments, text: '', open: false }, PROTECTED_ENTRIES)?.join('/')
}
