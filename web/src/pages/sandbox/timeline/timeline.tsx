import type { ConsoleSandbox, UsageView } from '../../../../../src/client/console-types.ts'
import { EmptyState } from '../../../components/empty-state.tsx'
import { ErrorMessage, Loading } from '../../../components/page.tsx'
import { Panel } from '../../../components/panel.tsx'
import { useClient, useLiveData } from '../../../data/live-context.ts'
import { hasEnded } from '../../../data/sandbox-status.ts'
import { useLoad } from '../../../data/use-load.ts'
import { useNow } from '../../../data/use-now.ts'
import { formatDuration, formatTime, plural } from '../../../format.ts'
import { type Lane, lanesOf, type Mark, type Period, periodOf } from './lanes.ts'
import { UsageChart } from './usage-chart.tsx'

const RELOAD_MS = 5000
const MOST_RECORDS = 1000
const MB = 1024 * 1024

/** The life of a sandbox as a picture: commands, approvals, what was blocked, connections, CPU and memory. */
export function SandboxTimeline({ sandbox }: { readonly sandbox: ConsoleSandbox }) {
  const now = useNow()
  const { approvals } = useLiveData()
  const { value, error } = useLife(sandbox, now)
  if (!value) return error ? <ErrorMessage text={error} /> : <Loading />
  const period = periodOf(sandbox, now)
  const pending = approvals.filter(({ sandbox_id }) => sandbox_id === sandbox.id)
  const lanes = lanesOf(value.execs, value.records, pending, now)
  return (
    <Panel
      title="Timeline"
      aside={<span className="dim num">{formatDuration(period.to - period.from)}, from the start</span>}
    >
      <figure className="life" role="img" aria-label={describe(lanes)}>
        {lanes.map((lane) => (
          <EventLane key={lane.name} lane={lane} period={period} />
        ))}
        <UsageCharts usage={value.usage} period={period} />
        <TimeAxis period={period} />
      </figure>
      <Legend />
      {value.records.length === MOST_RECORDS && (
        <p className="dim">Shows the first {MOST_RECORDS} records; the rest are under Audit log.</p>
      )}
      <Events lanes={lanes} />
    </Panel>
  )
}

/** Loaded again with each record of the sandbox, and every few seconds while it lives. */
function useLife(sandbox: ConsoleSandbox, now: number) {
  const client = useClient()
  const { records } = useLiveData()
  const { id } = sandbox
  const last = records.findLast((one) => one.sandbox_id === id)?.seq ?? -1
  const tick = hasEnded(sandbox) ? 0 : Math.floor(now / RELOAD_MS)
  return useLoad(`life ${id} ${last} ${tick}`, async () => {
    const [execs, trail, usage] = await Promise.all([
      client.execs(id),
      client.trail({ sandbox_id: id, order: 'asc', limit: MOST_RECORDS }),
      client.usage(id),
    ])
    return { execs: execs.items, records: trail.items, usage: usage.items }
  })
}

const describe = (lanes: readonly Lane[]): string =>
  lanes.map(({ name, marks }) => `${name}: ${marks.length}`).join(', ')

function EventLane({ lane, period }: { readonly lane: Lane; readonly period: Period }) {
  return (
    <div className="lane">
      <div className="lane-name">
        {lane.name} <span className="dim num">{lane.marks.length}</span>
      </div>
      <div className="lane-body">
        {lane.marks.map((mark) => (
          <span
            key={mark.key}
            className={`mark ${mark.tone}${mark.from === mark.to ? ' moment' : ''}`}
            title={mark.text}
            style={{ left: percent(mark.from, period), width: widthOf(mark, period) }}
          />
        ))}
      </div>
    </div>
  )
}

const shareOf = (at: number, { from, to }: Period): number =>
  Math.min(1, Math.max(0, (at - from) / (to - from)))
const percent = (at: number, period: Period): string => `${(shareOf(at, period) * 100).toFixed(2)}%`
const widthOf = ({ from, to }: Mark, period: Period): string =>
  `${((shareOf(to, period) - shareOf(from, period)) * 100).toFixed(2)}%`

function UsageCharts({ usage, period }: { readonly usage: readonly UsageView[]; readonly period: Period }) {
  return (
    <>
      <UsageChart
        name="CPU"
        points={usage.map(({ at, cpus }) => [Date.parse(at), cpus * 100])}
        period={period}
        least={100}
        format={(value) => `${value}%`}
      />
      <UsageChart
        name="Memory"
        points={usage.map(({ at, memory_bytes }) => [Date.parse(at), memory_bytes / MB])}
        period={period}
        least={10}
        format={(value) => `${value} MB`}
      />
    </>
  )
}

const TICKS = [0, 0.25, 0.5, 0.75, 1]

function TimeAxis({ period: { from, to } }: { readonly period: Period }) {
  return (
    <div className="lane axis-lane" aria-hidden="true">
      <div className="lane-name" />
      <div className="lane-body ticks num dim">
        {TICKS.map((share) => (
          <span key={share}>{formatTime(from + share * (to - from))}</span>
        ))}
      </div>
    </div>
  )
}

const LEGEND = [
  ['good', 'succeeded, approved or allowed'],
  ['accent', 'running'],
  ['warn', 'waiting for an answer'],
  ['bad', 'failed, rejected or blocked'],
] as const

const Legend = () => (
  <ul className="legend dim">
    {LEGEND.map(([tone, text]) => (
      <li key={tone}>
        <span className={`mark ${tone}`} aria-hidden="true" /> {text}
      </li>
    ))}
  </ul>
)

const SHOWN = 50

/** The same events as text, newest first. */
function Events({ lanes }: { readonly lanes: readonly Lane[] }) {
  const events = lanes
    .flatMap(({ name, marks }) => marks.map((mark) => ({ ...mark, lane: name })))
    .sort((a, b) => b.from - a.from)
  if (events.length === 0)
    return <EmptyState title="Nothing has happened yet">Commands and connections appear here.</EmptyState>
  return (
    <details className="life-events">
      <summary>{plural(events.length, 'event')} as text</summary>
      <ol>
        {events.slice(0, SHOWN).map(({ key, lane, text }) => (
          <li key={`${lane} ${key}`}>
            <span className="dim">{lane}</span> <span className="wrap">{text}</span>
          </li>
        ))}
      </ol>
    </details>
  )
}
