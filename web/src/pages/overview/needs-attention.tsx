import type { Approval, WaitingReview } from '../../../../src/client/types.ts'
import { Link } from '../../components/link.tsx'
import { Panel } from '../../components/panel.tsx'
import { formatDuration, plural, safeLine, shortId, timeSince } from '../../format.ts'

const SHOWN = 4

/** Pending approvals, and changes of ended sandboxes that nobody has reviewed. */
export function NeedsAttention(props: {
  readonly approvals: readonly Approval[]
  readonly reviews: readonly WaitingReview[]
  readonly now: number
}) {
  const { approvals, reviews, now } = props
  return (
    <Panel
      title="Needs attention"
      className="attention"
      aside={
        approvals.length > 0 && (
          <span className="dim keyboard-only">
            <kbd>g</kbd> <kbd>a</kbd> opens approvals
          </span>
        )
      }
    >
      <ul className="attention-list" aria-label="Needs attention">
        {approvals.slice(0, SHOWN).map((approval) => (
          <li key={approval.id}>
            <ApprovalCard approval={approval} now={now} />
          </li>
        ))}
        {reviews.slice(0, SHOWN).map((review) => (
          <li key={review.id}>
            <ReviewCard review={review} now={now} />
          </li>
        ))}
      </ul>
      <More approvals={approvals.length - SHOWN} reviews={reviews.slice(SHOWN)} />
    </Panel>
  )
}

const agentName = (agent: string | null): string => (agent ? safeLine(agent) : 'unnamed agent')

function ApprovalCard({ approval, now }: { readonly approval: Approval; readonly now: number }) {
  return (
    <Link to={`/approvals/${approval.id}`} className="attention-card">
      <code>{safeLine(approval.command)}</code>
      <span>{safeLine(approval.decision.reason)}</span>
      <span className="dim">
        {agentName(approval.agent_id)} · requested {timeSince(approval.asked_at, now)} ago · auto-rejects in{' '}
        {formatDuration(Math.max(0, Date.parse(approval.expires_at) - now))}
      </span>
    </Link>
  )
}

const sandboxName = ({ id, metadata }: WaitingReview): string => safeLine(metadata.name || shortId(id))
const pendingChanges = ({ changes }: WaitingReview): string =>
  changes === null ? 'Pending changes' : plural(changes, 'pending change')

function ReviewCard({ review, now }: { readonly review: WaitingReview; readonly now: number }) {
  return (
    <Link to={`/sandboxes/${review.id}/changes`} className="attention-card">
      <span className="attention-title">
        <strong>{pendingChanges(review)}</strong> <code>{sandboxName(review)}</code>
      </span>
      <span>Sandbox ended; changes not applied yet</span>
      <span className="dim">
        {agentName(review.agent_id)} · ended {timeSince(review.ended_at, now)} ago
        {review.reason && ` · ${safeLine(review.reason)}`}
      </span>
    </Link>
  )
}

/** The rest. Approvals have a page of their own; changes of ended sandboxes are listed only here. */
function More(props: { readonly approvals: number; readonly reviews: readonly WaitingReview[] }) {
  const { approvals, reviews } = props
  return (
    <>
      {approvals > 0 && (
        <Link to="/approvals" className="more">
          {plural(approvals, 'more approval')}
        </Link>
      )}
      {reviews.length > 0 && (
        <details className="more">
          <summary>Changes of {plural(reviews.length, 'more sandbox')}</summary>
          <ul className="more-list">
            {reviews.map((review) => (
              <li key={review.id}>
                <Link to={`/sandboxes/${review.id}/changes`}>
                  <code>{sandboxName(review)}</code> <span className="dim">{pendingChanges(review)}</span>
                </Link>
              </li>
            ))}
          </ul>
        </details>
      )}
    </>
  )
}
