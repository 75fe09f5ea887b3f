import type { Store } from '../store/sql.ts'
import type { TrailQuery } from '../store/trail/query.ts'
import { positionOf, type TrailRecord } from './chain.ts'
import { END, START } from './files.ts'
import { type ChainKeys, FleetTrailReader } from './fleet-read.ts'
import { trailLocation } from './open-store-trail.ts'
import { type Proof, proofOf } from './proof.ts'
import { endOfTrail, exportTrail, readTail, readTrail, type TrailFilter } from './read.ts'
import { StoreTrailReader } from './store-read.ts'
import { type Verdict, type VerifyOptions, verifyTrail } from './verify.ts'

/** Reads an audit log, wherever it is stored. */
export interface TrailSource {
  /** The last matching records, oldest first, and with `follow` the new ones. */
  tail(count: number, filter: TrailFilter, follow?: AbortSignal): AsyncIterable<TrailRecord>
  query(filter: TrailFilter): AsyncIterable<TrailRecord>
  verify(options: VerifyOptions): Promise<Verdict>
  lines(): AsyncIterable<string>
  proof(seq: number): Promise<Proof>
  close(): Promise<void>
}

const FOLLOW_MS = 200
const PAGE = 1000

/** The audit log of a state directory: its segment files, or the store that has taken them over. */
export async function trailSource(
  home: string,
  openStore: () => Promise<Store>,
  /** In a cluster: the keys of the chains of all nodes, which are then read as one log. */
  chainKeys?: (store: Store) => ReturnType<ChainKeys>,
): Promise<TrailSource> {
  if (trailLocation(home) === undefined) return fileSource(home)
  const store = await openStore()
  const reader = chainKeys
    ? new FleetTrailReader(home, store, () => chainKeys(store))
    : new StoreTrailReader(home, store)
  return storeSource(reader, store)
}

const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, FOLLOW_MS))

function fileSource(home: string): TrailSource {
  return {
    async *tail(count, filter, follow) {
      const end = endOfTrail(home)
      yield* readTail(home, count, filter, end)
      let from = end === END ? START : end
      while (follow && !follow.aborted) {
        await pause()
        const to = endOfTrail(home)
        if (to === END || (to.segment === from.segment && to.offset === from.offset)) continue
        yield* readTrail(home, filter, { from, to })
        from = to
      }
    },
    async *query(filter) {
      yield* readTrail(home, filter)
    },
    verify: (options) => verifyTrail(home, options),
    async *lines() {
      yield* exportTrail(home)
    },
    proof: async (seq) => proofOf(home, seq),
    close: async () => {},
  }
}

function storeSource(reader: StoreTrailReader, store: Store): TrailSource {
  const all = async function* (filter: TrailFilter, from: number): AsyncGenerator<TrailRecord, void> {
    let left = filter.limit ?? Number.POSITIVE_INFINITY
    for (let after = from; left > 0; ) {
      const records = await reader.query({ ...queryOf(filter), after, limit: Math.min(PAGE, left) })
      yield* records
      left -= records.length
      const last = records.at(-1)
      if (last === undefined || records.length < PAGE) return
      after = positionOf(last)
    }
  }
  return {
    async *tail(count, filter, follow) {
      let seq = await reader.position()
      const last = count > 0 ? await reader.query({ ...queryOf(filter), order: 'desc', limit: count }) : []
      yield* last.reverse()
      while (follow && !follow.aborted) {
        await pause()
        for await (const record of all(filter, Math.max(seq, ...last.slice(-1).map(positionOf)))) {
          seq = positionOf(record)
          yield record
        }
      }
    },
    query: (filter) => all(filter, -1),
    verify: (options) => reader.verify(options),
    lines: () => reader.lines(),
    proof: (seq) => reader.proof(seq),
    close: () => store.close(),
  }
}

const queryOf = (filter: TrailFilter): Omit<TrailQuery, 'limit'> => ({
  events: filter.eventType === 'sandbox' ? ['SandboxViolation'] : filter.events,
  agentId: filter.agentId,
  sandboxId: filter.sandboxId,
  execId: filter.execId,
  since: filter.since?.toISOString(),
})
