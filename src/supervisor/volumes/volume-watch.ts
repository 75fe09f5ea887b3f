import { monotonicMs } from '../../host/clock.ts'
import type { EventSink } from '../../model/event.ts'
import type { LiveSandbox } from '../live-sandbox.ts'
import type { VolumeRow, Volumes } from './volumes.ts'

const EVERY_MS = 500
/** Counting takes at most this part of the time. */
const SHARE = 0.1
const MB = 1024 * 1024

type Parts = {
  readonly volumes: Volumes
  readonly trail: EventSink
  readonly end: (sandbox: LiveSandbox) => Promise<unknown>
}

/**
 * Holds volumes to their size: several sandboxes write to one volume, so no limit of a single sandbox does. A sandbox that has
 * a volume mounted read-write when the volume exceeds its size is ended.
 */
export class VolumeWatch {
  readonly #parts: Parts
  #timer: NodeJS.Timeout | undefined
  #isClosed = false

  constructor(parts: Parts) {
    this.#parts = parts
  }

  start(): void {
    this.#next(EVERY_MS)
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#timer)
  }

  #next(ms: number): void {
    if (this.#isClosed) return
    this.#timer = setTimeout(() => void this.#turn(), ms)
    this.#timer.unref()
  }

  async #turn(): Promise<void> {
    const started = monotonicMs()
    await this.round().catch(() => {})
    this.#next(Math.max(EVERY_MS, (monotonicMs() - started) / SHARE))
  }

  /** Counts every volume that is written now. */
  async round(): Promise<void> {
    for (const row of await this.#parts.volumes.written()) {
      const used = await this.#parts.volumes.usedBytes(row)
      // SECURITY: a tree that takes too long to count is treated as too large.
      if (used === undefined || used > row.sizeMb * MB) await this.#endWriters(row, used)
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
