import { monotonicMs } from '../../host/clock.ts'
import type { Sample } from '../../model/api/console.ts'
import type { LiveSandbox } from '../live-sandbox.ts'

const EVERY_MS = 2000
const KEPT = 60
/** How many sandboxes are sampled before the event loop runs again. */
const SLICE = 40

type Series = { cpuMs: number; at: number; readonly samples: Sample[] }

/** Samples the resource usage of sandboxes while there are watchers. */
export class Samples {
  readonly #all: () => Iterable<LiveSandbox>
  readonly #series = new Map<string, Series>()
  readonly #listeners = new Set<() => void>()
  #timer: NodeJS.Timeout | undefined

  constructor(all: () => Iterable<LiveSandbox>) {
    this.#all = all
  }

  of(id: string): readonly Sample[] {
    return this.#series.get(id)?.samples ?? []
  }

  last(id: string): Sample | undefined {
    return this.#series.get(id)?.samples.at(-1)
  }

  /** Calls the listener after each round. The first watcher starts sampling, the last one stops it. */
  watch(listener: () => void): () => void {
    this.#listeners.add(listener)
    if (!this.#timer) this.#next(0)
    return () => {
      this.#listeners.delete(listener)
      if (this.#listeners.size > 0) return
      clearTimeout(this.#timer)
      this.#timer = undefined
    }
  }

  #next(ms: number): void {
    this.#timer = setTimeout(() => void this.#round(), ms)
    this.#timer.unref()
  }

  async #round(): Promise<void> {
    const entries = [...this.#all()]
    for (const [index, entry] of entries.entries()) {
      this.#take(entry)
      if (index % SLICE === SLICE - 1) await new Promise<void>((resolve) => setImmediate(resolve))
    }
    const alive = new Set(entries.map(({ id }) => id))
    for (const id of this.#series.keys()) if (!alive.has(id)) this.#series.delete(id)
    for (const listener of this.#listeners) listener()
    if (this.#timer) this.#next(Math.max(EVERY_MS, entries.length * 10))
  }

  #take({ id, sandbox, state }: LiveSandbox): void {
    const usage = state === 'ready' || state === 'paused' ? sandbox?.usage() : undefined
    if (!usage) return
    const now = monotonicMs()
    const series = this.#series.get(id) ?? { cpuMs: usage.cpuMs, at: now, samples: [] }
    const passed = now - series.at
    // The CPU time of a process that has ended is no longer counted; usage must not become negative.
    const cpu = passed > 0 ? Math.max(0, ((usage.cpuMs - series.cpuMs) / passed) * 100) : 0
    series.cpuMs = usage.cpuMs
    series.at = now
    series.samples.push([Math.round(cpu * 10) / 10, usage.memoryBytes])
    if (series.samples.length > KEPT) series.samples.shift()
    this.#series.set(id, series)
  }
}
