import type { Store } from '../store/sql.ts'
import { queryTrail, type TrailQuery } from '../store/trail/query.ts'
import { lastSeqOf, readHead, type TrailRow, tenantsOfSandboxes } from '../store/trail/rows.ts'
import { loadVerifyKey, parseAnchors, parseAnchorText, readAnchors } from './anchor.ts'
import { type Head, parseHead, type TrailRecord, type VerifyKey } from './chain.ts'
import { ChainVerifier } from './chain-verifier.ts'
import { damaged } from './files.ts'
import { type Proof, ProofBuilder } from './proof.ts'
import { rowOf } from './trail-row.ts'
import type { Verdict, VerifyOptions } from './verify.ts'

const PAGE = 2048

/** Reads and verifies an audit log in a store. */
export class StoreTrailReader {
  readonly #home: string | undefined
  readonly #store: Store
  readonly #key: VerifyKey

  /** The log of this state directory; with a key, the chain of another server in the same store. */
  constructor(home: string, store: Store, other?: VerifyKey) {
    const key = other ?? loadVerifyKey(home)
    if (key === undefined) throw damaged('the signing key is missing')
    this.#home = other ? undefined : home
    this.#store = store
    this.#key = key
  }

  /** The id of the chain. */
  get chain(): string {
    return this.#key.id
  }

  /** Whether other servers add records that this reader returns. */
  get isShared(): boolean {
    return false
  }

  /** The position of the last record that a query returns; -1 for none. */
  position(): Promise<number> {
    return this.lastSeq()
  }

  /** The matching records, parsed, in the requested order. */
  query(query: TrailQuery): Promise<TrailRecord[]> {
    return this.ownRecords(query)
  }

  /** The same, of this chain only. */
  async ownRecords(query: TrailQuery): Promise<TrailRecord[]> {
    const rows = await queryTrail(this.#store, this.#key.id, query)
    return rows.map(({ line }) => JSON.parse(line) as TrailRecord)
  }

  /** The canonical lines that the head covers. */
  async *lines(): AsyncGenerator<string, void> {
    const head = await this.head()
    for await (const { line } of this.#rows(0, head.count)) yield line
  }

  /** The seq of the last record, -1 for none; does not check the signature. */
  async lastSeq(): Promise<number> {
    return lastSeqOf(this.#store, this.#key.id)
  }

  /** The signer's key: 32 bytes in base64url. */
  get publicKey(): string {
    return this.#key.x
  }

  /** A range of the canonical lines, as they were hashed. */
  async linesAfter(after: number, limit: number): Promise<readonly string[]> {
    return (await queryTrail(this.#store, this.#key.id, { after, limit })).map(({ line }) => line)
  }

  async head(): Promise<Head> {
    const text = await readHead(this.#store, this.#key.id)
    const anchor = text === undefined ? 'it is missing' : parseAnchorText(text, this.#key)
    if (typeof anchor === 'string') throw damaged(`the signed head is not valid: ${anchor}`)
    return anchor.head
  }

  /** Verifies every record against the signed head, the head against its copy outside the store, and a given head. */
  async verify(options: VerifyOptions = {}): Promise<Verdict> {
    const against = options.against === undefined ? [] : [parseHead(options.against, this.#key)]
    const wrong = against.find((head) => typeof head === 'string')
    if (wrong !== undefined)
      return bad(0, `the head kept elsewhere does not belong to this audit log: ${wrong}`)
    const copy = this.#copiedHead()
    if (typeof copy === 'string') return bad(0, `the copy of the signed head is not valid: ${copy}`)
    const kept = [...(copy ? [copy] : []), ...(against as Head[])]
    const text = await readHead(this.#store, this.#key.id)
    const anchor = text === undefined ? 'it is missing' : parseAnchorText(text, this.#key)
    const verifier = new ChainVerifier(this.#key)
    const end = typeof anchor === 'string' ? Number.MAX_SAFE_INTEGER : anchor.head.count
    const found = await this.#walk(verifier, end, kept)
    if (found) return found
    if (typeof anchor === 'string')
      return bad(verifier.vouched, `the signed head cannot be trusted from here on: ${anchor}`)
    return this.#conclude(verifier, anchor.head, kept)
  }

  /** Proves that one record is in the audit log. */
  async proof(seq: number): Promise<Proof> {
    const head = await this.head()
    const builder = new ProofBuilder(seq, head)
    for await (const { line } of this.#rows(0, head.count)) builder.add(JSON.parse(line) as TrailRecord)
    return builder.finish(this.#key)
  }

  /** The copy outside of the store; that of another server's chain is on its machine. */
  #copiedHead(): Head | string | undefined {
    if (this.#home === undefined) return undefined
    const anchored = parseAnchors(readAnchors(this.#home) ?? '', this.#key, 'skipped')
    return typeof anchored === 'string' ? anchored : anchored.anchor.head
  }

  async #walk(verifier: ChainVerifier, end: number, kept: readonly Head[]): Promise<Verdict | undefined> {
    const owners = new Map<string, string | undefined>()
    for await (const row of this.#rows(0, end)) {
      const { seq, line } = row
      if (seq !== verifier.count) return bad(verifier.count, `it is missing: record ${seq} follows instead`)
      const problem = verifier.push(Buffer.from(line))
      if (problem !== undefined) return bad(verifier.count, problem)
      const column = changedColumn(row) ?? (await this.#changedTenant(row, owners))
      if (column) return bad(seq, `its column \`${column}\`, which queries use, differs from the record`)
      const other = kept.find((head) => head.count === verifier.count && head.hash !== verifier.hash)
      if (other) return bad(verifier.count - 1, 'it is not the record that the head kept elsewhere covers')
    }
    return undefined
  }

  /**
   * Records of older versions do not name their tenant: the column was filled from the sandboxes. SECURITY: an empty column
   * hides the record from its tenant, so it is valid only if no sandbox of that id is known.
   */
  async #changedTenant(
    { tenant, sandboxId, line }: TrailRow,
    owners: Map<string, string | undefined>,
  ): Promise<'tenant' | undefined> {
    if (rowOf(line).tenant !== null) return undefined
    if (sandboxId === null) return tenant === null ? undefined : 'tenant'
    if (!owners.has(sandboxId)) owners.set(sandboxId, (await this.#tenantsOf([sandboxId])).get(sandboxId))
    return (owners.get(sandboxId) ?? null) === tenant ? undefined : 'tenant'
  }

  #tenantsOf(ids: readonly string[]): Promise<ReadonlyMap<string, string>> {
    return tenantsOfSandboxes((sql, params) => this.#store.read(sql, params), ids)
  }

  async #conclude(verifier: ChainVerifier, head: Head, kept: readonly Head[]): Promise<Verdict> {
    const { count, checkpoints } = verifier
    if (count < head.count) return bad(count, `it is missing: the signed head covers ${head.count} records`)
    const problem = verifier.headProblem(head)
    if (problem !== undefined) return bad(verifier.vouched, `the signed head disagrees: ${problem}`)
    const ahead = kept.find((other) => other.count > count)
    if (ahead) return bad(count, `it is missing: the head kept elsewhere covers ${ahead.count} records`)
    if (await this.#isForged(head.count)) return bad(count, 'it is beyond the signed head')
    return { ok: true, records: count, checkpoints }
  }

  /** Records and head change in one transaction: records beyond an unchanged head were not written by us. */
  async #isForged(count: number): Promise<boolean> {
    const before = await queryTrail(this.#store, this.#key.id, { before: 0, limit: 1 })
    if (before.length > 0) return true
    const beyond = await queryTrail(this.#store, this.#key.id, { after: count - 1, limit: 1 })
    return beyond.length > 0 && (await this.head()).count === count
  }

  async *#rows(from: number, to: number): AsyncGenerator<TrailRow, void> {
    for (let after = from - 1; ; ) {
      const rows = await queryTrail(this.#store, this.#key.id, { after, before: to, limit: PAGE })
      yield* rows
      const last = rows.at(-1)
      if (last === undefined || rows.length < PAGE) return
      after = last.seq
      await new Promise<void>((resolve) => setImmediate(resolve))
    }
  }
}

/**
 * SECURITY: queries use columns that the hash chain does not cover. Changing a column would hide a record from every query
 * and leave the chain intact, so each column is compared with the hashed line.
 */
function changedColumn(row: TrailRow): string | undefined {
  const expected = rowOf(row.line)
  const isChanged = (name: keyof TrailRow): boolean =>
    row[name] !== expected[name] && !(name === 'tenant' && expected.tenant === null)
  return (Object.keys(expected) as (keyof TrailRow)[]).find(isChanged)
}

const bad = (seq: number, problem: string): Verdict => ({ ok: false, seq, problem })
