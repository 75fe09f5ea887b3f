import type { Json } from '../model/event.ts'
import type { Anchor } from './anchor.ts'
import { type Members, membersOf, type SigningKey, sealRecord, signHead } from './chain.ts'
import { grow, rootOf } from './merkle.ts'

/** An entry that waits to be appended to the audit log. */
export type Entry =
  | { readonly kind: 'event'; readonly time: string; readonly members: Members }
  | { readonly kind: 'checkpoint'; readonly time: string }

/** When a batch adds a signed checkpoint or starts a new segment. */
export type BatchRules = {
  readonly key: SigningKey
  /** A checkpoint follows each record whose number is a multiple of this. */
  readonly checkpointEvery: number
  /** A segment that has reached this size is followed by the next one. */
  readonly segmentBytes: number
}

/** What one commit writes, and the anchor that is valid afterwards. */
export type Batch = {
  readonly start: number
  readonly bytes: Buffer
  readonly leaves: Buffer
  readonly anchor: Anchor
}

/** Appends the entries to the chain after the anchor's head. Pure: nothing is written. */
export function batchOf(anchor: Anchor, entries: readonly Entry[], rules: BatchRules): Batch {
  const rolls = anchor.head.offset >= rules.segmentBytes
  const start = rolls ? 0 : anchor.head.offset
  const tip = new ChainHead(anchor, { segment: anchor.head.segment + (rolls ? 1 : 0), offset: start })
  for (const entry of entries) {
    if (entry.kind === 'event') tip.add(entry.members, entry.time)
    if (entry.kind === 'checkpoint' || tip.count % rules.checkpointEvery === 0)
      tip.addCheckpoint(entry.time, rules.key)
  }
  const time = entries.at(-1)?.time ?? anchor.head.time
  return { start, ...tip.written(), anchor: { head: tip.head(time, rules.key), frontier: tip.frontier } }
}

/** The end of the chain while a batch extends it. */
class ChainHead {
  readonly frontier: string[]
  readonly #segment: number
  readonly #lines: string[] = []
  readonly #leaves: string[] = []
  #offset: number
  #hash: string
  count: number

  constructor({ head, frontier }: Anchor, position: { readonly segment: number; readonly offset: number }) {
    this.frontier = [...frontier]
    this.count = head.count
    this.#hash = head.hash
    this.#segment = position.segment
    this.#offset = position.offset
  }

  add(members: Members, time: string): void {
    const { line, hash } = sealRecord(members, { seq: this.count, time, prev_hash: this.#hash })
    grow(this.frontier, this.count, hash)
    this.count += 1
    this.#hash = hash
    this.#offset += Buffer.byteLength(line) + 1
    this.#lines.push(`${line}\n`)
    this.#leaves.push(hash)
  }

  addCheckpoint(time: string, key: SigningKey): void {
    this.add(membersOf({ event: 'Checkpoint', head: this.head(time, key) as unknown as Json }), time)
  }

  head(time: string, key: SigningKey) {
    const { count } = this
    const position = { offset: this.#offset, segment: this.#segment }
    return signHead(
      { ...position, count, hash: this.#hash, root: rootOf(this.frontier), seq: count - 1, time },
      key,
    )
  }

  written(): { readonly bytes: Buffer; readonly leaves: Buffer } {
    return { bytes: Buffer.from(this.#lines.join('')), leaves: Buffer.from(this.#leaves.join(''), 'hex') }
  }
}
