import { useState } from 'react'
import type { Approval } from '../../../../src/client/types.ts'
import { useShortcuts } from '../../browser/keyboard.ts'
import { Badge, RuleTag } from '../../components/badge.tsx'
import { Button } from '../../components/button.tsx'
import { Link } from '../../components/link.tsx'
import { useIdentity, useLiveData } from '../../data/live-context.ts'
import { useNow } from '../../data/use-now.ts'
import { formatDuration, formatTime, safeLine, safeText, shortId } from '../../format.ts'
import { ApprovalDialog, type Choice } from './approval-dialogs.tsx'
import { CommandAccess } from './command-access.tsx'
import { CommandTree } from './command-tree.tsx'

/** One approval request: the command, why it needs approval, what it can access, and the decision. */
export function ApprovalDetail({ approval }: { readonly approval: Approval }) {
  const { command, cwd, decision } = approval
  return (
    <article className="approval panel" aria-label="Approval request">
      <Requester approval={approval} />
      <pre className="command">{safeText(command)}</pre>
      {!approval.host && (
        <p className="cwd dim">
          in <code>{safeLine(cwd)}</code>
        </p>
      )}
      <h3>Why approval is needed</h3>
      <p>
        <Badge word={decision.action} /> {safeLine(decision.reason)}{' '}
        {decision.rules.map((rule) => (
          <RuleTag key={rule} rule={rule} />
        ))}
      </p>
      {approval.host ? (
        <p className="dim">
          The connection waits for the answer. The name has not been looked up. Private and metadata addresses
          stay closed whatever the answer is.
        </p>
      ) : (
        <>
          <CommandTree commands={decision.commands} />
          <h3>What it can access</h3>
          <CommandAccess approval={approval} />
        </>
      )}
      {approval.state === 'pending' ? (
        <PendingDecision approval={approval} />
      ) : (
        <MadeDecision approval={approval} />
      )}
    </article>
  )
}

/** An approval about to expire is shown in red. */
const URGENT_MS = 60_000

function Requester({ approval }: { readonly approval: Approval }) {
  const now = useNow()
  const left = Math.max(0, Date.parse(approval.expires_at) - now)
  return (
    <div className="approval-head">
      <Badge word={approval.state} />
      <span className="dim">
        {approval.agent_id ? <strong>{safeLine(approval.agent_id)}</strong> : 'Unnamed agent'} in{' '}
        <Link to={`/sandboxes/${approval.sandbox_id}`}>{shortId(approval.sandbox_id)}</Link> · requested at{' '}
        {formatTime(approval.asked_at)}
      </span>
      {approval.state === 'pending' && (
        <span className={left < URGENT_MS ? 'expiry urgent' : 'expiry'}>
          auto-rejects in {formatDuration(left)}
        </span>
      )}
    </div>
  )
}

function PendingDecision({ approval }: { readonly approval: Approval }) {
  const { operator } = useIdentity()
  const [choice, setChoice] = useState<Choice | undefined>(undefined)
  const choose = (next: Choice) => (): void => {
    if (operator) setChoice(next)
  }
  useShortcuts([
    { keys: 'a', label: 'Approve once', run: choose('once') },
    ...(approval.host
      ? [{ keys: 's', label: 'Allow the host for this sandbox', run: choose('sandbox') }]
      : []),
    { keys: 'w', label: 'Always allow, with a change of the policy', run: choose('always') },
    { keys: 'r', label: 'Reject with a reason', run: choose('reject') },
  ])
  return (
    <>
      <div className="decision-bar" role="group" aria-label="Decision">
        <Button onClick={choose('once')} tone="primary" shortcut="a" disabled={!operator}>
          Approve once
        </Button>
        {approval.host && (
          <Button onClick={choose('sandbox')} shortcut="s" disabled={!operator}>
            Allow for this sandbox
          </Button>
        )}
        <Button onClick={choose('always')} shortcut="w" disabled={!operator}>
          Always allow…
        </Button>
        <Button onClick={choose('reject')} tone="danger" shortcut="r" disabled={!operator}>
          Reject…
        </Button>
        {!operator && <span className="dim">Requires a key with the admin scope</span>}
      </div>
      {choice && <ApprovalDialog approval={approval} choice={choice} onClose={() => setChoice(undefined)} />}
    </>
  )
}

function MadeDecision({ approval }: { readonly approval: Approval }) {
  const { records } = useLiveData()
  const record = records.findLast((one) => one.event === 'Approval' && one.approval_id === approval.id)
  return (
    <p className="decision" role="status">
      <Badge word={approval.state} />
      {approval.answered_at ? ` at ${formatTime(approval.answered_at)}` : ''}
      {approval.reason ? `: ${safeLine(approval.reason)}` : ''}
      {record && (
        <>
          {' · '}
          <Link to={`/trail?seq=${record.seq}`}>record #{record.seq}</Link>
        </>
      )}
    </p>
  )
}
