import { readFileSync } from 'node:fs'
import { type Anchor, type Anchored, loadVerifyKey, parseAnchors, readAnchors } from './anchor.ts'
import { type Head, parseHead, type TrailRecord, type VerifyKey } from './chain.ts'
import { ChainVerifier } from './chain-verifier.ts'
import { END, hasLineBeyond, isErrno, type Position, pathsOf, readLines, START, segmentsIn } from './files.ts'
import { isLocked } from './lock.ts'
import { frontierOf, rootOf } from './merkle.ts'

/** The result of a verification. `seq` is the first record that was changed or is missing. */
export type Verdict =
  | { readonly ok: true; readonly records: number; readonly checkpoints: number }
  | { readonly ok: false; readonly seq: number; readonly problem: string }

/** What to verify, and against which trusted key or head. */
export type VerifyOptions = {
  /** A head kept elsewhere: reveals a log that was rolled back together with its own head. */
  readonly against?: unknown
}

/** How often to catch up with active writers before the last head is accepted. */
const CATCH_UP_ROUNDS = 5
const LOOK_AGAIN_MS = 5
const YIELD_EVERY = 4096

/**
 * Verifies the whole audit log against its signed head. Changes nothing and takes no lock: what a head covers never changes,
 * so only what is beyond it needs care while others write.
 */
export async function verifyTrail(home: string, options: VerifyOptions = {}): Promise<Verdict> {
  const key = loadVerifyKey(home)
  if (key === undefined) return verifyWithoutKey(home, options)
  const against = options.against === undefined ? undefined : parseHead(options.against, key)
  if (typeof against === 'string')
    return bad(0, `the head kept elsewhere does not belong to this audit log: ${against}`)
  const walk = new Walk(home, key, against)
  const anchored = await genuineAnchor(home, key)
  if (typeof anchored === 'string') return (await walk.to(END)) ?? walk.unproven(anchored)
  return verifyUpTo(walk, anchored)
}

/** The newer anchor, once both slots are complete or a lock explains why one is not. */
async function genuineAnchor(home: string, key: VerifyKey): Promise<Anchored | string> {
  for (let look = 0; ; look++) {
    const text = readAnchors(home)
    if (text === undefined) return 'it is missing'
    const anchored = parseAnchors(text, key, 'refused')
    if (typeof anchored === 'object') return anchored
    if (isLocked(pathsOf(home).lock)) return parseAnchors(text, key, 'skipped')
    if (look >= 3) return anchored
    await pause(LOOK_AGAIN_MS)
  }
}

/** Without a key there is no log yet: nothing at all, or one that is being created under the lock. */
async function verifyWithoutKey(home: string, options: VerifyOptions): Promise<Verdict> {
  const written = segmentsIn(home).length > 0
  const begun = readAnchors(home) !== undefined && !isLocked(pathsOf(home).lock)
  // Checked last: a process that creates the log meanwhile creates the key before anything else is visible.
  if (loadVerifyKey(home) !== undefined) return verifyTrail(home, options)
  const empty = !begun && !written && options.against === undefined
  return empty ? { ok: true, records: 0, checkpoints: 0 } : bad(0, 'the signing key is missing')
}

async function verifyUpTo(walk: Walk, first: Anchored): Promise<Verdict> {
  let { anchor } = first
  for (let round = 0; ; round++) {
    const verdict = await walk.toHead(anchor)
    if (verdict !== undefined) return verdict
    const next = await whatFollows(walk, anchor.head)
    if (next === 'forged')
      return bad(walk.verifier.count, 'it is beyond the signed head, and no writer was active')
    if (next === 'nothing' || round >= CATCH_UP_ROUNDS) return walk.good()
    anchor = next
  }
}

/**
 * Whether there are records beyond the head. An honest writer holds the lock from before it writes until the head has moved,
 * and a crashed one left the lock behind; so the order is: read the log, then the lock, then the head.
 */
async function whatFollows({ home, key }: Walk, head: Head): Promise<Anchor | 'nothing' | 'forged'> {
  for (let look = 0; look < 3; look++) {
    const beyond = hasLineBeyond(home, head)
    const locked = isLocked(pathsOf(home).lock)
    const next = parseAnchors(readAnchors(home) ?? '', key, 'skipped')
    if (typeof next === 'object' && next.anchor.head.count > head.count) return next.anchor
    if (!beyond || locked) return 'nothing'
    await pause(LOOK_AGAIN_MS)
  }
  return 'forged'
}

/** One pass over the log, which can continue when the head has moved. */
class Walk {
  readonly home: string
  readonly key: VerifyKey
  readonly verifier: ChainVerifier
  readonly #against: Head | undefined
  #at: Position = START

  constructor(home: string, key: VerifyKey, against: Head | undefined) {
    this.home = home
    this.key = key
    this.verifier = new ChainVerifier(key)
    this.#against = against
  }

  /** Continues to a position; returns the first invalid record on the way. */
  async to(end: Position): Promise<Verdict | undefined> {
    try {
      return await this.#walk(end)
    } catch (error) {
      if (isErrno(error, 'ELOOP'))
        return bad(this.verifier.count, 'its segment was replaced by a symbolic link')
      throw error
    }
  }

  async #walk(end: Position): Promise<Verdict | undefined> {
    const { verifier } = this
    for (const line of readLines(this.home, this.#at, end)) {
      // A partial line after the last head is a crash, not a record; before it, it is a truncation.
      if (line.at(-1) !== 10) return end === END ? undefined : bad(verifier.count, 'its line is truncated')
      const problem = verifier.push(line.subarray(0, -1))
      if (problem !== undefined) return bad(verifier.count, problem)
      if (this.#contradicted())
        return bad(verifier.count - 1, 'it is not the record that the head kept elsewhere covers')
      if (verifier.count % YIELD_EVERY === 0) await new Promise<void>((resolve) => setImmediate(resolve))
    }
    this.#at = end
    return undefined
  }

  /** Continues to a head, and compares the records with it. */
  async toHead(anchor: Anchor): Promise<Verdict | undefined> {
    const { head } = anchor
    const verdict = (await this.to(head)) ?? this.#headVerdict(head)
    if (verdict === undefined || verdict.ok) return verdict
    const first = firstRewritten(this.home, anchor, this.verifier.count)
    return first === undefined
      ? verdict
      : bad(first, 'it was rewritten: it is not the record that was signed')
  }

  good(): Verdict {
    const { count, checkpoints } = this.verifier
    if (this.#against && this.#against.count > count)
      return bad(count, `it is missing: the head kept elsewhere covers ${this.#against.count} records`)
    return { ok: true, records: count, checkpoints }
  }

  /** The chain is consistent, but no valid head covers its end. */
  unproven(problem: string): Verdict {
    return bad(this.verifier.vouched, `the signed head cannot be trusted from here on: ${problem}`)
  }

  #headVerdict(head: Head): Verdict | undefined {
    const { verifier } = this
    if (verifier.count < head.count)
      return bad(verifier.count, `it is missing: the signed head covers ${head.count} records`)
    const problem = verifier.headProblem(head)
    return problem === undefined ? undefined : bad(verifier.vouched, `the signed head disagrees: ${problem}`)
  }

  #contradicted(): boolean {
    return this.verifier.count === this.#against?.count && this.verifier.hash !== this.#against.hash
  }
}

/** The first record before `limit` that differs from what the head covers, if the stored hashes can tell. */
function firstRewritten(home: string, { head }: Anchor, limit: number): number | undefined {
  const leaves = readLeaves(home, head.count)
  if (leaves === undefined || rootOf(frontierOf(leaves)) !== head.root) return undefined
  let seq = 0
  for (const hash of hashesIn(home, limit)) {
    if (hash !== leaves[seq]) return seq
    seq += 1
  }
  return undefined
}

/** The hashes of the first `limit` records; they were found to match their content. */
function* hashesIn(home: string, limit: number): Generator<string, void> {
  if (limit === 0) return
  let left = limit
  for (const line of readLines(home, START, END)) {
    yield (JSON.parse(line.toString('latin1')) as TrailRecord).hash
    left -= 1
    if (left === 0) return
  }
}

function readLeaves(home: string, count: number): string[] | undefined {
  try {
    const bytes = readFileSync(pathsOf(home).leaves)
    return Array.from({ length: count }, (_, at) => bytes.toString('hex', at * 32, at * 32 + 32))
  } catch {
    return undefined
  }
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms))

const bad = (seq: number, problem: string): Verdict => ({ ok: false, seq, problem })
