import { useMemo } from 'react'
import type { TrailRecord } from '../../../src/client/types.ts'
import { clock, count, oneLine, shortId } from '../format.ts'
import { useSnapshot } from '../live.ts'
import { useNow } from '../load.ts'
import { setParams, useParam } from '../route.ts'
import { Timeline } from '../timeline.tsx'
import { Badge, Link, Page, Panel } from '../ui.tsx'
import { useStateWord } from '../waiting.ts'
import { NeedsYou } from './overview-needs.tsx'
import { Sandboxes } from './overview-sandboxes.tsx'

const HOUR_MS = 3_600_000

export const isViolation = (record: TrailRecord): boolean =>
  record.event === 'SandboxViolation' || (record.event === 'PolicyDecision' && record.action === 'deny')

/** What runs, what was stopped, and first of all what waits for a person. */
export function Overview() {
  const { approvals, reviews, sandboxes, records } = useSnapshot()
  const now = useNow()
  const wordOf = useStateWord()
  const needed = approvals.length + reviews.length
  const running = sandboxes.filter((one) => wordOf(one) === 'executing').length
  // Once a minute is often enough for what falls out of the hour.
  const edge = Math.floor(now / 60_000)
  const stopped = useMemo(
    () => records.filter((one) => isViolation(one) && Date.parse(one.time) > edge * 60_000 - HOUR_MS),
    [records, edge],
  )
  return (
    <Page
      title="Overview"
      aside={
        <dl className="figures">
          <Figure name="live" value={sandboxes.length} />
          <Figure name="busy" value={running} />
          <Figure name="waiting for you" value={needed} urgent={needed > 0} />
          <Figure name="stopped in the last hour" value={stopped.length} />
        </dl>
      }
    >
      {needed > 0 && <NeedsYou approvals={approvals} reviews={reviews} now={now} />}
      <Stopped records={stopped} now={now} />
      <Sandboxes />
    </Page>
  )
}

function Figure(props: { readonly name: string; readonly value: number; readonly urgent?: boolean }) {
  return (
    <div className={props.urgent ? 'figure urgent' : 'figure'}>
      <dt>{props.name}</dt>
      <dd>{count(props.value)}</dd>
    </div>
  )
}

/** The last hour as bars that can be brushed; what is in the brush is listed. */
function Stopped({ records, now }: { readonly records: readonly TrailRecord[]; readonly now: number }) {
  const [from] = useParam('from')
  const [to] = useParam('to')
  // Whatever somebody wrote into the address.
  const asked = /^\d{12,14}$/.test(from) && /^\d{12,14}$/.test(to) && Number(from) < Number(to)
  const brush = asked ? ([Number(from), Number(to)] as const) : undefined
  const shown = records.filter(
    ({ time }) => !brush || (Date.parse(time) >= brush[0] && Date.parse(time) <= brush[1]),
  )
  return (
    <Panel
      title="Stopped in the last hour"
      aside={
        brush ? (
          <button type="button" className="link" onClick={() => setParams({ from: '', to: '' })}>
            {clock(new Date(brush[0]).toISOString())} – {clock(new Date(brush[1]).toISOString())} · clear
          </button>
        ) : (
          <span className="dim">drag, or use the arrow keys, to look at a stretch</span>
        )
      }
    >
      <Timeline
        times={records.map(({ time }) => Date.parse(time))}
        end={Math.ceil(now / 60_000) * 60_000}
        lengthMs={HOUR_MS}
        brush={brush}
        onBrush={(next) => setParams({ from: next ? String(next[0]) : '', to: next ? String(next[1]) : '' })}
      />
      {shown.length > 0 ? (
        <ol className="stops">
          {shown
            .slice(-(brush ? 12 : 4))
            .reverse()
            .map((one) => (
              <li key={one.seq}>
                <time dateTime={one.time}>{clock(one.time)}</time>
                <Badge word={one.event === 'PolicyDecision' ? 'deny' : 'block'} />
                <span className="what">{oneLine(whatWasStopped(one))}</span>
                {typeof one.sandbox_id === 'string' && (
                  <Link to={`/sandboxes/${one.sandbox_id}`} className="mono dim">
                    {shortId(one.sandbox_id)}
                  </Link>
                )}
                <Link to={`/trail?seq=${one.seq}`} className="dim">
                  #{one.seq}
                </Link>
              </li>
            ))}
        </ol>
      ) : (
        <p className="dim quiet-line">
          Nothing was stopped{brush ? ' in this stretch' : ''}. Walls are quiet when agents keep to what they
          were given.
        </p>
      )}
    </Panel>
  )
}

function whatWasStopped(record: TrailRecord): string {
  if (record.event === 'PolicyDecision')
    return `${String(record.command ?? record.subject ?? '')}: ${String(record.reason ?? '')}`
  return `${String(record.guarantee ?? record.violation_type ?? '')}: ${String(record.details ?? '')}`
}
