import type { Approval, WaitingReview } from '../../../src/client/types.ts'
import { ago, counted, oneLine, shortId, span } from '../format.ts'
import { Link, Panel } from '../ui.tsx'

const MOST_SHOWN = 4

/** What waits for a person: commands that hold until somebody answers, and changes that nobody looked at yet. */
export function NeedsYou(props: {
  readonly approvals: readonly Approval[]
  readonly reviews: readonly WaitingReview[]
  readonly now: number
}) {
  const { approvals, reviews, now } = props
  return (
    <Panel
      title="Needs you"
      className="needs-you"
      aside={
        approvals.length > 0 && (
          <span className="dim for-keyboards">
            <kbd>g</kbd> <kbd>a</kbd> opens every question
          </span>
        )
      }
    >
      <ul className="asks" aria-label="Waiting for you">
        {approvals.slice(0, MOST_SHOWN).map((one) => (
          <li key={one.id}>
            <Ask one={one} now={now} />
          </li>
        ))}
        {reviews.slice(0, MOST_SHOWN).map((one) => (
          <li key={one.id}>
            <Left one={one} now={now} />
          </li>
        ))}
      </ul>
      <More approvals={approvals.length - MOST_SHOWN} reviews={reviews.slice(MOST_SHOWN)} />
    </Panel>
  )
}

function Ask({ one, now }: { readonly one: Approval; readonly now: number }) {
  return (
    <Link to={`/approvals/${one.id}`} className="ask-card">
      <code>{oneLine(one.command)}</code>
      <span className="why">{oneLine(one.decision.reason)}</span>
      <span className="dim">
        {one.agent_id ? oneLine(one.agent_id) : 'no agent named'} · asked {ago(one.asked_at, now)} ago ·{' '}
        {span(Math.max(0, Date.parse(one.expires_at) - now))} left
      </span>
    </Link>
  )
}

const nameOf = (one: WaitingReview): string => oneLine(one.metadata.name || shortId(one.id))
const waits = ({ changes }: WaitingReview): string =>
  changes === null ? 'changes wait' : `${counted(changes, 'change')} ${changes === 1 ? 'waits' : 'wait'}`

/** What a sandbox left behind that has ended. */
function Left({ one, now }: { readonly one: WaitingReview; readonly now: number }) {
  return (
    <Link to={`/sandboxes/${one.id}/changes`} className="ask-card">
      <span className="left-title">
        <strong>{waits(one)}</strong> <code>{nameOf(one)}</code>
      </span>
      <span className="why">Of a sandbox that has ended; not real yet</span>
      <span className="dim">
        {one.agent_id ? oneLine(one.agent_id) : 'no agent named'} · ended {ago(one.ended_at, now)} ago
        {one.reason && ` · ${oneLine(one.reason)}`}
      </span>
    </Link>
  )
}

/** The rest, on a line each: questions have a page of their own, changes are reached from here alone. */
function More(props: { readonly approvals: number; readonly reviews: readonly WaitingReview[] }) {
  const { approvals, reviews } = props
  return (
    <>
      {approvals > 0 && (
        <Link to="/approvals" className="more">
          and {counted(approvals, 'more question')}
        </Link>
      )}
      {reviews.length > 0 && (
        <details className="more">
          <summary>and the changes of {counted(reviews.length, 'more sandbox')}</summary>
          <ul className="more-left">
            {reviews.map((one) => (
              <li key={one.id}>
                <Link to={`/sandboxes/${one.id}/changes`}>
                  <code>{nameOf(one)}</code> <span className="dim">{waits(one)}</span>
                </Link>
              </li>
            ))}
          </ul>
        </details>
      )}
    </>
  )
}
