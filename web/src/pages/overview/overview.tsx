import { useMemo } from 'react'
import { Page } from '../../components/page.tsx'
import { useLiveData } from '../../data/live-context.ts'
import { useSandboxStatus } from '../../data/sandbox-status.ts'
import { useNow } from '../../data/use-now.ts'
import { formatCount } from '../../format.ts'
import { BlockedActions, isBlocked } from './blocked-actions.tsx'
import { NeedsAttention } from './needs-attention.tsx'
import { SandboxTable } from './sandbox-table.tsx'

const HOUR_MS = 3_600_000
const MINUTE_MS = 60_000

/** What needs a decision, what was blocked, and every sandbox. */
export function Overview() {
  const { approvals, reviews, sandboxes, records } = useLiveData()
  const now = useNow()
  const statusOf = useSandboxStatus()
  const executing = sandboxes.filter((sandbox) => statusOf(sandbox) === 'executing').length
  const waiting = approvals.length + reviews.length
  // Recomputed once a minute, not every second, because there may be thousands of records.
  const minute = Math.floor(now / MINUTE_MS)
  const blocked = useMemo(
    () => records.filter((one) => isBlocked(one) && Date.parse(one.time) > minute * MINUTE_MS - HOUR_MS),
    [records, minute],
  )
  return (
    <Page
      title="Overview"
      aside={
        <dl className="figures">
          <Figure name={sandboxes.length === 1 ? 'sandbox' : 'sandboxes'} value={sandboxes.length} />
          <Figure name="executing" value={executing} />
          <Figure name="need attention" value={waiting} isUrgent={waiting > 0} />
          <Figure name="blocked in the last hour" value={blocked.length} />
        </dl>
      }
    >
      {waiting > 0 && <NeedsAttention approvals={approvals} reviews={reviews} now={now} />}
      <BlockedActions records={blocked} now={now} lengthMs={HOUR_MS} />
      <SandboxTable />
    </Page>
  )
}

function Figure(props: { readonly name: string; readonly value: number; readonly isUrgent?: boolean }) {
  return (
    <div className={props.isUrgent ? 'figure urgent' : 'figure'}>
      <dt>{props.name}</dt>
      <dd>{formatCount(props.value)}</dd>
    </div>
  )
}
