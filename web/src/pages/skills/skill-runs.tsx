import type { SkillUsage } from '../../../../src/client/console-types.ts'
import type { TrailRecord } from '../../../../src/client/types.ts'
import { BarChart } from '../../components/bar-chart.tsx'
import { EmptyState } from '../../components/empty-state.tsx'
import { formatCount, formatMillis, plural } from '../../format.ts'

const MAX_BARS = 60

/** Totals of a skill's runs, and charts of the latest ones. */
export function SkillRuns(props: {
  readonly name: string
  readonly usage: SkillUsage | undefined
  /** Newest first. */
  readonly runs: readonly TrailRecord[]
}) {
  const { usage, runs } = props
  const latest = runs.slice(0, MAX_BARS).reverse()
  return (
    <div>
      <h3>Runs</h3>
      {usage ? (
        <p className="num">
          {plural(usage.runs, 'run')} · {formatCount(usage.fuel)} fuel · {formatMillis(usage.duration_ms)}
          {usage.violations > 0 && <span className="bad-text"> · ✕ {usage.violations} blocked</span>}
        </p>
      ) : (
        <EmptyState title="No runs yet" command={`ringfence skill run ${props.name}`} />
      )}
      {latest.length > 0 && (
        <div className="charts">
          <RunChart title="Fuel" field="fuel" runs={latest} />
          <RunChart title="Duration" field="duration_ms" runs={latest} />
        </div>
      )}
    </div>
  )
}

function RunChart(props: {
  readonly title: string
  readonly field: string
  readonly runs: readonly TrailRecord[]
}) {
  const { title, field, runs } = props
  return (
    <figure>
      <figcaption>{title}</figcaption>
      <BarChart
        values={runs.map((run) => Number(run[field] ?? 0))}
        failed={runs.map(({ outcome }) => outcome !== 'ok')}
        label={`${title} of the last ${plural(runs.length, 'run')}`}
      />
    </figure>
  )
}
