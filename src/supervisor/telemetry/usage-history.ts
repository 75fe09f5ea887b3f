import type { Sample } from '../../model/api/console.ts'
import type { LiveSandbox } from '../lifecycle/live-sandbox.ts'

/** What a sandbox used at one time. */
export type UsageSample = {
  readonly at: number
  /** Average number of busy CPUs since the sample before. */
  readonly cpus: number
  readonly memoryBytes: number
  readonly diskBytes: number
}

type Moment = { readonly at: number; readonly cpuMs: number }

type Series = {
  samples: UsageSample[]
  /** Time between two kept samples; doubles whenever the series is full, so that it always covers the whole life. */
  everyMs: number
  last: Moment
  /** Of each round, for those who watch. */
  readonly recent: Sample[]
  lastRecent: Moment
  /** Whether the rounds measure the disk, which means walking through directories. */
  measuresDisk: boolean
  diskBytes: number
  diskAt: number
}

const EVERY_MS = 5000
const WATCHED_EVERY_MS = 2000
const MOST_RECENT = 60
/** Series of ended sandboxes that are kept. */
const MOST_ENDED = 200
const MOST_SAMPLES = 240
/** The CPU of the host that sampling may use at most: this much time between two sandboxes. */
const PER_SANDBOX_MS = 20
const WATCHED_PER_SANDBOX_MS = 10
/** How many sandboxes are sampled before the event loop runs again. */
const SLICE = 40
/** How old a measured disk usage may be: when somebody asks, and for the samples that nobody asked for. */
const DISK_MS = 2000
const IDLE_DISK_MS = 60_000

/** Keeps a series of resource usage for each sandbox that it follows, from its start to its end. */
export class UsageHistory {
  readonly #diskOf: (id: string) => Promise<number | undefined>
  readonly #series = new Map<LiveSandbox, Series>()
  readonly #byId = new Map<string, Series>()
  readonly #ended = new Map<string, readonly UsageSample[]>()
  readonly #listeners = new Set<() => void>()
  #timer: NodeJS.Timeout | undefined
  #isSampling = false

  constructor(diskOf: (id: string) => Promise<number | undefined>) {
    this.#diskOf = diskOf
  }

  /** Starts to sample a sandbox; ends with the sandbox. */
  follow(entry: LiveSandbox, { disk = false }: { readonly disk?: boolean } = {}): void {
    this.#of(entry).measuresDisk ||= disk
  }

  /** Calls the listener after each round; rounds are more frequent while anybody watches. */
  watch(listener: () => void): () => void {
    this.#listeners.add(listener)
    if (this.#listeners.size === 1) this.#roundSoon()
    return () => this.#listeners.delete(listener)
  }

  /** The samples of the latest rounds. */
  recent(id: string): readonly Sample[] {
    return this.#byId.get(id)?.recent ?? []
  }

  /** The whole life of a sandbox so far, or of one that has ended lately. */
  lifeOf(id: string): readonly UsageSample[] {
    return this.#byId.get(id)?.samples ?? this.#ended.get(id) ?? []
  }

  /** The samples in a period; with a new one if the period includes the present. */
  async of(entry: LiveSandbox, from: number, to: number): Promise<readonly UsageSample[]> {
    const series = this.#of(entry)
    const now = Date.now()
    if (now <= to) {
      await this.#measureDisk(entry, series, DISK_MS)
      const kept = series.samples.filter(({ at }) => at >= from)
      // CPU use is an average over time, so there is none at the very moment of the last kept sample.
      const latest = Date.now() > series.last.at ? this.#take(entry, series)?.sample : undefined
      return latest && latest.at >= from ? [...kept, latest] : kept
    }
    return series.samples.filter(({ at }) => at >= from && at <= to)
  }

  #of(entry: LiveSandbox): Series {
    const known = this.#series.get(entry)
    if (known) return known
    const { createdAt } = entry.row
    const start = { at: createdAt, cpuMs: 0 }
    const series: Series = {
      ...{ samples: [], everyMs: EVERY_MS, last: start, recent: [], lastRecent: start },
      ...{ measuresDisk: false, diskBytes: 0, diskAt: 0 },
    }
    this.#series.set(entry, series)
    this.#byId.set(entry.id, series)
    void entry.gone.then(() => this.#end(entry, series))
    this.#timer ??= this.#next()
    return series
  }

  #end(entry: LiveSandbox, { samples }: Series): void {
    this.#series.delete(entry)
    this.#byId.delete(entry.id)
    this.#ended.set(entry.id, samples)
    if (this.#ended.size > MOST_ENDED) this.#ended.delete(this.#ended.keys().next().value as string)
  }

  #next(): NodeJS.Timeout {
    const isWatched = this.#listeners.size > 0
    const [every, each] = isWatched ? [WATCHED_EVERY_MS, WATCHED_PER_SANDBOX_MS] : [EVERY_MS, PER_SANDBOX_MS]
    return setTimeout(() => void this.#round(), Math.max(every, this.#series.size * each)).unref()
  }

  /** A round that runs at this moment ends with a shorter pause by itself. */
  #roundSoon(): void {
    if (this.#isSampling || this.#series.size === 0) return
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => void this.#round(), 0).unref()
  }

  async #round(): Promise<void> {
    this.#isSampling = true
    for (const [index, [entry, series]] of [...this.#series].entries()) {
      if (series.measuresDisk) await this.#measureDisk(entry, series, IDLE_DISK_MS)
      this.#sample(entry, series)
      if (index % SLICE === SLICE - 1) await new Promise<void>((resolve) => setImmediate(resolve))
    }
    this.#isSampling = false
    for (const listener of this.#listeners) listener()
    this.#timer = this.#series.size > 0 ? this.#next() : undefined
  }

  /** Adds to the recent samples, and to those that are kept if it is time. */
  #sample(entry: LiveSandbox, series: Series): void {
    const taken = this.#take(entry, series, series.lastRecent)
    if (!taken) return
    const { at, cpus, memoryBytes } = taken.sample
    series.lastRecent = { at, cpuMs: taken.cpuMs }
    series.recent.push([Math.round(cpus * 1000) / 10, memoryBytes])
    if (series.recent.length > MOST_RECENT) series.recent.shift()
    if (at - (series.samples.at(-1)?.at ?? 0) >= series.everyMs) this.#keep(entry, series)
  }

  #keep(entry: LiveSandbox, series: Series): void {
    const taken = this.#take(entry, series)
    if (!taken) return
    series.last = { at: taken.sample.at, cpuMs: taken.cpuMs }
    series.samples.push(taken.sample)
    if (series.samples.length < MOST_SAMPLES) return
    series.samples = series.samples.filter((_, index) => index % 2 === 1)
    series.everyMs *= 2
  }

  /** A sample of now; its CPU use is the average since `last`, by default the last kept one. */
  #take(
    entry: LiveSandbox,
    { diskBytes, last: lastKept }: Series,
    last = lastKept,
  ): { readonly sample: UsageSample; readonly cpuMs: number } | undefined {
    const isOpen = entry.state === 'ready' || entry.state === 'paused'
    const usage = isOpen ? entry.sandbox?.usage() : undefined
    if (!usage) return undefined
    const at = Date.now()
    // The CPU time of a process that has ended may no longer be counted; usage must not become negative.
    const cpus = Math.max(0, usage.cpuMs - last.cpuMs) / Math.max(1, at - last.at)
    const sample = { at, cpus, memoryBytes: usage.memoryBytes, diskBytes: usage.diskBytes ?? diskBytes }
    return { sample, cpuMs: usage.cpuMs }
  }

  async #measureDisk({ id, sandbox }: LiveSandbox, series: Series, maxAgeMs: number): Promise<void> {
    // A disk of its own tells by itself.
    if (Date.now() - series.diskAt < maxAgeMs || sandbox?.plan.root) return
    series.diskAt = Date.now()
    series.diskBytes = (await this.#diskOf(id).catch(() => undefined)) ?? series.diskBytes
  }
}
