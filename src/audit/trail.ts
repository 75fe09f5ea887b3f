import { closeSync, constants, ftruncateSync, openSync } from 'node:fs'
import { SandboxError } from '../model/errors.ts'
import type { Event, EventSink, Pace } from '../model/event.ts'
import { type Anchored, beginTrail, loadKey, parseAnchors, readAnchors, writeAnchor } from './anchor.ts'
import { type Batch, type BatchRules, batchOf, type Entry } from './batch.ts'
import type { SigningKey } from './chain.ts'
import {
  damaged,
  hasLineBeyond,
  type LastWrite,
  makeDirs,
  moveAside,
  openSettled,
  pathsOf,
  segmentPath,
  sizeOf,
  syncDir,
  unwritable,
  writeAll,
  writeSettled,
} from './files.ts'
import { createLock, type Lock } from './lock.ts'
import { EntryQueue } from './queue.ts'

const CHECKPOINT_EVERY = 1000
const SEGMENT_BYTES = 8 * 1024 * 1024
const LOCK_WAIT_MS = 10_000
const lastLogWrite: LastWrite = { ms: 0 }

/** Where the log is and how it is written. */
export type TrailOptions = {
  /** The state directory; created if absent. */
  readonly home: string
  readonly now?: () => Date
  readonly checkpointEvery?: number
  readonly segmentBytes?: number
  /** How long an append waits for other processes. */
  readonly lockWaitMs?: number
}

/** Opens the audit log of a state directory; creates it at first use. Reads the key, never the log. */
export async function openTrail(options: TrailOptions): Promise<AuditTrail> {
  const now = options.now ?? (() => new Date())
  try {
    const lock = createLock(pathsOf(options.home).lock)
    const key = loadKey(options.home) ?? (await beginOnce(options, lock, now))
    return new AuditTrail(options, { key, lock, now })
  } catch (error) {
    throw unwritable(error, options.home)
  }
}

async function beginOnce(options: TrailOptions, lock: Lock, now: () => Date): Promise<SigningKey> {
  makeDirs(options.home)
  await acquire(lock, options)
  try {
    return loadKey(options.home) ?? beginTrail(options.home, now().toISOString())
  } finally {
    lock.release()
  }
}

const turns = new Map<string, Promise<unknown>>()

/** Serializes the logs of one process, because the lock between processes can only be polled. */
async function inTurn<T>(home: string, work: () => Promise<T>): Promise<T> {
  const turn = (turns.get(home) ?? Promise.resolve()).then(work, work)
  turns.set(home, turn)
  try {
    return await turn
  } finally {
    if (turns.get(home) === turn) turns.delete(home)
  }
}

type Parts = { readonly key: SigningKey; readonly lock: Lock; readonly now: () => Date }
/** Writes the audit log. Several writers may be open on one state directory, in one or in many processes. */
export class AuditTrail implements EventSink {
  readonly #options: TrailOptions
  readonly #rules: BatchRules
  readonly #lock: Lock
  readonly #queue: EntryQueue
  #known: Anchored | undefined
  /** Whether a crash or a failed write may have left bytes beyond the head; the lock is kept until they are removed. */
  #owing = false

  constructor(options: TrailOptions, parts: Parts) {
    this.#options = options
    this.#lock = parts.lock
    this.#queue = new EntryQueue(
      (take, isAwaited) => inTurn(options.home, () => this.#commit(take(), isAwaited())),
      parts.now,
    )
    this.#rules = {
      key: parts.key,
      checkpointEvery: options.checkpointEvery ?? CHECKPOINT_EVERY,
      segmentBytes: options.segmentBytes ?? SEGMENT_BYTES,
    }
  }

  /** Resolves once the record is on disk and the signed head covers it; otherwise nothing was recorded. */
  append(event: Event, pace?: Pace): Promise<void> {
    return this.#queue.append(event, pace)
  }

  /** Appends a signed statement of everything before it. */
  checkpoint(): Promise<void> {
    return this.#queue.checkpoint()
  }

  /** Appends a final checkpoint. Calling it again has no effect. */
  async close(): Promise<void> {
    try {
      await this.#queue.close()
    } finally {
      if (this.#owing) this.#lock.release()
      this.#owing = false
    }
  }

  async #commit(entries: readonly Entry[], isAwaited: boolean): Promise<void> {
    try {
      if ((await acquire(this.#lock, this.#options)) === 'inherited') this.#owing = true
      try {
        const last = this.#settled()
        this.#owing = false
        await this.#write(last, batchOf(last.anchor, entries, this.#rules), isAwaited)
      } finally {
        // INVARIANT: bytes beyond the head exist only while the lock does; that is how `verify` distinguishes a crash
        // from a forged record.
        if (!this.#owing) this.#lock.release()
      }
    } catch (error) {
      throw unwritable(error, this.#options.home)
    }
  }

  /** The anchor of the last lock holder; moves aside what a crash left beyond it. */
  #settled(): Anchored {
    const { home } = this.#options
    if (sizeOf(pathsOf(home).store) !== undefined)
      throw new SandboxError('trail-unwritable', 'a server has moved the audit log to its store', {
        hint: 'run the command again',
      })
    const last = this.#readAnchor()
    const { head } = last.anchor
    const size = sizeOf(segmentPath(home, head.segment)) ?? 0
    if (size < head.offset) throw damaged(`it ends before record ${head.seq}, which was signed`)
    const next = segmentPath(home, head.segment + 1)
    const rolled = (sizeOf(next) ?? 0) > 0
    // SECURITY: without a crashed writer these were forged, or the head was rolled back; dropping them would hide it.
    if ((size > head.offset || rolled) && !this.#owing && hasLineBeyond(home, head))
      throw damaged(
        `there are records beyond the signed head, after record ${head.seq}, and no writer was active`,
      )
    if (size > head.offset) moveAside(home, segmentPath(home, head.segment), head.offset)
    if (rolled) moveAside(home, next, 0)
    return last
  }

  #readAnchor(): Anchored {
    const text = readAnchors(this.#options.home)
    if (text === undefined) throw damaged('the signed head is missing')
    if (this.#known?.text === text) return this.#known
    // Only a crashed writer may have left a half-written slot.
    const anchored = parseAnchors(text, this.#rules.key, this.#owing ? 'skipped' : 'refused')
    if (typeof anchored === 'string') throw damaged(`the signed head is not valid: ${anchored}`)
    return anchored
  }

  async #write(last: Anchored, batch: Batch, isAwaited: boolean): Promise<void> {
    const { home } = this.#options
    this.#owing = true
    await this.#writeLog(batch, isAwaited)
    noteLeaves(home, batch.leaves, batch.anchor.head.count)
    // INVARIANT: the head never runs ahead of the log, and no append resolves before the head has moved.
    // If this fails, a repair is still due: the head on disk decides which records stay.
    this.#known = await writeAnchor(home, last, batch.anchor, isAwaited)
    this.#owing = false
  }

  async #writeLog({ start, bytes, anchor }: Batch, isAwaited: boolean): Promise<void> {
    const { home } = this.#options
    const fd = openSettled(segmentPath(home, anchor.head.segment), start === 0 ? constants.O_CREAT : 0)
    try {
      await writeSettled(fd, bytes, start, { last: lastLogWrite, isAwaited })
      if (start === 0) syncDir(pathsOf(home).trail)
    } catch (error) {
      ftruncateSync(fd, start)
      this.#owing = false
      throw error
    } finally {
      closeSync(fd)
    }
  }
}

// They only make `verify` more precise and are checked against the signed root, so a failure here is harmless.
function noteLeaves(home: string, leaves: Buffer, count: number): void {
  try {
    const { O_WRONLY, O_CREAT, O_NOFOLLOW } = constants
    const fd = openSync(pathsOf(home).leaves, O_WRONLY | O_CREAT | O_NOFOLLOW, 0o600)
    try {
      writeAll(fd, leaves, count * 32 - leaves.length)
    } finally {
      closeSync(fd)
    }
  } catch {
    // See above.
  }
}

async function acquire(lock: Lock, { lockWaitMs = LOCK_WAIT_MS, home }: TrailOptions) {
  const deadline = performance.now() + lockWaitMs
  for (let pause = 1; ; pause = Math.min(pause * 2, 16)) {
    const acquired = lock.tryAcquire()
    if (acquired !== undefined) return acquired
    if (performance.now() > deadline) {
      throw new SandboxError(
        'trail-unwritable',
        `the audit log is locked by process ${lock.holderPid() ?? 'unknown'}`,
        {
          hint: `if that process hangs, end it; the lock is \`${pathsOf(home).lock}\``,
        },
      )
    }
    // Randomized pauses, so that many waiters do not retry at the same time.
    await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random())))
  }
}
