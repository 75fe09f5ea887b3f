import type { Event, EventSink, Json, Pace } from '../model/event.ts'
import type { Store, Tx } from '../store/sql.ts'
import { headOf, insertTrail, saveHead, type TrailRow } from '../store/trail/rows.ts'
import {
  type Anchor,
  type Anchored,
  parseAnchors,
  parseAnchorText,
  readAnchors,
  writeAnchor,
} from './anchor.ts'
import { batchOf, type Entry } from './batch.ts'
import { canonical } from './canonical.ts'
import type { SigningKey } from './chain.ts'
import { damaged } from './files.ts'
import { EntryQueue } from './queue.ts'
import { RecordOwners } from './record-owners.ts'
import { rowOf } from './trail-row.ts'

const CHECKPOINT_EVERY = 1000
/** How far the copy of the head outside the store may lag behind. */
const COPY_EVERY_MS = 1000

/** What an audit log in a store is made of. */
export type StoreTrailParts = {
  readonly home: string
  readonly store: Store
  readonly key: SigningKey
  readonly now?: () => Date
  readonly checkpointEvery?: number
}

type Listener = (rows: readonly TrailRow[]) => void

/**
 * The audit log in a store: the same lines, chain and checkpoints as in segment files. The signed head changes in the same
 * transaction that adds the records, so there is nothing to repair after a crash; a copy of it outside the store, at most a
 * second old, reveals a tail that was removed together with its head.
 */
export class StoreTrail implements EventSink {
  readonly #parts: StoreTrailParts
  readonly #queue: EntryQueue
  readonly #listeners = new Set<Listener>()
  readonly #owners = new RecordOwners()
  #known: { readonly text: string; readonly anchor: Anchor } | undefined
  #copied: Anchored | undefined
  #copySoon: NodeJS.Timeout | undefined
  #copying: Promise<void> | undefined
  #closed = false

  constructor(parts: StoreTrailParts) {
    this.#parts = parts
    this.#queue = new EntryQueue((take) => this.#commit(take), parts.now ?? (() => new Date()))
  }

  /** The id of the chain in the store. */
  get chain(): string {
    return this.#parts.key.id
  }

  /** The public key of the chain. */
  get publicKey(): string {
    return this.#parts.key.x
  }

  /** Resolves once the record and the head that covers it are on disk; otherwise nothing was recorded. */
  append(event: Event, pace?: Pace): Promise<void> {
    return this.#queue.append(event, pace)
  }

  /** Calls the listener with each committed batch, in order. */
  onCommitted(listener: Listener): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** The first lookup for the tenant of a sandbox: one that is being created is not in the store yet. */
  set ownerOf(ownerOf: (sandboxId: string) => string | undefined) {
    this.#owners.live = ownerOf
  }

  checkpoint(): Promise<void> {
    return this.#queue.checkpoint()
  }

  /** Appends a final checkpoint. Calling it again has no effect. */
  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    await this.#queue.close()
    clearTimeout(this.#copySoon)
    await this.#copying
    await this.#copyHead()
  }

  async #commit(take: () => readonly Entry[]): Promise<void> {
    const rows = await this.#parts.store
      .write((tx) => this.#write(tx, take()))
      .catch((error: unknown) => {
        this.#known = undefined
        throw error
      })
    this.#tell(rows)
  }

  async #write(tx: Tx, entries: readonly Entry[]): Promise<readonly TrailRow[]> {
    const { store, key, checkpointEvery = CHECKPOINT_EVERY } = this.#parts
    const anchor = this.#anchorIn(await headOf(tx, this.chain, store.kind))
    const rules = { key, checkpointEvery, segmentBytes: Number.POSITIVE_INFINITY }
    const next = batchOf(anchor, await this.#owners.name(tx, entries), rules)
    const rows = next.bytes.toString('utf8').split('\n').slice(0, -1).map(rowOf)
    await insertTrail(tx, this.chain, rows)
    const text = canonical(next.anchor as unknown as Json)
    await saveHead(tx, this.chain, text)
    this.#known = { text, anchor: next.anchor }
    return rows
  }

  /** Another process may have appended meanwhile, so the head is read each time, and parsed only if it changed. */
  #anchorIn(text: string | undefined): Anchor {
    if (text === undefined) throw damaged('the signed head is missing in the store')
    if (this.#known?.text === text) return this.#known.anchor
    const anchor = parseAnchorText(text, this.#parts.key)
    if (typeof anchor === 'string') throw damaged(`the signed head is not valid: ${anchor}`)
    return anchor
  }

  #tell(rows: readonly TrailRow[]): void {
    this.#copySoon ??= setTimeout(() => {
      this.#copying = this.#copyHead()
    }, COPY_EVERY_MS).unref()
    for (const listener of this.#listeners) listener(rows)
  }

  async #copyHead(): Promise<void> {
    const { home, key } = this.#parts
    try {
      const text = readAnchors(home)
      const kept = this.#copied?.text === text ? this.#copied : undefined
      const last = kept ?? parseAnchors(text ?? '', key, 'skipped')
      if (typeof last === 'string' || !this.#known) return
      if (this.#known.anchor.head.count > last.anchor.head.count)
        this.#copied = await writeAnchor(home, last, this.#known.anchor, false)
    } catch {
      // The head in the store is authoritative; a copy that cannot be written now is written later.
    } finally {
      // INVARIANT: one copy at a time; the next one is scheduled only after this one.
      this.#copySoon = undefined
    }
  }
}
