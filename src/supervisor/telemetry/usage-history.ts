import type { LiveSandbox } from '../live-sandbox.ts'

/** What a sandbox used at one time. */
export type UsageSample = {
  readonly at: number
  /** Average number of busy CPUs since the sample before. */
  readonly cpus: number
  readonly memoryBytes: number
  readonly diskBytes: number
}

type Series = {
  samples: UsageSample[]
  /** Time between two kept samples; doubles whenever the series is full, so that it always covers the whole life. */
  everyMs: number
  last: { readonly at: number; readonly cpuMs: number }
  diskBytes: number
  diskAt: number
}

const EVERY_MS = 5000
const MOST_SAMPLES = 240
/** The CPU of the host that sampling may use at most: this much time between two sandboxes. */
const PER_SANDBOX_MS = 20
/** How old a measured disk usage may be: when somebody asks, and for the samples that nobody asked for. */
const DISK_MS = 2000
const IDLE_DISK_MS = 60_000

/** Keeps a series of resource usage for each sandbox that it follows, from its start to its end. */
export class UsageHistory {
  readonly #diskOf: (id: string) => Promise<number | undefined>
  readonly #series = new Map<LiveSandbox, Series>()
  #timer: NodeJS.Timeout | undefined

  constructor(diskOf: (id: string) => Promise<number | undefined>) {
    this.#diskOf = diskOf
  }

  /** Starts to sample a sandbox; ends with the sandbox. */
  follow(entry: LiveSandbox): void {
    this.#of(entry)
  }

  /** The samples in a period; with a new one if the period includes the present. */
  async of(entry: LiveSandbox, from: number, to: number): Promise<readonly UsageSample[]> {
    const series = this.#of(entry)
    const now = Date.now()
    if (now <= to) {
      await this.#measureDisk(entry, series, DISK_MS)
      const latest = this.#take(entry, series)?.sample
      const kept = series.samples.filter(({ at }) => at >= from && at < (latest?.at ?? now))
      return latest && latest.at >= from ? [...kept, latest] : kept
    }
    return series.samples.filter(({ at }) => at >= from && at <= to)
  }

  #of(entry: LiveSandbox): Series {
    const known = this.#series.get(entry)
    if (known) return known
    const { createdAt } = entry.row
    const start = { at: createdAt, cpuMs: 0 }
    const series = { samples: [], everyMs: EVERY_MS, last: start, diskBytes: 0, diskAt: 0 }
    this.#series.set(entry, series)
    void entry.gone.then(() => this.#series.delete(entry))
    this.#timer ??= this.#next()
    return series
  }

  #next(): NodeJS.Timeout {
    const pause = Math.max(EVERY_MS, this.#series.size * PER_SANDBOX_MS)
    return setTimeout(() => void this.#round(), pause).unref()
  }

  async #round(): Promise<void> {
    for (const [entry, series] of [...this.#series]) {
      await this.#measureDisk(entry, series, IDLE_DISK_MS)
      if (Date.now() - (series.samples.at(-1)?.at ?? 0) >= series.everyMs) this.#keep(entry, series)
      await new Promise<void>((resolve) => setImmediate(resolve))
    }
    this.#timer = this.#series.size > 0 ? this.#next() : undefined
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

  /** A sample of now; the time since the last kept one is what its CPU use is an average of. */
  #take(
    entry: LiveSandbox,
    { last, diskBytes }: Series,
  ): { readonly sample: UsageSample; readonly cpuMs: number } | undefined {
    const usage = entry.state === 'ready' ? entry.sandbox?.usage() : undefined
    if (!usage) return undefined
    const at = Date.now()
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
