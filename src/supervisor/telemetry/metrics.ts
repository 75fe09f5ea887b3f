/** A small metrics registry in the Prometheus text format. */

type Labels = Readonly<Record<string, string>>

const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30] as const
/** SECURITY: labels are ours, but some contain names; a metric with this many series stops growing. */
const SERIES = 256

type Family = {
  readonly type: 'counter' | 'gauge' | 'histogram'
  readonly help: string
  readonly series: Map<string, { value: number; buckets?: number[]; count?: number }>
}

const keyOf = (labels: Labels): string =>
  Object.keys(labels)
    .sort()
    .map((name) => `${name}="${(labels[name] ?? '').replace(/[\\"\n]/g, '_')}"`)
    .join(',')

/** Counters, gauges and histograms in the Prometheus text format. */
export class Metrics {
  readonly #families = new Map<string, Family>()
  readonly #gauges: (() => void)[] = []

  /** Adds to a counter. */
  count(name: string, help: string, labels: Labels = {}, by = 1): void {
    const series = this.#series(name, 'counter', help, labels)
    if (series) series.value += by
  }

  gauge(name: string, help: string, labels: Labels, value: number): void {
    const series = this.#series(name, 'gauge', help, labels)
    if (series) series.value = value
  }

  /** Observes a duration in seconds. */
  observe(name: string, help: string, labels: Labels, seconds: number): void {
    const series = this.#series(name, 'histogram', help, labels)
    if (!series) return
    series.buckets ??= BUCKETS.map(() => 0)
    for (const [index, bound] of BUCKETS.entries())
      if (seconds <= bound) series.buckets[index] = (series.buckets[index] ?? 0) + 1
    series.count = (series.count ?? 0) + 1
    series.value += seconds
  }

  /** Calls the function before each scrape, for gauges that are looked up. */
  onRead(look: () => void): void {
    this.#gauges.push(look)
  }

  text(): string {
    for (const look of this.#gauges) look()
    return [...this.#families].map(([name, family]) => textOf(name, family)).join('')
  }

  #series(name: string, type: Family['type'], help: string, labels: Labels) {
    let family = this.#families.get(name)
    if (!family) {
      family = { type, help, series: new Map() }
      this.#families.set(name, family)
    }
    const key = keyOf(labels)
    let series = family.series.get(key)
    if (!series && family.series.size < SERIES) {
      series = { value: 0 }
      family.series.set(key, series)
    }
    return series
  }
}

function textOf(name: string, { type, help, series }: Family): string {
  const lines = [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`]
  for (const [labels, { value, buckets, count }] of series) {
    if (!buckets) {
      lines.push(`${name}${labels && `{${labels}}`} ${value}`)
      continue
    }
    const more = labels && `${labels},`
    for (const [index, bound] of BUCKETS.entries())
      lines.push(`${name}_bucket{${more}le="${bound}"} ${buckets[index]}`)
    lines.push(`${name}_bucket{${more}le="+Inf"} ${count}`)
    lines.push(`${name}_sum${labels && `{${labels}}`} ${value}`)
    lines.push(`${name}_count${labels && `{${labels}}`} ${count}`)
  }
  return `${lines.join('\n')}\n`
}
