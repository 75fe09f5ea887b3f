import { loadVerifyKey, parseAnchors, readAnchors } from './anchor.ts'
import type { TrailRecord } from './chain.ts'
import { END, type Position, readLines, START, segmentsIn } from './files.ts'

/** Which records to read; every given field must match. */
export type TrailFilter = {
  readonly events?: readonly string[]
  /** `sandbox` selects violations of guarantees. */
  readonly eventType?: 'sandbox'
  readonly agentId?: string
  readonly sandboxId?: string
  readonly execId?: string
  /** At or after this time. */
  readonly since?: Date
  /** The maximum number of records. */
  readonly limit?: number
}

/** The position of the signed head; records beyond it were never acknowledged. */
export function endOfTrail(home: string): Position {
  const key = loadVerifyKey(home)
  const text = readAnchors(home)
  const anchored = key && text !== undefined ? parseAnchors(text, key, 'skipped') : undefined
  // A log without a valid head is still readable, because an investigation needs its content.
  return typeof anchored === 'object' ? anchored.anchor.head : END
}

/** The matching records, oldest first, read lazily. Does not verify them; `verifyTrail` does. */
export function* readTrail(
  home: string,
  filter: TrailFilter = {},
  range: { readonly from?: Position; readonly to?: Position } = {},
): Generator<TrailRecord, void> {
  let left = filter.limit ?? Number.POSITIVE_INFINITY
  if (left <= 0) return
  for (const line of readLines(home, range.from ?? START, range.to ?? endOfTrail(home))) {
    const record = parseRecord(line)
    if (record === undefined || !matches(record, filter)) continue
    yield record
    left -= 1
    if (left <= 0) return
  }
}

/** The last `count` matching records, oldest first; reads backwards from the end, segment by segment. */
export function readTail(
  home: string,
  count: number,
  filter: TrailFilter = {},
  end: Position = endOfTrail(home),
): TrailRecord[] {
  let found: TrailRecord[] = []
  for (const segment of segmentsIn(home).reverse()) {
    if (found.length >= count) break
    if (segment > end.segment) continue
    const to = segment === end.segment ? end : { segment, offset: Number.POSITIVE_INFINITY }
    const range = { from: { segment, offset: 0 }, to }
    found = [...lastOf(readTrail(home, filter, range), count - found.length), ...found]
  }
  return found
}

/** Lines that are read before the event loop runs again. */
const TURN = 1024

/** The last `count` matching records after `from`, oldest first, without blocking the event loop. */
export async function readLast(
  home: string,
  count: number,
  filter: TrailFilter,
  from: Position = START,
): Promise<TrailRecord[]> {
  const last: TrailRecord[] = []
  let lines = 0
  for (const line of readLines(home, from, endOfTrail(home))) {
    const record = parseRecord(line)
    if (record !== undefined && matches(record, filter)) last.push(record)
    if (last.length > count * 2) last.splice(0, last.length - count)
    if (++lines % TURN === 0) await new Promise<void>((resolve) => setImmediate(resolve))
  }
  return last.slice(Math.max(0, last.length - count))
}

function lastOf<T>(items: Iterable<T>, count: number): T[] {
  const last: T[] = []
  for (const item of items) {
    last.push(item)
    if (last.length > count * 2) last.splice(0, last.length - count)
  }
  return last.slice(Math.max(0, last.length - count))
}

/** The canonical lines (without newlines) that the signed head covers, exactly as they were hashed. */
export function* exportTrail(home: string): Generator<string, void> {
  for (const line of readLines(home, START, endOfTrail(home))) {
    yield line.toString('utf8', 0, line.at(-1) === 10 ? line.length - 1 : line.length)
  }
}

function parseRecord(line: Buffer): TrailRecord | undefined {
  try {
    const value: unknown = JSON.parse(line.toString('utf8'))
    return typeof value === 'object' && value !== null ? (value as TrailRecord) : undefined
  } catch {
    return undefined
  }
}

function matches(record: TrailRecord, filter: TrailFilter): boolean {
  const { events, agentId, sandboxId, execId, since } = filter
  return (
    (events === undefined || events.includes(record.event)) &&
    (filter.eventType === undefined || record.event === 'SandboxViolation') &&
    (agentId === undefined || record.agent_id === agentId) &&
    (sandboxId === undefined || record.sandbox_id === sandboxId) &&
    (execId === undefined || record.exec_id === execId) &&
    (since === undefined || Date.parse(record.time) >= since.getTime())
  )
}
