import { mkdirSync } from 'node:fs'
import type { IdRanges } from '../../model/plan.ts'
import { ID_COUNT, STAGE } from '../guest/protocol.ts'
import { readText } from '../system.ts'

/**
 * Host ids for sandboxes with a root user: 4096 ranges of 65536 ids that systemd's table of users and groups calls unused.
 * The first belongs to files, the others to live sandboxes.
 */
const FIRST = 0x7000_0000
const RANGES = 4096
const LOCKS = '/run/ringfence/ids'

/** What the files say that assign ids on this host. */
export type IdFiles = { readonly users: string; readonly subordinate: string; readonly map: string }

type Span = { readonly from: number; readonly to: number }

const overlaps = (one: Span, other: Span): boolean => one.from < other.to && other.from < one.to

const rangeAt = (index: number): Span => ({
  from: FIRST + index * ID_COUNT,
  to: FIRST + (index + 1) * ID_COUNT,
})

/** `name:x:uid:gid:…` and `name:x:gid:…`: single ids; `name:first:count`: subordinate ones. */
function taken({ users, subordinate }: IdFiles): readonly Span[] {
  const single = users.split('\n').map((line) => Number(line.split(':')[2] ?? Number.NaN))
  const ranges = subordinate.split('\n').map((line) => line.split(':').slice(1, 3).map(Number))
  return [
    ...single.map((id) => ({ from: id, to: id + 1 })),
    ...ranges.map(([from = Number.NaN, count = Number.NaN]) => ({ from, to: from + count })),
  ].filter(({ from, to }) => Number.isInteger(from) && Number.isInteger(to))
}

/** Whether this process may use all these ids: in a container only some of the host's exist. */
const exist = (map: string): boolean =>
  map.split('\n').some((line) => {
    const [from = Number.NaN, , count = Number.NaN] = line.trim().split(/\s+/).map(Number)
    return from <= FIRST && from + count >= FIRST + RANGES * ID_COUNT
  })

/** The ranges that are free, or why there are none. The longest run without a gap is taken. */
export function freeRanges(files: IdFiles): Omit<IdRanges, 'locks'> | { readonly reason: string } {
  const used = taken(files)
  const isFree = (index: number): boolean => !used.some((span) => overlaps(span, rangeAt(index)))
  if (!exist(files.map))
    return { reason: `the host ids from ${FIRST} on do not exist here (see /proc/self/uid_map)` }
  if (!isFree(0)) return { reason: `the host ids from ${FIRST} on are assigned to users of this host` }
  let best = { first: 0, count: 0 }
  for (let index = 1, first = 1; index <= RANGES; index++) {
    if (index < RANGES && isFree(index)) continue
    if (index - first > best.count) best = { first, count: index - first }
    first = index + 1
  }
  if (best.count === 0) return { reason: 'all host ids for sandboxes are assigned to users of this host' }
  return { stored: FIRST, first: rangeAt(best.first).from, count: best.count }
}

const join = (...paths: readonly string[]): string => paths.map((path) => readText(path) ?? '').join('\n')

/** The ranges of this host, with the directory of their locks. */
export function idRanges(): IdRanges | { readonly reason: string } {
  const found = freeRanges({
    users: join('/etc/passwd', '/etc/group'),
    subordinate: join('/etc/subuid', '/etc/subgid'),
    map: readText('/proc/self/uid_map') ?? '',
  })
  if ('reason' in found) return found
  try {
    mkdirSync(STAGE, { recursive: true, mode: 0o755 })
    mkdirSync(LOCKS, { recursive: true, mode: 0o700 })
  } catch (error) {
    return { reason: `cannot create ${LOCKS}: ${(error as Error).message}` }
  }
  return { ...found, locks: LOCKS }
}
