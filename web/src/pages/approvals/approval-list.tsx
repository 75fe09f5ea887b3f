import type { Approval } from '../../../../src/client/types.ts'
import { Badge } from '../../components/badge.tsx'
import { Link } from '../../components/link.tsx'
import { useNow } from '../../data/use-now.ts'
import { formatDuration, safeLine, shortId, timeSince } from '../../format.ts'

export function ApprovalList(props: {
  readonly approvals: readonly Approval[]
  readonly selected: string | undefined
}) {
  const now = useNow()
  if (props.approvals.length === 0) return <p className="dim">No other approvals.</p>
  return (
    <ul className="approval-list panel" aria-label="Approvals">
      {props.approvals.map((approval) => (
        <li key={approval.id}>
          <Link to={`/approvals/${approval.id}${location.search}`} current={approval.id === props.selected}>
            <code>{safeLine(approval.command)}</code>
            <span className="line">
              <Badge word={approval.state} />
              <span className="dim">
                {approval.agent_id ? safeLine(approval.agent_id) : shortId(approval.sandbox_id)} ·{' '}
                {timing(approval, now)}
              </span>
            </span>
          </Link>
        </li>
      ))}
    </ul>
  )
}

const timing = ({ state, expires_at, asked_at }: Approval, now: number): string =>
  state === 'pending'
    ? `${formatDuration(Math.max(0, Date.parse(expires_at) - now))} left`
    : `${timeSince(asked_at, now)} ago`
