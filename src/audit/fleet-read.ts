import type { Store } from '../store/sql.ts'
import { chainsIn, lastPosition, orderRecords, queryOrdered } from '../store/trail/order.ts'
import type { TrailQuery } from '../store/trail/query.ts'
import { type TrailRecord, verifyKeyOf } from './chain.ts'
import { StoreTrailReader } from './store-read.ts'
import type { Verdict, VerifyOptions } from './verify.ts'

/** The public keys of all chains of a cluster, by the id of the chain, kept where only nodes can change them. */
export type ChainKeys = () => Promise<ReadonlyMap<string, string>>

/** Reads the chains of all nodes as one log; heads, proofs and lines are those of this node's own chain. */
export class FleetTrailReader extends StoreTrailReader {
  readonly #home: string
  readonly #store: Store
  readonly #keys: ChainKeys

  constructor(home: string, store: Store, keys: ChainKeys) {
    super(home, store)
    this.#home = home
    this.#store = store
    this.#keys = keys
  }

  override get isShared(): boolean {
    return true
  }

  override async query(query: TrailQuery): Promise<TrailRecord[]> {
    await this.#order()
    const rows = await queryOrdered(this.#store, query)
    return rows.map(({ position, chain, line }) => ({
      ...(JSON.parse(line) as TrailRecord),
      chain,
      position,
    }))
  }

  override async position(): Promise<number> {
    await this.#order()
    return lastPosition(this.#store)
  }

  /** A node without its lease may not write, and still reads what others have put in order. */
  #order(): Promise<void> {
    return orderRecords(this.#store).catch(() => {})
  }

  /** Verifies every chain; the head that was kept elsewhere belongs to this node's own. */
  override async verify(options: VerifyOptions = {}): Promise<Verdict> {
    const own = await super.verify(options)
    if (!own.ok) return own
    const keys = await this.#keys()
    const present = await chainsIn(this.#store)
    const unknown = present.find((chain) => !keys.has(chain) && chain !== this.chain)
    if (unknown !== undefined) return bad(unknown, 'no node of this cluster has signed it')
    let { records, checkpoints } = own
    for (const [chain, x] of keys) {
      if (chain === this.chain) continue
      if (!present.includes(chain)) return bad(chain, 'it is missing')
      const verdict = await new StoreTrailReader(this.#home, this.#store, verifyKeyOf(x)).verify()
      if (!verdict.ok) return { ...verdict, problem: `chain ${chain}: ${verdict.problem}` }
      records += verdict.records
      checkpoints += verdict.checkpoints
    }
    return { ok: true, records, checkpoints }
  }
}

const bad = (chain: string, problem: string): Verdict => ({
  ok: false,
  seq: 0,
  problem: `chain ${chain}: ${problem}`,
})
