import type { TrailRecord } from '../../../../src/client/types.ts'
import { setParams, useParam } from '../../browser/route.ts'
import { Badge } from '../../components/badge.tsx'
import { Link, RecordLink } from '../../components/link.tsx'
import { Panel } from '../../components/panel.tsx'
import { rangeText, Timeline, type TimeRange } from '../../components/timeline.tsx'
import { useSandboxName } from '../../data/sandbox-status.ts'
import { formatTime, safeLine } from '../../format.ts'

const MINUTE_MS = 60_000
const SHOWN = 4
const SHOWN_IN_RANGE = 12

/** Whether a record says that policy or a sandbox blocked something. */
export const isBlocked = (record: TrailRecord): boolean =>
  record.event === 'SandboxViolation' || (record.event === 'PolicyDecision' && record.action === 'deny')

/** Blocked actions of the last hour on a timeline, and the latest of the selected time range as a list. */
export function BlockedActions(props: {
  readonly records: readonly TrailRecord[]
  readonly now: number
  readonly lengthMs: number
}) {
  const { records, now, lengthMs } = props
  const range = useSelectedRange()
  const shown = records.filter(({ time }) => isWithin(Date.parse(time), range))
  return (
    <Panel
      title="Blocked in the last hour"
      aside={
        range ? (
          <button type="button" className="link" onClick={() => selectRange(undefined)}>
            {rangeText(range)} · Clear
          </button>
        ) : (
          <span className="dim keyboard-only">Drag or use the arrow keys to select a time range</span>
        )
      }
    >
      <Timeline
        times={records.map(({ time }) => Date.parse(time))}
        end={Math.ceil(now / MINUTE_MS) * MINUTE_MS}
        lengthMs={lengthMs}
        range={range}
        onSelect={selectRange}
      />
      {shown.length > 0 ? (
        <BlockedList records={shown.slice(-(range ? SHOWN_IN_RANGE : SHOWN)).reverse()} />
      ) : (
        <p className="dim note">Nothing was blocked{range ? ' in this time range' : ''}.</p>
      )}
    </Panel>
  )
}

/** The range in the URL, if it is a valid one. */
function useSelectedRange(): TimeRange | undefined {
  const [from] = useParam('from')
  const [to] = useParam('to')
  const isValid = /^\d{12,14}$/.test(from) && /^\d{12,14}$/.test(to) && Number(from) < Number(to)
  return isValid ? [Number(from), Number(to)] : undefined
}

const selectRange = (range: TimeRange | undefined): void =>
  setParams({ from: range ? String(range[0]) : '', to: range ? String(range[1]) : '' })

const isWithin = (time: number, range: TimeRange | undefined): boolean =>
  !range || (time >= range[0] && time <= range[1])

function BlockedList({ records }: { readonly records: readonly TrailRecord[] }) {
  const nameOf = useSandboxName()
  return (
    <ol className="blocked-list">
      {records.map((record) => (
        <li key={record.seq}>
          <time dateTime={record.time}>{formatTime(record.time)}</time>
          <Badge word={record.event === 'PolicyDecision' ? 'deny' : 'block'} />
          <span className="details">{safeLine(describe(record))}</span>
          {typeof record.sandbox_id === 'string' && (
            <Link to={`/sandboxes/${record.sandbox_id}`} className="mono dim">
              {nameOf(record.sandbox_id)}
            </Link>
          )}
          <RecordLink seq={record.seq} />
        </li>
      ))}
    </ol>
  )
}

function describe(record: TrailRecord): string {
  if (record.event === 'PolicyDecision')
    return `${String(record.command ?? record.subject ?? '')}: ${String(record.reason ?? '')}`
  return `${String(record.guarantee ?? record.violation_type ?? '')}: ${String(record.details ?? '')}`
}
