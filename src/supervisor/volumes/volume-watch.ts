import { monotonicMs } from '../../host/clock.ts'
import type { EventSink } from '../../model/event.ts'
import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'
import type { VolumeRow, Volumes } from './volumes.ts'

const EVERY_MS = 500
/** Counting takes at most this part of the time. */
const SHARE = 0.1
/** How many volumes are counted at a time. One that takes long rests for long afterwards. */
const AT_ONCE = 8
const MB = 1024 * 1024

type Parts = {
  readonly volumes: Pick<Volumes, 'written' | 'heldAndUsedBytes' | 'usersOf'>
  readonly trail: EventSink
  readonly end: (sandbox: LiveSandbox) => Promise<unknown>
}

/**
 * Holds volumes to their size: several sandboxes write to one volume, so no limit of a single sandbox does. A sandbox that has
 * a volume mounted read-write when the volume exceeds its size is ended.
 */
export class VolumeWatch {
  readonly #parts: Parts
  /** Volumes that are being counted, or were lately, and until when they are left alone. */
  readonly #resting = new Map<string, number>()
  #counting = 0
  #timer: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(parts: Parts) {
    this.#parts = parts
  }

  start(): void {
    this.#next()
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#timer)
  }

  #next(): void {
    if (this.#isClosed) return
    this.#timer = setTimeout(() => void this.#turn(), EVERY_MS)
    this.#timer.unref()
  }

  async #turn(): Promise<void> {
    await this.#start().catch(() => {})
    this.#next()
  }

  /** SECURITY: each volume by itself, so that one that takes long to count does not let the others grow. */
  async #start(): Promise<void> {
    const now = monotonicMs()
    for (const [id, until] of this.#resting) if (until <= now) this.#resting.delete(id)
    const due = (await this.#parts.volumes.written()).filter(({ id }) => !this.#resting.has(id))
    for (const row of due.slice(0, AT_ONCE - this.#counting)) void this.#check(row).catch(() => {})
  }

  async #check(row: VolumeRow): Promise<void> {
    const started = monotonicMs()
    this.#resting.set(row.id, Number.POSITIVE_INFINITY)
    this.#counting++
    try {
      const used = await this.#parts.volumes.heldAndUsedBytes(row)
      // SECURITY: a tree that takes too long to count is treated as too large.
      if (used === undefined || used > row.sizeMb * MB) await this.#endWriters(row, used)
    } finally {
      this.#counting--
      const ended = monotonicMs()
      this.#resting.set(row.id, ended + (ended - started) * (1 / SHARE - 1))
    }
  }

  async #endWriters(row: VolumeRow, used: number | undefined): Promise<void> {
    const what = used === undefined ? 'has too many files to be counted' : `holds ${Math.ceil(used / MB)} MB`
    const details = `volume \`${row.name}\` ${what}; its size is ${row.sizeMb} MB`
    for (const sandbox of this.#parts.volumes.usersOf(row, 'writers')) {
      if (!sandbox.sandbox) continue
      await this.#parts.trail.append({
        event: 'SandboxViolation',
        sandbox_id: sandbox.id,
        guarantee: 'limit.disk',
        violation_type: 'ResourceExhausted',
        details,
      })
      await this.#parts.end(sandbox)
    }
  }
}
